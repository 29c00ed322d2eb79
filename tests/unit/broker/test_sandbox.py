"""Sandboxes: registered, looked up, ended, restored, and what is handed out to start one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daypass_broker import account, handout, revocation, sandbox, schema
from daypass_broker.credential import Principal
from daypass_broker.fields import FieldError
from daypass_broker.keys import Purpose
from daypass_broker.limits import Limits
from daypass_broker.policy import Wish
from daypass_broker.revoke import Order, revoke
from daypass_broker.sandbox_request import SandboxRequest, read
from daypass_core.claims import LaunchClaims
from daypass_core.problem import Code, Refusal
from daypass_core.verify import verify_launch
from tests.unit.broker.desk import ACME, ADMIN, GLOBEX, Desk, check_request

CODING = SandboxRequest(tenant="acme", profile="coding")


def make(
    desk: Desk, request: SandboxRequest = CODING, principal: Principal = ADMIN, later: int = 0
) -> Any:
    """Make one sandbox, `later` seconds from now."""
    with desk.acting(revocation.share_version) as act:
        moved = replace(act, at=act.at + later * 1000)
        return sandbox.create(moved, principal, request, min_token_ttl=2)[0]


def revoked(desk: Desk, scope: str, ident: str) -> None:
    """Revoke as admin, as of now."""
    with desk.acting(revocation.lock_version) as act:
        revoke(act, ADMIN, Order(scope, ident))


def restored(desk: Desk, ident: str, principal: Principal = ADMIN, later: int = 0) -> Any:
    """Restore a sandbox."""
    with desk.acting(revocation.share_version) as act:
        return sandbox.restore(replace(act, at=act.at + later * 1000), principal, ident)


def replaced(desk: Desk, ident: str, principal: Principal = ADMIN, later: int = 0) -> Any:
    """Replace the launch credential of a sandbox."""
    with desk.acting(revocation.share_version) as act:
        return sandbox.replace_launch(replace(act, at=act.at + later * 1000), principal, ident)


def ended(desk: Desk, ident: str, principal: Principal = ADMIN) -> Any:
    """End a sandbox."""
    with desk.acting(revocation.lock_version) as act:
        return sandbox.end(act, principal, ident)


def launch_claims(desk: Desk, row: Any) -> LaunchClaims:
    """Verify the launch credential of a handout as the token endpoint does."""
    made: Any = handout.handout(desk.services, row, 0)
    return verify_launch(
        made["launch"]["credential"],
        desk.keys.public(Purpose.LAUNCH),
        issuer=desk.settings.issuer,
        audience=desk.settings.broker_audience,
        now=row.launch_iat,
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"colour": "red"}, "colour"),
        ({"tenant": "Acme"}, "tenant"),
        ({"tenant": None}, "tenant"),
        ({"profile": 1}, "profile"),
        ({"launch": "often"}, "launch"),
        ({"lifetime_seconds": 0}, "lifetime_seconds"),
        ({"lifetime_seconds": "60"}, "lifetime_seconds"),
        ({"lifetime_seconds": 86_401}, "lifetime_seconds"),
        ({"token_ttl_seconds": 3601}, "token_ttl_seconds"),
        ({"budget_usd": 0.5}, "budget_usd"),
        ({"budget_usd": "-1"}, "budget_usd"),
        ({"budget_usd": "1.0000000001"}, "budget_usd"),
        ({"labels": []}, "labels"),
        ({"labels": {"a": 1}}, "labels.a"),
        ({"labels": {"a": ""}}, "labels.a"),
        ({"labels": {"ä": "x"}}, "labels"),
        ({"labels": {f"l{n}": "x" for n in range(17)}}, "labels"),
        ({"connect": "vpn"}, "connect"),
        ({"count": 0}, "count"),
        ({"count": 101}, "count"),
        ({"count": True}, "count"),
        ({"authorization_details": []}, "authorization_details"),
        ({"authorization_details": [{"type": "x"}]}, "authorization_details[0].endpoints"),
        ([], "body"),
    ],
)
def test_every_field_of_a_request_is_checked(body: object, field: str) -> None:
    """An unknown field, a wrong kind or a value out of bounds is named; so says OpenAPI."""
    with pytest.raises(FieldError) as error:
        read(body)
    assert error.value.field == field
    assert not check_request("SandboxRequest", body)


def test_a_full_request_is_read() -> None:
    """Every field there is arrives where it belongs."""
    details = [
        {"type": "llm_inference", "provider": "anthropic", "endpoints": ["messages"]}
        | {"models": ["claude-sonnet-4-5"], "max_output_tokens": 100}
    ]
    body = {
        "tenant": "acme",
        "profile": "coding",
        "authorization_details": details,
        "launch": "single_use",
        "lifetime_seconds": 60,
        "token_ttl_seconds": 300,
        "budget_usd": "0.50",
        "labels": {"run/id": "7"},
        "connect": "socket",
        "count": 2,
    }
    request = read(body)
    assert check_request("SandboxRequest", body)
    assert (request.tenant, request.profile, request.count) == ("acme", "coding", 2)
    assert (request.labels, request.connect) == ({"run/id": "7"}, "socket")
    assert request.wish == Wish(
        request.wish.scope, "single_use", 60, 300, Limits(ceiling_nano=500_000_000)
    )
    assert request.wish.scope is not None
    assert read({}) == SandboxRequest()


@pytest.mark.parametrize(
    ("principal", "request_", "status", "field"),
    [
        (ADMIN, SandboxRequest(), 400, "tenant"),
        (ADMIN, SandboxRequest(tenant="nobody"), 404, "tenant"),
        (ACME, SandboxRequest(tenant="globex"), 404, "tenant"),
        (GLOBEX, SandboxRequest(), 400, "profile"),
        (ACME, SandboxRequest(profile="sealed"), 403, "profile"),
        (ACME, SandboxRequest(profile="nothing"), 403, "profile"),
        (ACME, SandboxRequest(wish=Wish(limits=Limits(ceiling_nano=10**12))), 403, "budget_usd"),
        (ACME, SandboxRequest(wish=Wish(token_ttl_s=1)), 400, "token_ttl_seconds"),
    ],
)
def test_a_request_is_for_a_tenant_and_profile_one_may_use(
    desk: Desk, principal: Principal, request_: SandboxRequest, status: int, field: str
) -> None:
    """What is not there, not yours, ambiguous or too much is refused naming the field."""
    with pytest.raises(Refusal) as refused:
        make(desk, request_, principal)
    assert (refused.value.problem.status, refused.value.problem.field) == (status, field)
    assert desk.rows(schema.sandbox) == []


def test_what_leaves_no_choice_may_be_left_out(desk: Desk) -> None:
    """An orchestrator's tenant and a tenant's only profile need not be named."""
    row = make(desk, SandboxRequest(), ACME)
    assert (row.tenant, row.profile, row.created_by) == ("acme", "coding", "crd_test")


def test_a_revoked_tenant_gets_no_sandbox(desk: Desk) -> None:
    """A tenant that is not active is refused with 403."""
    desk.change(schema.tenant, "acme", state="revoked")
    with pytest.raises(Refusal) as refused:
        make(desk)
    assert refused.value.problem.code is Code.FORBIDDEN


def test_the_launch_credential_says_what_the_row_says(desk: Desk) -> None:
    """The JWT verifies with the launch key and carries the row's ids, mode, times and tenant."""
    row = make(desk, replace(CODING, wish=Wish(launch="single_use", lifetime_s=60)))
    claims = launch_claims(desk, row)
    assert (claims.sandbox, claims.tenant, claims.token_id) == (row.id, "acme", row.launch_jti)
    assert (claims.mode, claims.issued_at, claims.expires_at) == (
        "single_use",
        row.launch_iat,
        row.launch_iat + 60,
    )
    again = launch_claims(desk, row)
    assert again == claims


