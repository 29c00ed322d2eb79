"""The only file that knows how a database is reached: engines, transactions, the store's clock.

SQLite and Postgres behave alike above this file. A write transaction on SQLite is BEGIN IMMEDIATE,
so what it reads cannot be outdated when it writes; on Postgres callers lock the rows they decide
on. Foreign errors that mean "the store cannot answer" leave here as `StoreUnavailable`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite

from daypass_core import database_url
from daypass_migrations import parse_url

CONNECTIONS = 20
"""How many a broker opens at most; half of them stay open."""
_WRITES = "daypass_writes"
_PRAGMAS = (
    "PRAGMA busy_timeout = 5000",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA trusted_schema = OFF",
)
# A query that waits longer than this is worth less than an answer of 503. Who is stopped in the
# middle of an act must not keep its locks for as long as others, the ledgers too, wait for them.
_CONNECT = database_url.NETWORK | {
    "target_session_attrs": "primary",  # a standby lags, and writes nothing
    "options": "-c lock_timeout=5000 -c statement_timeout=10000"
    " -c idle_in_transaction_session_timeout=4000 -c timezone=UTC",
}
_NOT_SUPPORTED = "0A000"
_OF_URL = ("user", "password", "host", "port", "dbname")
_REFUSES_US = frozenset({"42501", "25006"})
"""SQLSTATEs that say: this login may not do that now (a role was taken from it), or this server
writes nothing (it is a standby since a moment ago). Somebody will see to it; ask again."""


class StoreUnavailable(Exception):
    """The database is unreachable, locked for too long or out of space; nothing was written.

    The message is for operators and says what the driver said; callers are told a constant.
    """


class StoreInDoubt(StoreUnavailable):
    """COMMIT itself failed: what was to be written may stand in the database or not.

    Never answered with "try again": whoever asked must look first.
    """


def connect(url: str, *, file: Path | None = None) -> sa.Engine:
    """Make the engine of one database URL; nothing is opened before the first transaction.

    A PostgreSQL URL is read again from `file`, where there is one, for each new connection. Raises
    ValueError when the URL names neither a SQLite file nor Postgres.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        engine = sa.create_engine(
            parsed,
            pool_size=CONNECTIONS // 2,
            max_overflow=CONNECTIONS // 2,
            pool_timeout=5,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args=_CONNECT,
        )
        event.listen(engine, "handle_error", _drop_stale_plans)
        if file is not None:
            event.listen(engine, "do_connect", partial(_use_file, file))
        return engine
    engine = sa.create_engine(
        parsed,
        pool_size=CONNECTIONS // 2,
        max_overflow=CONNECTIONS // 2,
        pool_timeout=5,
        hide_parameters=True,
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _use_file(
    file: Path, dialect: sa.Dialect, _record: Any, _arguments: Any, parameters: dict[str, Any]
) -> None:
    """Connect with what the file says now: a password that was changed is good from here on."""
    try:
        _, found = dialect.create_connect_args(parse_url(database_url.url_in(file)))
    except ValueError as error:
        raise StoreUnavailable(f"the URL in {file} {error}") from None
    for name in _OF_URL:
        parameters.pop(name, None)
    parameters.update(found)
    parameters.update(_CONNECT)


def _drop_stale_plans(context: Any) -> None:
    """Take a prepared statement whose columns a migration has changed for a lost connection.

    Nothing was done, and the next connection prepares it anew: it is an answer of "ask again".
    """
    error = context.original_exception
    if getattr(error, "sqlstate", None) == _NOT_SUPPORTED and "cached plan" in str(error):
        context.is_disconnect = True


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
        if getattr(error.orig, "sqlstate", None) in _REFUSES_US:
            raise kind(f"the database refuses this login: {_driver_says(error)}") from error
        if not error.connection_invalidated:
            raise
        raise kind("the database closed the connection") from error


def _driver_says(error: exc.SQLAlchemyError) -> str:
    # The driver's own first line: without the statement, its parameters or the URL.
    said = str(getattr(error, "orig", None) or "no connection is free")
    return said.partition("\n")[0][:200]


def insert(connection: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT of the store's own dialect: one that knows ON CONFLICT."""
    on_postgres = connection.dialect.name == "postgresql"
    return postgresql.insert(table) if on_postgres else sqlite.insert(table)


def insert_once(connection: sa.Connection, table: sa.Table, **values: object) -> bool:
    """Insert a row unless one with the same key is there, or comes first; say whether it was."""
    row = insert(connection, table).values(**values).on_conflict_do_nothing()
    # By what it returns: of such an INSERT not every driver counts the rows.
    (key, *_) = table.primary_key.columns
    return connection.execute(row.returning(key)).first() is not None


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
