"""The routes of the admin listener; `Desk.call` checks every answer against OpenAPI."""

import csv
import io
from pathlib import Path

import pytest
import sqlalchemy as sa
from openapi_spec_validator import validate

from daypass_broker import db, report, schema
from daypass_broker.admin import ROUTES, webhooks
from daypass_core.problem import Code
from tests.unit.broker.desk import DOCUMENT, POLICY, Desk, check_request, usage_row

ROOT = Path(__file__).resolve().parents[3]
SANDBOX = "/v1/sandboxes"


def test_the_openapi_document_is_valid_and_says_all() -> None:
    """It validates as OpenAPI 3.1, and has exactly our routes."""
    validate(DOCUMENT)
    described = {
        (verb.upper(), path)
        for path, operations in DOCUMENT["paths"].items()
        for verb in operations
        if verb != "parameters"
    }
    open_ = {("GET", path) for path in ("/livez", "/readyz", "/v1/openapi.json")}
    open_ |= {("POST", webhooks.PATH)}
    assert described == {(verb, path) for verb, path, _ in ROUTES} | open_


def test_the_openapi_document_knows_our_codes() -> None:
    """Every code a problem of this listener can have is a code of core."""
    codes = DOCUMENT["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]
    assert set(codes) <= {code.value for code in Code}


def test_a_sandbox_is_registered_looked_up_and_ended(desk: Desk) -> None:
    """The whole life of a sandbox over HTTP, as its orchestrator."""
    made = desk.sandbox(desk.acme, labels={"run": "7"}, budget_usd="1.50")
    path = f"{SANDBOX}/{made['id']}"
    assert (made["tenant"], made["profile"], made["budget_usd"]) == ("acme", "coding", "1.50")
    assert made["files"]["/run/daypass/launch.jwt"] == made["launch"]["credential"]
    shown = desk.call("GET", path, credential=desk.acme).body
    assert (shown["remaining_usd"], shown["labels"]) == ("1.50", {"run": "7"})
    assert "credential" not in shown["launch"]
    replaced = desk.call("POST", f"{path}/launch", credential=desk.acme)
    assert replaced.status == 201
    assert replaced.body["launch"]["credential"] != made["launch"]["credential"]
    for _ in range(2):
        assert desk.call("DELETE", path, credential=desk.acme).body["state"] == "ended"
    (listed,) = desk.call("GET", SANDBOX, credential=desk.acme).body["sandboxes"]
    assert listed["id"] == made["id"]
    assert desk.call("POST", f"{path}/launch").status == 409


def test_count_gives_a_list(desk: Desk) -> None:
    """With `count`, one too, the answer is a list of handouts; pages go through them."""
    body = {"tenant": "acme", "count": 5}
    made = desk.call("POST", SANDBOX, body).body["sandboxes"]
    assert len({one["launch"]["credential"] for one in made}) == 5
    assert len(desk.call("POST", SANDBOX, {**body, "count": 1}).body["sandboxes"]) == 1
    first = desk.call("GET", f"{SANDBOX}?limit=4&state=active&tenant=acme").body
    rest = desk.call("GET", f"{SANDBOX}?limit=4&after={first['next']}").body
    assert (len(first["sandboxes"]), len(rest["sandboxes"]), rest["next"]) == (4, 2, None)


def test_the_same_key_replays_the_same_answer(desk: Desk) -> None:
    """A repeated Idempotency-Key gives the same sandbox and launch claims, once per credential."""
    headers = {"idempotency_key": "run-7"}
    first, second = (
        desk.call("POST", SANDBOX, {}, credential=desk.acme, **headers) for _ in range(2)
    )
    assert (first.status, second.status) == (201, 201)
    one, two = first.body, second.body
    payloads = [answer["launch"].pop("credential").split(".")[1] for answer in (one, two)]
    assert payloads[0] == payloads[1]
    for answer in (one, two):
        answer["files"].clear()
    assert one == two
    other = desk.call("POST", SANDBOX, {"profile": "coding"}, credential=desk.globex, **headers)
    assert other.body["id"] != one["id"]


def test_the_same_key_with_another_body_is_refused(desk: Desk) -> None:
    """422, and the first answer stays as it is; the order of fields is no difference."""
    first = {"labels": {"a": "1", "b": "2"}, "count": 1}
    same = {"count": 1, "labels": {"b": "2", "a": "1"}}
    for body, status in ((first, 201), (same, 201), ({**first, "count": 2}, 422)):
        reply = desk.call("POST", SANDBOX, body, credential=desk.acme, idempotency_key="k")
        assert reply.status == status
    assert reply.body["code"] == "idempotency_mismatch"
    for key in ("", "a b", "a, b", "a" * 256):
        reply = desk.call("POST", SANDBOX, {}, idempotency_key=key)
        assert reply.body["field"] == "idempotency-key"
    assert len(desk.rows(schema.sandbox)) == 1


def test_revoking_says_what_it_did(desk: Desk) -> None:
    """201 with the row, its version and what was marked; the list has it, newest first."""
    made = desk.sandbox(desk.acme)
    body = {"scope": "sandbox", "ident": made["id"], "not_before": "now", "reason": "leaked"}
    reply = desk.call("POST", "/v1/revocations", body, credential=desk.acme)
    assert reply.status == 201
    assert reply.body["effect"] == {"tenants": 0, "sandboxes": 1, "grants": 0, "tokens": 0}
    assert (reply.body["version"], reply.body["reason"]) == (1, "leaked")
    everything = desk.call("POST", "/v1/revocations", {"scope": "global"}).body
    assert (everything["ident"], everything["version"]) == (None, 2)
    listed = desk.call("GET", "/v1/revocations").body
    assert ([row["version"] for row in listed["revocations"]], listed["version"]) == ([2, 1], 2)
    mine = desk.call("GET", "/v1/revocations", credential=desk.acme).body["revocations"]
    assert [row["scope"] for row in mine] == ["sandbox"]
    restored = desk.call("POST", f"{SANDBOX}/{made['id']}/restore")
    assert (restored.status, restored.body["state"]) == (200, "active")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "scope"),
        ({"scope": "all"}, "scope"),
        ({"scope": "tenant"}, "ident"),
        ({"scope": "global", "ident": "*"}, "ident"),
        ({"scope": "tenant", "ident": "acme", "not_before": "soon"}, "not_before"),
        ({"scope": "tenant", "ident": "acme", "not_before": True}, "not_before"),
        ({"scope": "tenant", "ident": "acme", "not_before": "9999-01-01"}, "not_before"),
        ({"scope": "tenant", "ident": "acme", "reason": "x" * 257}, "reason"),
        ({"scope": "tenant", "ident": "acme", "until": 1}, "until"),
    ],
)
def test_a_revocation_is_read_strictly(desk: Desk, body: object, field: str) -> None:
    """A revocation that is not understood is refused naming the field, and revokes nothing."""
    reply = desk.call("POST", "/v1/revocations", body)
    assert (reply.status, reply.body["field"]) == (400, field)
    assert desk.rows(schema.revocation) == []


