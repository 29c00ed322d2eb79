"""Usage read back: calls, sums, pages."""

from typing import Any

import pytest
import sqlalchemy as sa

from daypass_broker import db, report, schema
from daypass_broker.report import Grouping, UsageFilter
from daypass_core.problem import Refusal
from tests.unit.broker.desk import Desk, usage_row

pytestmark = pytest.mark.unbooked  # rows without accounts

DAY = 86_400


@pytest.fixture
def used(desk: Desk) -> Desk:
    """A desk with four calls: three settled on three days, one open on the fourth."""
    rows = [
        usage_row(0),
        usage_row(1, tenant="globex", sandbox="sbx_b", estimated=1, input_tokens=None),
        usage_row(2, model="claude-haiku-4-5", cost_nano=10**9),
        usage_row(
            3, state="open", cost_nano=None, outcome=None, settled_at=None, input_tokens=None
        ),
    ]
    with db.begin(desk.engine) as conn:
        for row in rows:
            conn.execute(sa.insert(schema.usage).values(**row))
    return desk


def usage(desk: Desk, limit: int = 100, after: str | None = None, **wanted: Any) -> dict[str, Any]:
    """The calls that match."""
    with db.read(desk.engine) as conn:
        return report.usage(conn, UsageFilter(**wanted), limit=limit, after=after)


def ids(answer: dict[str, Any]) -> list[str]:
    """The ids of the calls in an answer."""
    return [row["id"] for row in answer["rows"]]


def test_calls_are_shown_newest_first_with_totals(used: Desk) -> None:
    """Totals are of all calls: settled cost, and what open calls hold."""
    answer = usage(used)
    assert ids(answer) == ["req_3", "req_2", "req_1", "req_0"]
    totals = answer["totals"]
    assert (totals["calls"], totals["open_calls"], totals["estimated_calls"]) == (4, 1, 1)
    assert (totals["cost_usd"], totals["reserved_usd"]) == ("1.000000014", "0.000000005")
    assert (totals["input_tokens"], totals["output_tokens"]) == (20, 0)


def test_an_open_call_has_no_cost_yet(used: Desk) -> None:
    """An open call shows what it holds, a settled one what it cost and holds nothing."""
    open_call, settled = usage(used)["rows"][:2]
    assert (open_call["cost_usd"], open_call["reserved_usd"]) == (None, "0.000000005")
    assert (settled["cost_usd"], settled["reserved_usd"]) == ("1.00", "0.00")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"tenant": "globex"}, ["req_1"]),
        ({"sandbox": "sbx_a", "model": "claude-haiku-4-5"}, ["req_2"]),
        ({"since": DAY, "until": 3 * DAY}, ["req_2", "req_1"]),
        ({"until": 0}, []),
        ({"tenant": "' OR 1=1 --"}, []),
    ],
)
def test_filters_combine(used: Desk, wanted: dict[str, Any], found: list[str]) -> None:
    """Filters narrow rows and totals alike; `since` is included, `until` is not."""
    answer = usage(used, **wanted)
    assert ids(answer) == found
    assert answer["totals"]["calls"] == len(found)


def test_pages_follow_each_other(used: Desk) -> None:
    """`next` of one page is `after` of the following one; totals stay those of all."""
    first = usage(used, limit=3)
    second = usage(used, limit=3, after=first["next"])
    assert ids(first) + ids(second) == ["req_3", "req_2", "req_1", "req_0"]
    assert second["next"] is None
    assert second["totals"] == first["totals"]


def test_a_page_mark_of_another_tenant_is_refused(used: Desk) -> None:
    """`after` is looked up among what the asker may see."""
    with pytest.raises(Refusal):
        usage(used, tenant="acme", after="req_1")


@pytest.mark.parametrize(
    ("group_by", "keys"),
    [
        ("tenant", ["acme", "globex"]),
        ("sandbox", ["sbx_a", "sbx_b"]),
        ("model", ["claude-haiku-4-5", "claude-sonnet-4-5"]),
        ("token", ["tok_a"]),
        ("day", ["1970-01-01", "1970-01-02", "1970-01-03", "1970-01-04"]),
    ],
)
def test_groups_add_up_to_the_totals(used: Desk, group_by: str, keys: list[str]) -> None:
    """Every group is named by its key, and their calls add up."""
    with db.read(used.engine) as conn:
        answer: Any = report.grouped(conn, UsageFilter(), Grouping.of(group_by), limit=100)
    assert [row[group_by] for row in answer["rows"]] == keys
    assert sum(row["calls"] for row in answer["rows"]) == answer["totals"]["calls"] == 4


