"""Revocations in PostgreSQL, for a view that may be on another machine than the broker.

Each look is one round trip: the version, and the server's time. The broker's commit of a revocation
notifies a channel on which this connection listens, which only makes the next look come at once: a
notification that is lost costs the rest of the poll interval and nothing else.
"""

from __future__ import annotations

import contextlib
import select
import socket
from pathlib import Path

import psycopg

from daypass_core.revocation import CHANNEL, Revocation, RevocationSet
from daypass_proxy import postgres

_LOCK_MS, _STATEMENT_MS = 1000, 3000
_READ_ONLY = "-c default_transaction_read_only=on"
_LOOK = (
    "SELECT version, extract(epoch FROM clock_timestamp())::float8"
    " FROM revocation_version WHERE id = 1"
)
# One statement is one snapshot: the rows are those of the version beside them.
_LOAD = """
SELECT now.version, row.scope, row.ident, row.not_before, row.expires_at
FROM revocation_version AS now LEFT JOIN revocation AS row ON true WHERE now.id = 1
"""


class PostgresRevocations:
    """A `RevocationStore`; connects when needed, and anew after any failure.

    `url` is the database's, or the file that holds it.
    """

    def __init__(self, url: str | Path) -> None:
        self._url = url
        self._connection: psycopg.Connection | None = None
        # What is written into one ends each poll that looks at the other.
        self._woken, self._waker = socket.socketpair()
        self.version: int | None = None

    def look(self) -> tuple[float, RevocationSet | None]:
        """See `RevocationStore.look`.

        Raises psycopg.Error, or ValueError for rows that are not understood.
        """
        if self._connection is None:
            self._connection = self._connect()
        row = self._connection.execute(_LOOK).fetchone()
        if row is None:
            raise ValueError("revocation_version has no row; run the migrations")
        version, now = row
        found = None if version == self.version else self._load(self._connection)
        return now, found

    def wait(self, seconds: float) -> None:
        """See `RevocationStore.wait`. Also returns when the server has said something.

        What it said is read with the answer of the next look, were it only that the server is gone.
        """
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if self._connection is not None:
            poll.register(self._connection, select.POLLIN)
        poll.poll(seconds * 1000)

    def wake(self) -> None:
        """See `RevocationStore.wake`."""
        with contextlib.suppress(OSError):  # closed already
            self._waker.send(b"\0")

    def close(self) -> None:
        """See `RevocationStore.close`."""
        self.forget()
        self._woken.close()
        self._waker.close()

    def forget(self) -> None:
        """See `RevocationStore.forget`."""
        connection, self._connection = self._connection, None
        self.version = None
        if connection is not None:
            connection.close()

    def _connect(self) -> psycopg.Connection:
        connection = postgres.connect(
            self._url,
            name="daypass-revocations",
            lock_ms=_LOCK_MS,
            statement_ms=_STATEMENT_MS,
            session=_READ_ONLY,
        )
        # That a notification came is all that counts; without a handler they would pile up.
        connection.add_notify_handler(lambda _: None)
        try:
            connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _load(self, connection: psycopg.Connection) -> RevocationSet:
        rows = connection.execute(_LOAD).fetchall()
        if not rows:
            raise ValueError("revocation_version has no row; run the migrations")
        found = RevocationSet.from_rows(
            Revocation(scope, ident or "", not_before, expires_at)
            for _, scope, ident, not_before, expires_at in rows
            if scope is not None
        )
        self.version = rows[0][0]
        return found
