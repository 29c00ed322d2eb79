"""A month of usage on PostgreSQL: a partition, which is frozen, exported, and dropped at once.

Only two moments lock anything that calls need, each for milliseconds: a constraint that refuses
every row freezes the partition, and detaching it needs the table by itself. Both wait for their
lock a little while at a time, because whoever waits for such a lock makes all others wait too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from daypass_broker import db
from daypass_broker.retention import Pruned, RetentionError, Say, carry, exports, usage
from daypass_broker.retention.batches import reading
from daypass_broker.retention.months import Month

T = TypeVar("T")

LOCK_MS = 100
"""How long a lock that calls need is waited for at a time."""
_PAUSE_SECONDS = 0.5
_TRIES = 240
_LOCK_NOT_AVAILABLE = "55P03"
_FROZEN = "ck_usage_frozen"


class _Opened(Exception):
    """A call of the month is open after all."""


def prune_month(engine: sa.Engine, month: Month, until: int, directory: Path, say: Say) -> Pruned:
    """Freeze, export and drop one month; see `usage`. `until` is the first moment that is kept.

    Raises RetentionError when a lock cannot be had, StoreUnavailable and OSError.
    """
    with reading(engine) as conn:
        reason = usage.reason_to_keep(conn, month, until)
    if reason is not None:
        return Pruned(month, kept=reason)
    part = _patient(lambda: _freeze(engine, month), say)
    if part is None:
        return Pruned(month, kept="a call of it was opened just now")
    with reading(engine) as conn:
        fold = carry.Fold(carry.windows_since(conn, month.start))

        def rows() -> Iterator[dict[str, object]]:
            for row in usage.rows_of(conn, month):
                fold.add(row._mapping)
                yield dict(row._mapping)

        export = exports.write(directory, f"usage-{month.name}", rows())
    usage.exported(directory, month, export, fold.cost_nano, fold.tokens)
    say(f"usage {month.name}: exported {fold.calls} calls to {export.file}")

    def drop() -> Pruned:
        with unhurried(engine) as conn:
            fold.save(conn, month.until)
            usage.note_export(conn, month, export, fold.cost_nano, fold.tokens)
            pruned = usage.note_pruned(conn, month, fold.calls, fold.cost_nano)
            conn.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_MS}")
            conn.exec_driver_sql(f"ALTER TABLE usage DETACH PARTITION {part}")
            conn.exec_driver_sql(f"DROP TABLE {part}")
            return pruned

    pruned = _patient(drop, say)
    say(f"usage {month.name}: dropped")
    return pruned


@contextmanager
def unhurried(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a write transaction that may take as long as it needs; locks are not waited for so."""
    with db.begin(engine) as conn:
        conn.exec_driver_sql("SET LOCAL statement_timeout = 0")
        conn.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield conn


def _freeze(engine: sa.Engine, month: Month) -> str | None:
    """Let nothing of a month be changed from now on; return its partition, None if one is open."""
    part = f"usage_{month.name.replace('-', '_')}"
    with suppress(_Opened), unhurried(engine) as conn:
        # What the catch-all holds of it, after months in which no broker ran, is moved there.
        conn.execute(sa.text("SELECT daypass_make_usage_partition(:month)"), {"month": month.start})
        conn.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_MS}")
        constraint = sa.text(
            "SELECT 1 FROM pg_constraint WHERE conname = :name AND conrelid = to_regclass(:part)"
        )
        frozen = conn.execute(constraint, {"name": _FROZEN, "part": part}).first() is not None
        if not frozen:
            conn.exec_driver_sql(
                f"ALTER TABLE {part} ADD CONSTRAINT {_FROZEN} CHECK (false) NOT VALID"
            )
        still_open = sa.text(f"SELECT EXISTS (SELECT FROM {part} WHERE state = 'open')")  # noqa: S608
        if conn.execute(still_open).scalar_one():
            if frozen:
                raise RetentionError(f"{part} is frozen and has an open call; tell us how that was")
            raise _Opened
        usage.freeze(conn, month)
        return part
    return None


def _patient(work: Callable[[], T], say: Say) -> T:
    """Do what needs a lock that calls need too, again after a pause while it cannot be had."""
    for number in range(_TRIES):
        try:
            return work()
        except db.StoreUnavailable as error:
            cause = getattr(error.__cause__, "orig", None)
            if getattr(cause, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
        if number == 0:
            say("waiting for a moment in which nobody reads all of usage")
        time.sleep(_PAUSE_SECONDS)
    raise RetentionError(
        "somebody reads all of usage for minutes, so that no month of it can be dropped; what was"
        " done is consistent: run it again later"
    )
