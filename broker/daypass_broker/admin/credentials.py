"""`/v1/credentials`: given out once, listed without their secret, revoked; by admins."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from daypass_broker import credential, times
from daypass_broker.admin.call import Answer, Call
from daypass_broker.credential import Role
from daypass_broker.fields import Fields


def create(call: Call) -> Answer:
    """Make a credential; this answer is the only place its text ever appears."""
    call.require_admin()
    fields = Fields(call.json())
    role = fields.must("role", fields.text("role", choices=tuple(Role)))
    orchestrator = fields.name("orchestrator")
    fields.done()
    with call.acting() as act:
        issued = credential.issue(act, Role(role), orchestrator)
    body = {
        "id": issued.id,
        "role": issued.role,
        "orchestrator": issued.orchestrator,
        "tenant": issued.tenant,
        "credential": issued.text,
        "created_at": times.format_ms(act.at),
    }
    return Answer(body, 201)


def search(call: Call) -> Answer:
    """List credentials, oldest first."""
    call.require_admin()
    call.query().done()
    with call.reading() as conn:
        rows = credential.rows(conn)
    return Answer({"credentials": [_view(row) for row in rows]})


def revoke(call: Call) -> Answer:
    """End a credential."""
    call.require_admin()
    call.require_no_body()
    with call.acting() as act:
        credential.revoke(act, call.id)
        row = credential.get(act.conn, call.id)
    return Answer(_view(row))


def _view(row: sa.Row[Any]) -> dict[str, object]:
    revoked_at = None if row.revoked_at is None else times.format_ms(row.revoked_at)
    return {
        "id": row.id,
        "role": row.role,
        "orchestrator": row.orchestrator,
        "tenant": row.tenant,
        "created_at": times.format_ms(row.created_at),
        "revoked_at": revoked_at,
    }
