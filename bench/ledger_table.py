"""The Markdown of a run of `bench.ledger`, and its goals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.gates import SLACK
from bench.results import NOISY

if TYPE_CHECKING:
    from bench.ledger import Cell

NAMES = {"sqlite": "SQLite, FULL", "postgres": "PostgreSQL"}
IDLE_MS = 1.0
"""What an idle ledger may add to one commit."""
BUSY_LOAD = 1.5
"""Load average for each core from which figures say little."""


@dataclass(frozen=True)
class Goal:
    """At least so many calls a second, admitted and settled."""

    what: str
    case: str
    store: str
    callers: int
    per_second: float


GOALS = (
    Goal("SQLite, 64 callers", "spread", "sqlite", 64, 5_000),
    Goal("PostgreSQL, 64 callers", "spread", "postgres", 64, 3_000),
    Goal("SQLite, one hot budget", "hot", "sqlite", 64, 1_000),
    Goal("PostgreSQL, one hot budget", "hot", "postgres", 64, 1_000),
)


def render(cells: Sequence["Cell"], about: dict[str, Any]) -> str:
    """Everything a run has to say."""
    loads = [cell.load_avg for cell in cells] or [0.0]
    head = (
        f"Run {about.get('run_id')}: {about.get('cpu_model')}, {about.get('cores')} cores, Linux"
        f" {about.get('kernel')}, Python {about.get('python')}; load average {min(loads):g} to"
        f" {max(loads):g} (the bench itself makes about 1.5).\nA call is admitted and settled, both"
        " durably; figures are medians of the rounds, ranges smallest to largest round."
    )
    parts = [head, "### Throughput and waiting\n\n" + markdown(_HEAD, _rows(cells))]
    if races := [cell for cell in cells if cell.case == "race"]:
        parts.append(
            "### 64 callers on a budget for 100 calls\n\n"
            + markdown(
                ["store", "way", "spent, % of the ceiling"],
                [[NAMES[one.store], one.way, f"{one.percent:.0f}"] for one in races],
            )
        )
    if idles := [cell for cell in cells if cell.case == "idle"]:
        parts.append("### An idle ledger, ms\n\n" + markdown(_IDLE_HEAD, map(_idle, idles)))
    lines = [[one.goal, one.measured, one.word] for one in verdicts(cells)]
    parts.append("### Goals of the ledger\n\n" + markdown(["goal", "measured", "verdict"], lines))
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True)
class Verdict:
    """What a run says about one goal; `fails` is what ends it with exit status 1."""

    goal: str
    measured: str
    met: bool
    fails: bool
    noisy: bool = False

    @property
    def word(self) -> str:
        return ("met" if self.met else "missed") + (", noisy" if self.noisy else "")


def verdicts(cells: Sequence["Cell"]) -> Iterator[Verdict]:
    """Each goal that was measured."""
    found = {(c.case, c.store, c.callers): c for c in cells if c.way == "daypass"}
    for goal in GOALS:
        cell = found.get((goal.case, goal.store, goal.callers))
        if cell is not None:
            yield _throughput(goal, cell)
    for (case, store, _), cell in found.items():
        if case == "idle":
            added = cell.admit_p50 - cell.commit_p50
            words = f"{NAMES[store]}, idle p50 ≤ one commit + {IDLE_MS:g} ms"
            measured = f"one commit + {added:.2f} ms"
            fails = added > IDLE_MS * SLACK and not busy(cell)
            yield Verdict(words, measured, added <= IDLE_MS, fails, busy(cell))
        if case == "race":
            within = cell.percent <= 100
            words = f"{NAMES[store]}, never past a ceiling"
            yield Verdict(words, f"{cell.percent:.0f} %", within, not within)


def _throughput(goal: Goal, cell: "Cell") -> Verdict:
    noisy = cell.range[1] > NOISY * cell.range[0] or busy(cell)
    words = f"{goal.what} ≥ {goal.per_second:,.0f}/s"
    met = cell.per_second >= goal.per_second
    fails = cell.per_second * SLACK < goal.per_second and not noisy
    return Verdict(words, f"{cell.per_second:,.0f}", met, fails, noisy)


def busy(cell: "Cell") -> bool:
    """Others had the machine: its disk and cores were shared with more than the bench itself."""
    return cell.load_avg > BUSY_LOAD * cell.cores


def failures(cells: Sequence["Cell"]) -> list[str]:
    """The goals that are missed by more than the slack, in figures that say something."""
    return [f"{one.goal}: {one.measured}" for one in verdicts(cells) if one.fails]


_HEAD = ["store", "callers", "way", "calls/s", "range", "admit p50", "p99 ms", "settle p50",
         "p99 ms", "CPU µs/call"]  # fmt: skip
_IDLE_HEAD = ["store", "admit p50", "p99", "settle p50", "p99", "one commit p50", "fdatasync p50"]


def _rows(cells: Sequence["Cell"]) -> Iterator[list[str]]:
    for cell in cells:
        if cell.case not in ("spread", "hot"):
            continue
        callers = str(cell.callers) + (", one budget" if cell.case == "hot" else "")
        spread = " to ".join(f"{each:,.0f}" for each in cell.range)
        times = (cell.admit_p50, cell.admit_p99, cell.settle_p50, cell.settle_p99)
        yield [
            NAMES[cell.store], callers, cell.way, f"{cell.per_second:,.0f}", spread,
            *(f"{each:.2f}" for each in times), f"{cell.cpu_us:,.0f}",
        ]  # fmt: skip


def _idle(cell: "Cell") -> list[str]:
    times = (cell.admit_p50, cell.admit_p99, cell.settle_p50, cell.settle_p99)
    return [
        NAMES[cell.store],
        *(f"{each:.2f}" for each in (*times, cell.commit_p50, cell.fsync_p50)),
    ]


def markdown(head: Sequence[str], lines: Any) -> str:
    """A table."""
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(out + ["| " + " | ".join(line) + " |" for line in lines])
