"""`/v1/rules`: made, listed, shown, disabled, removed, by admins; and what the audit is told."""

import json
from typing import Any

import pytest
import sqlalchemy as sa

from daypass_broker import db, rule_store, schema
from daypass_broker.rule_request import templates
from tests.unit.broker.desk import DOCUMENT, Desk, check_request

GITHUB: dict[str, Any] = {
    "template": "github",
    "name": "agents",
    "tenant": "acme",
    "profile": "coding",
    "audience": "https://daypass.test",
    "conditions": {"repository_id": "1", "ref": ["refs/heads/main", "refs/tags/*"]},
}


def make(desk: Desk, **fields: Any) -> dict[str, Any]:
    """Make a rule."""
    reply = desk.call("POST", "/v1/rules", {**GITHUB, **fields})
    assert reply.status == 201, reply.body
    return reply.body


def test_a_rule_is_made_and_shown(desk: Desk) -> None:
    """What was left out is told in the answer, with what a workload is started with."""
    made = make(desk)
    assert made["id"].startswith("fdrl_")
    assert made["issuer"] == "https://token.actions.githubusercontent.com"
    assert made["identity"] == ["repository_id", "run_id", "run_attempt"]
    assert made["conditions"]["repository_id"] == ["1"]
    assert made["environment"] == {
        "ANTHROPIC_BASE_URL": desk.settings.public_url,
        "ANTHROPIC_FEDERATION_RULE_ID": made["id"],
        "ANTHROPIC_ORGANIZATION_ID": "acme",
    }
    assert desk.call("GET", f"/v1/rules/{made['id']}").body == made
    (told,) = desk.rows(schema.audit, tag="rule.created")
    assert (told.subject, told.tenant) == (made["id"], "acme")
    assert json.loads(told.detail)["conditions"] == made["conditions"]


def test_a_rule_comes_back_as_it_was_made(desk: Desk) -> None:
    """The record that is believed in says what the answer says, whatever was asked."""
    jwk = {"kty": "EC", "crv": "P-256", "kid": "a"}
    jwk |= {"x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU"}
    jwk |= {"y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}
    asked = {
        "template": "oidc",
        "issuer": "https://issuer.test",
        "conditions": {"sub": "robot", "n": 1, "b": True},
        "keys": {"inline": {"keys": [jwk]}},
        "replay": "once",
        "after_deadline": "new",
        "max_life_seconds": 60,
        "max_sandboxes": 7,
    }
    made = make(desk, **asked)
    with db.read(desk.engine) as conn:
        (rule,) = rule_store.every(conn)
    assert rule.conditions == {"sub": ("robot",), "n": (1,), "b": (True,)}
    assert rule.keys.inline == asked["keys"]["inline"]  # type: ignore[index]
    assert (rule.replay, rule.after_deadline) == ("once", "new")
    assert (rule.max_life_s, rule.max_sandboxes) == (60, 7)
    assert made["keys"] == asked["keys"]


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_orchestrators_make_and_see_no_rules(desk: Desk, method: str) -> None:
    """A rule decides for a whole tenant, its own orchestrator's included."""
    made = make(desk)
    body = GITHUB if method == "POST" else None
    assert desk.call(method, "/v1/rules", body, credential=desk.acme).status == 403
    for verb, body in (("GET", None), ("PATCH", {"state": "disabled"}), ("DELETE", None)):
        path = f"/v1/rules/{made['id']}"
        assert desk.call(verb, path, body, credential=desk.acme).status == 403
    assert desk.rows(schema.federation_rule)[0].state == "active"


def test_rules_are_listed_by_tenant_and_name(desk: Desk) -> None:
    """All, or those of one tenant."""
    make(desk, name="b")
    make(desk, name="a")
    make(desk, name="a", tenant="globex")
    listed = desk.call("GET", "/v1/rules").body["rules"]
    assert [(rule["tenant"], rule["name"]) for rule in listed] == [
        ("acme", "a"),
        ("acme", "b"),
        ("globex", "a"),
    ]
    listed = desk.call("GET", "/v1/rules?tenant=globex").body["rules"]
    assert [rule["tenant"] for rule in listed] == ["globex"]


def test_a_rule_is_disabled_and_enabled(desk: Desk) -> None:
    """Each change is one event; saying it twice is none."""
    made = make(desk)
    path = f"/v1/rules/{made['id']}"
    for state in ("disabled", "disabled", "active"):
        assert desk.call("PATCH", path, {"state": state}).body["state"] == state
    assert desk.tags(subject=made["id"]) == ["rule.created", "rule.disabled", "rule.enabled"]
    assert desk.call("PATCH", path, {"audience": "x"}).status == 400
    assert desk.call("PATCH", path, {"state": "active", "audience": "x"}).status == 400


def test_every_change_shows_in_the_version(desk: Desk) -> None:
    """Brokers look at three numbers: whatever is done, in whatever millisecond, one differs."""
    seen = set()

    def look() -> None:
        with db.read(desk.engine) as conn:
            seen.add(rule_store.version(conn))

    look()
    made = make(desk)
    look()
    with db.begin(desk.engine) as conn:  # as if it all happened in one millisecond to come
        conn.execute(sa.update(schema.federation_rule).values(updated_at=2**42))
    for state in ("disabled", "active", "disabled"):
        desk.call("PATCH", f"/v1/rules/{made['id']}", {"state": state})
        look()
    desk.call("DELETE", f"/v1/rules/{made['id']}")
    look()
    assert len(seen) == 5  # the last is the first: no rules at all


def test_a_rule_is_removed_unless_sandboxes_came_by_it(desk: Desk) -> None:
    """Their records name it, so it stays, and can be disabled."""
    made = make(desk)
    sandbox = desk.sandbox()
    desk.change(schema.sandbox, sandbox["id"], rule=made["id"], identity="{}")
    refused = desk.call("DELETE", f"/v1/rules/{made['id']}")
    assert refused.status == 409
    assert "daypass rule disable" in refused.body["detail"]
    desk.change(schema.sandbox, sandbox["id"], rule=None)
    assert desk.call("DELETE", f"/v1/rules/{made['id']}").body["id"] == made["id"]
    assert desk.call("GET", f"/v1/rules/{made['id']}").status == 404
    assert desk.tags(subject=made["id"]) == ["rule.created", "rule.removed"]


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_no_rule_is_404(desk: Desk, method: str) -> None:
    """Also for ids that no store can hold."""
    body = {"state": "active"} if method == "PATCH" else None
    for ident in ("fdrl_nobody", "%00"):
        assert desk.call(method, f"/v1/rules/{ident}", body).status == 404


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"tenant": "nobody"}, 404, "tenant"),
        ({"profile": "sealed"}, 403, "profile"),
        ({"conditions": {"repository": "acme/agents"}}, 400, "conditions"),
        ({"issuer": "https://broker.test", "template": "oidc"}, 400, "conditions"),
        (
            {"issuer": "https://broker.test", "template": "oidc", "conditions": {"sub": "x"}},
            400,
            "issuer",
        ),
        ({"unknown": 1}, 400, "unknown"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    desk: Desk, fields: dict[str, Any], status: int, field: str
) -> None:
    """Nothing is written, and the field is named."""
    refused = desk.call("POST", "/v1/rules", {**GITHUB, **fields})
    assert (refused.status, refused.body["field"]) == (status, field)
    assert desk.rows(schema.federation_rule) == []


