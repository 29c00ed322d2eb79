"""The life of a sandbox: idle, activated, said to be alive, over."""

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from daypass_broker import db, life, revocation, sandbox, schema
from daypass_broker.act import Act
from daypass_broker.credential import Principal
from daypass_broker.handout import handout
from daypass_broker.policy import Wish
from daypass_broker.revoke import Order, revoke
from daypass_broker.sandbox_request import (
    Activation,
    SandboxRequest,
    Vendor,
    read,
    read_activation,
)
from daypass_core.problem import Code, Refusal
from tests.unit.broker.desk import ACME, ADMIN, GLOBEX, Desk, check_request

POOL = SandboxRequest(tenant="acme", labels={"pool": "a"}, idle=True)
HOUR = 3600


def make(desk: Desk, request: SandboxRequest = POOL) -> Any:
    """Make one sandbox."""
    with desk.acting(revocation.share_version) as act:
        return sandbox.create(act, ADMIN, request, min_token_ttl=2)[0]


def later(act: Act, seconds: int) -> Act:
    """The same act, so much later."""
    return replace(act, at=act.at + seconds * 1000)


def activate(
    desk: Desk,
    ident: str,
    activation: Activation = Activation(),  # noqa: B008 - it is frozen
    principal: Principal = ADMIN,
    seconds: int = 0,
) -> Any:
    """Activate a sandbox, `seconds` from now."""
    with desk.acting(revocation.share_version) as act:
        return life.activate(later(act, seconds), principal, ident, activation)


def beat(desk: Desk, ident: str, seconds: int = 0, principal: Principal = ADMIN) -> Any:
    """Say that a sandbox lives, `seconds` from now."""
    with desk.acting() as act:
        return life.beat(later(act, seconds), principal, ident)


def cut(desk: Desk, scope: str, ident: str = "*") -> None:
    """Revoke as admin."""
    with desk.acting(revocation.lock_version) as act:
        revoke(act, ADMIN, Order(scope, ident))


def test_an_idle_sandbox_has_nothing(desk: Desk) -> None:
    """No credential, no environment, no deadline: it is worth nothing in a snapshot."""
    reply = desk.call("POST", "/v1/sandboxes", {"tenant": "acme", "idle": True})
    assert reply.status == 201
    assert reply.body["state"] == "idle"
    assert (reply.body["deadline"], reply.body["activated_at"]) == (None, None)
    assert not {"environment", "files"} & set(reply.body)
    assert "credential" not in reply.body["launch"]
    for path in ("launch", "restore", "heartbeat"):
        answer = desk.call("POST", f"/v1/sandboxes/{reply.body['id']}/{path}")
        assert (answer.status, "eyJ" in answer.content.decode()) == (409, False)
    many = desk.call("POST", "/v1/sandboxes", {"tenant": "acme", "idle": True, "count": 2}).body
    assert [row["state"] for row in many["sandboxes"]] == ["idle"] * 2
    assert len(desk.call("GET", "/v1/sandboxes?state=idle").body["sandboxes"]) == 3


def test_activation_gives_it_out(desk: Desk) -> None:
    """From then on it has a credential, its lifetime, labels and a vendor's id."""
    made = desk.call("POST", "/v1/sandboxes", {"idle": True}, credential=desk.acme).body
    body = {
        "labels": {"task": "42"},
        "source": ["10.0.0.0/8"],
        "lifetime_seconds": 60,
        "vendor": "e2b",
        "vendor_id": "i4x",
    }
    assert check_request("Activation", body)
    path = f"/v1/sandboxes/{made['id']}/activate"
    reply = desk.call("POST", path, body, credential=desk.acme)
    assert reply.status == 200
    assert reply.body["files"]["/run/daypass/launch.jwt"] == reply.body["launch"]["credential"]
    (row,) = desk.rows(schema.sandbox)
    assert (row.state, row.deadline - row.launch_iat, row.source) == ("active", 60, "10.0.0.0/8")
    assert (row.vendor, row.vendor_id, row.activated_at) == ("e2b", "i4x", row.heartbeat_at)
    assert reply.body["labels"] == {"task": "42"}
    (grant,) = desk.rows(schema.grant_)
    assert grant.expires_at == row.deadline
    assert desk.tags(sandbox=row.id)[-1] == "sandbox.activated"
    again = desk.call("POST", path, credential=desk.acme)
    assert (again.status, again.body["code"]) == (409, "conflict")
    assert "new launch credential" in again.body["detail"]


def test_the_time_of_an_idle_sandbox_begins_with_activation(desk: Desk) -> None:
    """Hours in the pool cost nothing of its lifetime; labels of both add up."""
    made = make(desk, replace(POOL, wish=Wish(lifetime_s=100)))
    row = activate(desk, made.id, Activation(labels={"task": "1"}), seconds=20 * HOUR)
    assert row.deadline - row.launch_iat == 100
    assert row.launch_iat >= made.launch_iat + 20 * HOUR
    assert row.launch_jti != made.launch_jti
    assert db.from_json(row.labels) == {"pool": "a", "task": "1"}


