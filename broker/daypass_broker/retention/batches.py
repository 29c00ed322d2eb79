"""Deleting many rows beside calls that go on, and reading for long: the same for both stores."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from daypass_broker import db

BATCH_SECONDS = 0.02
"""How long a batch may hold what it locks; on SQLite that is the whole file."""
_FIRST, _LEAST, _MOST = 20, 10, 500


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a read transaction whose statements may take as long as they need."""
    with db.read(engine) as conn:
        if conn.dialect.name == "postgresql":
            conn.exec_driver_sql("SET LOCAL statement_timeout = 0")
            conn.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield conn


def delete_in_batches(engine: sa.Engine, table: sa.Table, which: sa.ColumnElement[bool]) -> int:
    """Delete rows in the order of their keys, each batch in a transaction; return how many.

    Raises StoreUnavailable: what was deleted by then is.
    """
    key = sa.tuple_(*table.primary_key.columns)
    size = deleted = _FIRST
    total = 0
    while deleted:
        some = sa.select(*table.primary_key.columns).where(which)
        some = some.order_by(*table.primary_key.columns).limit(size)
        with db.begin(engine) as conn:
            began = time.monotonic()
            deleted = conn.execute(sa.delete(table).where(key.in_(some))).rowcount
        size = paced(size, time.monotonic() - began)
        total += deleted
    return total


def paced(size: int, took: float) -> int:
    """Leave the store alone for as long as a batch took (seconds); return how large the next is."""
    time.sleep(max(took, BATCH_SECONDS / 4))
    return max(_LEAST, min(_MOST, int(size * min(BATCH_SECONDS / max(took, 1e-6), 2.0))))
