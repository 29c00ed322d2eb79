"""Reconciliation: what we booked against what the provider counted, by model, day and kind.

Place in the flow: a command of its own, beside the request path (`python -m daypass_proxy
reconcile`). `booked` sums our usage rows, `reported` reads the provider's report, `Comparison` sets
one against the other, `shown` writes the result. Pure values and arithmetic here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import StrEnum

__all__ = [
    "Booked",
    "Comparison",
    "Day",
    "Drift",
    "Figures",
    "Kind",
    "Reported",
    "Unreadable",
    "used",
]


class Kind(StrEnum):
    """What is counted; each is billed at a rate of its own."""

    INPUT = "input"  # neither written to nor read from the cache
    CACHE_WRITE_5M = "cache_write_5m"
    CACHE_WRITE_1H = "cache_write_1h"
    CACHE_READ = "cache_read"
    OUTPUT = "output"  # thinking included
    WEB_SEARCH = "web_search"  # requests, not tokens


@dataclass(frozen=True, slots=True, order=True)
class Day:
    """One model on one day of UTC, as both sides count."""

    day: date
    model: str


Figures = Mapping[Day, Mapping[Kind, int]]
"""How much of each kind; what is missing is none."""


@dataclass(frozen=True, slots=True)
class Booked:
    """Our side. `estimated` is the part of `total` of which the provider never told us the end.

    `open_calls` are not in it: they have no figures yet. Nor are `crashed_calls`, which were booked
    at their holds and never get any. `edge_calls` ran across the beginning or the end of the range,
    so the provider may count them on its other side.
    """

    total: Figures
    estimated: Figures = field(default_factory=dict)
    open_calls: int = 0
    crashed_calls: int = 0
    edge_calls: int = 0


@dataclass(frozen=True, slots=True)
class Reported:
    """The provider's side."""

    total: Figures


class Unreadable(Exception):
    """One of the two sides cannot be had; the message says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One kind of one model: what we booked, how much of that is estimated, what was reported."""

    model: str
    kind: Kind
    ours: int
    estimated: int
    theirs: int

    @property
    def ratio(self) -> Decimal:
        """The difference as a part of the larger side: -1 … 1, positive where ours is larger.

        The larger side, so that it is defined where one of them is nothing.
        """
        larger = max(self.ours, self.theirs)
        return Decimal(self.ours - self.theirs) / larger if larger else Decimal(0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides, day by day and over the whole range.

    `tolerance` is a ratio: 0.005 for half a percent.
    """

    booked: Booked
    reported: Reported
    tolerance: Decimal

    @property
    def days(self) -> Iterator[tuple[Day, list[Drift]]]:
        """Each day and model in order, with what drifted on it or not."""
        for day in sorted({*self.booked.total, *self.reported.total}):
            yield day, self._drifts(day.model, [day])

    @property
    def models(self) -> list[Drift]:
        """Each model and kind over the whole range: what the verdict is about.

        Days are not: a call near midnight may be counted on either side of it.
        """
        days = {*self.booked.total, *self.reported.total}
        return [
            drift
            for model in sorted({day.model for day in days})
            for drift in self._drifts(model, [day for day in days if day.model == model])
        ]

    @property
    def beyond(self) -> list[Drift]:
        """What differs by more than the tolerance."""
        return [drift for drift in self.models if abs(drift.ratio) > self.tolerance]

    def _drifts(self, model: str, days: Iterable[Day]) -> list[Drift]:
        days = list(days)
        ours, estimated, theirs = (
            _sum(figures, days)
            for figures in (self.booked.total, self.booked.estimated, self.reported.total)
        )
        return [
            Drift(model, kind, ours[kind], estimated[kind], theirs[kind])
            for kind in Kind
            if ours[kind] or theirs[kind]
        ]


def used(counted: Mapping[Day, Counter[Kind]]) -> Figures:
    """Return what there is some of, without days and kinds of nothing."""
    some = {
        day: {kind: count for kind, count in counts.items() if count}
        for day, counts in counted.items()
    }
    return {day: counts for day, counts in some.items() if counts}


def _sum(figures: Figures, days: Iterable[Day]) -> Counter[Kind]:
    total: Counter[Kind] = Counter()
    for day in days:
        total.update(figures.get(day, {}))
    return total