@pytest.mark.parametrize("not_before", [1_700_000_000, "1700000000", "2023-11-14T22:13:20Z"])
def test_a_cut_off_may_be_written_in_three_ways(desk: Desk, not_before: object) -> None:
    """Epoch seconds as number or text and RFC 3339 are the same moment."""
    body = {"scope": "tenant", "ident": "acme", "not_before": not_before}
    reply = desk.call("POST", "/v1/revocations", body)
    assert reply.body["not_before"] == "2023-11-14T22:13:20Z"


def test_a_policy_is_put_and_read_back(desk: Desk) -> None:
    """YAML and JSON, dry or not; what is read back applies unchanged."""
    wider = POLICY.replace("20.00", "30.00").encode()
    dry = desk.call("PUT", "/v1/policy?dry_run=true", wider, content_type="application/yaml")
    real = desk.call("PUT", "/v1/policy", wider)
    assert dry.body == {**real.body, "dry_run": True}
    assert real.body["updated"] == ["profiles.coding"]
    document = desk.call("GET", "/v1/policy").body
    assert document["profiles"]["coding"]["max_budget_usd"] == "30.00"
    again = desk.call("PUT", "/v1/policy", document, content_type="application/json")
    assert (again.body["created"], again.body["updated"]) == ([], [])


