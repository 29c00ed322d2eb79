"""What ends by itself: sandboxes whose time is over, slices of grants, rows of no more use.

Every broker does this every few seconds. Several at once are safe: an end is decided under the
version row of revocations, which one of them holds at a time, and the one that comes second finds
nothing left to do. Nothing is locked for an end or a slice while none is due.
"""

from __future__ import annotations

import sqlalchemy as sa

from daypass_broker import db, idempotency, life, revocation, sandbox, schema, slices
from daypass_broker.act import SYSTEM, Act
from daypass_broker.services import Services
from daypass_core.log import event, get_logger

log = get_logger(__name__)

REAP_SECONDS = 5.0
"""How often sandboxes are looked at: one outlives its heartbeat by no more than this."""
PRUNE_SECONDS = 60.0
KEEP_EVENTS_MS = 48 * 3600 * 1000
"""Longer than the oldest webhook that is accepted, so that none counts twice."""
KEEP_TOKENS_SECONDS = 25 * 3600
"""Counted from their end: as long as a revocation that names one is listed, and an hour."""
_BATCH = 100
_ROWS = 10_000
# Clocks of brokers and of an assertion's issuer may differ by less.
_LEEWAY_SECONDS = 60


def reap(services: Services) -> int:
    """End every sandbox whose deadline or heartbeat has passed, and return how many.

    Raises StoreUnavailable.
    """
    ended, batch = 0, -1
    while batch and _is_any_due(services):
        with db.begin(services.engine) as conn:
            revocation.lock_version(conn)
            batch = _end_some(_act(services, conn))
        ended += batch
    if ended:
        event(log, "sandboxes_reaped", count=ended)
    return ended


def give_back(services: Services) -> int:
    """Give back what is left of the slices of grants that are over; return how many slices.

    Raises StoreUnavailable.
    """
    returned, batch = 0, -1
    while batch and _is_any_slice_over(services):
        with db.begin(services.engine) as conn:
            batch = slices.give_back(_act(services, conn))
        returned += batch
    return returned


def prune(services: Services) -> int:
    """Delete assertions, vendor events, idempotency keys and tokens that are over; return how many.

    Of a token the audit trail keeps that it was issued.

    Raises StoreUnavailable.
    """
    with db.begin(services.engine) as conn:
        act = _act(services, conn)
        over = (
            schema.assertion.c.expires_at < act.second - _LEEWAY_SECONDS,
            schema.vendor_event.c.received_at < act.at - KEEP_EVENTS_MS,
            schema.idempotency.c.created_at < act.at - idempotency.KEEP_MS,
            schema.token.c.exp < act.second - KEEP_TOKENS_SECONDS,
        )
        tables = (schema.assertion, schema.vendor_event, schema.idempotency, schema.token)
        return sum(
            _delete_some(act, table, which) for table, which in zip(tables, over, strict=True)
        )


def _act(services: Services, conn: sa.Connection) -> Act:
    return Act(conn, SYSTEM, services.now_ms(conn), services.new_id)


def _is_any_due(services: Services) -> bool:
    with db.read(services.engine) as conn:
        due = sa.select(schema.sandbox.c.id).where(life.overdue(services.now_ms(conn))).limit(1)
        return conn.execute(due).first() is not None


def _is_any_slice_over(services: Services) -> bool:
    with db.read(services.engine) as conn:
        second = services.now_ms(conn) // 1000
        return conn.execute(slices.over(second).limit(1)).first() is not None


def _end_some(act: Act) -> int:
    table = schema.sandbox
    due = sa.select(table).where(life.overdue(act.at)).order_by(table.c.id).limit(_BATCH)
    rows = act.conn.execute(due.with_for_update()).all()
    for row in rows:
        sandbox.close(act, row, life.cause(row, act.at))
    return len(rows)


def _delete_some(act: Act, table: sa.Table, which: sa.ColumnElement[bool]) -> int:
    """Delete some of these rows: what has piled up while no broker ran must not time out."""
    key = sa.tuple_(*table.primary_key.columns)
    some = sa.select(*table.primary_key.columns).where(which).limit(_ROWS)
    return act.conn.execute(sa.delete(table).where(key.in_(some))).rowcount
