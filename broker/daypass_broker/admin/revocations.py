"""`/v1/revocations`: made, and listed; there is no undoing one but restoring the sandbox."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from daypass_broker import revocation, times
from daypass_broker.admin.call import Answer, Call, take_limit
from daypass_broker.fields import Fields
from daypass_broker.revocation import GLOBAL_IDENT
from daypass_broker.revoke import Order, revoke
from daypass_core.revocation import SCOPES


def create(call: Call) -> Answer:
    """Revoke."""
    order = _order(Fields(call.json()))
    with call.acting(revocation.lock_version) as act:
        effect = revoke(act, call.principal, order)
    marked = {"sandboxes": effect.sandboxes, "grants": effect.grants}
    return Answer({**_view(effect.row), "effect": marked}, 201)


def search(call: Call) -> Answer:
    """List revocations, newest first."""
    query = call.query()
    limit = take_limit(query)
    query.done()
    with call.reading() as conn:
        version = revocation.current_version(conn)
        rows = revocation.newest(conn, call.principal.tenant, limit=limit)
    return Answer({"revocations": [_view(row) for row in rows], "version": version})


def _order(fields: Fields) -> Order:
    scope = fields.must("scope", fields.text("scope", choices=SCOPES))
    ident = fields.text("ident")
    not_before = fields.raw("not_before")
    reason = fields.text("reason") or ""
    fields.done()
    if scope == "global":
        if ident is not None:
            raise fields.error("ident", "must be left out for scope global")
        ident = GLOBAL_IDENT
    return Order(scope, fields.must("ident", ident), _second(fields, not_before), reason)


def _second(fields: Fields, value: object) -> int | None:
    """Read `not_before`; now is None, to be read from the store's clock under the lock."""
    if value is None or value == "now":
        return None
    try:
        return times.parse_second(value)
    except ValueError as error:
        raise fields.error("not_before", f'{error}, or "now"') from None


def _view(row: sa.Row[Any]) -> dict[str, object]:
    return {
        "id": row.id,
        "scope": row.scope,
        "ident": None if row.scope == "global" else row.ident,
        "not_before": None if row.not_before is None else times.format_second(row.not_before),
        "expires_at": times.format_second(row.expires_at),
        "reason": row.reason,
        "actor": row.actor,
        "created_at": times.format_ms(row.created_at),
        "version": row.version,
    }
