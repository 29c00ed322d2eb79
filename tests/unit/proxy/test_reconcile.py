"""Reconciliation: comparing, reading the provider's report, and showing the result."""

import argparse
import json
import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from daypass_core.settings import SettingsError
from daypass_proxy import settings as proxy_settings
from daypass_proxy.reconcile import (
    Booked,
    Comparison,
    Day,
    Drift,
    Kind,
    Reported,
    Unreadable,
    reported,
)
from daypass_proxy.reconcile.command import add_arguments
from daypass_proxy.reconcile.settings import read_admin_key
from daypass_proxy.reconcile.shown import document, percent, table, write_textfile
from tests.servers.usage_report import Refusal, UsageReport

FIRST, SECOND = date(2026, 11, 29), date(2026, 11, 30)
MODEL = "claude-sonnet-4-5"
TOLERANCE = Decimal("0.005")
WANTED = reported.Wanted(FIRST, date(2026, 12, 1))
KEY = "sk-ant-admin-test"


def found(ours: int, theirs: int, estimated: int = 0) -> Comparison:
    """A comparison of one kind of one model on one day."""
    day = Day(FIRST, MODEL)
    booked = Booked({day: {Kind.OUTPUT: ours}}, {day: {Kind.OUTPUT: estimated}})
    return Comparison(booked, Reported({day: {Kind.OUTPUT: theirs}}), TOLERANCE)


@pytest.mark.parametrize(
    ("ours", "theirs", "beyond"),
    [
        (1000, 1000, False),
        (1005, 1000, False),  # 0.4975 % of the larger side
        (995, 1000, False),  # exactly the tolerance
        (994, 1000, True),
        (1006, 1000, True),
        (1, 0, True),
        (0, 1, True),
        (0, 0, False),
    ],
)
def test_what_differs_by_more_than_the_tolerance_is_beyond_it(
    ours: int, theirs: int, beyond: bool
) -> None:
    """A figure is beyond the tolerance when it differs by more than that part of the larger one."""
    assert bool(found(ours, theirs).beyond) == beyond


def test_a_call_near_midnight_does_not_count_as_drift() -> None:
    """Days may differ while the range agrees: the verdict is about the range."""
    booked = Booked({Day(FIRST, MODEL): {Kind.INPUT: 10}})
    theirs = Reported({Day(SECOND, MODEL): {Kind.INPUT: 10}})
    both = Comparison(booked, theirs, TOLERANCE)
    assert [[drift.ratio for drift in drifts] for _, drifts in both.days] == [[1], [-1]]
    assert both.beyond == []


def test_every_model_and_kind_of_either_side_is_compared() -> None:
    """A model that only the provider knows, and one that only we know, are both drift of 100 %."""
    booked = Booked({Day(FIRST, "ours"): {Kind.INPUT: 3}})
    theirs = Reported({Day(FIRST, "theirs"): {Kind.WEB_SEARCH: 2}})
    assert Comparison(booked, theirs, TOLERANCE).models == [
        Drift("ours", Kind.INPUT, 3, 0, 0),
        Drift("theirs", Kind.WEB_SEARCH, 0, 0, 2),
    ]


def test_the_table_says_both_sides_and_the_verdict() -> None:
    """Ours, the estimated part of it, theirs and the drift stand in one line, the verdict last."""
    lines = table(found(10_100, 10_000, 50)).splitlines()
    assert lines[0].split() == ["day", "model", "kind", "ours", "estimated", "theirs", "drift"]
    assert lines[1].split() == [str(FIRST), MODEL, "output", "10,100", "50", "10,000", "+0.990%"]
    assert lines[2].split()[0] == "all"
    assert lines[-1] == "1 of 1 figures differ by more than 0.500 percent"


def test_the_table_of_nothing_says_so() -> None:
    """Without usage on either side there is a sentence instead of figures."""
    nothing = Comparison(
        Booked({}, {}, open_calls=2, crashed_calls=3, edge_calls=1), Reported({}), TOLERANCE
    )
    assert table(nothing).splitlines()[1:] == [
        "2 calls are still open and not counted",
        "3 calls crashed with their proxy and have no figures",
        "1 calls ran across the edge of the range",
        "neither side has any usage in the range",
    ]


def test_json_holds_the_same() -> None:
    """The JSON says the verdict, the open calls and each figure with its ratio as a decimal."""
    said = json.loads(document(found(990, 1000)))
    assert said["within"] is False
    assert said["models"][0]["drift_ratio"] == "-0.010000000"
    assert said["days"][0] == {"day": str(FIRST), **said["models"][0]}


