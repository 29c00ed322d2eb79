"""The bench's arithmetic: medians, ratios, void rows, gates. Nothing is measured here."""

import json
import os
from pathlib import Path

import pytest

from bench.bodies import image_body, text_body
from bench.gates import GATES, Gate, Table, added_ms, cpu, judge, open_streams
from bench.load import Figures, Load
from bench.process import forget_peak, peak_bytes
from bench.profile import own_times
from bench.proxy_main import AdmitEverything
from bench.results import Book, Row, combine, read_rows
from bench.table import failures, gates, render
from daypass_proxy import app
from daypass_proxy.ledger import Hold, Ledger, Reservation


def row(case: str, target: str, **fields: object) -> Row:
    """A row of one case, with what matters for the test."""
    return Row(case, target, "1.0", "something", **fields)  # type: ignore[arg-type]


def figures(cpu_share: float, done: int, *, bad: int = 0, events: int = 0) -> Figures:
    """One round: `cpu_share` of a core for two seconds."""
    return Figures(
        cpu=cpu_share, resident=1_000_000, seconds=2.0, done=done, bad=bad, errors=0,
        events=events, all_done=done, all_events=events, active=3,
        latency=[100, 200, 300, 400], first_byte=[1, 2, 3, 4], event_delay=[],
    )  # fmt: skip


def verdict(gate: Gate, *rows: Row) -> str:
    """What the rows say about one gate."""
    return judge(gate, Table(rows)).word


HALF = Gate("half", "json1k", cpu, 1.0, "haproxy+es256", 1.2)


def test_a_round_gives_the_cpu_time_of_one_request() -> None:
    """Half a core for two seconds over 10,000 requests is 100 µs each."""
    assert figures(0.5, 10_000).us_request == pytest.approx(100)


def test_streams_that_stay_open_are_counted_by_event() -> None:
    """Where no request ends, the cost is that of an event and no request figure is made up."""
    only = figures(0.5, 0, events=20_000)
    assert only.us_request is None
    assert only.us_event == pytest.approx(50)


def test_a_row_is_the_median_of_its_rounds() -> None:
    """One slow round moves the range, not the figure."""
    rounds = [figures(0.5, 10_000), figures(0.9, 10_000), figures(0.52, 10_000)]
    found = combine(row("json1k", "daypass"), rounds)
    assert found.us_req == pytest.approx(104)
    assert found.range == pytest.approx((100, 180))
    assert found.noisy
    assert not found.void


def test_one_wrong_answer_in_any_round_voids_the_row() -> None:
    """A row with a wrong answer has no figure in the table, in ratios and for gates."""
    bad = combine(row("json1k", "daypass"), [figures(0.5, 10), figures(0.5, 10, bad=1)])
    peer = row("json1k", "haproxy+es256", us_req=100.0)
    assert bad.void
    assert Table([bad, peer]).ratio("json1k", "daypass", "haproxy+es256", cpu) is None
    assert verdict(HALF, bad, peer) == "void"
    assert "void: 1 wrong answers" in render([bad, peer], {})
    assert HALF.what not in gates([peer])
    assert [found.word for found in failures([bad, peer])] == ["void"]


def test_a_lost_connection_voids_the_row_too() -> None:
    """Errors count like wrong answers."""
    assert row("json1k", "daypass", errs=1).void


def test_a_void_peer_voids_the_ratio_but_is_no_failure_of_ours() -> None:
    """A peer that answers wrongly takes its ratio away and nothing else."""
    ours, peer = row("json1k", "daypass", us_req=1.0), row("json1k", "haproxy+es256", bad=1)
    assert verdict(HALF, ours, peer) == "peer void"
    assert failures([ours, peer]) == []


def test_ratios_divide_by_the_peer_of_the_same_case() -> None:
    """The ratio columns are made of rows of one case."""
    rows = [
        row("json1k", "daypass", us_req=150.0),
        row("json1k", "nginx", us_req=20.0),
        row("sse50", "nginx", us_req=999.0),
    ]
    line = next(line for line in render(rows, {}).splitlines() if line.startswith("| daypass |"))
    assert "| 7.50 |" in line


@pytest.mark.parametrize(
    ("ours", "word"), [(100.0, "met"), (110.0, "within gate"), (120.1, "missed")]
)
def test_a_gate_tells_goal_gate_and_miss_apart(ours: float, word: str) -> None:
    """At the goal it is met, up to the gate within it, beyond it missed."""
    rows = row("json1k", "daypass", us_req=ours), row("json1k", "haproxy+es256", us_req=100.0)
    assert verdict(HALF, *rows) == word


