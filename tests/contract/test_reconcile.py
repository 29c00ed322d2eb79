"""The reconcile command as a process: rows on both back ends, a stub of the provider's report."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import daypass_migrations
from daypass_proxy.reconcile import Day, Kind, Unreadable
from daypass_proxy.reconcile.booked import Range, read
from tests.canary import CANARY
from tests.servers.postgres import PostgresServer
from tests.servers.usage_report import Refusal, UsageReport

FIRST, SECOND, END = date(2026, 11, 28), date(2026, 11, 29), date(2026, 11, 30)
KEY = f"sk-ant-admin-{CANARY}"
SONNET, HAIKU = "claude-sonnet-4-5", "claude-haiku-4-5"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with the present schema."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/daypass.db"
        daypass_migrations.upgrade(url)
        yield url
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.new_database()
    daypass_migrations.upgrade(url)
    yield url
    server.drop_database(url)


@pytest.fixture
def report() -> Iterator[UsageReport]:
    """The provider's report, empty so far."""
    with UsageReport(KEY) as stub:
        yield stub


def epoch_ms(day: date, hour: float = 12.0) -> int:
    """An hour of a day of UTC in epoch milliseconds."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return int((midnight + timedelta(hours=hour)).timestamp() * 1000)


ACCOUNT = """
INSERT INTO account (id, kind, tenant, open_calls, spent_nano, reserved_nano, updated_at)
SELECT 'a', 'sandbox', 'acme', COUNT(*), 0, 0, 0 FROM usage WHERE state = 'open'
"""


def book(url: str, *rows: dict[str, Any]) -> None:
    """Write settled usage rows, unless a row says otherwise, and the account they add up to."""
    usual: dict[str, Any] = {
        "attempt": 1, "state": "settled", "account": "a", "accounts": "a", "tenant": "acme",
        "sandbox": "sbx_a", "grant_id": "grt_a", "token_id": "tok_a", "provider": "anthropic",
        "endpoint": "messages", "model": SONNET, "reserved_nano": 0, "cost_nano": 0,
        "outcome": "complete", "estimated": 0, "worker": "w", "lease_until": 0,
        "started_at": epoch_ms(FIRST), "settled_at": epoch_ms(FIRST),
    }  # fmt: skip
    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            for number, row in enumerate(rows):
                values = usual | {"id": f"req_{number}"} | row
                names = ", ".join(values)
                marks = ", ".join(f":{name}" for name in values)
                statement = f"INSERT INTO usage ({names}) VALUES ({marks})"
                connection.execute(sa.text(statement), values)
            connection.execute(sa.text(ACCOUNT))
    finally:
        engine.dispose()


def settings(url: str, report: UsageReport, folder: Path) -> dict[str, str]:
    """The proxy's settings, and where the admin key is."""
    (folder / "admin.secret").write_text(KEY)
    return {
        "PATH": os.defpath,
        "DAYPASS_ISSUER": "https://daypass.test",
        "DAYPASS_DATABASE_URL": url,
        "DAYPASS_BROKER_URL": f"unix:{folder}/b.sock",
        "DAYPASS_ANTHROPIC_URL": report.url,
        "DAYPASS_ANTHROPIC_KEYS": "*=file:///nowhere/{tenant}.secret",
        "DAYPASS_ANTHROPIC_ADMIN_KEY": f"file://{folder}/admin.secret",
    }