def test_the_textfile_is_replaced_whole(tmp_path: Path) -> None:
    """The metrics are written beside the file and renamed; nothing else stays in the folder."""
    file = tmp_path / "daypass.prom"
    file.write_text("old\n")
    write_textfile(found(995, 1000), file, 1_764_500_000.9)
    lines = file.read_text().splitlines()
    labels = f'{{model="{MODEL}",kind="output"}}'
    assert f"daypass_reconcile_drift_ratio{labels} -0.005000000" in lines
    assert f"daypass_reconcile_ours{labels} 995" in lines
    assert f"daypass_reconcile_theirs{labels} 1000" in lines
    assert lines[-1] == "daypass_reconcile_timestamp_seconds 1764500000"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_textfile_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """A folder in the place of the file is an OSError, and no half-written file stays."""
    (tmp_path / "daypass.prom").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_textfile(found(1, 1), tmp_path / "daypass.prom", 0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["daypass.prom"]


def test_percent_is_rounded_to_a_thousandth() -> None:
    """Percents have a sign and three decimals."""
    assert percent(Decimal("0.0049751")) == "+0.498%"
    assert percent(Decimal(0)) == "+0.000%"


# The provider's report


def asking(stub: UsageReport) -> Callable[[str], object]:
    """Ask the stub itself, without a connection between."""

    async def ask(target: str) -> reported.Page:
        headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
        status, said, extra = stub.answer(target, headers)
        after = extra.get("retry-after")
        return reported.Page(status, json.dumps(said).encode(), float(after) if after else None)

    return ask


async def read(stub: UsageReport, slept: list[float] | None = None) -> Reported:
    """Read the stub's report, with a sleep that only notes."""
    waits: list[float] = [] if slept is None else slept

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    return await reported.read(asking(stub), WANTED, str, sleep)  # type: ignore[arg-type]


async def test_all_pages_are_read() -> None:
    """A report of one bucket a page is asked for page by page, and every kind is taken over."""
    stub = UsageReport(KEY)
    stub.days_a_page = 1
    counts = {kind.value: number for number, kind in enumerate(Kind, 1)}
    stub.usage = {(FIRST, MODEL): counts, (SECOND, None): {"output": 7}}
    got = await read(stub)
    assert got.total == {
        Day(FIRST, MODEL): counts,
        Day(SECOND, reported.NO_MODEL): {Kind.OUTPUT: 7},
    }
    assert [query.get("page") for query in stub.queries] == [None, [f"page_{SECOND}"]]


async def test_workspaces_and_keys_are_asked_for() -> None:
    """Filters go into the query as the API spells lists."""
    wanted = reported.Wanted(FIRST, SECOND, ["wrkspc_a", "wrkspc_b"], ["apikey_x"])
    where = reported.target(wanted, None)
    assert "workspace_ids%5B%5D=wrkspc_a&workspace_ids%5B%5D=wrkspc_b" in where
    assert "api_key_ids%5B%5D=apikey_x" in where


async def test_a_busy_provider_is_asked_again_within_bounds() -> None:
    """429 and 5xx are asked again: after what retry-after says, at most 60 s, else 1, 2, 4 s."""
    stub, slept = UsageReport(KEY), list[float]()
    stub.refusals.extend(
        [Refusal(429, headers={"retry-after": "3600"}), Refusal(529), Refusal(500)]
    )
    await read(stub, slept)
    assert slept == [60.0, 2.0, 4.0]


async def test_a_provider_that_stays_busy_is_given_up() -> None:
    """After five tries the command says so."""
    stub, slept = UsageReport(KEY), list[float]()
    stub.refusals.extend([Refusal(429)] * 9)
    with pytest.raises(Unreadable, match="429: still so after 5 tries"):
        await read(stub, slept)
    assert len(slept) == 4


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (Refusal(401), "401: the admin key is not valid"),
        (Refusal(403), "403: the admin key may not read usage reports"),
        (Refusal(404), "must be Anthropic's own API"),
        (Refusal(400, message="starting_at: \x1b[31mtoo old"), r"400: starting_at: \\x1b\[31mtoo"),
    ],
)
async def test_a_refusal_says_what_to_do(refusal: Refusal, words: str) -> None:
    """A refusal that will stay is not repeated, and its sentence says what is wrong."""
    stub, slept = UsageReport(KEY), list[float]()
    stub.refusals.append(refusal)
    with pytest.raises(Unreadable, match=words):
        await read(stub, slept)
    assert slept == []


def without(entry: dict[str, object], *names: str) -> dict[str, object]:
    """A result of the report in which something is missing."""
    return {name: value for name, value in entry.items() if name not in names}


