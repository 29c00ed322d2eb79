"""One deadline for each connection: met to the moment, and moved without touching the loop."""

import asyncio
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.guard_deadline import Deadline
from tests.fakes.hand_loop import HandLoop

LONGEST = 10.0


def make() -> tuple[HandLoop, Deadline, list[float]]:
    """A deadline on a loop of its own, and when its action was done."""
    loop = HandLoop()
    return loop, Deadline(cast(asyncio.AbstractEventLoop, loop), LONGEST), []


def test_the_action_is_done_once_when_due() -> None:
    """It happens at its time, not before and not again."""
    loop, deadline, done = make()
    deadline.set(25.0, lambda: done.append(loop.now))
    loop.advance(24.9)
    assert done == []
    loop.advance(100.0)
    assert done == [pytest.approx(1_025.0, abs=0.02)]


def test_what_is_set_later_replaces_what_was_set() -> None:
    """Only the last action counts, whether its time is earlier or later."""
    loop, deadline, done = make()
    deadline.set(5.0, lambda: done.append(-1.0))
    deadline.set(20.0, lambda: done.append(-2.0))
    deadline.set(1.0, lambda: done.append(loop.now))
    loop.advance(60.0)
    assert done == [pytest.approx(1_001.0, abs=0.02)]


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


def test_what_came_in_time_is_read_first() -> None:
    """On a loop that is far behind nobody is cut before the sockets were looked at once more."""
    loop, deadline, done = make()
    deadline.set(5.0, lambda: done.append(-1.0))
    loop.now += 60.0  # the loop did something else; the bytes lie in the kernel
    loop.advance(0.0)
    assert done == []
    deadline.set(5.0, lambda: done.append(loop.now))  # they were read and moved the deadline
    loop.advance(4.9)
    assert done == []
    loop.advance(0.2)
    assert len(done) == 1


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
            due = loop.now + seconds + 0.01  # the last look at the sockets
        if due is not None and due <= loop.now + wait:
            expected.append(due)
            due = None
        loop.advance(wait)
    assert len(done) == len(expected)
    assert all(abs(a - b) < 0.005 for a, b in zip(done, expected, strict=True))
