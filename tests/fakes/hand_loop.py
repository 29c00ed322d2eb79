"""A loop of which a test turns the clock."""

import asyncio
from collections.abc import Callable
from typing import Any


class HandLoop:
    """A loop's clock and timers, turned by hand; whatever else is asked, the running loop does."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.set_count = 0

    def time(self) -> float:
        """Monotonic seconds."""
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        """Set a timer; its handle can be cancelled."""
        self.set_count += 1
        entry = (when, callback)
        self.timers.append(entry)
        loop = self

        class Handle:
            def cancel(self) -> None:
                if entry in loop.timers:
                    loop.timers.remove(entry)

        return Handle()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        """Set a timer that many seconds from now."""
        return self.call_at(self.now + seconds, callback)

    def __getattr__(self, name: str) -> Any:
        """Leave tasks and the like to the running loop."""
        return getattr(asyncio.get_running_loop(), name)

    def advance(self, seconds: float) -> None:
        """Let time pass, doing what falls due on the way."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer[0] <= end]:
            timer = min(due, key=lambda one: one[0])
            self.timers.remove(timer)
            self.now = max(self.now, timer[0])
            timer[1]()
        self.now = end
