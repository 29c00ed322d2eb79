"""The door of the admin listener: who gets in, what is read, what a refusal and the log say."""

import asyncio
import json
import logging
import re
from dataclasses import replace
from typing import Any

import pytest

from daypass_broker import db, schema
from daypass_broker.admin import ROUTES, admin_app
from daypass_broker.admin.call import MAX_BODY_BYTES, MAX_POLICY_BYTES
from tests.unit.broker.desk import Desk

SANDBOX = "/v1/sandboxes"
NO_SANDBOX = f"{SANDBOX}/sbx_{'a' * 26}"


def test_a_stranger_reads_the_document_and_nothing_else(desk: Desk) -> None:
    """Without a credential every route is 401; the document and health are open."""
    for verb, path, _ in ROUTES:
        path = path.replace("{id}", f"sbx_{'a' * 26}")
        assert desk.call(verb, path, {}, credential=None).status == 401
    for path in ("/v1/openapi.json", "/livez", "/readyz"):
        assert desk.call("GET", path, credential=None).status == 200


def test_every_stranger_is_told_the_same(desk: Desk) -> None:
    """Row 42: a missing, malformed, unknown, wrong or revoked credential gives the same bytes."""
    gone = desk.credential()
    assert desk.call("DELETE", f"/v1/credentials/{gone.id}").status == 200
    right = desk.admin
    wrong = right[:-1] + ("b" if right.endswith("a") else "a")
    told = {
        desk.call("GET", SANDBOX, credential=text).content
        for text in (None, "x", f"dpa_{'a' * 26}_{'b' * 32}", wrong, gone.text)
    }
    two = desk.client.request("GET", SANDBOX, headers=[("authorization", f"Bearer {right}")] * 2)
    told.add(two.content)
    assert len(told) == 1
    (body,) = told
    assert json.loads(body)["code"] == "invalid_credential"
    assert two.headers["www-authenticate"] == "Bearer"


def test_a_stranger_never_writes(desk: Desk) -> None:
    """Refused strangers leave no row behind, however often they come."""
    before = len(desk.rows(schema.audit))
    for _ in range(3):
        desk.call("POST", SANDBOX, {}, credential=f"dpa_{'a' * 26}_{'b' * 32}")
    assert desk.rows(schema.incident) == []
    assert len(desk.rows(schema.audit)) == before


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 400, "body"),
        (b"{", 400, "body"),
        (b'{"count": NaN}', 400, "body"),
        (b'{"count": 1, "count": 1}', 400, "count"),
        (b'{"role": "admin"}', 400, "role"),
        (b'{"budget_usd": 0.5}', 400, "budget_usd"),
        (b'{"tenant": "nobody"}', 404, "tenant"),
        (b'{"tenant": "acme", "budget_usd": 21}', 403, "budget_usd"),
    ],
)
def test_a_body_is_read_strictly(desk: Desk, body: bytes, status: int, field: str) -> None:
    """Row 46: what is unknown, doubled, no number or too much is refused naming the field."""
    reply = desk.call("POST", SANDBOX, body)
    assert (reply.status, reply.body["field"]) == (status, field)
    assert reply.body["detail"].startswith(f"{field}: ")
    assert desk.rows(schema.sandbox) == []


def test_beyond_the_profile_names_the_detail(desk: Desk) -> None:
    """403 with the path inside authorization_details, also for an admin."""
    details = [
        {"type": "llm_inference", "provider": "anthropic", "endpoints": ["messages"]}
        | {"models": ["claude-sonnet-4-5", "claude-opus-4-5"], "max_output_tokens": 1}
    ]
    reply = desk.call("POST", SANDBOX, {"tenant": "acme", "authorization_details": details})
    assert (reply.status, reply.body["code"]) == (403, "beyond_profile")
    assert reply.body["field"] == "authorization_details[0].models[1]"


def test_a_body_has_a_bound(desk: Desk) -> None:
    """Over 64 KiB, for a policy over 256 KiB, is 413 and is not read further."""
    assert desk.call("POST", SANDBOX, b" " * (MAX_BODY_BYTES + 1)).status == 413
    assert desk.call("PUT", "/v1/policy", b" " * (MAX_BODY_BYTES + 1)).status == 400
    assert desk.call("PUT", "/v1/policy", b" " * (MAX_POLICY_BYTES + 1)).status == 413


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (f"{SANDBOX}?state=new", "state"),
        (f"{SANDBOX}?limit=0", "limit"),
        (f"{SANDBOX}?limit=1001", "limit"),
        (f"{SANDBOX}?limit=1&limit=1", "limit"),
        (f"{SANDBOX}?colour=red", "colour"),
        (f"{SANDBOX}?tenant=%00", "tenant"),
        (f"{NO_SANDBOX}?x=1", "x"),
        ("/v1/usage?group_by=day%27", "group_by"),
        ("/v1/usage?since=yesterday", "since"),
        ("/v1/usage?after=req_9", "after"),
        ("/v1/audit?after=-1", "after"),
        ("/v1/policy?x=1", "x"),
        ("/v1/revocations?limit=x", "limit"),
        ("/v1/usage?limit=0000001000000", "limit"),
        ("/v1/usage?limit=1001", "limit"),
        ("/v1/usage?limit=01", "limit"),
        ("/v1/usage?group_by=day&after=noon", "after"),
    ],
)
def test_a_query_is_read_strictly(desk: Desk, path: str, field: str) -> None:
    """An unknown, doubled or wrong parameter is refused naming it."""
    reply = desk.call("GET", path)
    assert (reply.status, reply.body["field"]) == (400, field)


