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


def test_system_clock() -> None:
    """The system clock tells epoch seconds and monotonic seconds."""
    clock = SystemClock()
    assert abs(clock.now() - time.time()) < 60
    assert abs(clock.monotonic() - time.monotonic()) < 60
