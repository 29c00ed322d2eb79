"""How late the event loop is: the time by which a timer of ours fires after it was due.

Whatever holds the loop (a large body, a slow library call) delays every call by as much, so this
is the first figure to look at when the proxy is slow. Read by `gauges` at scrape time; `gate` is
told of it at each tick, with the share of a core that the process had meanwhile.
"""

import asyncio
import time
from collections.abc import Callable

TICK_SECONDS = 0.05
WINDOW_SECONDS = 15.0


class LoopLag:
    """Watches the running loop from `start` on."""

    def __init__(self, told: Callable[[float, float], None] | None = None) -> None:
        """`told` is told of each delay, in seconds, and of how many cores the process had."""
        self._told = told
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._window_ends = 0.0
        self._worst = self._worst_before = 0.0
        self._took = self._looked = 0.0  # CPU of the process, and the loop's time, at a tick

    @property
    def worst(self) -> float:
        """The longest delay in seconds of this window and the one before."""
        return max(self._worst, self._worst_before)

    @property
    def tasks(self) -> int:
        """How many tasks the loop has that are not done; 0 before the start. From any thread."""
        return 0 if self._loop is None else len(asyncio.all_tasks(self._loop))

    def start(self) -> None:
        """Begin; call inside the event loop."""
        self._loop = asyncio.get_running_loop()
        self._looked, self._took = self._loop.time(), time.process_time()
        self._window_ends = self._looked + WINDOW_SECONDS
        self._wait()

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()

    def take(self, now: float, took: float = 0.0) -> None:
        """Take note that the timer fired at `now`, in the loop's time.

        `took` is the CPU time in seconds that all threads of the process have had so far.
        """
        if now >= self._window_ends:
            self._worst_before, self._worst = self._worst, 0.0
            self._window_ends = now + WINDOW_SECONDS
        lag = now - self._due
        self._worst = max(self._worst, lag)
        if self._told is not None and now > self._looked:
            self._told(lag, (took - self._took) / (now - self._looked))
        self._took, self._looked = took, now

    def _wait(self) -> None:
        assert self._loop is not None
        self._due = self._loop.time() + TICK_SECONDS
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        assert self._loop is not None
        self.take(self._loop.time(), time.process_time())
        self._wait()
