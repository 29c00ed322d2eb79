"""Our side on PostgreSQL: one read-only snapshot. Imported only where psycopg is installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from daypass_proxy import postgres
from daypass_proxy.ledger import schema
from daypass_proxy.reconcile import Unreadable

if TYPE_CHECKING:
    from daypass_proxy.reconcile.booked import Query

_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_LOCK_MS = 5_000


@contextmanager
def snapshot(database_url: str, statement_ms: int) -> Iterator[Query]:
    """Open the database read-only; statements run for `statement_ms` at most, raises Unreadable."""
    try:
        with postgres.connect(
            database_url, name="daypass reconcile", lock_ms=_LOCK_MS, statement_ms=statement_ms
        ) as connection:
            if (objection := schema.of_postgres(connection)) is not None:
                raise Unreadable(f"cannot read PostgreSQL: {objection}")
            connection.execute(_SNAPSHOT)
            # Before the snapshot: a month that is dropped is gone for every snapshot at once.
            connection.execute(b"LOCK TABLE usage IN ACCESS SHARE MODE")

            def query(statement: str, values: Sequence[object]) -> list[Sequence[Any]]:
                written = statement.replace("?", "%s").encode()
                return list(connection.execute(written, values).fetchall())

            yield query
    except psycopg.Error as error:
        raise Unreadable(f"cannot read PostgreSQL: {postgres.reason(error)}") from None