@pytest.mark.parametrize(
    ("data", "kind", "field"),
    [
        (POLICY.replace('"20.00"', "20.00").encode(), "", "profiles.coding.max_budget_usd"),
        (b"profiles: {}\nprofiles: {}", "", "line 2"),
        (b"profiles: {}", "application/json", "body"),
        (b"[]", "", "body"),
    ],
)
def test_a_wrong_policy_is_named(desk: Desk, data: bytes, kind: str, field: str) -> None:
    """400 with the path of the mistake; JSON is held to JSON."""
    reply = desk.call("PUT", "/v1/policy", data, content_type=kind or "application/yaml")
    assert (reply.status, reply.body["field"]) == (400, field)


def test_a_credential_is_shown_once(desk: Desk) -> None:
    """The text is in the answer that makes it and in no list, row or event."""
    body = {"role": "orchestrator", "orchestrator": "globex-ci"}
    made = desk.call("POST", "/v1/credentials", body)
    assert (made.status, made.body["tenant"]) == (201, "globex")
    text = made.body["credential"]
    assert desk.call("GET", SANDBOX, credential=text).status == 200
    secret = text.rpartition("_")[2]
    assert secret not in desk.call("GET", "/v1/credentials").content.decode()
    assert secret not in desk.call("GET", "/v1/audit").content.decode()
    ended = desk.call("DELETE", f"/v1/credentials/{made.body['id']}")
    assert ended.body["revoked_at"] is not None
    assert desk.call("GET", SANDBOX, credential=text).status == 401
    assert desk.call("DELETE", f"/v1/credentials/crd_{'a' * 26}").status == 404


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 400, "role"),
        ({"role": "root"}, 400, "role"),
        ({"role": "admin", "tenant": "acme"}, 400, "tenant"),
        ({"role": "admin", "orchestrator": "acme-ci"}, 400, "orchestrator"),
        ({"role": "orchestrator"}, 400, "orchestrator"),
        ({"role": "orchestrator", "orchestrator": "nobody"}, 404, "orchestrator"),
    ],
)
def test_a_credential_is_for_a_role(desk: Desk, body: object, status: int, field: str) -> None:
    """A role that is none, or an orchestrator that is none, is refused naming the field."""
    reply = desk.call("POST", "/v1/credentials", body)
    assert (reply.status, reply.body["field"]) == (status, field)


@pytest.mark.unbooked
def test_usage_and_audit_are_reported(desk: Desk) -> None:
    """Calls, groups and events over HTTP, for an orchestrator those of its tenant."""
    with db.begin(desk.engine) as conn:
        for number, tenant in enumerate(("acme", "globex")):
            conn.execute(sa.insert(schema.usage).values(**usage_row(number, tenant=tenant)))
    assert desk.call("GET", "/v1/usage").body["totals"]["calls"] == 2
    mine = desk.call("GET", "/v1/usage?limit=1", credential=desk.acme).body
    assert [row["tenant"] for row in mine["rows"]] == ["acme"]
    assert mine["totals"]["cost_usd"] == "0.000000007"
    for group in ("tenant", "sandbox", "token", "model", "day", "label:a/b.c"):
        path = f"/v1/usage?group_by={group}&since=1970-01-01&until=86400"
        assert desk.call("GET", path).body["totals"]["calls"] == 1
    made = desk.sandbox(desk.acme)
    events = desk.call("GET", f"/v1/audit?sandbox={made['id']}&limit=1", credential=desk.acme).body
    assert [event["tag"] for event in events["events"]] == ["grant.issued"]
    older = desk.call("GET", f"/v1/audit?after={events['next']}&tag=sandbox.created").body
    assert older["events"][0]["subject"] == made["id"]
    assert desk.call("GET", "/v1/audit", credential=desk.globex).body["events"] != []


