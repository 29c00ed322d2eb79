"""Months of UTC, and which of them may be pruned."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, order=True, slots=True)
class Month:
    """One month: `start` and `until` (excluded) are epoch milliseconds."""

    start: int
    until: int

    @classmethod
    def of(cls, at_ms: int) -> Month:
        """Return the month of a moment (epoch milliseconds, from 1970 to 9999)."""
        moment = datetime.fromtimestamp(at_ms // 1000, UTC)
        return cls._at(moment.year * 12 + moment.month - 1)

    @classmethod
    def _at(cls, number: int) -> Month:
        return cls(_first(number), _first(number + 1))

    @classmethod
    def named(cls, name: str) -> Month:
        """Return the month of a name such as `2026-01`. Raises ValueError for another."""
        year, month = name.split("-")
        return cls._at(int(year) * 12 + int(month) - 1)

    @property
    def name(self) -> str:
        """The month as `2026-01`."""
        return datetime.fromtimestamp(self.start // 1000, UTC).strftime("%Y-%m")

    def earlier(self, months: int) -> Month:
        """Return the month so many before this one; a negative number goes ahead."""
        moment = datetime.fromtimestamp(self.start // 1000, UTC)
        return self._at(moment.year * 12 + moment.month - 1 - months)


def _first(number: int) -> int:
    year, month = divmod(number, 12)
    return int(datetime(year, month + 1, 1, tzinfo=UTC).timestamp()) * 1000


def kept_from(now_ms: int, months: int) -> int:
    """Return the first moment (epoch milliseconds) of what is kept: this month and `months` before.

    At least the month before this one is kept: bills of its calls may still come. Raises ValueError
    for fewer than 1.
    """
    if months < 1:
        raise ValueError("at least 1 month beside the present one is kept")
    return Month.of(now_ms).earlier(months).start
