"""Fixed windows: the local day and the local month that a moment lies in.

Place in the flow: `book` rolls an account's windows before it decides on it. A window begins and
ends at local midnight, exactly, also on days when the clocks change: where midnight is skipped, at
the moment of the jump; where it comes twice, at the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from daypass_proxy.ledger.account import Account

Window = tuple[int, int]
"""From and until in epoch milliseconds; `until` is the first moment that is not inside."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def day(zone: str, now_ms: int) -> Window:
    """Return the local day of `now_ms` in an IANA zone."""
    return _window(zone, now_ms, lambda first: first, lambda first: first + timedelta(days=1))


def month(zone: str, now_ms: int) -> Window:
    """Return the local month of `now_ms` in an IANA zone."""
    return _window(
        zone,
        now_ms,
        lambda today: today.replace(day=1),
        lambda first: (first + timedelta(days=31)).replace(day=1),
    )


def roll(account: Account, now_ms: int) -> None:
    """Begin new windows where the old ones are over; a clock that goes back reopens none.

    A window begins no earlier than the one before has ended, so that no bill is in two of them,
    also when the zone was changed meanwhile. The first one begins now: nothing was counted before.
    """
    if now_ms >= account.day_until:
        start, until = day(account.time_zone, now_ms)
        account.day_from = max(start, account.day_until) if account.day_until else now_ms
        account.day_until, account.day_spent_nano = until, 0
    if now_ms >= account.month_until:
        start, until = month(account.time_zone, now_ms)
        account.month_from = max(start, account.month_until) if account.month_until else now_ms
        account.month_until, account.month_spent_nano = until, 0


def _window(
    zone: str, now_ms: int, begin: Callable[[date], date], after: Callable[[date], date]
) -> Window:
    place = _place(zone)
    first = begin((_EPOCH + now_ms * _MS).astimezone(place).date())
    start, until = _midnight(place, first), _midnight(place, after(first))
    if now_ms >= until:
        # The clocks went back over midnight: this moment is dated yesterday, and today has begun.
        start, until = until, _midnight(place, after(after(first)))
    return start, until


def _midnight(place: tzinfo, of: date) -> int:
    """Return the moment of a local midnight; the jump over it, or the first of two (PEP 495)."""
    local = datetime.combine(of, time(), tzinfo=place)
    return (local.astimezone(UTC) - _EPOCH) // _MS


@lru_cache(maxsize=1024)
def _place(zone: str) -> tzinfo:
    """Return the zone, or UTC for one that is not known here.

    The broker took it, so it does exist; a proxy with older zone data still keeps a daily limit.
    """
    try:
        return ZoneInfo(zone)
    except (KeyError, OSError, ValueError):
        return UTC
