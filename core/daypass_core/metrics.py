"""Metrics: counted in plain integers, put into Prometheus' form when somebody asks for them.

A service declares its metrics as `Spec` constants in one module, and counts on the children that a
`Board` hands out: a `Count` or a `Spread` per set of label values, fetched once and kept by the
caller. prometheus_client does the rest at scrape time; its own counters would take a lock at each
step, which costs more than what they count. A child is written by one thread at a time.

Grammar of a name: `gen_ai_…` for what OpenTelemetry's GenAI conventions name, in Prometheus'
spelling, `daypass_…` for what is ours; words in snake_case, the unit last (`_seconds`, `_bytes`,
`_nano_usd`), `_total` after it on every counter and on nothing else. Labels are snake_case too.
Every value of a label comes from a bounded set: what a stranger can choose goes through `Capped`.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

_NAME = re.compile(r"(daypass|gen_ai)(_[a-z0-9]+)+")
_LABEL = re.compile(r"[a-z]+(_[a-z]+)*")
Labels = tuple[str, ...]
OTHER = "other"
"""What stands for the values beyond the bound."""


class Kind(StrEnum):
    """The types of Prometheus that we use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric; `buckets` are the upper bounds of a histogram's, ascending, without infinity.

    Raises ValueError for a name or label against the grammar, and for a metric without help.
    """

    kind: Kind
    name: str
    help: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        counter = self.kind is Kind.COUNTER
        if not _NAME.fullmatch(self.name) or self.name.endswith("_total") is not counter:
            raise ValueError(f"{self.name} is not the name of a {self.kind}")
        if not all(_LABEL.fullmatch(label) for label in self.labels):
            raise ValueError(f"{self.name} has a label that is not a name")
        if not self.help or bool(self.buckets) is not (self.kind is Kind.HISTOGRAM):
            raise ValueError(f"{self.name} needs help, and buckets if it is a histogram")
        if list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(f"{self.name} has buckets that do not ascend")


class Count:
    """A number that only grows; add to `value` directly."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Spread:
    """A histogram's child."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Take one value; a bucket holds what is at most its bound."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative buckets, as the exposition wants them."""
        rising, found = 0, []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], list(self.counts), strict=True):
            rising += count
            found.append((bound, float(rising)))
        return found


class Capped:
    """Lets the first `most` different values through and calls all further ones OTHER."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def __call__(self, value: str) -> str:
        """Return the value to use as a label."""
        known = self._known.get(value)
        if known is not None:
            return known
        if len(self._known) >= self._most:
            return OTHER
        return self._known.setdefault(value, value)


Reading = float | Mapping[Labels, float] | None
"""What a function read at scrape time gives: one value, one per set of labels, or nothing."""


class Board(Collector):
    """All metrics of a service; registers itself with `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._counts: dict[Spec, dict[Labels, Count]] = {}
        self._spreads: dict[Spec, dict[Labels, Spread]] = {}
        self._reads: dict[Spec, Callable[[], Reading]] = {}
        registry.register(self)

    def count(self, spec: Spec, *labels: str) -> Count:
        """Return the child of a counter for these label values, made at the first time."""
        _check(spec, Kind.COUNTER, labels)
        children = self._counts.setdefault(spec, {})
        return children.get(labels) or children.setdefault(labels, Count())

    def spread(self, spec: Spec, *labels: str) -> Spread:
        """Return the child of a histogram for these label values, made at the first time."""
        _check(spec, Kind.HISTOGRAM, labels)
        children = self._spreads.setdefault(spec, {})
        return children.get(labels) or children.setdefault(labels, Spread(spec.buckets))

    def read(self, spec: Spec, reading: Callable[[], Reading]) -> None:
        """Ask `reading` for a gauge's or counter's value at each scrape, in the scrape's thread."""
        self._reads[spec] = reading

    def describe(self) -> Iterable[Metric]:
        """Return nothing: what there is changes while it runs."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return everything as it stands. Called in another thread than those that count."""
        for spec, counts in list(self._counts.items()):
            values = {labels: float(one.value) for labels, one in list(counts.items())}
            yield _family(spec, values)
        for spec, spreads in list(self._spreads.items()):
            yield _histogram(spec, dict(list(spreads.items())))
        for spec, reading in list(self._reads.items()):
            value = reading()
            if isinstance(value, Mapping):
                yield _family(spec, value)
            elif value is not None:
                yield _family(spec, {(): value})


def _family(spec: Spec, values: Mapping[Labels, float]) -> Metric:
    kind = CounterMetricFamily if spec.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(spec.name, spec.help, labels=spec.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram(spec: Spec, children: Mapping[Labels, Spread]) -> Metric:
    family = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
    for labels, child in children.items():
        family.add_metric(labels, child.buckets(), child.total)
    return family


def _check(spec: Spec, kind: Kind, labels: Labels) -> None:
    if spec.kind is not kind or len(labels) != len(spec.labels):
        raise ValueError(f"{spec.name} is a {spec.kind} with labels {spec.labels}")
