"""The revocation view: what the store says is revoked, a fraction of a second old.

Place in the flow: `authenticate` and `admit` ask it about every call, and a new set cuts the open
calls that it speaks against. A thread of its own looks at the store again and again, through a
`RevocationStore` (`sqlite`, `postgres`), and loads all rows when their version has moved. It also
carries the store's clock into ours. A store that is locked, gone or not understood only makes the
view age: past 31 s no call is admitted, past 61 s open calls are cut.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from logging import ERROR, WARNING
from typing import Protocol

from daypass_core.claims import Claims
from daypass_core.clock import StoreClock
from daypass_core.log import event, get_logger
from daypass_core.problem import Code, refuse
from daypass_core.revocation import RevocationSet, Verdict

log = get_logger(__name__)


class RevocationStore(Protocol):
    """Where the view looks: one connection, used by the view's thread alone (but for `wake`)."""

    version: int | None
    """Version of the rows that were loaded last; None before, and after `forget`."""

    def look(self) -> tuple[float, RevocationSet | None]:
        """Return the store's time in epoch seconds, and the set when it is new to us.

        Whatever it raises means that the store did not answer, or not in words we understand.
        """
        ...

    def wait(self, seconds: float) -> None:
        """Return after so long, or sooner when there may be news or somebody calls `wake`."""
        ...

    def forget(self) -> None:
        """Let go of the connection, so that the next look connects and reads all rows."""
        ...

    def wake(self) -> None:
        """Let no `wait` last any longer, since the view is to end; from any thread."""
        ...

    def close(self) -> None:
        """Let go of everything; after that only `wake` may be called."""
        ...


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
        store: RevocationStore,
        live_calls: OpenCalls,
        clock: StoreClock,
        *,
        poll_seconds: float = 0.05,
        stale_seconds: float = 31.0,
        stale_stream_seconds: float = 61.0,
    ) -> None:
        """Times in seconds; `store` is closed by the thread that `start` makes."""
        self._store = store
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
        as_of = self._as_of
        if as_of is None or self._clock.monotonic() - as_of > self._stale_seconds:
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
        self._store.wake()
        if self._watch is not None:
            self._watch.cancel()
        if self._thread is None:
            self._store.close()
        else:
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
        with closing(self._store) as store:
            while not self._stop.is_set():
                began = self._clock.monotonic()
                try:
                    now, found = store.look()
                except Exception as error:
                    # Whatever it is, this thread must live on and the view must age.
                    store.forget()
                    if not failing:
                        reason = f"{type(error).__name__}: {error}"
                        event(log, "revocation_view_failed", level=ERROR, reason=reason)
                        # A connection that has died took its notifications along: look on a new one
                        # at once. From the second failure on there is nothing to hurry for.
                        failing = True
                        continue
                else:
                    if failing:
                        event(log, "revocation_view_recovered", level=WARNING)
                    failing = False
                    self._clock.set(now)
                    self.version = store.version
                    self._post(found, began)
                store.wait(self._poll_seconds)

    def _post(self, found: RevocationSet | None, as_of: float) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self.take, found, as_of)
        except RuntimeError:
            self._stop.set()  # the loop is closed: there is nobody left to tell
