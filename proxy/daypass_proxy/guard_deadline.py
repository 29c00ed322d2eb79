"""The one deadline that a connection has at a time: moved at every step, met almost never.

A timer of the loop for every step would cost more than all checks of a request together. So the
timer stays where it is, wakes now and then, and looks whether the deadline has moved on.
"""

import asyncio
from collections.abc import Callable

# The loop counts in milliseconds: a timer may come that much too early.
_ROUNDING = 0.001
# Loop time that a due action waits for once more, long enough for a look at the sockets.
_LAST_LOOK = 0.01


class Deadline:
    """At most one action at a time, done when its time has come and nothing moved it before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, longest_sleep: float) -> None:
        """`longest_sleep` in seconds bounds how far ahead the timer is set.

        A deadline set for later than that never has to move the timer.
        """
        self._loop = loop
        self._longest_sleep = longest_sleep
        self._due: float | None = None
        self._action: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wakes = 0.0
        self._looked_at: float | None = None

    def set(self, seconds: float, action: Callable[[], None]) -> None:
        """Do `action` in `seconds` from now, and nothing of what was set before."""
        due = self._loop.time() + seconds
        self._due, self._action = due, action
        if self._timer is None or self._wakes > due:
            self._sleep_until(due)

    def clear(self) -> None:
        """Do nothing."""
        self._due = None

    def close(self) -> None:
        """Do nothing ever again; the timer is given back."""
        self._due = self._action = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sleep_until(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at(min(due, self._loop.time() + self._longest_sleep))

    def _wake_at(self, when: float) -> None:
        self._wakes = when
        self._timer = self._loop.call_at(self._wakes, self._wake)

    def _wake(self) -> None:
        self._timer = None
        due, action = self._due, self._action
        if due is None or action is None:
            return
        now = self._loop.time()
        if now + _ROUNDING < due:
            self._sleep_until(due)
        elif self._looked_at != due:
            # A loop that is far behind does its timers before it reads: what came in time may lie
            # unread in the kernel, and nobody is cut for our own lateness.
            self._looked_at = due
            self._wake_at(now + _LAST_LOOK)
        else:
            self._due = self._action = None
            action()
