"""The ledger bench's arithmetic: percentiles, medians, goals. Nothing is measured here."""

import pytest

from bench.ledger import Cell, Round, cell_of, percentiles
from bench.ledger_table import failures, render, verdicts
from bench.process import BenchError


def cell(case: str, per_second: float = 0.0, **fields: object) -> Cell:
    """A cell of ours on SQLite with 64 callers, with what matters for the test."""
    known: dict[str, object] = {"range": (per_second, per_second)} | fields
    return Cell(case, "sqlite", "daypass", 64, per_second, **known)  # type: ignore[arg-type]


def test_percentiles_are_milliseconds() -> None:
    """p50 and p99 of a hundred times, in any order."""
    assert percentiles([number / 1000 for number in range(100, -1, -1)]) == (50.0, 99.0)
    with pytest.raises(BenchError):
        percentiles([])


def test_a_cell_has_the_medians_of_its_rounds() -> None:
    """Of three rounds the middle one counts, the others are the range."""
    rounds = [Round([0.001] * n, [0.002] * n, seconds=2.0, cpu=0.01 * n) for n in (10, 30, 20)]
    found = cell_of("spread", "sqlite", "daypass", 64, rounds)
    assert (found.per_second, found.range) == (10.0, (5.0, 15.0))
    assert (found.admit_p50, found.settle_p99) == (1.0, 2.0)
    assert found.cpu_us == pytest.approx(10_000)


@pytest.mark.parametrize(
    ("measured", "word", "fails"),
    [
        (cell("spread", 5_000), "met", False),
        (cell("spread", 4_900), "missed", False),  # within what machines differ by
        (cell("spread", 4_000), "missed", True),
        (cell("spread", 4_000, range=(3_000, 6_000)), "missed, noisy", False),
        (cell("spread", 4_000, load_avg=7.0, cores=2), "missed, noisy", False),
        (cell("race", percent=100.0), "met", False),
        (cell("race", percent=101.0), "missed", True),
        (cell("idle", admit_p50=1.5, commit_p50=0.5), "met", False),
        (cell("idle", admit_p50=2.5, commit_p50=0.5), "missed", True),
    ],
)
def test_goals_are_judged(measured: Cell, word: str, fails: bool) -> None:
    """A goal fails a run when it is missed clearly; money past a ceiling always does."""
    (verdict,) = verdicts([measured])
    assert (verdict.word, verdict.fails) == (word, fails)
    assert bool(failures([measured])) == fails


def test_every_case_is_shown() -> None:
    """The Markdown has the table of each case that was measured, and the goals."""
    cells = [cell("spread", 5_000), cell("hot", 2_000), cell("race", percent=100), cell("idle")]
    text = render(cells, {"run_id": "x"})
    assert "64, one budget" in text
    assert "64 callers on a budget for 100 calls" in text
    assert "An idle ledger" in text
    assert "| SQLite, 64 callers ≥ 5,000/s | 5,000 | met |" in text
