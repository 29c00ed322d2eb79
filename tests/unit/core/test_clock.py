"""The store's clock."""

import time

import pytest

from daypass_core.clock import StoreClock, SystemClock
from tests.fakes.clock import FakeClock


def test_unset() -> None:
    """Before the store was reached the store clock refuses to tell the time."""
    with pytest.raises(RuntimeError, match="call set"):
        StoreClock().now()


def test_carried_forward() -> None:
    """Between looks at the store its clock runs on with the monotonic clock, not the wall clock."""
    fake = FakeClock()
    clock = StoreClock(fake.monotonic)
    clock.set(1000.0)
    fake.advance(2.5)
    assert clock.now() == 1002.5
    assert clock.monotonic() == fake.mono


def test_never_back() -> None:
    """A store that seems to go back is not followed, one that is ahead is."""
    fake = FakeClock()
    clock = StoreClock(fake.monotonic)
    clock.set(1000.0)
    clock.set(900.0)
    assert clock.now() == 1000.0
    clock.set(1100.0)
    assert clock.now() == 1100.0


def test_what_it_is_ahead_is_given_back() -> None:
    """A clock that is ahead of the store runs slower until both agree, and never goes back."""
    fake = FakeClock()
    clock = StoreClock(fake.monotonic)
    clock.set(1000.0)
    clock.set(940.0)
    last = clock.now()
    for second in range(1, 7000):
        fake.advance(1)
        assert clock.now() > last
        last = clock.now()
        if second % 5 == 0:
            clock.set(940.0 + second)
            assert clock.now() == pytest.approx(last)
    assert clock.now() == pytest.approx(940.0 + second)


def test_an_oscillator_that_is_fast() -> None:
    """In a month with a monotonic clock that gains 9 s a day it is never a second ahead."""
    fake = FakeClock(monotonic=0.0)
    clock = StoreClock(fake.monotonic)
    for minute in range(30 * 24 * 60):
        fake.mono = minute * 60 * 1.0001
        clock.set(1000.0 + minute * 60)
    assert clock.now() - (1000.0 + minute * 60) < 1.0


def test_system_clock() -> None:
    """The system clock tells epoch seconds and monotonic seconds."""
    clock = SystemClock()
    assert abs(clock.now() - time.time()) < 60
    assert abs(clock.monotonic() - time.monotonic()) < 60
