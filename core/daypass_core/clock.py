"""Time as a parameter: nobody asks the machine for the time, everybody is handed a `Clock`.

Services use `StoreClock`: the database's time, so that broker and proxies agree about cut-offs to
the second however their own clocks drift, carried forward by the monotonic clock between looks.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

TIME_HEADER = "x-daypass-time"
"""Header of the broker's key set: its time in epoch seconds, with three decimals."""
SLOWER = 0.01
"""By this part a clock that is ahead of the store runs slower, until both agree."""


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> float:
        """Return the time in seconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start, never going back: for deadlines and ages."""
        ...


class SystemClock:
    """The clock of this machine: for tools that have no store at hand."""

    def now(self) -> float:
        """Return the machine's wall time in epoch seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return the machine's monotonic time in seconds."""
        return time.monotonic()


class _Anchor(NamedTuple):
    """The store's time less the monotonic one, and how far ahead we were at monotonic `since`."""

    offset: float
    ahead: float
    since: float

    def at(self, monotonic: float) -> float:
        left = self.ahead - SLOWER * (monotonic - self.since)
        return monotonic + self.offset + max(left, 0.0)


class StoreClock:
    """The store's clock, carried forward monotonically from the last time it was seen."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic: Callable[[], float] = monotonic
        """The monotonic time in seconds that carries this clock."""
        # One attribute, replaced whole: safe to read from any thread while another calls set().
        self._anchor: _Anchor | None = None
        self._setting = threading.Lock()

    def set(self, epoch_seconds: float) -> None:
        """Re-anchor to the store's time just read.

        A store that seems to go back (fail-over, a slow reply) is not followed: a token once
        refused as expired must stay refused. But neither is it left behind for ever, or an
        oscillator that is a little fast would in weeks make every token look old: what we are
        ahead is given back slowly (`SLOWER`).
        """
        with self._setting:
            now = self.monotonic()
            ahead = 0.0 if self._anchor is None else self._anchor.at(now) - epoch_seconds
            self._anchor = _Anchor(epoch_seconds - now, max(ahead, 0.0), now)

    def now(self) -> float:
        """Return the store's time in epoch seconds.

        Raises RuntimeError before the first `set`: without the store's time nothing can be judged.
        """
        anchor = self._anchor
        if anchor is None:
            raise RuntimeError("store clock read before the store was reached; call set() first")
        return anchor.at(self.monotonic())
