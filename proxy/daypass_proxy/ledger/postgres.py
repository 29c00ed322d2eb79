"""The ledger's store in PostgreSQL, which several proxies may write at the same time.

A batch is one transaction and few round trips: begin and lock the rows, find the chains, lock the
accounts, write everything and commit. Every process locks usage rows first and accounts second,
each in the order of their ids, and waits for nothing else while it holds a lock: no two can wait
for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from psycopg.pq import TransactionStatus

from daypass_proxy import postgres
from daypass_proxy.ledger import postgres_statements as sql
from daypass_proxy.ledger import schema
from daypass_proxy.ledger.account import Account
from daypass_proxy.ledger.store import (
    BatchFailed,
    Changes,
    Row,
    Span,
    StoreFailed,
    Values,
)

# Generic plans over indexes only: a plan made for an empty table must not scan a grown one. Who is
# stopped in the middle of a batch must not keep its locks: not even for as long as others wait for
# them (app.BUSY_SECONDS), so that those are late and not refused.
_SESSION = (
    "-c synchronous_commit=on -c plan_cache_mode=force_generic_plan -c enable_seqscan=off"
    " -c enable_hashjoin=off -c enable_mergejoin=off -c enable_bitmapscan=off"
    " -c enable_material=off -c idle_in_transaction_session_timeout=3000"
)
# SQLSTATEs that say: another process is in the way, not the store gone.
_LOCKED = frozenset({"55P03", "40P01", "40001"})
_QUERY_CANCELED = "57014"
_BOUNDS_TRANSACTIONS = 170000
"""From this version on also one ends that is stopped between two statements of its commit, which
counts as neither idle nor at work."""


def open_store(url: str | Path, busy_seconds: float) -> PostgresStore:
    """Connect to a migrated database; an `OpenStore` once its arguments are bound.

    `url` is the database's, or the file that holds it.
    `busy_seconds` is how long a lock of another process is waited for, and twice that how long a
    statement may run. Raises StoreFailed.
    """
    busy_ms = round(busy_seconds * 1000)
    try:
        connection = postgres.connect(
            url, name="daypass-ledger", lock_ms=busy_ms, statement_ms=2 * busy_ms, session=_SESSION
        )
    except psycopg.Error as error:
        raise StoreFailed(
            f"no database at the PostgreSQL server; {postgres.reason(error)}"
        ) from error
    # Every statement comes again with the next batch.
    connection.prepare_threshold = 0
    store = PostgresStore(connection)
    try:
        if connection.info.server_version >= _BOUNDS_TRANSACTIONS:
            with _translated():
                connection.execute(f"SET transaction_timeout = {4 * busy_ms}".encode())
        store.check_schema()
    except BaseException:
        store.close()
        raise
    return store


class PostgresStore:
    """A `Store` on one connection, made by `open_store`."""

    one_lock = False

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def check_schema(self) -> None:
        """Raise StoreFailed unless the statements here suit the database's schema."""
        with _translated():
            objection = schema.of_postgres(self._connection)
        if objection is not None:
            raise StoreFailed(objection)

    def begin(
        self, *, reading: bool = False, lock_seconds: float | None = None
    ) -> PostgresTransaction:
        """See `Store.begin`. The server hears of it with the first statement."""
        return PostgresTransaction(self._connection, reading, lock_seconds)

    def close(self) -> None:
        """See `Store.close`."""
        with suppress(psycopg.Error):
            self._connection.close()


