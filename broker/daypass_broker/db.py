"""The only file that knows how a database is reached: engines, transactions, the store's clock.

SQLite and Postgres behave alike above this file. A write transaction on SQLite is BEGIN IMMEDIATE,
so what it reads cannot be outdated when it writes; on Postgres callers lock the rows they decide
on. Foreign errors that mean "the store cannot answer" leave here as `StoreUnavailable`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from daypass_migrations import parse_url

_WRITES = "daypass_writes"
_PRAGMAS = (
    "PRAGMA busy_timeout = 5000",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA trusted_schema = OFF",
)
# A query that waits longer than this is worth less than an answer of 503. Who is stopped in the
# middle of an act must not keep its locks: the ledger needs the accounts.
_POSTGRES_OPTIONS = (
    "-c lock_timeout=5000 -c statement_timeout=10000 -c idle_in_transaction_session_timeout=10000"
    " -c timezone=UTC"
)


class StoreUnavailable(Exception):
    """The database is unreachable, locked for too long or out of space; nothing was written.

    The message is for operators and says what the driver said; callers are told a constant.
    """


class StoreInDoubt(StoreUnavailable):
    """COMMIT itself failed: what was to be written may stand in the database or not.

    Never answered with "try again": whoever asked must look first.
    """


def connect(url: str) -> sa.Engine:
    """Make the engine of one database URL; nothing is opened before the first transaction.

    Raises ValueError when the URL names neither a SQLite file nor Postgres.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        return sa.create_engine(
            parsed,
            pool_size=10,
            max_overflow=10,
            pool_timeout=5,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={"connect_timeout": 3, "options": _POSTGRES_OPTIONS},
        )
    engine = sa.create_engine(
        parsed, pool_size=10, max_overflow=10, pool_timeout=5, hide_parameters=True
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # Autocommit mode: sqlite3 itself must never open a transaction, `_begin_sqlite` does.
    connection.isolation_level = None
    for pragma in _PRAGMAS:
        connection.execute(pragma)


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def begin(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a write transaction: commit on leaving, roll back on any exception.

    Raises StoreUnavailable, and StoreInDoubt when it is the commit that fails.
    """
    with _translated(), engine.connect() as connection:
        connection.execution_options(**{_WRITES: True})
        with connection.begin() as transaction:
            yield connection
            with _translated(StoreInDoubt):
                transaction.commit()


@contextmanager
def read(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a read transaction, never committed.

    Raises StoreUnavailable.
    """
    with _translated(), engine.connect() as connection:
        yield connection


@contextmanager
def _translated(kind: type[StoreUnavailable] = StoreUnavailable) -> Iterator[None]:
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
        raise kind(f"the database does not answer: {_driver_says(error)}") from error
    except exc.DBAPIError as error:
        if not error.connection_invalidated:
            raise
        raise kind("the database closed the connection") from error


def _driver_says(error: exc.SQLAlchemyError) -> str:
    # The driver's own first line: without the statement, its parameters or the URL.
    said = str(getattr(error, "orig", None) or "no connection is free")
    return said.partition("\n")[0][:200]


def now_ms(connection: sa.Connection) -> int:
    """Return the store's clock in epoch milliseconds, at this statement, not at BEGIN."""
    if connection.dialect.name == "sqlite":
        # unixepoch('subsec') needs SQLite 3.42; julianday is exact to 0.05 ms in this century.
        query = "SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"
    else:
        query = "SELECT CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) AS BIGINT)"
    return int(connection.execute(sa.text(query)).scalar_one())


def to_json(value: object) -> str:
    """Write JSON for a text column: compact, keys sorted, so equal values are equal text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def from_json(text: str) -> Any:
    """Read what `to_json` wrote."""
    return json.loads(text)
