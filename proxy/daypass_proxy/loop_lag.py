"""How late the event loop is: the time by which a timer of ours fires after it was due.

Whatever holds the loop (a large body, a slow library call) delays every call by as much, so this
is the first figure to look at when the proxy is slow. Read by `gauges` at scrape time.
"""

import asyncio

TICK_SECONDS = 0.25
WINDOW_SECONDS = 15.0


class LoopLag:
    """Watches the running loop from `start` on."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._window_ends = 0.0
        self._worst = self._worst_before = 0.0

    @property
    def worst(self) -> float:
        """The longest delay in seconds of this window and the one before."""
        return max(self._worst, self._worst_before)

    def start(self) -> None:
        """Begin; call inside the event loop."""
        self._loop = asyncio.get_running_loop()
        self._window_ends = self._loop.time() + WINDOW_SECONDS
        self._wait()

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()

    def take(self, now: float) -> None:
        """Take note that the timer fired at `now`, in the loop's time."""
        if now >= self._window_ends:
            self._worst_before, self._worst = self._worst, 0.0
            self._window_ends = now + WINDOW_SECONDS
        self._worst = max(self._worst, now - self._due)

    def _wait(self) -> None:
        assert self._loop is not None
        self._due = self._loop.time() + TICK_SECONDS
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        assert self._loop is not None
        self.take(self._loop.time())
        self._wait()