def test_the_environment_points_at_the_proxy(desk: Desk) -> None:
    """A direct sandbox gets the four variables of stock clients and the file one of them names."""
    made: Any = handout.handout(desk.services, make(desk), 0)
    assert made["environment"] == {
        "ANTHROPIC_BASE_URL": desk.settings.public_url,
        "ANTHROPIC_IDENTITY_TOKEN_FILE": "/run/daypass/launch.jwt",
        "ANTHROPIC_FEDERATION_RULE_ID": "fdrl_daypass_launch",
        "ANTHROPIC_ORGANIZATION_ID": "acme",
    }
    assert made["files"] == {"/run/daypass/launch.jwt": made["launch"]["credential"]}


def test_a_socket_sandbox_goes_over_the_loopback_forwarder(desk: Desk) -> None:
    """With connect=socket the base URL is the forwarder's and the proxy's socket is named."""
    made: Any = handout.handout(desk.services, make(desk, replace(CODING, connect="socket")), 0)
    assert made["environment"]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8788"
    assert made["environment"]["DAYPASS_PROXY_SOCKET"] == "/run/daypass/proxy/proxy.sock"


def test_our_own_ca_comes_along(desk: Desk, tmp_path: Path) -> None:
    """With a CA file its certificate is a file of a direct sandbox, and two variables name it."""
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n")
    services = replace(desk.services, settings=replace(desk.settings, ca_file=ca))
    direct: Any = handout.handout(services, make(desk), 0)
    assert direct["files"]["/run/daypass/ca.pem"] == ca.read_text()
    for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"):
        assert direct["environment"][name] == "/run/daypass/ca.pem"
    socket: Any = handout.handout(services, make(desk, replace(CODING, connect="socket")), 0)
    assert "/run/daypass/ca.pem" not in socket["files"]