@pytest.mark.parametrize("group_by", ["tenant", "sandbox", "token", "model", "day", "label:task"])
def test_groups_come_page_by_page(used: Desk, group_by: str) -> None:
    """Never more than `limit` groups; `next` leads on, and the totals stay those of all."""
    pages: list[Any] = []
    with db.read(used.engine) as conn:
        whole = report.grouped(conn, UsageFilter(), Grouping.of(group_by), limit=9)
        while not pages or pages[-1]["next"] is not None:
            after = pages[-1]["next"] if pages else None
            pages.append(
                report.grouped(conn, UsageFilter(), Grouping.of(group_by), limit=1, after=after)
            )
    assert [row for page in pages for row in page["rows"]] == whole["rows"]
    assert all(len(page["rows"]) == 1 and page["totals"] == whole["totals"] for page in pages)


def labelled(desk: Desk) -> list[str]:
    """Make three sandboxes of two tasks and one of none, with a call each; their ids."""
    labels: list[dict[str, str]] = [{"task": "42"}, {"task": "7"}, {"other": "42"}, {"task": "42"}]
    made = [desk.sandbox(labels=each)["id"] for each in labels]
    with db.begin(desk.engine) as conn:
        for number, ident in enumerate(made):
            row = usage_row(10 + number, sandbox=ident, model=f"m{number}")
            conn.execute(sa.insert(schema.usage).values(**row))
    return made


def test_calls_are_summed_by_a_label_of_their_sandbox(desk: Desk) -> None:
    """One group for each value of the label; calls without it are one, at the end."""
    labelled(desk)
    with db.read(desk.engine) as conn:
        answer: Any = report.grouped(conn, UsageFilter(), Grouping.of("label:task"), limit=9)
    assert answer["group_by"] == "label:task"
    assert [(row["label"], row["calls"]) for row in answer["rows"]] == [
        ("42", 2),
        ("7", 1),
        (None, 1),
    ]
    assert answer["totals"]["calls"] == 4


@pytest.mark.parametrize("text", ["day'", "label:", "label:A", 'label:a"b', "label", "label:a$b"])
def test_a_grouping_is_one_of_those_there_are(text: str) -> None:
    """Whatever else is asked for is refused, a label that no sandbox can have too."""
    with pytest.raises(ValueError, match="must be one of tenant, sandbox"):
        Grouping.of(text)


PASSES = [
    {"kind": "message", "model": None, "input_tokens": 10, "output_tokens": 3},
    {
        "kind": "advisor_message",
        "model": "claude-opus-4-5",
        "input_tokens": 100,
        "output_tokens": 7,
    },
]


@pytest.fixture
def passed(desk: Desk) -> Desk:
    """A desk with a call of two passes, one of them beside the totals, and one that crashed."""
    rows = [
        usage_row(
            0,
            output_tokens=3,
            thinking_tokens=2,
            web_search_requests=1,
            service_tier="standard",
            tokens=120,
            passes=db.to_json(PASSES),
        ),
        usage_row(1, outcome="crashed", estimated=1, input_tokens=None, tokens=55),
        usage_row(
            2, state="open", cost_nano=None, outcome=None, settled_at=None, tokens=None,
            input_tokens=None, reserved_tokens=9,
        ),
    ]  # fmt: skip
    with db.begin(desk.engine) as conn:
        for row in rows:
            conn.execute(sa.insert(schema.usage).values(**row))
    return desk


def test_passes_are_counted_and_not_mixed_in(passed: Desk) -> None:
    """Token columns are the provider's totals; passes beside them are in `tokens` and apart."""
    sums = usage(passed)["totals"]
    assert (sums["input_tokens"], sums["output_tokens"]) == (10, 3)
    assert (sums["passes"], sums["pass_tokens"]) == (2, 107)
    assert (sums["tokens"], sums["reserved_tokens"]) == (175, 9)
    assert (sums["thinking_tokens"], sums["web_search_requests"]) == (2, 1)
    assert tuple(sums) == report.SUM_FIELDS


def test_a_call_shows_its_passes(passed: Desk) -> None:
    """A call has its passes one by one, or none; what it holds it shows while it is open."""
    opened, crashed, call = usage(passed)["rows"]
    assert call["passes"] == PASSES
    assert (call["tokens"], call["reserved_tokens"], call["service_tier"]) == (120, 0, "standard")
    assert (crashed["passes"], crashed["tokens"], crashed["input_tokens"]) == ([], 55, None)
    assert (opened["tokens"], opened["reserved_tokens"]) == (None, 9)
    assert tuple(call) == report.CALL_FIELDS
