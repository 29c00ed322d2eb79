"""Usage and audit read back."""

from typing import Any

import pytest
import sqlalchemy as sa

from daypass_broker import db, report, schema
from daypass_broker.audit import AuditTag
from daypass_broker.report import AuditFilter, UsageFilter
from daypass_core.problem import Refusal
from tests.unit.broker.desk import Desk, usage_row

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
        ("day", ["1970-01-01", "1970-01-02", "1970-01-03", "1970-01-04"]),
    ],
)
def test_groups_add_up_to_the_totals(used: Desk, group_by: str, keys: list[str]) -> None:
    """Every group is named by its key, and their calls add up."""
    with db.read(used.engine) as conn:
        answer: Any = report.grouped(conn, UsageFilter(), group_by, limit=100)
    assert [row[group_by] for row in answer["rows"]] == keys
    assert sum(row["calls"] for row in answer["rows"]) == answer["totals"]["calls"] == 4


def events(desk: Desk, limit: int = 100, after: int | None = None, **wanted: Any) -> Any:
    """Audit events that match."""
    with db.read(desk.engine) as conn:
        return report.audit_events(conn, AuditFilter(**wanted), limit=limit, after=after)


def test_audit_is_read_backwards_page_by_page(desk: Desk) -> None:
    """Newest first, `next` goes on to older events until there are none."""
    written = [row.seq for row in desk.rows(schema.audit)]
    first = events(desk, limit=len(written) - 1)
    second = events(desk, limit=3, after=first["next"])
    found = [event["seq"] for event in first["events"] + second["events"]]
    assert found == written[::-1]
    assert second["next"] is None


def test_audit_is_filtered(desk: Desk) -> None:
    """By tag, tenant and sandbox, each and together."""
    with desk.acting() as act:
        act.tell(AuditTag.SANDBOX_ENDED, tenant="acme", sandbox="sbx_a", detail={"a": [1]})
    (event,) = events(desk, tenant="acme", sandbox="sbx_a", tag="sandbox.ended")["events"]
    assert event["detail"] == {"a": [1]}
    assert events(desk, tenant="globex", tag="sandbox.ended")["events"] == []
    assert events(desk, tag="policy.applied")["events"][0]["tag"] == "policy.applied"


@pytest.mark.parametrize("group_by", ["tenant", "sandbox", "model", "day"])
def test_groups_come_page_by_page(used: Desk, group_by: str) -> None:
    """Never more than `limit` groups; `next` leads on, and the totals stay those of all."""
    pages: list[Any] = []
    with db.read(used.engine) as conn:
        whole = report.grouped(conn, UsageFilter(), group_by, limit=9)
        while not pages or pages[-1]["next"] is not None:
            after = pages[-1]["next"] if pages else None
            pages.append(report.grouped(conn, UsageFilter(), group_by, limit=1, after=after))
    assert [row for page in pages for row in page["rows"]] == whole["rows"]
    assert all(len(page["rows"]) == 1 and page["totals"] == whole["totals"] for page in pages)