def test_a_name_is_given_once_a_tenant(desk: Desk) -> None:
    """Another tenant may have it as well."""
    make(desk)
    refused = desk.call("POST", "/v1/rules", GITHUB)
    assert (refused.status, refused.body["field"]) == (409, "name")
    make(desk, tenant="globex")


def test_the_templates_are_told(desk: Desk) -> None:
    """Every one, also to orchestrators: nothing in them is secret."""
    for credential in ("", desk.acme):
        listed = desk.call("GET", "/v1/rule-templates", credential=credential).body["templates"]
        assert [one["name"] for one in listed] == list(templates())


def test_the_document_knows_the_templates_and_takes_what_we_take() -> None:
    """The description of requests lists every template, and nothing that is refused as unknown."""
    listed = DOCUMENT["components"]["schemas"]["RuleRequest"]["properties"]["template"]["enum"]
    assert listed == list(templates())
    assert check_request("RuleRequest", GITHUB)
    assert not check_request("RuleRequest", {**GITHUB, "other": 1})
    assert not check_request("RuleChange", {"state": "gone"})


def test_an_attested_sandbox_is_listed_ended_and_restored(desk: Desk) -> None:
    """It is a sandbox like others; only that no answer ever holds a credential of ours."""
    rule = make(desk)
    ident = desk.sandbox()["id"]
    desk.change(
        schema.sandbox, ident, rule=rule["id"], identity='{"run_id":"1"}', launch="attested"
    )
    (shown,) = desk.call("GET", "/v1/sandboxes").body["sandboxes"]
    assert (shown["id"], shown["launch"]["mode"]) == (ident, "attested")
    assert shown["rule"] == rule["id"]
    assert shown["identity"] == {"run_id": "1"}
    revoked = desk.call("POST", "/v1/revocations", {"scope": "sandbox", "ident": ident})
    assert revoked.status == 201
    restored = desk.call("POST", f"/v1/sandboxes/{ident}/restore")
    assert restored.status == 200
    assert "credential" not in json.dumps(restored.body)
    assert desk.call("POST", f"/v1/sandboxes/{ident}/launch").status == 409
    assert desk.call("DELETE", f"/v1/sandboxes/{ident}").body["state"] == "ended"
