"""Rows: what a run showed, one for each case and target, and the JSON lines they are kept in."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.load import Figures

NOISY = 1.5
"""Largest over smallest round from which a row is called noisy."""


@dataclass
class Row:
    """Medians over the rounds. Times in microseconds; lists are p50, p90, p99, max."""

    case: str
    target: str
    version: str
    does: str
    rounds: int = 1
    us_req: float | None = None
    us_ev: float | None = None
    range: tuple[float, float] | None = None  # of the two above: smallest and largest round
    rps: float | None = None
    lat: list[float] = field(default_factory=list)
    ttfb: list[float] = field(default_factory=list)
    evdelay: list[float] = field(default_factory=list)
    active: int = 0
    rss_mb: float | None = None
    kb_per_stream: float | None = None
    ns_byte: float | None = None  # CPU per byte of request body
    checked_x: float | None = None  # most memory while checked, as a multiple of the body
    sent_x: float | None = None  # memory while it is sent, likewise
    blocked_ms: float | None = None  # longest a ping on another connection had to wait
    bad: int = 0
    errs: int = 0
    load_avg: float = 0.0

    @property
    def void(self) -> bool:
        """A row with one wrong answer or one lost connection says nothing."""
        return self.bad != 0 or self.errs != 0

    @property
    def noisy(self) -> bool:
        """The rounds differ too much to say much."""
        return self.range is not None and self.range[1] > NOISY * self.range[0]


def combine(row: Row, figures: Sequence[Figures]) -> Row:
    """Fill the row with the medians of its rounds; wrong answers add up."""
    row.rounds = len(figures)
    row.us_req = _median([f.us_request for f in figures])
    row.us_ev = _median([f.us_event for f in figures])
    # Where streams stay open no request ends, and an event is what there is to count.
    each = [cost for f in figures if (cost := f.us_request or f.us_event)]
    row.range = (min(each), max(each)) if each else None
    row.rps = _median([f.done / f.seconds for f in figures])
    row.lat = _each_median([f.latency for f in figures])
    row.ttfb = _each_median([f.first_byte for f in figures])
    row.evdelay = _each_median([f.event_delay for f in figures])
    row.active = min(f.active for f in figures)
    row.rss_mb = round(max(f.resident for f in figures) / 1e6, 1)
    row.bad = sum(f.bad for f in figures)
    row.errs = sum(f.errors for f in figures)
    row.load_avg = round(os.getloadavg()[0], 2)
    return row


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 3) if known else None


def _each_median(lists: Sequence[Sequence[float]]) -> list[float]:
    known = [values for values in lists if values]
    return [statistics.median(column) for column in zip(*known, strict=True)]


def machine(python: str) -> dict[str, Any]:
    """What the figures were taken on; `python` is the one that ran the proxy, with its build."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu_model": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": python,
    }


class Book:
    """The rows of one run, written down as they come."""

    def __init__(self, path: Path, run_id: str, python: str) -> None:
        """`python` is who ran the proxy, in words."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.rows: list[Row] = []
        self.about = {"run_id": run_id} | machine(python)

    def add(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(self.line(row) + "\n")

    def line(self, row: Row) -> str:
        """One JSON line."""
        known = {name: value for name, value in asdict(row).items() if value not in (None, [])}
        return json.dumps(known | self.about)


def read_rows(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Read a run back: its rows, and what it was taken on."""
    rows, about = [], {}
    names = set(Row.__dataclass_fields__)
    for line in path.read_text().splitlines():
        told = json.loads(line)
        if told.get("range") is not None:
            told["range"] = tuple(told["range"])
        rows.append(Row(**{name: value for name, value in told.items() if name in names}))
        about = {name: value for name, value in told.items() if name not in names}
    return rows, about
