"""The goals of the request path, as ratios within one run, and what a run says about each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.results import Row

SLACK = 1.15
"""A run fails only beyond a gate by this much: machines differ from minute to minute."""

Measure = Callable[["Table", str, str], float | None]


class Table:
    """Rows by case and target; a void row is not there."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {(row.case, row.target): row for row in rows}

    def row(self, case: str, target: str) -> Row | None:
        """The row, unless there is none or it is void."""
        row = self.rows.get((case, target))
        return None if row is None or row.void else row

    def ratio(self, case: str, target: str, to: str, measure: Measure) -> float | None:
        """The target's figure as a multiple of another's; None when either is missing."""
        ours, theirs = measure(self, case, target), measure(self, case, to)
        return None if ours is None or not theirs else ours / theirs


def cpu(table: Table, case: str, target: str) -> float | None:
    """CPU per request, or per event where streams stay open."""
    row = table.row(case, target)
    return None if row is None else row.us_req or row.us_ev


def added_ms(table: Table, case: str, target: str) -> float | None:
    """Median latency beyond that of asking the upstream directly, in milliseconds."""
    row, direct = table.row(case, target), table.row(case, "direct")
    if row is None or direct is None or not row.lat or not direct.lat:
        return None
    return (row.lat[0] - direct.lat[0]) / 1000


def kb_per_stream(table: Table, case: str, target: str) -> float | None:
    """Resident memory of one more open stream."""
    row = table.row(case, target)
    return None if row is None else row.kb_per_stream


def open_streams(table: Table, case: str, target: str) -> float | None:
    """Streams that were open to the end, none of them lost."""
    row = table.row(case, target)
    return None if row is None else float(row.active)


def checked_x(table: Table, case: str, target: str) -> float | None:
    """Most memory while a body is checked, as a multiple of it."""
    row = table.row(case, target)
    return None if row is None else row.checked_x


def sent_x(table: Table, case: str, target: str) -> float | None:
    """Memory while a body is sent, as a multiple of it."""
    row = table.row(case, target)
    return None if row is None else row.sent_x


@dataclass(frozen=True)
class Gate:
    """At most `goal`, or `gate` where it is looser, times `against` (None: the figure itself).

    `at_least` turns it round.
    """

    what: str
    case: str
    measure: Measure
    goal: float
    against: str | None = None
    gate: float | None = None
    target: str = "daypass"
    at_least: bool = False

    @property
    def limit(self) -> float:
        return self.goal if self.gate is None else self.gate


@dataclass(frozen=True)
class Verdict:
    """`word`: met, within gate, missed, void or not run; `fails` is what ends a run with 1."""

    gate: Gate
    value: float | None
    word: str
    noisy: bool = False

    @property
    def fails(self) -> bool:
        if self.word == "void":
            return True
        if self.value is None or self.noisy:
            return False
        if self.gate.at_least:
            return self.value < self.gate.limit
        return self.value > self.gate.limit * SLACK


CPU_REQUEST = "CPU per 1 kB request"
GATES: tuple[Gate, ...] = (
    Gate(CPU_REQUEST, "json1k", cpu, 1.0, "haproxy+es256", 1.2),
    Gate(CPU_REQUEST, "json1k", cpu, 1.5, "envoy+cache"),
    Gate(CPU_REQUEST, "json1k", cpu, 0.01, "litellm"),
    Gate(CPU_REQUEST, "json1k", cpu, 0.15, "portkey"),
    Gate("CPU per paced event", "paced", cpu, 2.5, "nginx", 3.0),
    Gate("added p50 at 100/s, ms", "latency", added_ms, 0.8),
    Gate("added p50 at 100/s", "latency", added_ms, 0.06, "litellm"),
    Gate("memory per open stream", "memory", kb_per_stream, 1.5, "nginx", 2.0),
    Gate("open streams on one worker", "streams5000", open_streams, 5000, at_least=True),
    Gate("CPU per 1 MB of text", "body1m", cpu, 12.0, "haproxy"),
    Gate("CPU per 1 MB of base64", "image1m", cpu, 6.0, "haproxy"),
    Gate("CPU per 1 MB of text", "body1m", cpu, 0.2, "litellm"),
    Gate("CPU per 1 MB of base64", "image1m", cpu, 0.2, "litellm"),
    *(
        gate
        for size in ("1,000,000", "30,000,000")
        for gate in (
            Gate(f"memory while {size} B of text are checked", f"bytes {size} text", checked_x, 6),
            Gate(f"memory while {size} B of text are sent", f"bytes {size} text", sent_x, 1.5),
        )
    ),
)


def judge(gate: Gate, table: Table) -> Verdict:
    """What the run says about one gate."""
    asked = [gate.target] if gate.against is None else [gate.target, gate.against]
    rows = [table.rows.get((gate.case, name)) for name in asked]
    if any(row is None for row in rows):
        return Verdict(gate, None, "not run")
    if any(row is not None and row.void for row in rows):
        # A peer's void row voids the ratio, but only our own is a failure of ours.
        own = rows[0] is not None and rows[0].void
        return Verdict(gate, None, "void" if own else "peer void")
    if gate.against is None:
        value = gate.measure(table, gate.case, gate.target)
    else:
        value = table.ratio(gate.case, gate.target, gate.against, gate.measure)
    if value is None:
        return Verdict(gate, None, "not run")
    noisy = any(row is not None and row.noisy for row in rows)
    if gate.at_least:
        return Verdict(gate, value, "met" if value >= gate.goal else "missed", noisy)
    word = "met" if value <= gate.goal else "within gate" if value <= gate.limit else "missed"
    return Verdict(gate, value, word, noisy)