@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERTIFICATE-----\nPRIVATE KEY"])
def test_what_is_no_certificate_is_not_given_out(
    desk: Desk, tmp_path: Path, content: str | None
) -> None:
    """A missing file, or one that holds a private key, ends in an error and not in a sandbox."""
    ca = tmp_path / "ca.pem"
    if content is not None:
        ca.write_text(content)
    services = replace(desk.services, settings=replace(desk.settings, ca_file=ca))
    with pytest.raises(Refusal) as refused:
        handout.handout(services, make(desk), 0)
    assert refused.value.problem.code is Code.INTERNAL_ERROR


@pytest.mark.unbooked
def test_a_view_shows_the_account_and_no_credential(desk: Desk) -> None:
    """What is left is the budget less spent and held, never below zero."""
    row = make(desk)
    account = f"sandbox:{row.id}"
    desk.change(schema.account, account, spent_nano=10**9, reserved_nano=5 * 10**8)
    with desk.acting() as act:
        shown = handout.view(sandbox.get(act.conn, ADMIN, row.id), act.second)
    assert (shown["budget_usd"], shown["spent_usd"]) == ("5.00", "1.00")
    assert (shown["reserved_usd"], shown["remaining_usd"]) == ("0.50", "3.50")
    assert "credential" not in str(shown)
    desk.change(schema.account, account, spent_nano=6 * 10**9, overdraft_nano=10**9)
    with desk.acting() as act:
        shown = handout.view(sandbox.get(act.conn, ADMIN, row.id), act.second)
    assert (shown["remaining_usd"], shown["overdraft_usd"]) == ("0.00", "1.00")


@pytest.mark.unbooked
def test_what_is_set_aside_does_not_remain(desk: Desk) -> None:
    """What is left of slices is promised to others; what is used of them is counted once."""
    row = make(desk)
    amounts = {"spent_nano": 10**9, "lent_nano": 2 * 10**9, "lent_used_nano": 5 * 10**8}
    desk.change(schema.account, f"sandbox:{row.id}", **amounts)
    with desk.acting() as act:
        shown = handout.view(sandbox.get(act.conn, ADMIN, row.id), act.second)
        (budget, *_) = account.states(act.conn, f"sandbox:{row.id}").values()
    assert shown["remaining_usd"] == budget["left"] == "2.50"


def test_an_active_sandbox_past_its_deadline_is_expired(desk: Desk) -> None:
    """It is shown and found as expired, not as active."""
    late = make(desk, replace(CODING, wish=Wish(lifetime_s=1)), later=-60)
    live = make(desk)
    with desk.acting() as act:
        assert handout.view(late, act.second)["state"] == "expired"
        found = {
            state: [row.id for row in sandbox.search(act.conn, ADMIN, state=state)]
            for state in ("active", "expired", "ended", "revoked")
        }
    assert found == {"active": [live.id], "expired": [late.id], "ended": [], "revoked": []}


def test_an_orchestrator_finds_its_own_only(desk: Desk) -> None:
    """Another tenant's sandbox is not in the list, and not found by its id, also as a page mark."""
    mine, other = make(desk), make(desk, replace(CODING, tenant="globex"))
    with desk.acting() as act:
        assert [row.id for row in sandbox.search(act.conn, ACME)] == [mine.id]
        assert sandbox.search(act.conn, ACME, tenant="globex") == []
        with pytest.raises(Refusal) as refused:
            sandbox.get(act.conn, ACME, other.id)
        assert refused.value.problem.code is Code.NOT_FOUND
        with pytest.raises(Refusal):
            sandbox.search(act.conn, ACME, after=other.id)


