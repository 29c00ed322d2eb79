"""Revocations in the SQLite file that the broker writes, for the view on the same machine.

A read-only connection asks `PRAGMA data_version` (4 µs) whether anybody committed anything since
the last look, and only then for the version of the revocations.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

from daypass_core.revocation import Revocation, RevocationSet

_BUSY_SECONDS = 1.0
_ROWS = "SELECT scope, ident, not_before, expires_at FROM revocation"
_VERSION = "SELECT version FROM revocation_version WHERE id = 1"
# SQLite's clock as epoch seconds; unixepoch('subsec') is newer than the SQLite of many systems.
_NOW = "SELECT (julianday('now') - 2440587.5) * 86400.0"


class SqliteRevocations:
    """A `RevocationStore`; the file is opened when needed, and anew after any failure."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] = (0, 0)
        self._seen: int | None = None
        self._woken = threading.Event()
        self.version: int | None = None

    def look(self) -> tuple[float, RevocationSet | None]:
        """See `RevocationStore.look`.

        Raises sqlite3.Error, OSError, or ValueError for rows that are not understood.
        """
        file = os.stat(self._path)
        if self._connection is not None and (file.st_dev, file.st_ino) != self._file:
            # Replaced under us: the old file would answer for ever, and never change again.
            self.forget()
        if self._connection is None:
            self._file = (file.st_dev, file.st_ino)
            self._connection = _connect(self._path)
        connection = self._connection
        (now,) = connection.execute(_NOW).fetchone()
        (seen,) = connection.execute("PRAGMA data_version").fetchone()
        found = None
        if seen != self._seen:
            found = self._load(connection)
            self._seen = seen
        return float(now), found

    def wait(self, seconds: float) -> None:
        """See `RevocationStore.wait`. The file itself wakes nobody."""
        self._woken.wait(seconds)

    def wake(self) -> None:
        """See `RevocationStore.wake`."""
        self._woken.set()

    def close(self) -> None:
        """See `RevocationStore.close`."""
        self.forget()

    def forget(self) -> None:
        """See `RevocationStore.forget`."""
        connection, self._connection = self._connection, None
        self._seen = self.version = None
        if connection is not None:
            connection.close()

    def _load(self, connection: sqlite3.Connection) -> RevocationSet | None:
        connection.execute("BEGIN")
        try:
            row = connection.execute(_VERSION).fetchone()
            if row is None:
                raise ValueError("revocation_version has no row; run the migrations")
            if row[0] == self.version:
                return None
            rows = connection.execute(_ROWS).fetchall()
        finally:
            connection.execute("ROLLBACK")
        found = RevocationSet.from_rows(
            Revocation(scope, ident or "", not_before, expires_at)
            for scope, ident, not_before, expires_at in rows
        )
        self.version = row[0]
        return found


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
    )
    try:
        connection.execute("PRAGMA query_only = 1")
    except sqlite3.Error:
        connection.close()
        raise
    return connection
