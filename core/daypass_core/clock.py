"""Time as a parameter: nobody asks the machine for the time, everybody is handed a `Clock`.

Services use `StoreClock`: the database's time, so that broker and proxies agree about cut-offs to
the second however their own clocks drift, carried forward by the monotonic clock between looks.
"""

import time
from collections.abc import Callable
from typing import Protocol

TIME_HEADER = "x-daypass-time"
"""Header of the broker's key set: its time in epoch seconds, with three decimals."""


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


class StoreClock:
    """The store's clock, carried forward monotonically from the last time it was seen."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic: Callable[[], float] = monotonic
        """The monotonic time in seconds that carries this clock."""
        # Store time minus monotonic time. One attribute, replaced whole: safe to read from any
        # thread while another one calls set().
        self._offset: float | None = None

    def set(self, epoch_seconds: float) -> None:
        """Re-anchor to the store's time just read.

        A store that seems to go back (fail-over, a slow reply) is not followed: a token once
        refused as expired must stay refused.
        """
        offset = epoch_seconds - self.monotonic()
        if self._offset is None or offset > self._offset:
            self._offset = offset

    def now(self) -> float:
        """Return the store's time in epoch seconds.

        Raises RuntimeError before the first `set`: without the store's time nothing can be judged.
        """
        if self._offset is None:
            raise RuntimeError("store clock read before the store was reached; call set() first")
        return self.monotonic() + self._offset
