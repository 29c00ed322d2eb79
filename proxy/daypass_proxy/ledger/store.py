"""Opens the SQLite file for the ledger's writer, and says what its errors mean."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

SCHEMA = "0001"
"""The schema the statements here were written for: the head of the migrations."""

# What a wrong statement or value raises; anything else of sqlite3 is the store failing.
_OURS = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class StoreFailed(Exception):
    """The store did not do it. `doubtful`: it may have, as the commit itself failed.

    `broken`: the connection is not to be used again.
    """

    def __init__(self, message: str, *, doubtful: bool = False, broken: bool = True) -> None:
        super().__init__(message)
        self.doubtful = doubtful
        self.broken = broken


def connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Open a migrated database for writing, with every commit durable on disk.

    Raises StoreFailed for a file that is missing, of another schema, or not in WAL mode.
    """
    try:
        # mode=rw: a missing file is a mistake to report, not a database to create.
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw", uri=True, timeout=busy_seconds, isolation_level=None
        )
    except sqlite3.Error as error:
        raise StoreFailed(f"no database at {path}; start the broker first ({error})") from error
    try:
        _prepare(connection, path)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise failure(error) from error
        raise
    return connection


def failure(error: sqlite3.Error, *, doubtful: bool = False) -> StoreFailed:
    """Translate an error of the store; a lock that another process holds breaks nothing."""
    busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY
    return StoreFailed(f"the ledger's store fails: {error}", doubtful=doubtful, broken=not busy)


def is_failure(error: BaseException) -> bool:
    """Whether an exception means that the store fails, not that a statement was wrong."""
    return isinstance(error, sqlite3.Error) and not isinstance(error, _OURS)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    schema = _schema(connection)
    if schema != SCHEMA:
        raise StoreFailed(
            f"the database at {path} has schema {schema or 'none'}, this proxy needs {SCHEMA}; "
            "run `python -m daypass_migrations upgrade` and proxy and broker of one version"
        )
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise StoreFailed(f"the file system of {path} cannot do WAL; put it on a local disk")
    # FULL: a commit that was answered survives a power cut, not only the end of the process.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA trusted_schema = OFF")


def _schema(connection: sqlite3.Connection) -> str | None:
    tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'")
    if tables.fetchone() is None:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else None
