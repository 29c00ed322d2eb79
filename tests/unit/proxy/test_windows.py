"""Windows: local days and months in any zone, on days when the clocks change, and their rolling."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daypass_proxy.ledger.windows import day, month, roll
from tests.accounts import account

HOUR = 3_600_000
ZONES = [
    "UTC",
    "Asia/Tokyo",
    "America/St_Johns",
    "America/Sao_Paulo",
    "Africa/Cairo",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Pacific/Apia",
]
# From 1971, when every zone here had left local mean time, to 2100.
moments = st.integers(31_536_000_000, 4_102_444_800_000)


def at(zone: str, year: int, month: int, day: int, *clock: int, fold: int = 0) -> int:
    """Return a local time in epoch milliseconds; `clock` is hours, minutes, seconds."""
    hour, minute, second = (*clock, 0, 0, 0)[:3]
    local = datetime(year, month, day, hour, minute, second, 0, ZoneInfo(zone), fold=fold)
    return round(local.timestamp() * 1000)


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/St_Johns"])
def test_b60_a_day_ends_at_local_midnight(zone: str) -> None:
    """B60: ten seconds before local midnight it is still today, at midnight exactly tomorrow."""
    today = at(zone, 2026, 11, 30), at(zone, 2026, 12, 1)
    tomorrow = at(zone, 2026, 12, 1), at(zone, 2026, 12, 2)
    assert day(zone, at(zone, 2026, 11, 30, 23, 59, 50)) == today
    assert day(zone, today[1] - 1) == today
    assert day(zone, today[1]) == tomorrow
    assert day(zone, at(zone, 2026, 12, 1, 0, 0, 10)) == tomorrow
    assert month(zone, today[1] - 1)[1] == month(zone, today[1])[0] == today[1]
    assert month(zone, today[1])[1] == at(zone, 2027, 1, 1)


def test_b60_days_of_23_and_25_hours() -> None:
    """B60: on the days when the clocks change a window is an hour shorter or longer."""
    for date, hours in (((2027, 3, 28), 23), ((2027, 10, 31), 25), ((2027, 6, 1), 24)):
        start, until = day("Europe/Berlin", at("Europe/Berlin", *date, 12))
        assert (start, until - start) == (at("Europe/Berlin", *date), hours * HOUR)
    start, until = month("Europe/Berlin", at("Europe/Berlin", 2027, 3, 5))
    assert until - start == (31 * 24 - 1) * HOUR


def test_b60_a_midnight_that_is_skipped() -> None:
    """B60: where the clocks jump over midnight, the day begins with the jump."""
    jump = at("America/Sao_Paulo", 2018, 11, 4, 1)  # 00:00 to 01:00
    assert day("America/Sao_Paulo", jump)[0] == jump
    assert day("America/Sao_Paulo", jump - 1)[1] == jump
    assert day("America/Sao_Paulo", jump)[1] - jump == 23 * HOUR


def test_b60_a_midnight_that_comes_twice() -> None:
    """B60: at 00:01 the clocks went back to 23:01; the day, and the month, began at midnight."""
    zone = "America/St_Johns"
    first = at(zone, 2009, 11, 1, fold=0)
    second = at(zone, 2009, 11, 1, fold=1)
    assert second - first == HOUR
    for moment in (first, first + 60_000, second - 1, second, second + 12 * HOUR):
        assert day(zone, moment) == (first, first + 25 * HOUR)
        assert month(zone, moment)[0] == first
    assert day(zone, first - 1)[1] == month(zone, first - 1)[1] == first


def test_a_day_that_never_was() -> None:
    """Samoa had no 30 December 2011: the 29th is followed by the 31st, without a gap."""
    last = day("Pacific/Apia", at("Pacific/Apia", 2011, 12, 29, 12))
    assert day("Pacific/Apia", last[1])[1] - last[0] == 48 * HOUR


@given(st.sampled_from(ZONES), moments)
@example("America/St_Johns", 576_077_400_000)
@example("America/St_Johns", 594_228_600_000)
def test_windows_contain_their_moments_and_follow_each_other(zone: str, now: int) -> None:
    """Any moment lies in its window; the next window begins where this one ends."""
    for window in (day, month):
        start, until = window(zone, now)
        assert start <= now < until
        assert window(zone, start) == (start, until)
        assert window(zone, until - 1) == (start, until)
        assert window(zone, until)[0] == until
    # In 1988 St. John's had two hours of summer time: a day of 22 hours, and one of 26.
    assert 22 * HOUR <= day(zone, now)[1] - day(zone, now)[0] <= 26 * HOUR
    assert month(zone, now)[0] <= day(zone, now)[0] < day(zone, now)[1] <= month(zone, now)[1]


def test_a_zone_that_is_not_known_has_days_all_the_same() -> None:
    """Older zone data on a proxy turns no daily limit off: the day is UTC's then."""
    noon = datetime(2026, 11, 30, 12, tzinfo=UTC)
    start = round((noon - timedelta(hours=12)).timestamp() * 1000)
    for zone in ("Atlantis/Poseidonis", "", "../etc/passwd", "Europe"):
        assert day(zone, start + 12 * HOUR) == (start, start + 24 * HOUR)


def test_the_first_window_begins_when_it_is_first_counted() -> None:
    """What was spent before windows were kept is in none: the first one starts empty, now."""
    fresh = account()
    now = at("UTC", 2026, 11, 30, 12)
    roll(fresh, now)
    assert (fresh.day_from, fresh.day_until) == (now, at("UTC", 2026, 12, 1))
    assert (fresh.month_from, fresh.month_until) == (now, at("UTC", 2026, 12, 1))


def test_a_window_rolls_at_its_end_and_not_before() -> None:
    """Spending stays until the last millisecond; another day of the month leaves the month's."""
    used = account(time_zone="Asia/Tokyo")
    roll(used, at("Asia/Tokyo", 2026, 11, 10, 12))
    used.day_spent_nano, used.month_spent_nano = 7, 8
    roll(used, used.day_until - 1)
    assert (used.day_spent_nano, used.month_spent_nano) == (7, 8)
    roll(used, used.day_until)
    assert (used.day_spent_nano, used.month_spent_nano) == (0, 8)
    assert used.day_from == at("Asia/Tokyo", 2026, 11, 11)
    roll(used, at("Asia/Tokyo", 2026, 12, 24, 18))
    assert (used.day_from, used.month_from) == (
        at("Asia/Tokyo", 2026, 12, 24),
        at("Asia/Tokyo", 2026, 12, 1),
    )


def test_a_clock_that_goes_back_reopens_no_window() -> None:
    """Yesterday does not come again: what is spent after a step back counts in the later day."""
    used = account()
    roll(used, at("UTC", 2026, 11, 30, 0, 0, 5))
    used.day_spent_nano = 7
    before = used.day_from, used.day_until
    roll(used, at("UTC", 2026, 11, 29, 23, 59))
    assert (used.day_from, used.day_until, used.day_spent_nano) == (*before, 7)


def test_a_changed_zone_counts_from_the_next_window_and_nothing_twice() -> None:
    """The day in the old zone runs to its end; the next one begins there, not before it."""
    moved = account()
    roll(moved, at("UTC", 2026, 11, 30, 12))
    end = moved.day_until
    moved.time_zone = "Asia/Tokyo"
    roll(moved, end - 1)
    assert moved.day_until == end
    roll(moved, end)
    assert (moved.day_from, moved.day_until) == (end, at("Asia/Tokyo", 2026, 12, 2))
