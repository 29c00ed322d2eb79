"""The policy document: read strictly, applied as a whole, and what a sandbox request may ask."""

from typing import Any

import pytest
import yaml

from daypass_broker import db, policy_store, schema
from daypass_broker.fields import FieldError
from daypass_broker.limits import Limits
from daypass_broker.policy import Wish, allot, parse
from daypass_core.problem import Code, Refusal
from daypass_core.scope import Scope, parse_scope
from tests.unit.broker.desk import POLICY, Desk


def changed(path: str, value: object) -> dict[str, Any]:
    """The policy with one value put at a path; `...` removes it."""
    document: dict[str, Any] = yaml.safe_load(POLICY)
    *parents, last = path.split(".")
    inner = document
    for name in parents:
        inner = inner[name]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return document


DETAILS = "profiles.coding.authorization_details"
CLAUDE = {"type": "llm_inference", "provider": "anthropic", "endpoints": ["messages"],
          "models": ["*"]}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("profiles.coding.max_budget_usd", 2.5, "profiles.coding.max_budget_usd: must be"),
        ("profiles.coding.max_budget_usd", "4.99", "profiles.coding.max_budget_usd: must be at"),
        ("profiles.coding.budget_usd", ..., "profiles.coding.budget_usd: is missing"),
        ("profiles.coding.budget_usd", "-1", "profiles.coding.budget_usd: must be"),
        ("profiles.coding.lifetime_seconds", 86_401, "profiles.coding.lifetime_seconds: must be"),
        ("profiles.coding.lifetime_seconds", 36_001, "profiles.coding.max_lifetime_seconds: must"),
        ("profiles.coding.token_ttl_seconds", 299, "profiles.coding.token_ttl_seconds: must be"),
        ("profiles.coding.launch", "often", "profiles.coding.launch: must be one of reusable"),
        ("profiles.coding.colour", "red", "profiles.coding.colour: unknown field"),
        ("profiles.coding.source", "here", "profiles.coding.source: must be any, first, or a list"),
        ("profiles.coding.source", [], "profiles.coding.source: must be any, first, or a list"),
        ("profiles.coding.source", ["10.0.0.0/8"] * 9, "profiles.coding.source: must be any"),
        ("profiles.coding.source", ["::1/64"], "profiles.coding.source[0]: must be a network"),
        ("profiles.coding.source", ["::/0", 7], "profiles.coding.source[1]: must be a network"),
        ("profiles.coding.on_clone", "forgive", "profiles.coding.on_clone: must be one of"),
        ("profiles.coding.heartbeat_seconds", 9, "profiles.coding.heartbeat_seconds: must be an"),
        ("profiles.coding.max_depth", 4, "profiles.coding.max_depth: must be an integer"),
        (DETAILS, ..., f"{DETAILS}: is missing"),
        (DETAILS, [], f"{DETAILS}: must be a list"),
        (DETAILS, [{**CLAUDE, "body": "any"}], f"{DETAILS}[0].body: must be strict, compat or"),
        (DETAILS, [{"type": "llm_inference"}], f"{DETAILS}[0].endpoints: is missing"),
        ("profiles.Coding", {}, "profiles.Coding: is not a name"),
        ("tenants.acme", {}, "tenants.acme.profiles: is missing"),
        ("tenants.acme.profiles", ["coding", "coding"], "tenants.acme.profiles[1]: is given twice"),
        ("tenants.acme.profiles", ["none"], "tenants.acme.profiles[0]: no profile none"),
        ("tenants.acme.profiles", "coding", "tenants.acme.profiles: must be a list"),
        ("profiles.coding.budget_per_day_usd", 0.5, "profiles.coding.budget_per_day_usd: must be"),
        ("profiles.coding.concurrency", -1, "profiles.coding.concurrency: must be an integer"),
        ("profiles.coding.over_budget", "ask", "profiles.coding.over_budget: must be one of"),
        ("profiles.coding.drain_seconds", 61, "profiles.coding.drain_seconds: must be at most 60"),
        ("profiles.coding.time_zone", "UTC", "profiles.coding.time_zone: unknown field"),
        ("tenants.acme.time_zone", "Mars/Base", "tenants.acme.time_zone: is no IANA time zone"),
        ("tenants.acme.budget_usd", "-5", "tenants.acme.budget_usd: must be"),
        ("tenants.acme.max_budget_usd", "5", "tenants.acme.max_budget_usd: unknown field"),
        ("tenants.acme.tokens_per_minute", "9", "tenants.acme.tokens_per_minute: must be an"),
        ("tenants.acme.state", "active", "tenants.acme.state: unknown field"),
        ("orchestrators.acme-ci.tenant", "x", "orchestrators.acme-ci.tenant: no tenant x"),
        ("orchestrators.acme-ci.tenant", False, "orchestrators.acme-ci.tenant: must be text"),
        ("orchestrators.acme-ci.tenant", "globex", "orchestrators.acme-ci.tenant: belongs to acme"),
        ("everyone", {}, "everyone: unknown field"),
    ],
)
def test_every_mistake_is_named_by_its_path(
    desk: Desk, path: str, value: object, said: str
) -> None:
    """A wrong document is refused with the path of what is wrong, and nothing is written."""
    document = changed(path, value)
    document["tenants"]["new"] = {"profiles": ["coding"]}
    data = yaml.safe_dump(document).encode()
    with pytest.raises(FieldError) as error:
        desk.apply(data.decode(), min_token_ttl=300)
    assert str(error.value).startswith(said)
    assert desk.rows(schema.tenant, id="new") == []