def test_limits_are_changed_over_http(desk: Desk) -> None:
    """PATCH answers with the limits as they stand, as GET does; null takes one away."""
    made = desk.sandbox(desk.acme, budget_per_day_usd="2.00", concurrency=4)
    path = f"{SANDBOX}/{made['id']}"
    lower = {"budget_usd": "1.00", "concurrency": 2, "drain_seconds": 0.5, "over_budget": "reject"}
    assert check_request("SandboxLimits", lower)
    changed = desk.call("PATCH", path, lower, credential=desk.acme)
    assert changed.status == 200
    assert changed.body == desk.call("GET", path, credential=desk.acme).body
    assert (changed.body["budget_usd"], changed.body["over_budget"]) == ("1.00", "reject")
    assert (changed.body["drain_seconds"], changed.body["drain_tokens"]) == ("0.5", 500)
    shown = {name: state["limit"] for name, state in changed.body["limits"].items()}
    assert shown == {"budget_usd": "1.00", "budget_per_day_usd": "2.00", "concurrency": 2}
    raised = desk.call("PATCH", path, {"concurrency": 3}, credential=desk.acme)
    assert (raised.status, raised.body["field"]) == (403, "concurrency")
    assert "at most 2" in raised.body["detail"]
    freed = desk.call("PATCH", path, {"concurrency": None, "budget_usd": 9})
    assert set(freed.body["limits"]) == {"budget_usd", "budget_per_day_usd"}
    assert freed.body["tenant_limits"] == {}
    (event,) = desk.call("GET", "/v1/audit?tag=sandbox.limited&limit=1").body["events"]
    assert event["detail"]["after"] == {"ceiling_nano": 9 * 10**9, "concurrency_limit": None}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body"),
        ([], "body"),
        ({"budget_usd": None}, "budget_usd"),
        ({"budget_usd": 0.5}, "budget_usd"),
        ({"concurrency": "2"}, "concurrency"),
        ({"drain_seconds": 61}, "drain_seconds"),
        ({"lifetime_seconds": 60}, "lifetime_seconds"),
    ],
)
def test_a_change_of_limits_is_read_strictly(desk: Desk, body: object, field: str) -> None:
    """What is not understood is refused by name, and changes nothing; so says OpenAPI."""
    path = f"{SANDBOX}/{desk.sandbox()['id']}"
    before = desk.rows(schema.account)
    reply = desk.call("PATCH", path, body)
    assert (reply.status, reply.body["field"]) == (400, field)
    assert desk.rows(schema.account) == before
    assert not check_request("SandboxLimits", body)


def test_limits_of_an_ended_sandbox_are_a_conflict(desk: Desk) -> None:
    """409: nothing calls with it any more; 404 for one that is another tenant's."""
    path = f"{SANDBOX}/{desk.sandbox()['id']}"
    assert desk.call("PATCH", path, {"concurrency": 1}, credential=desk.globex).status == 404
    desk.call("DELETE", path)
    assert desk.call("PATCH", path, {"concurrency": 1}).status == 409


@pytest.mark.unbooked
def test_usage_is_given_as_csv_page_by_page(desk: Desk) -> None:
    """RFC 4180 with a heading; `link` leads to the next page, and no formula survives."""
    with db.begin(desk.engine) as conn:
        for number, model in enumerate(("=1+1", 'say "hi", x', "m")):
            row = usage_row(number, model=model, upstream_request_id="\t=cmd|' /C calc'!A0")
            conn.execute(sa.insert(schema.usage).values(**row))
    pages, path = [], "/v1/usage?format=csv&group_by=model&limit=2"
    while path:
        reply = desk.call("GET", path)
        assert reply.headers["content-type"] == "text/csv; charset=utf-8"
        pages.append(list(csv.reader(io.StringIO(reply.content.decode(), newline=""))))
        link = reply.headers.get("link", "")
        path = link.partition(">")[0].removeprefix("<")
        assert link == (f'<{path}>; rel="next"' if path else "")
    assert [page[0] for page in pages] == [["model", *report.SUM_FIELDS]] * 2
    assert [row[0] for page in pages for row in page[1:]] == ["'=1+1", "m", 'say "hi", x']
    calls = desk.call("GET", "/v1/usage?format=csv&model=m")
    heading, call = csv.reader(io.StringIO(calls.content.decode(), newline=""))
    assert heading == list(report.CALL_FIELDS)
    shown = dict(zip(heading, call, strict=True))
    assert shown["upstream_request_id"].startswith("'\t=cmd")
    assert (shown["stream"], shown["output_tokens"], shown["passes"]) == ("false", "", "[]")
    assert calls.content.count(b"\r\n") == 2
    empty = desk.call("GET", "/v1/usage?format=csv&tenant=globex").content.decode()
    assert empty == ",".join(report.CALL_FIELDS) + "\r\n"
    assert desk.call("GET", "/v1/usage?format=xml").body["field"] == "format"
