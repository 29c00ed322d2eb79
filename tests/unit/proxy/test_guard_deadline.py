"""One deadline for each connection: met to the moment, and moved without touching the loop."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.guard_deadline import Deadline

LONGEST = 10.0


class FakeLoop:
    """A loop's clock and timers, turned by hand."""

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

    def advance(self, seconds: float) -> None:
        """Let time pass, doing what falls due on the way."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer[0] <= end]:
            timer = min(due, key=lambda one: one[0])
            self.timers.remove(timer)
            self.now = max(self.now, timer[0])
            timer[1]()
        self.now = end


def make() -> tuple[FakeLoop, Deadline, list[float]]:
    """A deadline on a loop of its own, and when its action was done."""
    loop = FakeLoop()
    return loop, Deadline(cast(asyncio.AbstractEventLoop, loop), LONGEST), []


def test_the_action_is_done_once_when_due() -> None:
    """It happens at its time, not before and not again."""
    loop, deadline, done = make()
    deadline.set(25.0, lambda: done.append(loop.now))
    loop.advance(24.9)
    assert done == []
    loop.advance(100.0)
    assert done == [1_025.0]


def test_what_is_set_later_replaces_what_was_set() -> None:
    """Only the last action counts, whether its time is earlier or later."""
    loop, deadline, done = make()
    deadline.set(5.0, lambda: done.append(-1.0))
    deadline.set(20.0, lambda: done.append(-2.0))
    deadline.set(1.0, lambda: done.append(loop.now))
    loop.advance(60.0)
    assert done == [1_001.0]


def test_moving_on_leaves_the_timer_alone() -> None:
    """A thousand requests on a connection set no timer of the loop but one in ten seconds."""
    loop, deadline, done = make()
    for _ in range(1_000):
        deadline.set(LONGEST, lambda: done.append(loop.now))
        loop.advance(0.01)
        deadline.clear()
        deadline.set(120.0, lambda: done.append(loop.now))
        loop.advance(0.01)
    assert loop.set_count <= 4
    assert done == []


def test_nothing_happens_after_clear_and_close() -> None:
    """A cleared deadline does nothing, and a closed one leaves no timer behind."""
    loop, deadline, done = make()
    deadline.set(5.0, lambda: done.append(loop.now))
    deadline.clear()
    loop.advance(30.0)
    deadline.set(5.0, lambda: done.append(loop.now))
    deadline.close()
    assert loop.timers == []
    loop.advance(30.0)
    assert done == []


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from([1.0, 5.0, 10.0, 30.0, 120.0, None]), st.floats(0, 40))))
def test_like_a_timer_of_its_own(steps: list[tuple[float | None, float]]) -> None:
    """Whatever is set, cleared and waited for, the action comes when a plain timer's would."""
    loop, deadline, done = make()
    due: float | None = None
    expected: list[float] = []
    for seconds, wait in steps:
        if seconds is None:
            deadline.clear()
            due = None
        else:
            deadline.set(seconds, lambda: done.append(loop.now))
            due = loop.now + seconds
        if due is not None and due <= loop.now + wait:
            expected.append(due)
            due = None
        loop.advance(wait)
    assert len(done) == len(expected)
    assert all(abs(a - b) < 0.01 for a, b in zip(done, expected, strict=True))