@pytest.mark.parametrize(("ours", "fails"), [(137.0, False), (139.0, True)])
def test_a_run_fails_only_beyond_the_gate_by_fifteen_percent(ours: float, fails: bool) -> None:
    """1.2 times 1.15 is 1.38."""
    rows = [row("json1k", "daypass", us_req=ours), row("json1k", "haproxy+es256", us_req=100.0)]
    assert bool(failures(rows)) is fails


def test_a_noisy_row_never_fails_a_run() -> None:
    """Rounds that differ by more than half say too little to fail on."""
    ours = row("json1k", "daypass", us_req=900.0, range=(500.0, 900.0))
    rows = [ours, row("json1k", "haproxy+es256", us_req=100.0)]
    assert failures(rows) == []
    assert "missed, noisy" in gates(rows)


def test_added_latency_is_what_comes_on_top_of_asking_directly() -> None:
    """The upstream's own time is taken off, in milliseconds."""
    rows = [
        row("latency", "daypass", lat=[800.0, 1, 1, 1]),
        row("latency", "direct", lat=[50.0, 1, 1, 1]),
    ]
    assert added_ms(Table(rows), "latency", "daypass") == pytest.approx(0.75)


def test_a_gate_at_least_counts_streams_from_below() -> None:
    """4,999 open streams are not 5,000, and there is no slack on it."""
    gate = Gate("streams", "streams5000", open_streams, 5000, at_least=True)
    few = row("streams5000", "daypass", active=4999)
    assert verdict(gate, few) == "missed"
    assert judge(gate, Table([few])).fails
    assert verdict(gate, row("streams5000", "daypass", active=5000)) == "met"


def test_a_gate_without_its_rows_is_not_run() -> None:
    """What was not measured is named as such."""
    assert verdict(HALF, row("json1k", "daypass", us_req=1.0)) == "not run"
    assert f"Not run: {GATES[0].what}" in gates([])


def test_rows_survive_their_file(tmp_path: Path) -> None:
    """A run can be rendered again from its JSON lines, and each line tells the machine."""
    book = Book(tmp_path / "run.jsonl", "r1")
    book.add(row("json1k", "daypass", us_req=2.0, range=(1.0, 3.0), rounds=3))
    (back,), about = read_rows(book.path)
    assert back == book.rows[0]
    assert about["run_id"] == "r1"
    assert about["python"]


def test_times_of_builtins_belong_to_their_caller() -> None:
    """The time of a C function is booked on the file that called it."""
    caller = ("/x/proxy/daypass_proxy/guard.py", 1, "feed")
    stats = {
        caller: (1, 1, 2.0, 5.0, {}),
        ("~", 0, "<len>"): (1, 1, 3.0, 3.0, {caller: (1, 1, 3.0, 3.0)}),
    }
    assert own_times(stats) == {"daypass_proxy/guard.py": 5.0}


@pytest.mark.parametrize("size", [1_000, 50_000, 1_000_000])
def test_bodies_have_their_size(size: int) -> None:
    """Text and image bodies are JSON, end with the user's turn and are as long as asked."""
    for body in (text_body("json1k", size, True), image_body("json1k", size)):
        request = json.loads(body)
        assert size * 0.9 <= len(body) <= size * 1.1 + 500
        assert request["messages"][-1]["role"] == "user"
        assert "bench:json1k" in request["system"]


def test_a_load_without_a_body_sends_none() -> None:
    """Pings are GET: the generator gets no body file."""
    assert "-b" not in Load(None, path="/livez").words(1, [])


def test_the_peak_of_memory_is_that_since_it_was_forgotten() -> None:
    """Memory that was taken and given back shows in the peak, until that is forgotten."""
    forget_peak(os.getpid())
    before = peak_bytes(os.getpid())
    taken = bytearray(b"x" * 40_000_000)
    del taken
    assert peak_bytes(os.getpid()) > before + 30_000_000
    forget_peak(os.getpid())
    assert peak_bytes(os.getpid()) < before + 20_000_000


def test_the_ledger_that_admits_everything_is_a_whole_ledger() -> None:
    """It has every operation of the real one, and stands in its place in the product's root."""
    operations = {name for name in vars(Ledger) if not name.startswith("_")}
    assert operations <= set(vars(AdmitEverything))
    assert hasattr(app, "BatchedLedger")


async def test_the_ledger_that_admits_everything_holds_the_whole_output() -> None:
    """A call is answered as by an account with plenty left, so nothing of it is made smaller."""
    asked = Reservation(
        "req_1", 1, "sandbox:s", "acme", "s", "g", "t", "anthropic", "messages", "m", False,
        Hold(5, 7), output_least=1, output_most=20, output_nano=3,
    )  # fmt: skip
    assert (await AdmitEverything().reserve(asked)).output_tokens == 20
