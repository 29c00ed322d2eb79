"""The revocation view: what the store says is revoked, a fraction of a second old.

Place in the flow: `authenticate` and `admit` ask it about every call, and a new set cuts the open
calls that it speaks against. A thread of its own, with a read-only connection of its own, looks for
commits by others (`PRAGMA data_version`, 4 µs) and loads all rows when the version row has moved.
It also carries the store's clock into ours. A store that is locked, gone or not understood only
makes the view age: past 31 s no call is admitted, past 61 s open calls are cut.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from contextlib import closing
from logging import ERROR, WARNING
from pathlib import Path
from typing import Protocol

from daypass_core.claims import Claims
from daypass_core.clock import StoreClock
from daypass_core.log import event, get_logger
from daypass_core.problem import Code, refuse
from daypass_core.revocation import Revocation, RevocationSet, Verdict

log = get_logger(__name__)

_BUSY_SECONDS = 1.0
_ROWS = "SELECT scope, ident, not_before, expires_at FROM revocation"
_VERSION = "SELECT version FROM revocation_version WHERE id = 1"
# SQLite's clock as epoch seconds; unixepoch('subsec') is newer than the SQLite of many systems.
_NOW = "SELECT (julianday('now') - 2440587.5) * 86400.0"


class OpenCalls(Protocol):
    """What the view tells the open calls; the live-call registry."""

    def cut_revoked(self, revocations: RevocationSet) -> int:
        """Cut every call that the set speaks against; returns how many."""
        ...

    def cut_stale(self) -> int:
        """Cut every call, since revocations are not known any more; returns how many."""
        ...


class RevocationView:
    """Revocations in force, as of at most a moment ago."""

    def __init__(
        self,
        path: Path,
        live_calls: OpenCalls,
        clock: StoreClock,
        *,
        poll_seconds: float = 0.05,
        stale_seconds: float = 31.0,
        stale_stream_seconds: float = 61.0,
    ) -> None:
        """`path` is the SQLite database that the broker writes."""
        self._path = path
        self._live_calls = live_calls
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._stale_seconds = stale_seconds
        self._stale_stream_seconds = stale_stream_seconds
        self._set = RevocationSet.from_rows(())
        self._as_of: float | None = None
        self.version: int | None = None
        """Version of the revocations the thread has seen last; for the metrics."""
        self._first_load = asyncio.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to poll; call inside the event loop. `wait_ready` tells when it can be asked."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._poll, name="revocations", daemon=True)
        self._thread.start()
        self._watch = self._loop.call_later(self._stale_stream_seconds, self._watch_age)

    async def wait_ready(self) -> None:
        """Return after the first full load."""
        await self._first_load.wait()

    @property
    def ready(self) -> bool:
        """Whether a first full load has been made."""
        return self._as_of is not None

    @property
    def age(self) -> float | None:
        """Seconds since the store last answered; None before it ever did."""
        return None if self._as_of is None else self._clock.monotonic() - self._as_of

    def verdict(self, claims: Claims) -> Verdict | None:
        """Return how this token ended, None while it is in force."""
        return self._set.verdict(claims)

    def check_fresh(self) -> None:
        """Raise Refusal view_stale when the view is too old to admit anything by."""
        age = self.age
        if age is None or age > self._stale_seconds:
            raise refuse(Code.VIEW_STALE)

    def cut_stale(self) -> int:
        """Cut every open call when the view is too old for those too; returns how many."""
        age = self.age
        if age is None or age <= self._stale_stream_seconds:
            return 0
        count = self._live_calls.cut_stale()
        if count:
            event(log, "stale_calls_cut", level=ERROR, calls=count, age_seconds=round(age))
        return count

    def take(self, revocations: RevocationSet | None, as_of: float) -> None:
        """Take over what the thread found; None when nothing has changed. `as_of` is monotonic."""
        self._as_of = as_of
        if revocations is not None:
            self._set = revocations
            count = self._live_calls.cut_revoked(revocations)
            event(log, "revocations_loaded", revocations=len(revocations), calls_cut=count)
            self._first_load.set()

    async def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._watch is not None:
            self._watch.cancel()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _watch_age(self) -> None:
        """Look again when the view would be too old, were it not renewed until then."""
        assert self._loop is not None
        self.cut_stale()
        left = self._stale_stream_seconds - (self.age or 0.0)
        self._watch = self._loop.call_later(max(left, 0.0) + 0.05, self._watch_age)

    def _poll(self) -> None:
        """The thread: look, post what was found to the loop, wait."""
        failing = False
        with closing(_Store(self._path)) as store:
            while not self._stop.is_set():
                began = self._clock.monotonic()
                try:
                    now, found = store.look()
                except Exception as error:
                    # Whatever it is, this thread must live on and the view must age.
                    store.close()
                    if not failing:
                        reason = f"{type(error).__name__}: {error}"
                        event(log, "revocation_view_failed", level=ERROR, reason=reason)
                    failing = True
                else:
                    if failing:
                        event(log, "revocation_view_recovered", level=WARNING)
                    failing = False
                    self._clock.set(now)
                    self.version = store.version
                    self._post(found, began)
                self._stop.wait(self._poll_seconds)

    def _post(self, found: RevocationSet | None, as_of: float) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self.take, found, as_of)
        except RuntimeError:
            self._stop.set()  # the loop is closed: there is nobody left to tell


class _Store:
    """The thread's connection; opened when needed, forgotten after any failure."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] = (0, 0)
        self._seen: int | None = None
        self.version: int | None = None

    def look(self) -> tuple[float, RevocationSet | None]:
        """Return the store's time in epoch seconds, and the set when it is new to us.

        Raises sqlite3.Error, OSError, or ValueError for rows that are not understood.
        """
        file = os.stat(self._path)
        if self._connection is not None and (file.st_dev, file.st_ino) != self._file:
            # Replaced under us: the old file would answer for ever, and never change again.
            self.close()
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

    def close(self) -> None:
        """Forget everything, so that the next look reads all rows."""
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
