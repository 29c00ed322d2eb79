"""The time that a server of one's own works on a call: measured, bounded, and paid for.

Place in the flow: `upstream_request` begins it when the request leaves, for a call whose model has
a price per second; `relay` ends it with the last byte of the answer, `attempt` bills it. What is
held at admission is the price of `most_seconds`, so there the call is cut, and no more is booked.
"""

from __future__ import annotations

import asyncio
import math

from daypass_core.clock import Clock
from daypass_proxy.streams import CutReason, LiveCall


class UpstreamTime:
    """The time of one attempt, on the monotonic clock that is passed in."""

    __slots__ = ("_began", "_clock", "_ended", "_live", "_most_seconds", "_timer")

    def __init__(self, clock: Clock, live: LiveCall, most_seconds: float) -> None:
        self._clock = clock
        self._live = live
        self._most_seconds = most_seconds
        self._began: float | None = None
        self._ended: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin with the first byte of the request; raises CallCut for a call that was cut.

        Begun again, it begins anew: the transport sends again what never left.
        """
        self._live.check()
        self._stop()
        self._began, self._ended = self._clock.monotonic(), None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._most_seconds, self._live.cut, CutReason.TOO_LONG)

    def over(self) -> None:
        """End it, once: the last byte of the answer is here, or nobody waits for it any more."""
        self._stop()
        if self._ended is None and self._began is not None:
            self._ended = self._clock.monotonic()

    @property
    def milliseconds(self) -> int:
        """What it has taken so far, rounded up; never more than was held."""
        if self._began is None:
            return 0
        ended = self._clock.monotonic() if self._ended is None else self._ended
        taken = math.ceil(max(ended - self._began, 0.0) * 1000)
        return min(taken, int(self._most_seconds * 1000))

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