def test_what_is_no_route_is_a_problem_too(desk: Desk) -> None:
    """Unknown paths, final slashes and methods answer as problem+json, without any redirect."""
    for path in ("/", "/v1", f"{SANDBOX}/", "/v1/sandboxes/a/b/c", "/metrics"):
        assert desk.call("GET", path).status == 404
    reply = desk.call("PUT", SANDBOX)
    assert reply.status == 405
    assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert desk.call("HEAD", SANDBOX).status == 200


def test_an_orchestrator_touches_its_tenant_only(desk: Desk) -> None:
    """For another tenant's sandbox every route answers as for one that does not exist."""
    made = desk.sandbox(desk.acme)
    for verb, tail in (("GET", ""), ("DELETE", ""), ("POST", "/launch")):
        foreign = desk.call(verb, f"{SANDBOX}/{made['id']}{tail}", credential=desk.globex)
        missing = desk.call(verb, f"{NO_SANDBOX}{tail}", credential=desk.globex)
        assert foreign.status == 404
        assert foreign.content == missing.content
    for path in (SANDBOX, "/v1/usage", "/v1/audit"):
        assert desk.call("GET", f"{path}?tenant=acme", credential=desk.globex).status == 404
    assert desk.call("GET", SANDBOX, credential=desk.globex).body["sandboxes"] == []
    assert (
        desk.call("GET", f"{SANDBOX}/{made['id']}", credential=desk.acme).body["state"] == "active"
    )


@pytest.mark.parametrize(
    ("verb", "path", "body"),
    [
        ("POST", "/v1/credentials", {"role": "admin"}),
        ("GET", "/v1/credentials", None),
        ("DELETE", f"/v1/credentials/crd_{'a' * 26}", None),
        ("PUT", "/v1/policy", {}),
        ("GET", "/v1/policy", None),
        ("POST", f"{NO_SANDBOX}/restore", None),
        ("POST", "/v1/revocations", {"scope": "global"}),
        ("POST", "/v1/revocations", {"scope": "kid", "ident": "k"}),
    ],
)
def test_an_orchestrator_is_no_admin(desk: Desk, verb: str, path: str, body: object) -> None:
    """Row 46: credentials, policy, restoring and the widest revocations are closed to it."""
    reply = desk.call(verb, path, body, credential=desk.acme)
    assert (reply.status, reply.body["code"]) == (403, "forbidden")


def test_refusals_of_a_known_caller_are_counted(desk: Desk) -> None:
    """Trying doors is one row a minute and kind; a plain mistake is none."""
    for _ in range(3):
        desk.call("GET", "/v1/policy", credential=desk.acme)
    desk.call("GET", NO_SANDBOX, credential=desk.acme)
    desk.call("POST", SANDBOX, b"{", credential=desk.acme)
    found = {(row.kind, row.subject[:4]) for row in desk.rows(schema.incident)}
    assert found == {("admin_refused:forbidden", "crd_"), ("admin_refused:not_found", "crd_")}
    assert sum(row._mapping["count"] for row in desk.rows(schema.incident)) == 4


def test_nothing_is_cached_and_everything_has_an_id(desk: Desk) -> None:
    """Answers and problems carry no-store and a request id, which the audit event has too."""
    for reply in (desk.call("GET", SANDBOX), desk.call("GET", "/v1/usage?x=1")):
        assert reply.headers["cache-control"] == "no-store"
        assert re.fullmatch(r"req_[a-z2-7]{26}", reply.headers["request-id"])
    made = desk.call("POST", SANDBOX, {"tenant": "acme"})
    events = desk.rows(schema.audit, sandbox=made.body["id"])
    assert {event.request_id for event in events} == {made.headers["request-id"]}


def test_the_log_has_routes_and_no_ids_or_secrets(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """One line a request names the route, never the last segment, the credential or a token."""
    with caplog.at_level(logging.INFO, logger="daypass_broker"):
        made = desk.sandbox(desk.acme)
        desk.call("GET", f"{SANDBOX}/{made['id']}")
    lines: list[Any] = [vars(record)["fields"] for record in caplog.records]
    assert [line["route"] for line in lines] == [SANDBOX, f"{SANDBOX}/{{id}}"]
    assert [line["status"] for line in lines] == [201, 200]
    secrets = (made["id"], made["launch"]["credential"], desk.acme.rpartition("_")[2])
    for secret in secrets:
        assert secret not in str(lines)


def test_without_the_store_everything_waits(desk: Desk) -> None:
    """A store that is gone is 503 with Retry-After, and not ready; alive all the same."""
    broken = replace(desk.services, engine=db.connect("sqlite:////nowhere/at/all.db"))
    desk.serve(broken)
    reply = desk.call("GET", SANDBOX)
    assert (reply.status, reply.body["code"]) == (503, "store_unavailable")
    assert reply.headers["retry-after"] == "5"
    assert desk.call("GET", "/readyz", credential=None).status == 503
    assert desk.call("GET", "/livez", credential=None).status == 200


def test_an_error_of_ours_is_told_to_nobody(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Row 42: an unexpected exception is 500 with constant words; the log names kind and place."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("daypass_broker.sandbox.search", fail)
    reply = desk.call("GET", SANDBOX)
    assert (reply.status, reply.body["code"]) == (500, "internal_error")
    assert b"secret detail" not in reply.content
    assert "secret detail" not in caplog.text
    (record,) = [one for one in caplog.records if one.msg == "admin_request_failed"]
    assert record.__dict__["fields"]["where"].startswith("test_admin_door.py:")


async def test_a_body_that_does_not_come_is_not_waited_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that sends no body is answered 408 when its time is up."""
    monkeypatch.setattr("daypass_broker.admin.call.BODY_SECONDS", 0.01)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": SANDBOX,
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {desk.admin}".encode())],
    }
    await admin_app(desk.services)(scope, receive, send)
    assert sent[0]["status"] == 408
