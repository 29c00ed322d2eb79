"""What a vendor's event does to the sandboxes it runs: ended ones end here, paused ones let go.

An event counts once: its id is claimed in the transaction of what it does, so one that is delivered
twice, or to two brokers at once, does nothing the second time. A sandbox nobody knows here is no
error, since a vendor tells of all of an account's.
"""

from __future__ import annotations

from typing import Any, Literal

import sqlalchemy as sa

from daypass_broker import db, revocation, sandbox, schema
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.webhook import VendorEvent

Effect = Literal["ended", "paused", "ignored", "repeated"]

_LIVING = ("idle", "active", "revoked")


def note(act: Act, vendor: str, event: VendorEvent) -> Effect:
    """Do what an event asks for; the act was opened with `revocation.lock_version`."""
    rows = _sandboxes(act, vendor, event.sandbox) if event.kind != "other" else []
    if not _claim(act, vendor, event, rows):
        return "repeated"
    if not rows or event.kind == "other":
        return "ignored"
    for row in rows:
        if event.kind == "ended":
            sandbox.close(act, row, f"vendor:{vendor}")
        else:
            _pause(act, row, vendor)
    return event.kind


def _sandboxes(act: Act, vendor: str, ident: str) -> list[sa.Row[Any]]:
    table = schema.sandbox
    living = table.c.state.in_(_LIVING)
    mine = (table.c.vendor == vendor) & (table.c.vendor_id == ident) & living
    return list(
        act.conn.execute(sa.select(table).where(mine).order_by(table.c.id).with_for_update())
    )


def _claim(act: Act, vendor: str, event: VendorEvent, rows: list[sa.Row[Any]]) -> bool:
    return db.insert_once(
        act.conn,
        schema.vendor_event,
        vendor=vendor,
        event=event.ident,
        sandbox=rows[0].id if rows else None,
        received_at=act.at,
    )


def _pause(act: Act, row: sa.Row[Any], vendor: str) -> None:
    """End the live tokens of a sandbox whose memory now lies in its vendor's store.

    Its credential stays: when it goes on, its next call is answered like an expired token, and it
    fetches a new one.
    """
    tokens = schema.token.c
    live = sa.select(tokens.jti, tokens.exp).where(
        tokens.sandbox == row.id, tokens.exp > act.second
    )
    ended = act.conn.execute(live.order_by(tokens.jti)).all()
    for token in ended:
        # It may have bought hundreds: no row stays a day for what is over within the hour.
        until = token.exp + sandbox.LINGER_SECONDS
        revocation.append(act, "jti", token.jti, None, "sandbox paused", until=until)
    sandbox.tell(act, AuditTag.SANDBOX_PAUSED, row, {"vendor": vendor, "tokens": len(ended)})
