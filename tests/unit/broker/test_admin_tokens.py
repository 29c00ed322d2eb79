"""Introspection (RFC 7662) and revocation by token (RFC 7009) on the admin listener."""

import logging
from typing import Any
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa

from daypass_broker import schema
from daypass_broker.keys import Purpose
from daypass_core.claims import Claims, RenewalClaims, subject
from tests.support import access_token, make_claims, signing_key
from tests.unit.broker.desk import Desk, Reply
from tests.unit.broker.revoking import order

INTROSPECT, REVOKE = "/v1/oauth/introspect", "/v1/oauth/revoke"
FORM = "application/x-www-form-urlencoded"


def post(desk: Desk, path: str, token: str, credential: str = "", **more: str) -> Reply:
    """Send a token as a form."""
    body = urlencode({"token": token, **more}).encode()
    return desk.call("POST", path, body, credential=credential, content_type=FORM)


def claims_of(desk: Desk, made: dict[str, Any]) -> Claims:
    """The claims of an access token that this sandbox has got, as its row says."""
    (root,) = desk.rows(schema.grant_, sandbox=made["id"])
    kid = desk.keys.active(Purpose.ACCESS).kid
    now = int(desk.services.clock.now())
    settings = desk.settings
    claims = make_claims(
        now=now,
        sandbox=made["id"],
        tenant=made["tenant"],
        grants=(root.id,),
        token_id=desk.services.new_id("tok"),
        key_id=kid,
        issuer=settings.issuer,
        audience=settings.audience,
    )
    with desk.acting() as act:
        act.conn.execute(
            sa.insert(schema.token).values(
                jti=claims.token_id,
                sandbox=claims.sandbox,
                tenant=claims.tenant,
                grant_id=root.id,
                kid=kid,
                iat=now,
                exp=claims.expires_at,
                created_at=act.at,
            )
        )
    return claims


@pytest.fixture
def made(desk: Desk) -> dict[str, Any]:
    """A sandbox of tenant acme."""
    return desk.sandbox(desk.acme)


@pytest.fixture
def claims(desk: Desk, made: dict[str, Any]) -> Claims:
    """What its access token says."""
    return claims_of(desk, made)


@pytest.fixture
def token(desk: Desk, claims: Claims) -> str:
    """Its access token."""
    return desk.services.signer.sign_access(claims)


def renewal(desk: Desk, made: dict[str, Any], generation: int = 3) -> str:
    """A renewal generation of a sandbox whose lineage is at number 3."""
    lineage_id = desk.services.new_id("lin")
    now = int(desk.services.clock.now())
    with desk.acting() as act:
        act.conn.execute(
            sa.insert(schema.lineage).values(
                id=lineage_id,
                sandbox=made["id"],
                generation=3,
                rotated_at=act.at - 60_000,
                state="active",
                created_at=act.at,
            )
        )
    said = RenewalClaims(
        issuer=desk.settings.issuer,
        audience=desk.settings.broker_audience,
        subject=subject(desk.settings.trust_domain, made["tenant"], made["id"]),
        tenant=made["tenant"],
        sandbox=made["id"],
        token_id=f"{lineage_id}-{generation}",
        issued_at=now,
        expires_at=now + 600,
        lineage=lineage_id,
        generation=generation,
        key_id=desk.keys.active(Purpose.RENEWAL).kid,
    )
    return desk.services.signer.sign_renewal(said)


def test_a_live_token_says_all_that_it_says(desk: Desk, claims: Claims, token: str) -> None:
    """RFC 7662 §2.2: the claims of a live access token, to an admin and to its orchestrator."""
    for credential in ("", desk.acme):
        found = post(desk, INTROSPECT, token, credential, token_type_hint="access_token").body
        assert (found["active"], found["token_type"], found["kind"]) == (True, "Bearer", "access")
        assert (found["jti"], found["exp"]) == (claims.token_id, claims.expires_at)
        assert (found["sub"], found["client_id"]) == (claims.subject, claims.subject)
        assert (found["sandbox"], found["tenant"]) == (claims.sandbox, claims.tenant)
        assert (found["grants"], found["kid"]) == (list(claims.grants), claims.key_id)
        assert found["authorization_details"][0]["models"] == ["claude-sonnet-*"]
        assert found["recorded"] is True