def test_left_out_limits_have_defaults() -> None:
    """A profile needs a scope and a budget; the budget is its own limit, the rest is usual."""
    document = changed("profiles.sealed.launch", ...)
    profile = parse(document, min_token_ttl=300).profiles[1]
    assert (profile.budget_nano, profile.max_budget_nano) == (10**9, 10**9)
    assert (profile.lifetime_s, profile.max_lifetime_s) == (4 * 3600, 24 * 3600)
    assert (profile.token_ttl_s, profile.launch) == (600, "reusable")


def test_the_default_life_of_a_token_is_not_below_the_least() -> None:
    """Where tokens must live longer than usual, a profile that says nothing gets that."""
    document = changed("profiles.coding.token_ttl_seconds", ...)
    assert parse(document, min_token_ttl=900).profiles[0].token_ttl_s == 900


def test_a_short_limit_shortens_the_default_life() -> None:
    """Only `max_lifetime_seconds` below the usual lifetime is no contradiction."""
    document = changed("profiles.sealed.max_lifetime_seconds", 60)
    assert parse(document, min_token_ttl=300).profiles[1].lifetime_s == 60


def test_applying_again_changes_nothing(desk: Desk) -> None:
    """The second time everything is unchanged, and no event is written."""
    events = len(desk.rows(schema.audit))
    summary = desk.apply()
    assert (summary.created, summary.updated) == ([], [])
    assert "profiles.coding" in summary.unchanged
    assert len(summary.unchanged) == 6
    assert len(desk.rows(schema.audit)) == events


def test_a_change_is_told(desk: Desk) -> None:
    """The summary and the audit event say what was created and what was updated."""
    desk.actor = "crd_somebody"
    summary = desk.apply(POLICY.replace("20.00", "30.00") + "  initech-ci: {tenant: acme}\n")
    assert summary.created == ["orchestrators.initech-ci"]
    assert summary.updated == ["profiles.coding"]
    (event,) = desk.rows(schema.audit, actor="crd_somebody", tag="policy.applied")
    assert db.from_json(event.detail) == {
        "created": ["orchestrators.initech-ci"],
        "updated": ["profiles.coding"],
    }
    assert desk.rows(schema.profile, name="coding")[0].max_budget_nano == 30 * 10**9


def test_a_dry_run_writes_nothing(desk: Desk) -> None:
    """A dry run tells the same summary and leaves the store as it was."""
    desk.actor = "crd_x"
    summary = desk.apply(POLICY.replace("20.00", "30.00"), dry_run=True)
    assert (summary.updated, summary.dry_run) == (["profiles.coding"], True)
    assert desk.rows(schema.profile, name="coding")[0].max_budget_nano == 20 * 10**9
    assert desk.rows(schema.audit, actor="crd_x") == []


def test_what_a_document_does_not_name_stays(desk: Desk) -> None:
    """A document may name a part only, and refer to what the store has."""
    summary = desk.apply("tenants: {initech: {profiles: [coding]}}")
    assert summary.created == ["tenants.initech"]
    assert len(desk.rows(schema.tenant)) == 3


