"""What holds for the whole test run: no skips, real servers, no key anywhere, right books.

After each test the ledgers below its folder are verified: a discrepancy fails the test. Those of a
stack or of a PostgreSQL server are verified by who stops the one or drops the database.

Provider keys of the tests contain CANARY. When the run ends, everything that it wrote (logs, answer
bodies, database files below the run's folder) is searched for it; one hit fails the run.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.canary import CANARY, key_files, leaks_below
from tests.servers.books import assert_books_right, ledgers_below, verified
from tests.servers.record import record_to
from tests.servers.stub import StubUpstream

pytest_plugins = ["tests.servers.fixtures"]

# As Hypothesis does in CI: how long an example takes is the machine's affair, and a run finds what
# the one before it found. `make fuzz` looks for more.
settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.load_profile("steady")

REAL = {
    "openbao": "real OpenBao",
    "postgres": "real PostgreSQL",
    "llm": "real LLM",
    "sdk": "unmodified official client",
}
ran: Counter[str] = Counter()
skipped: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run kill processes and race revocations more often than an ordinary one does."""
    parser.addoption("--crash-rounds", type=int, default=8, help="kills of each crash test")
    parser.addoption("--revocation-rounds", type=int, default=5, help="races of a revocation")


@pytest.fixture
def stub() -> Iterator[StubUpstream]:
    """A stub provider that takes the key `sk-ant-<canary>-acme` or `…-globex`."""
    with StubUpstream([f"sk-ant-{CANARY}-acme", f"sk-ant-{CANARY}-globex"]) as server:
        yield server


@pytest.fixture(autouse=True)
def right_books(request: pytest.FixtureRequest) -> Iterator[None]:
    """Verify the ledgers in the test's own folder once everything else of the test is down."""
    yield
    folder = request.node.funcargs.get("tmp_path")
    if folder is not None and request.node.get_closest_marker("unbooked") is None:
        for path in ledgers_below(folder):
            assert_books_right(path)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep every answer that a test gets, for the search at the end."""
    if folder := run_folder(session.config):
        record_to(folder / "answers.log")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Count what ran on real servers, and note every skip."""
    report = yield
    assert isinstance(report, pytest.TestReport)
    if report.skipped:
        skipped.append(item.nodeid)
    if report.when == "call" and report.passed:
        ran.update(name for name in REAL if item.get_closest_marker(name))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run for a skipped test, or for the canary in anything the run wrote."""
    folder = run_folder(session.config)
    leaks = leaks_below(folder, except_for=key_files(folder)) if folder else []
    session.config.stash[LEAKS] = leaks
    if skipped or leaks:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


LEAKS = pytest.StashKey[list[str]]()


def run_folder(config: pytest.Config) -> Path | None:
    """The folder that holds what this run wrote, when one was named with --basetemp."""
    named = config.getoption("basetemp")
    return Path(named) if named else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests ran on real servers, and what was found."""
    line = terminalreporter.write_line
    for name, words in REAL.items():
        line(f"{ran[name]:4} tests on {words}")
    line(f"{len(verified):4} ledgers verified, to the nano-dollar")
    for nodeid in skipped:
        line(f"SKIPPED (not allowed): {nodeid}", red=True)
    leaks = terminalreporter.config.stash.get(LEAKS, [])
    line(f"{len(leaks):4} files of this run hold the provider key", red=bool(leaks))
    for leak in leaks:
        line(f"  {leak}", red=True)