@pytest.mark.parametrize("act_on", [ended, restored, replaced])
def test_nobody_touches_another_tenant_s_sandbox(desk: Desk, act_on: Any) -> None:
    """Ending, restoring and replacing are closed to other tenants; restoring to orchestrators."""
    row = make(desk)
    (before,) = desk.rows(schema.sandbox)
    with pytest.raises(Refusal) as refused:
        act_on(desk, row.id, GLOBEX)
    assert refused.value.problem.code in (Code.NOT_FOUND, Code.FORBIDDEN)
    assert desk.rows(schema.sandbox) == [before]
    assert desk.tags(sandbox=row.id) == ["sandbox.created", "grant.issued"]


def test_ending_is_for_good(desk: Desk) -> None:
    """An ended sandbox stays ended: it is not restored and gets no new launch credential."""
    row = make(desk)
    first = ended(desk, row.id, ACME)
    assert first.state == "ended"
    assert ended(desk, row.id, ACME) == first
    for again in (restored, replaced):
        with pytest.raises(Refusal) as refused:
            again(desk, row.id)
        assert refused.value.problem.code is Code.CONFLICT


def test_a_revoked_sandbox_can_be_ended(desk: Desk) -> None:
    """Ending works from revoked too, and is absolute."""
    row = make(desk)
    revoked(desk, "sandbox", row.id)
    assert ended(desk, row.id).state == "ended"
    assert [
        found.not_before is None for found in desk.rows(schema.revocation, scope="sandbox")
    ].count(True) == 1


@pytest.mark.parametrize("scope", ["sandbox", "tenant", "global", "grant"])
def test_restoring_gives_a_launch_credential_after_the_cut_off(desk: Desk, scope: str) -> None:
    """A restored sandbox is active with a new credential issued after every cut-off; row and
    root grant are active again."""
    row = make(desk)
    (grant,) = desk.rows(schema.grant_, sandbox=row.id)
    idents = {"sandbox": row.id, "tenant": "acme", "global": "*", "grant": grant.id}
    revoked(desk, scope, idents[scope])
    again = restored(desk, row.id)
    (cut_off,) = [found.not_before for found in desk.rows(schema.revocation)]
    assert again.state == "active"
    assert again.launch_jti != row.launch_jti
    assert again.launch_iat > cut_off
    assert again.deadline == row.deadline
    assert desk.rows(schema.grant_, sandbox=row.id)[0].state == "active"
    assert desk.tags(sandbox=row.id)[-1] == "sandbox.restored"


def test_a_sandbox_made_in_the_second_of_a_cut_off_lives(desk: Desk) -> None:
    """Made in the very second of a global cut-off, its launch credential starts in the next one."""
    revoked(desk, "global", "*")
    (cut_off,) = [row.not_before for row in desk.rows(schema.revocation)]
    row = make(desk)
    assert row.launch_iat > cut_off
    assert row.launch_iat - row.created_at // 1000 <= 1


@pytest.mark.parametrize("change", [restored, replaced])
def test_past_its_deadline_nothing_is_given_out(desk: Desk, change: Any) -> None:
    """A sandbox whose time is over is neither restored nor given a new credential."""
    row = make(desk, replace(CODING, wish=Wish(lifetime_s=60)))
    if change is restored:
        revoked(desk, "sandbox", row.id)
    with pytest.raises(Refusal) as refused:
        change(desk, row.id, later=60)
    problem = refused.value.problem
    assert (problem.code, problem.field) == (Code.CONFLICT, "deadline")


def test_a_replaced_launch_credential_works_for_a_minute(desk: Desk) -> None:
    """The new one is unused, the one before it is noted with its end, the one before that dies."""
    row = make(desk)
    desk.change(schema.sandbox, row.id, launch_used_at=1)
    first = replaced(desk, row.id, ACME)
    (event,) = desk.rows(schema.audit, sandbox=row.id, tag="launch.replaced")
    assert (first.previous_launch_jti, first.launch_used_at) == (row.launch_jti, None)
    assert first.previous_launch_until_at == event.at + 60_000
    assert replaced(desk, row.id).previous_launch_jti == first.launch_jti
    assert launch_claims(desk, first).token_id == first.launch_jti


def test_restoring_leaves_no_grace_for_the_old_credential(desk: Desk) -> None:
    """After a restore the credential from before works no minute longer."""
    row = make(desk)
    replaced(desk, row.id)
    revoked(desk, "sandbox", row.id)
    again = restored(desk, row.id)
    assert (again.previous_launch_jti, again.previous_launch_until_at) == (None, None)
    with pytest.raises(Refusal) as refused:
        restored(desk, row.id)
    assert refused.value.problem.code is Code.CONFLICT
