"""What nothing refers to any more: sandboxes that ended long ago, old incidents, dead revocations.

A sandbox goes with its grants, lineages and accounts once none of its calls is in the database; the
sums of its calls stay in its tenant's account. One that came by a federation rule stays: its row is
what keeps its workload from enrolling a second time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from daypass_broker import db, revocation, schema
from daypass_broker.act import SYSTEM, acting
from daypass_broker.retention.batches import delete_in_batches, paced, reading
from daypass_core.ids import new_id

_FIRST = 20
_SECONDS = 60
_FIRST_KEY = (0, "")


def incidents_due(engine: sa.Engine, until: int) -> int:
    """Return how many incidents are of a minute before `until` (epoch milliseconds)."""
    with reading(engine) as conn:
        query = sa.select(sa.func.count()).select_from(schema.incident).where(_old(until))
        return int(conn.execute(query).scalar_one())


def prune_incidents(engine: sa.Engine, until: int) -> int:
    """Delete the incidents of minutes before `until`; return how many. Raises StoreUnavailable."""
    return delete_in_batches(engine, schema.incident, _old(until))


def prune_revocations(engine: sa.Engine) -> int:
    """Delete revocations that can end nothing any more; return how many.

    Raises StoreUnavailable.
    """
    with acting(engine, SYSTEM, new_id, lock=revocation.lock_version) as act:
        return revocation.prune(act)


def sandboxes_due(engine: sa.Engine, until: int) -> int:
    """Return how many sandboxes would go; see `prune_sandboxes`."""
    with reading(engine) as conn:
        query = sa.select(sa.func.count()).select_from(schema.sandbox)
        return int(conn.execute(query.where(_over(until), *_unused())).scalar_one())


def prune_sandboxes(engine: sa.Engine, until: int) -> int:
    """Delete the sandboxes that were over before `until` (epoch milliseconds) and left no calls.

    Return how many. Raises StoreUnavailable.
    """
    column, size, total, after = schema.sandbox.c, _FIRST, 0, _FIRST_KEY
    while True:
        # Past those that have to stay: they are looked at once a run.
        key = sa.tuple_(column.deadline, column.id)
        some = sa.select(column.deadline, column.id).where(_over(until), key > sa.tuple_(*after))
        with reading(engine) as conn:
            page = conn.execute(some.order_by(column.deadline, column.id).limit(size)).all()
        if not page:
            return total
        after = (page[-1].deadline, page[-1].id)
        with db.begin(engine) as conn:
            began = time.monotonic()
            total += _delete(conn, [row.id for row in page], until)
        size = paced(size, time.monotonic() - began)


def _delete(conn: sa.Connection, candidates: Sequence[str], until: int) -> int:
    column = schema.sandbox.c
    query = sa.select(column.id).where(column.id.in_(candidates), _over(until), *_unused())
    # Locked first, as whoever issues or restores does: nothing is issued to it meanwhile.
    ids = list(conn.execute(query.with_for_update()).scalars())
    if not ids:
        return 0
    accounts = sa.select(schema.account.c.id).where(schema.account.c.sandbox.in_(ids))
    carried = schema.usage_carried
    conn.execute(sa.delete(carried).where(carried.c.account.in_(accounts)))
    for table in (schema.account, schema.lineage, schema.grant_):
        conn.execute(sa.delete(table).where(table.c.sandbox.in_(ids)))
    return conn.execute(sa.delete(schema.sandbox).where(column.id.in_(ids))).rowcount


def _over(until: int) -> sa.ColumnElement[bool]:
    row = schema.sandbox.c
    return (
        row.state.in_(("ended", "revoked"))
        & (row.deadline < until // 1000)
        & (row.created_at < until)
        & row.rule.is_(None)
    )


def _unused() -> tuple[sa.ColumnElement[bool], ...]:
    """Say in SQL that nothing refers to a sandbox but what goes with it."""
    own, account = schema.sandbox.c.id, schema.account.c
    busy: Any = (account.open_calls > 0) | (account.reserved_nano > 0) | (account.sliced == 1)
    return (
        ~sa.exists().where(schema.usage.c.sandbox == own),
        ~sa.exists().where(schema.token.c.sandbox == own),
        ~sa.exists().where(account.sandbox == own, account.kind != "tenant", busy),
    )


def _old(until: int) -> sa.ColumnElement[bool]:
    return schema.incident.c.minute < until // 1000 // _SECONDS
