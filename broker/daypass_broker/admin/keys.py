"""`/v1/keys`: which keys sign, which did and which will; rotated by admins.

A key is killed by revoking it (scope `kid`): the brokers make another one by themselves.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from daypass_broker import key_rotation, times
from daypass_broker.admin.call import Answer, Call
from daypass_broker.fields import Fields
from daypass_broker.keys import KeyRingError, Purpose
from daypass_core.problem import Code, refuse


def search(call: Call) -> Answer:
    """List keys, newest first."""
    call.require_admin()
    query = call.query()
    purpose = query.text("purpose", choices=tuple(Purpose))
    query.done()
    return Answer({"keys": _views(call, purpose)})


def rotate(call: Call) -> Answer:
    """Prepare the next key of a purpose, or let the prepared one sign at once."""
    call.require_admin()
    fields = Fields(call.json())
    purpose = Purpose(fields.text("purpose", choices=tuple(Purpose)) or Purpose.ACCESS)
    at_once = fields.flag("now") or False
    fields.done()
    try:
        call.services.keys.rotate(purpose, call.acting, at_once=at_once)
    except KeyRingError as error:
        raise refuse(Code.SIGNING_UNAVAILABLE, str(error)) from None
    return Answer({"keys": _views(call, purpose)})


def _views(call: Call, purpose: str | None) -> list[dict[str, object]]:
    with call.reading() as conn:
        rows, revoked = key_rotation.read(conn)
    wanted = [row for row in reversed(rows) if purpose in (None, row.purpose)]
    return [_view(row, revoked) for row in wanted]


def _view(row: sa.Row[Any], revoked: frozenset[str]) -> dict[str, object]:
    moments = {
        "created_at": row.created_at,
        "usable_at": row.usable_at,
        "activated_at": row.activated_at,
        "retired_at": row.retired_at,
        "verifies_until": key_rotation.verifies_until(row),
    }
    return {
        "kid": row.kid,
        "purpose": row.purpose,
        "state": row.state,
        "revoked": row.kid in revoked,
        "store": row.store,
        "reference": row.reference,
        **{name: None if ms is None else times.format_ms(ms) for name, ms in moments.items()},
    }