BUCKET: dict[str, object] = {
    "starting_at": f"{FIRST}T00:00:00Z",
    "ending_at": f"{SECOND}T00:00:00Z",
    "results": [],
}
RESULT: dict[str, object] = {
    "uncached_input_tokens": 1,
    "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
    "cache_read_input_tokens": 0,
    "output_tokens": 1,
    "server_tool_use": {"web_search_requests": 0},
    "model": MODEL,
}


@pytest.mark.parametrize(
    "said",
    [
        "not JSON",
        {"data": []},
        {"data": [], "has_more": True, "next_page": None},
        {"data": [BUCKET | {"results": [without(RESULT, "cache_creation")]}], "has_more": False},
        {"data": [BUCKET | {"results": [without(RESULT, "output_tokens")]}], "has_more": False},
        {"data": [BUCKET | {"results": [RESULT | {"output_tokens": 1.5}]}], "has_more": False},
        {"data": [BUCKET | {"ending_at": f"{FIRST}T01:00:00Z"}], "has_more": False},
        {"data": [BUCKET | {"starting_at": f"{FIRST}T00:00:00"}], "has_more": False},
        {
            "data": [
                {"starting_at": f"{FIRST}T06:00:00Z", "ending_at": f"{SECOND}T06:00:00Z"}
                | {"results": []}
            ],
            "has_more": False,
        },
        {
            "data": [
                {"starting_at": "2026-11-01T00:00:00Z", "ending_at": "2026-11-02T00:00:00Z"}
                | {"results": []}
            ],
            "has_more": False,
        },
    ],
)
async def test_a_report_in_another_form_is_no_report(said: object) -> None:
    """What is missing, of another type, or of another day is an error, never counted as nothing."""
    if isinstance(said, dict) and "has_more" in said:
        said = {"next_page": None} | said

    async def ask(_: str) -> reported.Page:
        return reported.Page(200, json.dumps(said).encode())

    async def sleep(_: float) -> None:
        raise AssertionError("nothing to wait for")

    with pytest.raises(Unreadable):
        await reported.read(ask, WANTED, str, sleep)


# Where the admin key is


ENVIRON = {
    "DAYPASS_ISSUER": "https://daypass.test",
    "DAYPASS_DATABASE_URL": "sqlite:////var/lib/daypass/daypass.db",
    "DAYPASS_BROKER_URL": "unix:/run/daypass/broker.sock",
    "DAYPASS_ANTHROPIC_KEYS": "acme=file:///run/secrets/key",
}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "DAYPASS_ANTHROPIC_ADMIN_KEY: is not set"),
        ("sk-ant-admin-pasted", "expected vault://"),
        ("vault://secret/llm/admin#key", "DAYPASS_VAULT_ADDR: is not set"),
        ("vault://secret/llm/{tenant}#key", "one key for the whole organisation"),
        ("env://NOT_THERE", "NOT_THERE: is not set"),
    ],
)
def test_an_admin_key_that_cannot_be_had_is_said_by_name(value: str, problem: str) -> None:
    """Each mistake is told with its variable, and a pasted key is not repeated."""
    environ = ENVIRON | {"DAYPASS_ANTHROPIC_ADMIN_KEY": value}
    with pytest.raises(SettingsError, match=problem) as caught:
        read_admin_key(proxy_settings.load(environ), environ)
    assert "pasted" not in str(caught.value)


def test_an_admin_key_in_a_variable_is_a_secret() -> None:
    """env:// takes the value from the environment, as a secret that does not show itself."""
    environ = ENVIRON | {"DAYPASS_ANTHROPIC_ADMIN_KEY": "env://ADMIN", "ADMIN": KEY}
    reference, secrets = read_admin_key(proxy_settings.load(environ), environ)
    assert (str(reference), repr(dict(secrets))) == ("env://ADMIN", "{'ADMIN': ***}")


def test_the_page_lists_every_flag_and_metric(tmp_path: Path) -> None:
    """docs/reconcile.md has each flag of the command and each metric of the textfile, no others."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "reconcile.md").read_text("utf-8")
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert set(re.findall(r"^\| `(--[a-z-]+)", page, re.MULTILINE)) == flags
    write_textfile(found(1, 1), tmp_path / "x.prom", 0.0)
    written = set(re.findall(r"^# TYPE (\S+)", (tmp_path / "x.prom").read_text(), re.MULTILINE))
    assert set(re.findall(r"^\| `(daypass_\w+)`", page, re.MULTILINE)) == written
    assert all(f"`{kind}`" in page for kind in Kind)
