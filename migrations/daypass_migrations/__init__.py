"""The database schema of daypass as one linear history of migrations.

`upgrade` is safe to start from several processes at once: the whole run is one transaction under a
lock (Postgres: an advisory lock; SQLite: BEGIN IMMEDIATE), so each
finds nothing or all of it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import event

HEAD = "0003"

_WANTED = "must be sqlite:////absolute/path or postgresql://user:password@host/database"
_BUSY_SECONDS = 30
_LOCK_ID = 0x6461797061737300  # "daypass" in ASCII: any number nobody else locks


def upgrade(url: str) -> None:
    """Bring the database at `url` to HEAD; does nothing when it is there already.

    Raises ValueError for a URL we do not serve and SQLAlchemy's errors for a database that fails.
    """
    with _locked(parse_url(url)) as connection:
        config = Config()
        # Alembic interpolates '%' in its options.
        config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = connection
        command.upgrade(config, HEAD)


def current(url: str) -> str | None:
    """Return the revision the database is at, None when it has none; never creates a file."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).exists():
        return None
    engine = sa.create_engine(parsed, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


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
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    if url.get_backend_name() == "sqlite":
        _make_private(str(url.database))
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    with engine.begin() as connection:
        if url.get_backend_name() == "postgresql":
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
