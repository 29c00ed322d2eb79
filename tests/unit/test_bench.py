"""The bench's arithmetic: medians, ratios, void rows, gates. Nothing is measured here."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import interpreter
from bench.bodies import image_body, text_body
from bench.gates import GATES, Gate, Table, added_ms, cpu, judge, open_streams
from bench.load import Figures, Load
from bench.process import BenchError, forget_peak, peak_bytes
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
    book = Book(tmp_path / "run.jsonl", "r1", "3.11.2 (/usr/bin/python3: a build)")
    book.add(row("json1k", "daypass", us_req=2.0, range=(1.0, 3.0), rounds=3))
    (back,), about = read_rows(book.path)
    assert back == book.rows[0]
    assert about["run_id"] == "r1"
    assert "Python 3.11.2 (/usr/bin/python3: a build)" in render([back], about)


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


def fake_python(folder: Path, version: str) -> Path:
    """A program that answers as a Python of that version would."""
    path = folder / f"python{version}"
    told = json.dumps({"version": version, "debian": False, "flags": ["", "-O3", ""]})
    path.write_text(f"#!/bin/sh\necho '{told}'\n")
    path.chmod(0o755)
    return path


def test_the_proxy_runs_on_the_python_of_the_distribution(tmp_path: Path) -> None:
    """That is what its peers are built by; the project's own is the one to compare with."""
    distribution = fake_python(tmp_path, "3.11.2")
    found = interpreter.chosen(None, distribution)
    assert (found.path, found.version) == (distribution, "3.11.2")
    other = interpreter.other(found, distribution)
    assert other is not None
    assert other.path == Path(sys.executable)


def test_a_distribution_whose_python_is_too_old_has_no_say(tmp_path: Path) -> None:
    """Then the project's is measured, and there is no other; so too where there is none."""
    for distribution in (fake_python(tmp_path, "3.10.13"), tmp_path / "none"):
        found = interpreter.chosen(None, distribution)
        assert found.path == Path(sys.executable)
        assert interpreter.other(found, distribution) is None


def test_a_python_that_cannot_run_the_proxy_is_refused(tmp_path: Path) -> None:
    """Asked for by name, it is not replaced by another in silence."""
    for path in (fake_python(tmp_path, "3.10.13"), tmp_path / "none", Path("/bin/echo")):
        with pytest.raises(BenchError):
            interpreter.chosen(path)


@pytest.mark.parametrize(
    ("flags", "debian", "build"),
    [
        (["", "-g -O2 -O3", ""], False, "-O3, no PGO, no LTO"),
        (["'--enable-optimizations' '--with-lto'", "-O3", ""], False, "-O3, PGO, LTO"),
        (["", "-O2", "-fprofile-use -flto"], False, "-O2, PGO, LTO"),
        (["", "-O2", ""], True, "Debian's build, which keeps no record of PGO and LTO"),
    ],
)
def test_a_build_is_told_by_its_own_record(flags: list[str], debian: bool, build: str) -> None:
    """Nothing is claimed that the record does not say."""
    assert interpreter.build_of(flags, debian=debian) == build


def test_the_environment_is_made_anew_when_the_lock_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each Python; a second run finds it, and a failed one is not taken for made."""
    ran: list[Path] = []

    def run(words: Sequence[str], environment: dict[str, str]) -> None:
        folder = Path(environment["UV_PROJECT_ENVIRONMENT"])
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "bin" / "python").touch()
        ran.append(folder)
        if len(ran) == 2:
            raise BenchError("no network")

    monkeypatch.setattr(interpreter, "CACHE", tmp_path)
    monkeypatch.setattr(interpreter, "run", run)
    lock = tmp_path / "uv.lock"
    lock.write_text("one")
    found = interpreter.Interpreter(Path(sys.executable), "3.11.2", "some build")
    for _ in range(2):
        assert interpreter.environment(found, lock) == ran[0] / "bin" / "python"
    assert len(ran) == 1
    lock.write_text("two")
    with pytest.raises(BenchError):
        interpreter.environment(found, lock)
    lock.write_text("one")
    interpreter.environment(found, lock)
    assert len(ran) == 3
    interpreter.environment(interpreter.Interpreter(Path("/bin/sh"), "3.12.1", "another"), lock)
    assert len(set(ran)) == 2