class PostgresTransaction:
    """A `Transaction`; its first statement begins it on the server too."""

    def __init__(
        self, connection: psycopg.Connection, reading: bool, lock_seconds: float | None
    ) -> None:
        self._connection = connection
        self._reading = reading
        self._lock_seconds = lock_seconds
        self._begun = False

    def rows(self, usage_ids: Collection[str], started: Span | None = None) -> list[Row]:
        """See `Transaction.rows`."""
        span = started or sql.EVER
        return [Row(*row) for row in self._fetch(sql.ROWS, *span * 2, _json(usage_ids))]

    def renew(
        self, usage_ids: Collection[str], lease_until: int, started: Span | None = None
    ) -> None:
        """See `Transaction.renew`."""
        span = started or sql.EVER
        self._execute(sql.RENEW, lease_until, *span * 4, _json(usage_ids))

    def expired(self, now_ms: int, limit: int) -> list[Row]:
        """See `Transaction.expired`."""
        return [Row(*row) for row in self._fetch(sql.EXPIRED, now_ms, limit)]

    def chains(self, leaves: Collection[str]) -> dict[str, tuple[str, ...]]:
        """See `Transaction.chains`."""
        return {leaf: tuple(ids) for leaf, ids in self._fetch(sql.CHAINS, _json(leaves))}

    def accounts(self, account_ids: Collection[str]) -> list[Account]:
        """See `Transaction.accounts`."""
        query = sql.READ if self._reading else sql.LOCK
        return [Account(*row) for row in self._fetch(query, _json(account_ids))]

    def commit(self, changes: Changes) -> None:
        """See `Transaction.commit`. One round trip; one failure undoes all."""
        writes: tuple[tuple[bytes, Sequence[Values], bool], ...] = (
            (sql.OPEN, changes.opened, False),
            (sql.RESIZE, changes.resized, True),
            (sql.SETTLE, changes.settled, True),
            (sql.BOOK, changes.accounts, False),
            (sql.COUNT, changes.incidents, False),
        )
        with _translated(committing=True):
            parameters = [
                (query, (_json(rows), *(sql.started(rows) * 2 if by_month else ())))
                for query, rows, by_month in writes
                if rows
            ]
            if parameters:
                self._begin()
            with self._connection.pipeline():
                for query, values in parameters:
                    self._connection.execute(query, values)
                done = self._connection.execute(b"COMMIT") if self._begun else None
        if done is not None and done.statusmessage != "COMMIT":
            raise StoreFailed(f"the ledger's store did not commit but {done.statusmessage}")

    def roll_back(self) -> None:
        """See `Transaction.roll_back`."""
        try:
            if self._connection.info.transaction_status is not TransactionStatus.IDLE:
                self._connection.execute(b"ROLLBACK")
        except psycopg.Error:
            with suppress(psycopg.Error):
                self._connection.close()

    def _fetch(self, query: bytes, *values: object) -> list[Any]:
        return self._execute(query, *values).fetchall()

    def _execute(self, query: bytes, *values: object) -> psycopg.Cursor[Any]:
        with _translated():
            self._begin()
            return self._connection.execute(query, values)

    def _begin(self) -> None:
        """Begin on the server, in a round trip of its own.

        In a pipeline the driver sends a Flush after the Sync, and a server that gets one counts no
        longer how long the transaction stands still: who was stopped then kept what he had locked.
        """
        if self._begun:
            return
        self._begun = True
        statement = sql.BEGIN_READING if self._reading else sql.BEGIN
        if self._lock_seconds is not None:
            statement += b"; " + sql.lock_timeout(self._lock_seconds)
        self._connection.execute(statement, prepare=False)


def _json(values: Collection[object]) -> str:
    """Return one parameter that holds many; raises what `_translated` takes for a wrong value."""
    return msgspec.json.encode(list(values)).decode()


@contextmanager
def _translated(*, committing: bool = False) -> Iterator[None]:
    """Raise StoreFailed or BatchFailed for what the driver raises, and for what no row can hold."""
    try:
        yield
    except psycopg.Error as error:
        raise _meaning(error, committing) from error
    except (UnicodeError, OverflowError) as error:
        raise BatchFailed(f"no row can hold this: {error}", locked=False) from error


def _meaning(error: psycopg.Error, committing: bool) -> StoreFailed | BatchFailed:
    said = f"the ledger's store fails: {postgres.reason(error)}"
    if error.sqlstate in _LOCKED:
        return BatchFailed(said, locked=True)
    if isinstance(error, psycopg.IntegrityError | psycopg.DataError):
        return BatchFailed(said, locked=False)
    # While committing nobody knows, also after an error: a server that ends may have committed.
    return StoreFailed(said, doubtful=committing, broken=error.sqlstate != _QUERY_CANCELED)