@pytest.mark.parametrize(
    ("activation", "field"),
    [
        (Activation(lifetime_s=4 * HOUR + 1), "lifetime_seconds"),
        (Activation(source="any"), "source"),
        (Activation(source="11.0.0.0/8"), "source"),
    ],
)
def test_activation_widens_nothing(desk: Desk, activation: Activation, field: str) -> None:
    """What was registered is the most; the refusal names the field, and it stays idle."""
    made = make(desk, replace(POOL, wish=Wish(source="10.0.0.0/8")))
    with pytest.raises(Refusal) as refused:
        activate(desk, made.id, activation)
    assert (refused.value.problem.code, refused.value.problem.field) == (
        Code.BEYOND_PROFILE,
        field,
    )
    assert activate(desk, made.id, Activation(source="10.1.0.0/16")).source == "10.1.0.0/16"


def test_what_was_idle_for_too_long_is_over(desk: Desk) -> None:
    """After a day in the pool it cannot be given out."""
    made = make(desk)
    with pytest.raises(Refusal, match="idle for too long"):
        activate(desk, made.id, seconds=24 * HOUR)


@pytest.mark.parametrize("scope", ["sandbox", "grant", "tenant"])
def test_what_was_revoked_while_idle_stays_idle_for_ever(desk: Desk, scope: str) -> None:
    """A revocation that names it, its grant or its tenant holds though there was no token yet."""
    made = make(desk)
    (grant,) = desk.rows(schema.grant_)
    cut(desk, scope, {"sandbox": made.id, "grant": grant.id, "tenant": "acme"}[scope])
    with pytest.raises(Refusal, match="revoked"):
        activate(desk, made.id, seconds=5)


def test_a_warm_one_is_restored_to_the_pool(desk: Desk) -> None:
    """It has no more than before: its credential and its time come with activation."""
    made = make(desk, replace(POOL, wish=Wish(lifetime_s=100)))
    cut(desk, "sandbox", made.id)
    reply = desk.call("POST", f"/v1/sandboxes/{made.id}/restore")
    assert (reply.status, reply.body["state"]) == (200, "idle")
    assert "environment" not in reply.body
    row = activate(desk, made.id, seconds=HOUR)
    assert row.deadline - row.launch_iat == 100


def test_a_cut_off_of_everything_before_now_ends_no_warm_pool(desk: Desk) -> None:
    """Nothing of an idle sandbox was issued before it; its credential comes after the cut-off."""
    made = make(desk)
    cut(desk, "global")
    row = activate(desk, made.id)
    with db.read(desk.engine) as conn:
        cut_off = revocation.cut_off(conn, "acme", made.id)
    assert cut_off is not None
    assert row.launch_iat > cut_off


def test_a_sandbox_of_another_tenant_is_not_there(desk: Desk) -> None:
    """Neither activated nor kept alive by an orchestrator of somebody else."""
    idle = make(desk)
    active = make(desk, replace(POOL, idle=False))
    with pytest.raises(Refusal) as refused:
        activate(desk, idle.id, principal=GLOBEX)
    assert refused.value.problem.code is Code.NOT_FOUND
    with pytest.raises(Refusal) as refused:
        beat(desk, active.id, principal=GLOBEX)
    assert refused.value.problem.code is Code.NOT_FOUND
    assert activate(desk, idle.id, principal=ACME).state == "active"


def test_a_heartbeat_moves_the_end(desk: Desk) -> None:
    """A sandbox that is said to live in time lives on; one that is not is over, for good."""
    made = make(desk, replace(POOL, idle=False, wish=Wish(heartbeat_s=600)))
    row = beat(desk, made.id, 500)
    assert row.heartbeat_at == pytest.approx(made.created_at + 500_000, abs=99_000)
    beat(desk, made.id, 1000)
    with pytest.raises(Refusal, match="too late"):
        beat(desk, made.id, 1601)


def test_a_heartbeat_moves_no_deadline(desk: Desk) -> None:
    """Past its deadline nobody can say that it lives."""
    made = make(desk, replace(POOL, idle=False, wish=Wish(lifetime_s=600)))
    assert beat(desk, made.id, 500).deadline == made.deadline
    with pytest.raises(Refusal, match="too late"):
        beat(desk, made.id, 602)


def test_a_heartbeat_over_http(desk: Desk) -> None:
    """The answer is the sandbox; an ended one is a conflict."""
    made = desk.sandbox(desk.acme, heartbeat_seconds=30)
    path = f"/v1/sandboxes/{made['id']}"
    reply = desk.call("POST", f"{path}/heartbeat", credential=desk.acme)
    assert (reply.status, reply.body["heartbeat_seconds"]) == (200, 30)
    assert reply.body["heartbeat_at"] is not None
    assert desk.call("POST", f"{path}/heartbeat", {}, credential=desk.acme).status == 200
    desk.call("DELETE", path)
    assert desk.call("POST", f"{path}/heartbeat", credential=desk.acme).status == 409


