"""The snapshot that `verify` reads of a PostgreSQL database; rows come in portions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from daypass_proxy import postgres
from daypass_proxy.ledger.store import Unreadable

_SESSION = "-c default_transaction_read_only=on -c default_transaction_isolation=repeatable\\ read"
_LOCK_MS, _STATEMENT_MS = 5_000, 60_000


@contextmanager
def snapshot(
    url: str, *queries: str
) -> Iterator[tuple[Iterable[tuple[Any, ...]], Iterable[tuple[Any, ...]]]]:
    """Give the rows of two queries as of one moment; raises Unreadable, also later on."""
    try:
        postgres.parse(url)
    except ValueError as error:
        raise Unreadable(f"the database url {error}") from None
    try:
        with (
            postgres.connect(
                url,
                name="daypass-verify",
                lock_ms=_LOCK_MS,
                statement_ms=_STATEMENT_MS,
                session=_SESSION,
            ) as connection,
            connection.transaction(),
            connection.cursor("accounts") as accounts,
            connection.cursor("rows") as rows,
        ):
            first, second = queries
            accounts.execute(first.encode())
            rows.itersize = 5_000
            rows.execute(second.encode())
            yield accounts, rows
    except psycopg.Error as error:
        raise Unreadable(postgres.reason(error)) from error