def reconcile(environment: dict[str, str], *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the command for the two days."""
    days = ["--from", str(FIRST), "--to", str(END)]
    command = [sys.executable, "-m", "daypass_proxy", "reconcile", *days, *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert CANARY not in done.stdout + done.stderr
    return done


def test_usage_is_summed_by_model_day_and_kind(database: str) -> None:
    """Settled rows of the range count on the day they began; estimated ones also apart."""
    advisor = {"kind": "advisor_message", "model": HAIKU, "input_tokens": 7, "output_tokens": 5}
    compaction = {"kind": "compaction", "input_tokens": 1000, "output_tokens": 200}
    inside = {"kind": "message", "model": HAIKU, "input_tokens": 2, "output_tokens": 1}
    book(
        database,
        {"input_tokens": 10, "output_tokens": 20, "cache_read_input_tokens": 30}
        | {"cache_creation_input_tokens": 7, "cache_creation_1h_input_tokens": 2}
        | {"web_search_requests": 3},
        {"input_tokens": 1, "estimated": 1, "outcome": "client_gone"},
        {"input_tokens": 5, "started_at": epoch_ms(SECOND, 23.99)}
        | {"settled_at": epoch_ms(END, 0.01)},
        {"input_tokens": 100, "passes": json.dumps([compaction, advisor, inside])}
        | {"started_at": epoch_ms(SECOND), "settled_at": epoch_ms(SECOND)},
        {"state": "open", "cost_nano": None, "outcome": None, "settled_at": None},
        {"input_tokens": 999, "provider": "openai"},
        {"input_tokens": 999, "started_at": epoch_ms(END, 0)},
        {"input_tokens": 999, "started_at": epoch_ms(FIRST, -0.01)},
        {"outcome": "upstream_refused", "model": "never-answered"},
        {"outcome": "crashed", "estimated": 1},
    )
    got = read(database, Range(FIRST, END), str)
    assert got.total == {
        Day(FIRST, SONNET): {
            Kind.INPUT: 11, Kind.CACHE_WRITE_5M: 5, Kind.CACHE_WRITE_1H: 2, Kind.CACHE_READ: 30,
            Kind.OUTPUT: 20, Kind.WEB_SEARCH: 3,
        },
        Day(SECOND, SONNET): {Kind.INPUT: 5 + 100 + 1000 - 2, Kind.OUTPUT: 200 - 1},
        Day(SECOND, HAIKU): {Kind.INPUT: 7 + 2, Kind.OUTPUT: 5 + 1},
    }  # fmt: skip
    assert got.estimated == {Day(FIRST, SONNET): {Kind.INPUT: 1}}
    assert (got.open_calls, got.crashed_calls, got.edge_calls) == (1, 1, 2)
    assert read(database, Range(FIRST, END, tenant="globex"), str).total == {}


def test_equal_sides_are_exit_0_under_any_name_of_a_model(
    database: str, report: UsageReport, tmp_path: Path
) -> None:
    """A dated id and its alias are one model; both sides equal is exit 0, with the figures."""
    book(database, {"input_tokens": 25, "output_tokens": 15})
    report.usage = {(FIRST, "claude-sonnet-4-5-20250929"): {"input": 25, "output": 15}}
    report.days_a_page = 1
    done = reconcile(settings(database, report, tmp_path), "--workspace-id", "wrkspc_a")
    assert (done.returncode, done.stderr) == (0, "")
    assert "all 2 figures are within 0.5" in done.stdout
    assert [query["workspace_ids[]"] for query in report.queries] == [["wrkspc_a"]] * 2


def test_drift_is_exit_1_and_a_metric(database: str, report: UsageReport, tmp_path: Path) -> None:
    """One percent too little is exit 1, in the JSON and in the textfile."""
    book(database, {"output_tokens": 990}, {"output_tokens": 0, "estimated": 1})
    report.usage = {(FIRST, SONNET): {"output": 1000}}
    file = tmp_path / "reconcile.prom"
    environment = settings(database, report, tmp_path)
    done = reconcile(environment, "--json", "--textfile", str(file))
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert said["within"] is False
    assert said["models"][0]["drift_ratio"] == "-0.010000000"
    assert f'daypass_reconcile_drift_ratio{{model="{SONNET}",kind="output"}} -0.01' in (
        file.read_text()
    )
    assert reconcile(environment, "--tolerance", "1").returncode == 0
    done = reconcile(environment, "--textfile", "/nowhere/x.prom")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "daypass-proxy: cannot write /nowhere/x.prom: No such file or directory",
    )


def test_a_busy_provider_is_waited_for(database: str, report: UsageReport, tmp_path: Path) -> None:
    """A 429 with retry-after is asked again."""
    report.refusals.append(Refusal(429, "rate_limit_error", headers={"retry-after": "0"}))
    done = reconcile(settings(database, report, tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "neither side has any usage" in done.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"DAYPASS_ANTHROPIC_ADMIN_KEY": "env://ADMIN", "ADMIN": "sk-ant-api-wrong"}, "not valid"),
        ({"DAYPASS_ANTHROPIC_ADMIN_KEY": "file:///nowhere"}, "cannot be read from file:///nowhere"),
        ({"DAYPASS_ANTHROPIC_ADMIN_KEY": ""}, "DAYPASS_ANTHROPIC_ADMIN_KEY: is not set"),
        ({"DAYPASS_ANTHROPIC_URL": "http://127.0.0.1:9"}, "cannot be asked for its usage report"),
        ({"DAYPASS_DATABASE_URL": "sqlite:////nowhere/daypass.db"}, "cannot read /nowhere/daypass"),
    ],
)
def test_a_side_that_cannot_be_read_is_exit_2(
    report: UsageReport, tmp_path: Path, change: dict[str, str], words: str
) -> None:
    """Without one of the sides there is no verdict: exit 2 and a sentence that says which."""
    environment = settings(f"sqlite:///{tmp_path}/daypass.db", report, tmp_path)
    done = reconcile(environment | change)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_an_old_schema_is_unreadable(tmp_path: Path) -> None:
    """A file without our tables is said to be unreadable, not to be empty."""
    (tmp_path / "daypass.db").touch()
    with pytest.raises(Unreadable, match="no schema yet"):
        read(f"sqlite:///{tmp_path}/daypass.db", Range(FIRST, END), str)


@pytest.mark.postgres
def test_a_postgres_that_is_gone_is_unreadable() -> None:
    """A server that does not answer is unreadable, and its password is not shown."""
    with pytest.raises(Unreadable, match="cannot read PostgreSQL") as caught:
        read("postgresql://u:hush@127.0.0.1:9/x", Range(FIRST, END), str)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "flags",
    [
        ["--from", "2026-11-30", "--to", "2026-11-30"],
        ["--from", "2020-01-01", "--to", "2026-11-30"],
        ["--from", "yesterday"],
        ["--tolerance", "NaN"],
        ["--tolerance", "101"],
    ],
)
def test_a_wrong_question_is_exit_2(report: UsageReport, tmp_path: Path, flags: list[str]) -> None:
    """An empty or endless range, and what is no day or percent, are refused before anything."""
    environment = settings(f"sqlite:///{tmp_path}/daypass.db", report, tmp_path)
    command = [sys.executable, "-m", "daypass_proxy", "reconcile", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert report.queries == []