@pytest.mark.parametrize(
    ("profile", "wish", "given"),
    [(None, None, None), (None, 30, 30), (60, None, 60), (60, 30, 30), (60, 61, ...)],
)
def test_a_request_may_only_shorten_a_heartbeat(
    desk: Desk, profile: int | None, wish: int | None, given: object
) -> None:
    """A profile without one leaves it to the request."""
    desk.change(schema.profile, "coding", heartbeat_s=profile)
    request = SandboxRequest(tenant="acme", wish=Wish(heartbeat_s=wish))
    if given is ...:
        with pytest.raises(Refusal, match="heartbeat_seconds: must be at most 60"):
            make(desk, request)
    else:
        assert make(desk, request).heartbeat_s == given


def test_a_binding_needs_an_address(desk: Desk) -> None:
    """Behind a Unix socket nobody has one, so the two are refused together, also later."""
    bound = SandboxRequest(tenant="acme", connect="socket", wish=Wish(source="first"))
    with pytest.raises(Refusal, match="connect: a sandbox on a Unix socket"):
        make(desk, bound)
    made = make(desk, SandboxRequest(tenant="acme", connect="socket", idle=True))
    with pytest.raises(Refusal, match="connect: a sandbox on a Unix socket"):
        activate(desk, made.id, Activation(source="first"))


def test_a_replaced_credential_may_begin_elsewhere(desk: Desk) -> None:
    """Where the first address counts, the old credential dies at once and the binding with it."""
    made = make(desk, SandboxRequest(tenant="acme", wish=Wish(source="first")))
    desk.change(schema.sandbox, made.id, source_bound="10.0.0.1/32")
    with desk.acting(revocation.share_version) as act:
        row = sandbox.replace_launch(act, ADMIN, made.id)
        assert (row.source_bound, row.previous_launch_until_at) == (None, act.at)


def test_an_attested_sandbox_has_no_launch_credential(desk: Desk) -> None:
    """It gets none by replacing, and a restored one is only described."""
    made = make(desk, SandboxRequest(tenant="acme"))
    desk.change(schema.sandbox, made.id, launch="attested")
    with pytest.raises(Refusal, match="it has no launch credential"), desk.acting() as act:
        sandbox.replace_launch(act, ADMIN, made.id)
    cut(desk, "sandbox", made.id)
    reply = desk.call("POST", f"/v1/sandboxes/{made.id}/restore")
    assert (reply.status, reply.body["state"]) == (200, "active")
    assert "environment" not in reply.body
    (row,) = desk.rows(schema.sandbox)
    with db.read(desk.engine) as conn:
        assert "credential" not in str(handout(desk.services, sandbox.one(conn, row.id), 0))


def test_a_restored_sandbox_has_a_fresh_heartbeat(desk: Desk) -> None:
    """Nobody could say that it lives while it was revoked."""
    made = make(desk, SandboxRequest(tenant="acme", wish=Wish(heartbeat_s=60)))
    cut(desk, "sandbox", made.id)
    with desk.acting(revocation.share_version) as act:
        sandbox.restore(later(act, 100), ADMIN, made.id)
    assert beat(desk, made.id, 130).state == "active"


def test_a_vendor_comes_with_its_id(desk: Desk) -> None:
    """One without the other says nothing, and one id names one sandbox."""
    for body in ({"vendor": "e2b"}, {"vendor_id": "x"}):
        assert not check_request("SandboxRequest", body)
        assert desk.call("POST", "/v1/sandboxes", {"tenant": "acme", **body}).status == 400
    both = {"vendor": "e2b", "vendor_id": "x"}
    assert read(both).vendor == read_activation(both).vendor == Vendor("e2b", "x")
    many = desk.call("POST", "/v1/sandboxes", {"tenant": "acme", "count": 2, **both})
    assert many.body["field"] == "vendor_id"
    made = desk.sandbox(**both)
    assert (made["vendor"], made["vendor_id"]) == ("e2b", "x")


def test_overdue_and_its_cause_agree(desk: Desk) -> None:
    """At each moment a sandbox is either over, for the cause that came first, or it is not."""
    active = SandboxRequest(tenant="acme", wish=Wish(lifetime_s=120, heartbeat_s=60))
    made = {"active": make(desk, active), "idle": make(desk)}
    moments = {
        "active": [(0, None), (59, None), (61, "heartbeat"), (122, "deadline")],
        "idle": [(0, None), (23 * HOUR, None), (25 * HOUR, "idle")],
    }
    for name, row in made.items():
        for seconds, cause in moments[name]:
            now = row.created_at + seconds * 1000
            due = sa.select(schema.sandbox).where(schema.sandbox.c.id == row.id, life.overdue(now))
            with db.read(desk.engine) as conn:
                found = conn.execute(due).first()
            assert (None if found is None else life.cause(found, now)) == cause, (name, seconds)
