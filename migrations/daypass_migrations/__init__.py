"""The database schema of daypass as one linear history of migrations.

`upgrade` is safe to start from several processes at once: the whole run is one transaction under a
lock (Postgres: an advisory lock; SQLite: BEGIN IMMEDIATE), so each finds nothing or all of it, and
one that is killed leaves nothing.

A migration expands the schema, so that the release before goes on running beside it and can be gone
back to; or it says in `readable_from` which releases it leaves behind (CONTRIBUTING.md).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import event

from daypass_migrations.errors import MigrationRefused

__all__ = ["HEAD", "MigrationRefused", "State", "current", "parse_url", "state", "upgrade"]

HEAD = "0006"

_WANTED = "must be sqlite:////absolute/path or postgresql://user:password@host/database"
_BUSY_SECONDS = 30
_INSUFFICIENT_PRIVILEGE = "42501"
# A lock was not to be had; a deadlock was broken; all locks of one statement took too long.
_IN_THE_WAY = frozenset({"55P03", "40P01", "57014"})
_LOCK_MS = 300
_PAUSE_SECONDS = 0.3
PATIENCE_SECONDS = 60.0
"""How long tables that are in use are tried to be locked, again and again."""
_LOCK_ID = 0x6461797061737300  # "daypass" in ASCII: any number nobody else locks


@dataclass(frozen=True, slots=True)
class State:
    """Where a database is: its revision, and the oldest one whose releases may run on it.

    `revision` is None without a schema, `readable_from` before 0005.
    """

    revision: str | None
    readable_from: str | None = None


def upgrade(url: str) -> str:
    """Bring the database at `url` to HEAD and return its revision.

    Does nothing when it is there already, or beyond it and still suits this release: so the job of
    a release that was gone back to succeeds. What other transactions hold is tried again for up to
    PATIENCE_SECONDS. Raises ValueError for a URL we do not serve, MigrationRefused, and
    SQLAlchemy's errors for a database that fails.
    """
    parsed, deadline = parse_url(url), time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return _upgrade(parsed)
        except sa.exc.OperationalError as error:
            if getattr(error.orig, "sqlstate", None) not in _IN_THE_WAY:
                raise
            if time.monotonic() > deadline:
                raise MigrationRefused(
                    "tables are in use by long transactions (see pg_stat_activity); end them, or"
                    " migrate when there is less to do"
                ) from None
        time.sleep(_PAUSE_SECONDS)


def _upgrade(parsed: sa.URL) -> str:
    """Do it, in one transaction.

    On PostgreSQL it waits for no table longer than a moment, in which calls wait behind it: those
    lock accounts and usage in orders of their own, so that who waited longer would wait for ever.
    """
    with _locked(parsed) as connection:
        if parsed.get_backend_name() == "postgresql":
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_LOCK_MS}")
        found = state(connection)
        if found.revision is not None and found.revision > HEAD:
            return _newer(found)
        config = Config()
        # Alembic interpolates '%' in its options.
        config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = connection
        with _permitted():
            command.upgrade(config, HEAD)
    return HEAD


@contextmanager
def _permitted() -> Iterator[None]:
    """Say in words that this login may not change the schema."""
    try:
        yield
    except sa.exc.ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
            raise
        raise MigrationRefused(
            "this login may not change the schema: migrate as the one that owns the database"
        ) from None


def _newer(found: State) -> str:
    if found.revision is None or found.readable_from is None or found.readable_from > HEAD:
        raise MigrationRefused(
            f"the database is at schema {found.revision}, which needs a release made for schema"
            f" {found.readable_from or found.revision} or newer; this one was made for {HEAD}:"
            " upgrade it"
        )
    return found.revision


def current(url: str) -> str | None:
    """Return the revision the database is at, None when it has none; never creates a file."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).exists():
        return None
    engine = sa.create_engine(parsed, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return state(connection).revision


def state(connection: sa.Connection) -> State:
    """Return where the database of a connection is."""
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is None or not sa.inspect(connection).has_table("schema_compat"):
        return State(revision)
    oldest = connection.exec_driver_sql("SELECT readable_from FROM schema_compat").scalar_one()
    return State(revision, str(oldest))


def parse_url(url: str) -> sa.URL:
    """Read the URL of a SQLite file or a PostgreSQL database, for psycopg.

    Raises ValueError, which repeats nothing of it.
    """
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        # The URL may hold a password: say what is wrong without repeating it. A ValueError is
        # about the port, and may be about what was meant to be a password.
        raise ValueError(_WANTED) from None
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ValueError("names no file: write sqlite:////absolute/path")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise ValueError(_WANTED)
    return parsed


@contextmanager
def _locked(url: sa.URL) -> Iterator[sa.Connection]:
    """One transaction on one connection that no other upgrade can be inside of."""
    # Of several hosts in the URL the one that can be written.
    primary = {"target_session_attrs": "primary"} if url.get_backend_name() == "postgresql" else {}
    engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args=primary)
    if url.get_backend_name() == "sqlite":
        _make_private(str(url.database))
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    with engine.begin() as connection:
        if url.get_backend_name() == "postgresql":
            # Limits of the database's sessions end none that waits for another, or copies long.
            for limit in ("statement_timeout", "lock_timeout"):
                connection.exec_driver_sql(f"SET LOCAL {limit} = 0")
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_ID)))
        yield connection


def _make_private(path: str) -> None:
    """Make the file for its owner alone: balances and hashes are nobody else's business here.

    Only a new file is opened: closing one that is in use would drop this process's locks on it.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # `_begin_sqlite` opens the transaction, not the driver
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")
    _switch_to_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")


def _switch_to_wal(connection: Any) -> None:
    """Change the journal; SQLite answers at once, not after its busy time, when others do too."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while not _switched_to_wal(connection, last_try=time.monotonic() > deadline):
        time.sleep(0.01)


def _switched_to_wal(connection: Any, *, last_try: bool) -> bool:
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError:
        if last_try:
            raise
        return False
    return True


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