def test_a_launch_credential_and_a_renewal_can_be_looked_into(
    desk: Desk, made: dict[str, Any]
) -> None:
    """The other two kinds are live while their sandbox would go on with them."""
    launch = made["launch"]["credential"]
    found = post(desk, INTROSPECT, launch).body
    assert (found["kind"], found["mode"], found["sandbox"]) == ("launch", "reusable", made["id"])
    for generation, is_live in ((3, True), (2, False), (4, False)):
        found = post(desk, INTROSPECT, renewal(desk, made, generation)).body
        assert found["active"] is is_live
    desk.call("POST", f"/v1/sandboxes/{made['id']}/launch")
    assert post(desk, INTROSPECT, launch).body["active"], "the grace of a replaced one"
    desk.change(schema.sandbox, made["id"], previous_launch_until_at=1)
    assert post(desk, INTROSPECT, launch).body == {"active": False}


def test_a_spent_launch_credential_is_not_live(desk: Desk) -> None:
    """One that works once is over with its first use."""
    made = desk.sandbox(tenant="globex", profile="sealed")
    launch = made["launch"]["credential"]
    assert post(desk, INTROSPECT, launch).body["mode"] == "single_use"
    desk.change(schema.sandbox, made["id"], launch_used_at=1)
    assert post(desk, INTROSPECT, launch).body == {"active": False}


def test_a_launch_credential_of_a_silent_sandbox_is_not_live(desk: Desk) -> None:
    """Its time is over by its heartbeat, before the reaper has come by."""
    made = desk.sandbox(heartbeat_seconds=60)
    launch = made["launch"]["credential"]
    assert post(desk, INTROSPECT, launch).body["active"]
    desk.change(schema.sandbox, made["id"], heartbeat_at=1)
    assert post(desk, INTROSPECT, launch).body == {"active": False}


@pytest.mark.parametrize("end", ["jti", "sandbox", "tenant", "global", "kid", "grant", "ended"])
def test_what_ended_is_inactive_and_no_more(
    desk: Desk, made: dict[str, Any], claims: Claims, token: str, end: str
) -> None:
    """However it ended: `active` is false and nothing else is said (RFC 7662 §2.2)."""
    launch, generation = made["launch"]["credential"], renewal(desk, made)
    idents = {
        "jti": claims.token_id,
        "sandbox": made["id"],
        "tenant": "acme",
        "global": "*",
        "kid": claims.key_id,
        "grant": claims.grants[0],
    }
    if end == "ended":
        desk.call("DELETE", f"/v1/sandboxes/{made['id']}")
    else:
        order(desk, end, idents[end])
    assert post(desk, INTROSPECT, token).body == {"active": False}
    others = post(desk, INTROSPECT, launch), post(desk, INTROSPECT, generation)
    alone = end in ("jti", "kid")
    assert [reply.body["active"] for reply in others] == [alone, alone]


def strange_tokens(desk: Desk, claims: Claims, token: str) -> dict[str, str]:
    """Texts that are no live token of ours."""
    stranger = signing_key("stranger")
    old = int(desk.services.clock.now()) - 3000
    expired = make_claims(now=old, key_id=claims.key_id, issuer=claims.issuer)
    return {
        "garbage": "x",
        "three parts": "a.b.c",
        "forged": access_token(stranger, claims),
        "cut": token[:-4],
        "expired": desk.services.signer.sign_access(expired),
        "an id of nobody": f"tok_{'a' * 26}",
        "a key": "sk-ant-api03-abcdefgh",
        "long": "e" * 20_000,
    }


def test_what_is_no_token_of_ours_is_inactive_and_revoking_it_is_done(
    desk: Desk, claims: Claims, token: str
) -> None:
    """RFC 7009 §2.2, RFC 7662 §2.2: the same 200 for every reason, and nothing is written."""
    for name, text in strange_tokens(desk, claims, token).items():
        assert post(desk, INTROSPECT, text).body == {"active": False}, name
        assert post(desk, REVOKE, text).body == {}, name
    assert desk.rows(schema.revocation) == []


def test_a_token_of_another_tenant_does_not_exist(
    desk: Desk, made: dict[str, Any], claims: Claims, token: str
) -> None:
    """RFC 7662 §4: no orchestrator can find out about tokens of others, or end them."""
    for text in (token, made["launch"]["credential"], renewal(desk, made), claims.token_id):
        assert post(desk, INTROSPECT, text, desk.globex).body == {"active": False}
        assert post(desk, REVOKE, text, desk.globex).body == {}
    assert desk.rows(schema.revocation) == []