def test_the_exported_policy_applies_unchanged(desk: Desk) -> None:
    """What `export` gives is a document that changes nothing; limits are written as they came."""
    limits: dict[str, Any] = {
        "budget_per_day_usd": "2.50",
        "token_budget": 9,
        "over_budget": "reject",
        "drain_seconds": "0.5",
    }
    whole = changed("tenants.acme", {"profiles": ["coding"], "time_zone": "Asia/Tokyo", **limits})
    whole["profiles"]["coding"] |= {**limits, "drain_seconds": 3}
    life = {"source": ["10.0.0.0/8", "2001:db8::/32"], "heartbeat_seconds": 60, "max_depth": 1}
    whole["profiles"]["sealed"] |= life
    desk.apply(yaml.safe_dump(whole))
    with db.read(desk.engine) as conn:
        document: Any = policy_store.export(conn)
    assert document["tenants"]["acme"] == whole["tenants"]["acme"]
    usual = {"launch": "reusable", "source": "any", "on_clone": "quarantine", "max_depth": 3}
    assert document["profiles"]["coding"] == whole["profiles"]["coding"] | usual
    assert document["profiles"]["sealed"].items() >= life.items()
    assert document["tenants"]["globex"]["time_zone"] == "UTC"
    summary = desk.apply(db.to_json(document))
    assert (summary.created, summary.updated) == ([], [])


WHOLE = parse(yaml.safe_load(POLICY), min_token_ttl=300)
PROFILE, TENANT = WHOLE.profiles[0], WHOLE.tenants[0]


def scope(**changes: object) -> Scope:
    """A scope within the profile, but for the changes."""
    detail: dict[str, object] = {
        "type": "llm_inference",
        "provider": "anthropic",
        "endpoints": ["messages"],
        "models": ["claude-sonnet-4-5"],
        "max_output_tokens": 8000,
    }
    return parse_scope([{**detail, **changes}])


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        (Wish(limits=Limits(ceiling_nano=20 * 10**9 + 1)), "budget_usd"),
        (Wish(lifetime_s=36_001), "lifetime_seconds"),
        (Wish(token_ttl_s=601), "token_ttl_seconds"),
        (
            Wish(scope=scope(endpoints=["messages", "models"])),
            "authorization_details[0].endpoints[1]",
        ),
        (Wish(scope=scope(models=["claude-haiku-*"])), "authorization_details[0].models[0]"),
        (Wish(scope=scope(models=["*"])), "authorization_details[0].models[0]"),
        (Wish(scope=scope(max_output_tokens=8001)), "authorization_details[0].max_output_tokens"),
        (Wish(scope=scope(features=["web_search"])), "authorization_details[0].features[0]"),
    ],
)
def test_nothing_goes_beyond_the_profile(wish: Wish, field: str) -> None:
    """A request for more than the profile gives is refused with 403, naming the field."""
    with pytest.raises(Refusal) as refused:
        allot(PROFILE, TENANT, wish, min_token_ttl=300)
    problem = refused.value.problem
    assert (problem.code, problem.status, problem.field) == (Code.BEYOND_PROFILE, 403, field)


def test_a_request_may_take_less() -> None:
    """Every field within its limit is taken as asked; what is left out is the profile's default."""
    wish = Wish(scope(), "single_use", 60, 300, Limits(ceiling_nano=0))
    got = allot(PROFILE, TENANT, wish, min_token_ttl=300)
    assert (got.scope, got.launch, got.lifetime_s) == (scope(), "single_use", 60)
    assert (got.token_ttl_s, got.limits.ceiling_nano) == (300, 0)
    default = allot(PROFILE, TENANT, Wish(), min_token_ttl=300)
    assert (default.scope, default.launch, default.lifetime_s) == (
        PROFILE.scope,
        "reusable",
        14_400,
    )
    assert (default.token_ttl_s, default.limits.ceiling_nano) == (600, 5 * 10**9)


def test_a_single_use_profile_gives_nothing_reusable() -> None:
    """A profile of single-use launch credentials refuses a reusable one."""
    sealed = parse(yaml.safe_load(POLICY), min_token_ttl=300).profiles[1]
    with pytest.raises(Refusal) as refused:
        allot(sealed, TENANT, Wish(launch="reusable"), min_token_ttl=300)
    assert refused.value.problem.field == "launch"


def test_a_token_life_below_the_least_is_a_mistake() -> None:
    """Stock clients could not renew in time: 400, not 403."""
    with pytest.raises(Refusal) as refused:
        allot(PROFILE, TENANT, Wish(token_ttl_s=299), min_token_ttl=300)
    assert refused.value.problem.status == 400
