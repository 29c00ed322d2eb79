"""`/v1/revocations`: made, and listed; undone only by restoring the sandbox or tenant it ended.

A revocation that could not be stored has ended nothing, so it is refused in words that cannot be
taken for anything else. Repeating one is harmless, so that is what they say to do, also where
nobody knows whether it was stored.
"""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa

from daypass_broker import db, revocation, times
from daypass_broker.admin.call import Answer, Call, take_limit
from daypass_broker.fields import Fields
from daypass_broker.revocation import GLOBAL_IDENT
from daypass_broker.revoke import Effect, Order, Target, revoke
from daypass_core.log import event, get_logger
from daypass_core.problem import Code, refuse
from daypass_core.revocation import SCOPES

log = get_logger(__name__)

NOT_STORED = "revocation was NOT stored and has ended nothing"
IN_DOUBT = "it is NOT known whether the revocation was stored; take it as not stored"


def create(call: Call) -> Answer:
    """Revoke."""
    effect = carry_out(call, _order(Fields(call.json())))
    return Answer(view(effect), 201)


def carry_out(call: Call, order: Order, known: Target | None = None) -> Effect:
    """Revoke in a transaction of its own; raises Refusal, also when the store does not answer.

    `known` is as for `revoke.revoke`.
    """
    try:
        with call.acting(revocation.lock_version) as act:
            return revoke(act, call.principal, order, known)
    except db.StoreUnavailable as error:
        in_doubt = isinstance(error, db.StoreInDoubt)
        event(
            log,
            "revocation_not_stored",
            level=logging.ERROR,
            scope=order.scope,
            in_doubt=in_doubt,
            cause=str(error),
        )
        raise refuse(
            Code.STORE_UNAVAILABLE,
            IN_DOUBT if in_doubt else NOT_STORED,
            hint="repeat it until it is confirmed: revoking twice is harmless",
        ) from None


def view(effect: Effect) -> dict[str, object]:
    """Return a revocation just made, with what it ended, as it goes on the wire."""
    counts = ("tenants", "sandboxes", "grants", "tokens")
    return {**_view(effect.row), "effect": {name: getattr(effect, name) for name in counts}}


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
    return Order(
        scope,
        fields.must("ident", ident),
        _second(fields, not_before),
        reason,
        bounded=not_before is not None,
    )


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
