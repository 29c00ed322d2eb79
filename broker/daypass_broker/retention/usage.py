"""Months of usage: which may go, and the three steps of one that does.

Frozen (nothing of it changes any more, and its row in `usage_pruned` says so), exported, dropped
with its sums carried over. Each step commits by itself; who is killed between two leaves a state in
which every account can be recomputed, and the next run goes on from it. How rows are frozen and
dropped differs by store: `usage_postgres`, `usage_sqlite`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from daypass_broker import db, schema
from daypass_broker.act import SYSTEM
from daypass_broker.audit import AuditTag, append
from daypass_broker.retention import Pruned, exports
from daypass_broker.retention.exports import Export
from daypass_broker.retention.months import Month

_PORTION = 2_000
# The months that have a part: to find them in the rows would be to read all of those.
_PARTS = """
SELECT substr(relname, 7) FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
WHERE inhparent = to_regclass('usage') AND relname ~ '^usage_[0-9]{4}_[0-9]{2}$'
"""


def months_before(conn: sa.Connection, until: int) -> list[Month]:
    """Return the months that have usage rows and end no later than `until` (epoch milliseconds).

    Also those that were frozen and never pruned. From the oldest.
    """
    if conn.dialect.name == "postgresql":
        names = conn.execute(sa.text(_PARTS)).scalars()
        parts = [Month.named(name.replace("_", "-")) for name in names]
        found = [one for one in parts if one.until <= until and _has_rows(conn, one)]
        found += _months_in(conn, sa.table("usage_default", sa.column("started_at")), until)
    else:
        found = _months_in(conn, schema.usage, until)
    table = schema.usage_pruned.c
    frozen = sa.select(table.month_at, table.until_at).where(table.pruned_at.is_(None))
    return sorted({*found, *(Month(*row) for row in conn.execute(frozen))})


def _months_in(conn: sa.Connection, table: sa.FromClause, until: int) -> list[Month]:
    started = table.c.started_at
    found: list[Month] = []
    while True:
        # One look for each month, at what is later than the one before.
        after = found[-1].until if found else -1
        later = (started < until) & (started >= after)
        first = conn.execute(sa.select(sa.func.min(started)).where(later)).scalar()
        if first is None:
            return found
        found.append(Month.of(first))


def _has_rows(conn: sa.Connection, month: Month) -> bool:
    started = schema.usage.c.started_at
    within = (started >= month.start) & (started < month.until)
    return conn.execute(sa.select(started).where(within).limit(1)).first() is not None


def reason_to_keep(conn: sa.Connection, month: Month, until: int) -> str | None:
    """Return why a month has to stay for now, None if it may go.

    `until` is the first moment that is kept: a bill that came since may still count somewhere.
    """
    column = schema.usage.c
    within = (column.started_at >= month.start) & (column.started_at < month.until)
    still_open = sa.select(sa.func.count()).where(within, column.state == "open")
    if count := conn.execute(still_open).scalar_one():
        return f"{count} calls are open: a proxy settles them once their leases are over"
    latest = conn.execute(sa.select(sa.func.max(column.settled_at)).where(within)).scalar()
    if latest is not None and latest >= until:
        return "a bill of it came late, in a month that is kept"
    return None


def rows_of(conn: sa.Connection, month: Month, *columns: Any) -> Iterator[sa.Row[Any]]:
    """Yield the settled rows of a month, oldest first, a portion of them in memory at a time."""
    table = schema.usage
    within = (table.c.started_at >= month.start) & (table.c.started_at < month.until)
    query = (
        sa.select(table, *columns)
        .where(within, table.c.state == "settled")
        .order_by(table.c.started_at, table.c.id)
        .execution_options(stream_results=True, yield_per=_PORTION)
    )
    yield from conn.execute(query)


def record(conn: sa.Connection, month: Month) -> sa.Row[Any] | None:
    """Return the row of a month in `usage_pruned`, None without one."""
    table = schema.usage_pruned
    return conn.execute(sa.select(table).where(table.c.month_at == month.start)).first()


def freeze(conn: sa.Connection, month: Month) -> None:
    """Say in `usage_pruned` that a month is being pruned; again if rows of it came afterwards."""
    row = db.insert(conn, schema.usage_pruned).values(
        month_at=month.start, until_at=month.until, frozen_at=db.now_ms(conn)
    )
    again = {"pruned_at": None, "file": None, "sha256": None}
    table = schema.usage_pruned.c
    conn.execute(
        row.on_conflict_do_update(
            index_elements=["month_at"], set_=again, where=table.pruned_at.is_not(None)
        )
    )


def exported(directory: Path, month: Month, export: Export, cost_nano: int, tokens: int) -> None:
    """Write the manifest of an exported month. Raises OSError."""
    about = {"kind": "usage", "month": month.name, "from_ms": month.start, "until_ms": month.until}
    about |= {"cost_nano": cost_nano, "tokens": tokens}
    exports.write_manifest(directory, export, about)


def note_export(
    conn: sa.Connection, month: Month, export: Export, cost_nano: int, tokens: int
) -> None:
    """Say in `usage_pruned` what was exported; sums of an earlier pruning of the month remain."""
    table = schema.usage_pruned
    conn.execute(
        sa.update(table)
        .where(table.c.month_at == month.start)
        .values(
            calls=table.c.calls + export.rows,
            cost_nano=table.c.cost_nano + cost_nano,
            tokens=table.c.tokens + tokens,
            file=export.file,
            sha256=export.sha256,
        )
    )


def note_pruned(conn: sa.Connection, month: Month, calls: int, cost_nano: int) -> Pruned:
    """Say that a month is gone, in `usage_pruned` and in the audit trail."""
    table = schema.usage_pruned
    now = db.now_ms(conn)
    done = sa.update(table).where(table.c.month_at == month.start).values(pruned_at=now)
    row = conn.execute(done.returning(table)).one()
    detail = {"calls": calls, "cost_nano": cost_nano, "file": row.file, "sha256": row.sha256}
    append(conn, AuditTag.USAGE_PRUNED, SYSTEM, at=now, subject=month.name, detail=detail)
    return Pruned(month, calls, cost_nano, row.file, row.sha256)


def totals(conn: sa.Connection, month: Month) -> tuple[int, int]:
    """Return how many settled calls a month has, and what they cost in nano-dollars."""
    column = schema.usage.c
    within = (column.started_at >= month.start) & (column.started_at < month.until)
    cost = sa.func.coalesce(sa.func.sum(column.cost_nano), 0)
    query = sa.select(sa.func.count(), cost).where(within, column.state == "settled")
    calls, nano = conn.execute(query).one()
    return int(calls), int(nano)
