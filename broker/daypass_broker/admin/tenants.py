"""`/v1/tenants`: which there are, and the way back after one was revoked.

What a tenant may have is in the policy; how it comes to be revoked, in `revocations`.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from daypass_broker import db, revocation, tenant, times
from daypass_broker.admin.call import Answer, Call


def search(call: Call) -> Answer:
    """List tenants by name; an orchestrator sees its own."""
    call.query().done()
    with call.reading() as conn:
        return Answer({"tenants": [_view(row) for row in tenant.search(conn, call.principal)]})


def restore(call: Call) -> Answer:
    """Take the revocation of a tenant back."""
    call.require_no_body()
    with call.acting(revocation.share_version) as act:
        row = tenant.restore(act, call.principal, call.id)
    return Answer(_view(row))


def _view(row: sa.Row[Any]) -> dict[str, object]:
    return {
        "id": row.id,
        "state": row.state,
        "profiles": db.from_json(row.profiles),
        "active_sandboxes": row.sandboxes,
        "created_at": times.format_ms(row.created_at),
        "updated_at": times.format_ms(row.updated_at),
    }
