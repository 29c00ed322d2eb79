"""Leases when the store's clock jumps: whose calls live is not known until they are renewed."""

import pytest

from daypass_proxy.ledger.reaper import Leases
from daypass_proxy.ledger.store import Row
from tests.fakes.clock import FakeClock

LEASE = 60.0
LEFT = Row("req_1", "open", "t", 1, 1, None, None, None, 0, None, 0)


class Rows:
    """A transaction in which one row of another worker is over, at any time."""

    def renew(self, *_: object) -> None:
        """Renew nothing."""

    def expired(self, now_ms: int, limit: int) -> list[Row]:
        """Return what is to be reaped."""
        return [LEFT]


@pytest.fixture
def clock() -> FakeClock:
    """The store's clock, and the machine's."""
    return FakeClock()


def test_nothing_is_reaped_for_a_lease_after_a_jump_ahead(clock: FakeClock) -> None:
    """A jump of 60 s ends all leases at once, also those of calls that live: others renew first."""
    leases, rows = Leases(clock, LEASE), Rows()
    assert leases.look_after(rows) == [LEFT]  # type: ignore[arg-type]
    clock.time += 60
    assert leases.look_after(rows) == []  # type: ignore[arg-type]
    clock.advance(LEASE - 1)
    assert leases.look_after(rows) == []  # type: ignore[arg-type]
    clock.advance(1)
    assert leases.look_after(rows) == [LEFT]  # type: ignore[arg-type]


def test_a_jump_after_the_clock_ran_slower(clock: FakeClock) -> None:
    """A clock that has given back what it was ahead jumps as any other, were it back to there."""
    leases, rows = Leases(clock, LEASE), Rows()
    for _ in range(300):
        clock.advance(LEASE / 3)
        clock.time -= 0.2
        assert leases.look_after(rows) == [LEFT]  # type: ignore[arg-type]
    clock.time += 60
    assert leases.look_after(rows) == []  # type: ignore[arg-type]


def test_time_that_passes_is_no_jump(clock: FakeClock) -> None:
    """A worker that was stopped for long, or a clock that drifts, reaps as ever."""
    leases, rows = Leases(clock, LEASE), Rows()
    clock.advance(1000)
    assert leases.look_after(rows) == [LEFT]  # type: ignore[arg-type]
    clock.time += 0.5
    assert leases.look_after(rows) == [LEFT]  # type: ignore[arg-type]


def test_nothing_is_reaped_for_a_lease_after_the_store_was_away(clock: FakeClock) -> None:
    """Nobody could renew: who comes first when it is back does not end the others' open calls."""
    leases, rows = Leases(clock, LEASE), Rows()
    leases.store_took(LEASE / 3)
    assert leases.look_after(rows) == [LEFT]  # type: ignore[arg-type]
    leases.store_took(LEASE / 3 + 0.1)
    clock.advance(LEASE - 1)
    assert leases.look_after(rows) == []  # type: ignore[arg-type]
    clock.advance(1)
    assert leases.look_after(rows) == [LEFT]  # type: ignore[arg-type]
    leases.store_was_away()
    assert leases.look_after(rows) == []  # type: ignore[arg-type]
