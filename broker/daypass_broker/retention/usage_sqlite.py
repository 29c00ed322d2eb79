"""A month of usage on SQLite: frozen by a row, exported, and deleted a small batch at a time.

Each batch is one transaction that carries the sums of its rows over and deletes them, so the books
are right after any of them. A batch is as large as may be done in a moment, and then the file is
left alone for at least as long: its one lock is what every call needs.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from daypass_broker import db, schema
from daypass_broker.retention import Pruned, RetentionError, Say, carry, exports, usage
from daypass_broker.retention.batches import paced
from daypass_broker.retention.months import Month

_FIRST = 20
_ROWID: sa.Label[int] = sa.literal_column("usage.rowid", sa.BigInteger).label("row_number")


def prune_month(engine: sa.Engine, month: Month, until: int, directory: Path, say: Say) -> Pruned:
    """Freeze, export and delete one month; see `usage`. `until` is the first moment that is kept.

    Raises RetentionError, StoreUnavailable and OSError.
    """
    with db.read(engine) as conn:
        reason = usage.reason_to_keep(conn, month, until)
    if reason is not None:
        return Pruned(month, kept=reason)
    with db.begin(engine) as conn:
        usage.freeze(conn, month)
        known = usage.record(conn, month)
    assert known is not None
    if known.sha256 is None:
        numbers, calls, cost_nano = _export(engine, month, directory, say)
    else:
        # Killed while it deleted: some of what the file holds is still here, and nothing else is.
        if not exports.is_there(directory, known.file, known.sha256):
            raise RetentionError(
                f"{known.file}, which {month.name} was exported to, is not in this directory: name"
                " the one it is in"
            )
        say(f"usage {month.name}: was exported to {known.file}, going on")
        numbers = _numbers(engine, month)
        calls, cost_nano = known.calls, known.cost_nano
    _delete(engine, month, numbers)
    with db.begin(engine) as conn:
        pruned = usage.note_pruned(conn, month, calls, cost_nano)
    say(f"usage {month.name}: deleted")
    return pruned


def _export(
    engine: sa.Engine, month: Month, directory: Path, say: Say
) -> tuple[array[int], int, int]:
    """Export a month; return the numbers of its rows, and what they come to."""
    fold, numbers = carry.Fold({}), array("q")
    with db.read(engine) as conn:

        def rows() -> Iterator[dict[str, object]]:
            for row in usage.rows_of(conn, month, _ROWID):
                columns = dict(row._mapping)
                numbers.append(columns.pop("row_number"))
                fold.add(columns)
                yield columns

        export = exports.write(directory, f"usage-{month.name}", rows())
    usage.exported(directory, month, export, fold.cost_nano, fold.tokens)
    with db.begin(engine) as conn:
        usage.note_export(conn, month, export, fold.cost_nano, fold.tokens)
    say(f"usage {month.name}: exported {fold.calls} calls to {export.file}")
    return numbers, fold.calls, fold.cost_nano


def _numbers(engine: sa.Engine, month: Month) -> array[int]:
    with db.read(engine) as conn:
        return array("q", (row.row_number for row in usage.rows_of(conn, month, _ROWID)))


def _delete(engine: sa.Engine, month: Month, numbers: array[int]) -> None:
    size, done = _FIRST, 0
    while done < len(numbers):
        batch = numbers[done : done + size].tolist()
        with db.begin(engine) as conn:
            began = time.monotonic()
            _delete_batch(conn, month, batch)
        done += len(batch)
        size = paced(size, time.monotonic() - began)


def _delete_batch(conn: sa.Connection, month: Month, numbers: list[int]) -> None:
    table = schema.usage
    these = sa.literal_column("rowid").in_(numbers)
    rows = conn.execute(sa.select(table).select_from(table).where(these)).mappings().all()
    accounts = {account for row in rows for account in row["accounts"].split(" ")}
    fold = carry.Fold(carry.windows_of(conn, accounts))
    for row in rows:
        fold.add(row)
    fold.save(conn, month.until)
    conn.execute(sa.delete(table).where(these))