@pytest.mark.parametrize("by", ["token", "id"])
def test_an_access_token_ends_alone(
    desk: Desk, made: dict[str, Any], claims: Claims, token: str, by: str
) -> None:
    """By itself or by its id: its jti is revoked, its sandbox goes on; twice is no error."""
    text = token if by == "token" else claims.token_id
    done = post(desk, REVOKE, text, desk.acme, token_type_hint="refresh_token").body
    assert (done["scope"], done["ident"], done["not_before"]) == ("jti", claims.token_id, None)
    assert done["effect"] == {"tenants": 0, "sandboxes": 0, "grants": 0, "tokens": 1}
    assert post(desk, INTROSPECT, token).body == {"active": False}
    assert post(desk, INTROSPECT, made["launch"]["credential"]).body["active"]
    assert post(desk, REVOKE, text, desk.acme).status == 200


def test_a_launch_credential_ends_alone(desk: Desk, made: dict[str, Any], token: str) -> None:
    """Its id is revoked; access tokens that it brought live on to their end."""
    launch = made["launch"]["credential"]
    done = post(desk, REVOKE, launch, desk.acme).body
    (row,) = desk.rows(schema.sandbox, id=made["id"])
    assert (done["scope"], done["ident"]) == ("jti", row.launch_jti)
    assert post(desk, INTROSPECT, launch).body == {"active": False}
    assert post(desk, INTROSPECT, token).body["active"]


def test_a_renewal_generation_stands_for_its_sandbox(
    desk: Desk, made: dict[str, Any], token: str
) -> None:
    """RFC 7009 §2.1: with a refresh token all that was issued on the same grant ends."""
    done = post(desk, REVOKE, renewal(desk, made), desk.acme).body
    assert (done["scope"], done["ident"]) == ("sandbox", made["id"])
    assert desk.rows(schema.sandbox, id=made["id"])[0].state == "revoked"
    assert post(desk, INTROSPECT, token).body == {"active": False}


def test_a_token_on_no_record_is_shown_as_that_and_can_be_revoked(
    desk: Desk, claims: Claims, token: str
) -> None:
    """Whoever has our key can sign: such a token is live at the proxies, so it is live here."""
    with desk.acting() as act:
        act.conn.execute(sa.delete(schema.token))
    assert post(desk, INTROSPECT, token).body["recorded"] is False
    done = post(desk, REVOKE, token, desk.acme).body
    assert (done.get("scope"), done.get("ident")) == ("jti", claims.token_id)
    assert post(desk, INTROSPECT, token).body == {"active": False}


@pytest.mark.parametrize("path", [INTROSPECT, REVOKE])
@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        (b"", FORM, "token must be given once"),
        (b"token=", FORM, "token must be given once"),
        (b"token=a&token=b", FORM, "token must be given once"),
        (b"hint=a", FORM, "token must be given once"),
        (b"token", FORM, "not a form"),
        (b"token=%ff", FORM, "not a form"),
        ("token=\u00e9".encode(), FORM, "not a form"),
        (b"&".join(b"a=b" for _ in range(20)), FORM, "not a form"),
        (b'{"token": "x"}', "application/json", "content-type must be"),
    ],
)
def test_a_form_is_read_strictly(desk: Desk, path: str, body: bytes, kind: str, told: str) -> None:
    """RFC 6749 §5.2: what is not one form with one token is `invalid_request`, with the reason."""
    reply = desk.call("POST", path, body, content_type=kind)
    assert (reply.status, reply.body["error"]) == (400, "invalid_request")
    assert told in reply.body["error_description"]
    assert reply.headers["cache-control"] == "no-store"


def test_no_token_is_in_any_line(
    desk: Desk, claims: Claims, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is asked and answered, neither log nor audit holds a token or a part of one."""
    caplog.set_level(logging.DEBUG)
    said = []
    for text in (token, *strange_tokens(desk, claims, token).values()):
        said += [post(desk, path, text).content.decode() for path in (INTROSPECT, REVOKE)]
        desk.call("POST", "/v1/revocations", {"scope": "jti", "ident": text})
    lines = [str(vars(record)) for record in caplog.records]
    rows = [str(row) for row in (*desk.rows(schema.audit), *desk.rows(schema.incident))]
    for piece in token.split("."):
        for line in (*lines, *rows, *said):
            assert piece not in line
