"""The snapshot that `verify` reads of a PostgreSQL database; rows come in portions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg

from daypass_proxy import postgres
from daypass_proxy.ledger import schema
from daypass_proxy.ledger.store import Unreadable

_SESSION = "-c default_transaction_read_only=on -c default_transaction_isolation=repeatable\\ read"
_LOCK_MS, _STATEMENT_MS = 5_000, 60_000


@contextmanager
def snapshot(url: str, *queries: str) -> Iterator[tuple[Iterable[tuple[Any, ...]], ...]]:
    """Give the rows of some queries as of one moment; raises Unreadable, also later on."""
    try:
        postgres.parse(url)
    except ValueError as error:
        raise Unreadable(f"the database url {error}") from None
    try:
        with postgres.connect(
            url,
            name="daypass-verify",
            lock_ms=_LOCK_MS,
            statement_ms=_STATEMENT_MS,
            session=_SESSION,
        ) as connection:
            if (objection := schema.of_postgres(connection)) is not None:
                raise Unreadable(objection)
            with connection.transaction(), ExitStack() as cursors:
                # Before the snapshot: a month that is dropped is gone for every snapshot at once.
                connection.execute(b"LOCK TABLE usage IN ACCESS SHARE MODE")
                found = [
                    cursors.enter_context(connection.cursor(f"rows_{number}"))
                    for number in range(len(queries))
                ]
                for cursor, query in zip(found, queries, strict=True):
                    cursor.itersize = 5_000
                    cursor.execute(query.encode())
                yield tuple(found)
    except psycopg.Error as error:
        raise Unreadable(postgres.reason(error)) from error
