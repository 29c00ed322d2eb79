"""The issuance path: who gets a token, of what life, and in which words others are refused."""

import asyncio
import logging

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daypass_broker import db, oauth, schema
from daypass_broker.keys import Purpose
from tests.support import AUDIENCE, NOW, TENANT, make_scope
from tests.unit.broker.rig import Rig, Sandbox


async def test_launch_credential_gives_an_access_token(rig: Rig) -> None:
    """A launch credential is answered with a token of exactly the sandbox, its grant and scope."""
    sandbox = rig.sandbox()
    reply = await rig.launch(
        sandbox, federation_rule_id=oauth.FEDERATION_RULE_ID, organization_id=TENANT
    )
    claims = rig.verify(reply)
    assert set(reply.body) == {"access_token", "token_type", "expires_in"}
    assert reply.body["token_type"] == "Bearer"
    assert reply.body["expires_in"] == 600
    assert reply.headers["cache-control"] == "no-store"
    assert (claims.sandbox, claims.tenant, claims.grants) == (sandbox.id, TENANT, (sandbox.grant,))
    assert (claims.issued_at, claims.expires_at) == (NOW, NOW + 600)
    assert claims.scope == make_scope()


async def test_token_and_event_are_on_record(rig: Rig) -> None:
    """A token exists exactly with its row and its audit event, written together."""
    sandbox = rig.sandbox()
    claims = rig.verify(await rig.launch(sandbox))
    (row,) = rig.rows(schema.token)
    assert (row.jti, row.sandbox, row.kid) == (claims.token_id, sandbox.id, claims.key_id)
    assert (row.iat, row.exp, row.grant_id) == (NOW, NOW + 600, sandbox.grant)
    (told,) = rig.rows(schema.audit, tag="token.issued")
    assert (told.subject, told.actor, told.at) == (claims.token_id, sandbox.id, NOW * 1000)
    assert told.request_id is not None


async def test_a_token_that_cannot_be_signed_stays_a_row(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is committed before anything is signed: record first, sign second."""
    sandbox = rig.sandbox()

    def fail(_: object) -> str:
        assert len(rig.rows(schema.token)) == 1
        raise RuntimeError("no signature today")

    monkeypatch.setattr(rig.services.signer, "sign_access", fail)
    reply = await rig.launch(sandbox)
    assert (reply.status, reply.body) == (500, {"error": "server_error"})
    assert len(rig.rows(schema.token)) == 1


async def test_exchanges_within_five_seconds_get_one_token(rig: Rig) -> None:
    """Asking again within 5 s gives the same token id, after that a new one."""
    sandbox = rig.sandbox()
    first = rig.verify(await rig.launch(sandbox))
    rig.clock.advance(4.9)
    again = await rig.launch(sandbox)
    assert rig.verify(again) == first
    assert again.body["expires_in"] == 600 - 4
    rig.clock.advance(0.2)
    assert rig.verify(await rig.launch(sandbox)).token_id != first.token_id
    assert len(rig.rows(schema.audit, tag="token.issued")) == 2


async def test_a_token_of_seconds_is_not_given_out_at_its_end(rig: Rig) -> None:
    """A token that has lived half its short life is not given out again."""
    sandbox = rig.sandbox(ttl=4)
    first = rig.verify(await rig.launch(sandbox))
    rig.clock.advance(2.1)
    second = await rig.launch(sandbox)
    assert rig.verify(second).token_id != first.token_id
    assert second.body["expires_in"] == 4


async def test_twenty_at_once_share_one_token(rig: Rig) -> None:
    """B21: twenty exchanges at one instant all succeed and make one token row."""
    sandbox = rig.sandbox()
    replies = await asyncio.gather(*(rig.launch(sandbox) for _ in range(20)))
    assert len({rig.verify(reply).token_id for reply in replies}) == 1
    assert len(rig.rows(schema.token)) == 1


async def test_never_more_than_eight_live_tokens(rig: Rig) -> None:
    """A sandbox that asks every 6 s for 15 minutes is always served and never has over 8 live."""
    sandbox = rig.sandbox()
    for _ in range(150):
        reply = await rig.launch(sandbox)
        claims = rig.verify(reply)
        assert claims.expires_at > rig.clock.now()
        live = [row for row in rig.rows(schema.token) if row.exp > rig.clock.now()]
        assert len(live) <= 8
        rig.clock.advance(6)


async def test_bucket_bounds_how_often_a_sandbox_asks(rig: Rig) -> None:
    """Sixty exchanges pass, the next is slow_down with Retry-After, a second later one passes."""
    sandbox = rig.sandbox()
    for _ in range(60):
        assert (await rig.launch(sandbox)).status == 200
    reply = await rig.launch(sandbox)
    assert (reply.status, reply.error, reply.headers["retry-after"]) == (400, "slow_down", "1")
    assert rig.counts(sandbox.id) == {"token_refused:slow_down": 1}
    rig.clock.advance(1)
    assert (await rig.launch(sandbox)).status == 200
    assert (await rig.launch(sandbox)).error == "slow_down"


async def test_token_never_outlives_the_sandbox(rig: Rig) -> None:
    """A token's exp is the sandbox's deadline when that comes first."""
    sandbox = rig.sandbox(life=1000)
    rig.clock.advance(950)
    reply = await rig.launch(sandbox)
    assert rig.verify(reply).expires_at == sandbox.deadline
    assert reply.body["expires_in"] == 50


async def test_nothing_after_the_deadline(rig: Rig) -> None:
    """At the deadline and any time later the answer is invalid_grant and says why."""
    sandbox = rig.sandbox(life=1000)
    rig.clock.advance(1000)
    reply = await rig.launch(sandbox)
    assert (reply.status, reply.error) == (400, "invalid_grant")
    assert "deadline" in reply.description
    rig.clock.advance(1000)
    later = await rig.launch(sandbox)
    assert (later.status, later.error) == (400, "invalid_grant")
    assert "register a new sandbox" in later.description
    assert rig.counts(sandbox.id) == {"token_refused:deadline": 1, "token_refused:expired": 1}


@pytest.mark.parametrize(
    ("state", "words"), [("revoked", "sandbox revoked"), ("ended", "sandbox ended")]
)
async def test_a_sandbox_that_is_over_gets_nothing(rig: Rig, state: str, words: str) -> None:
    """A revoked or ended sandbox is told so, with what to do, and is counted."""
    sandbox = rig.sandbox()
    rig.change(sandbox, state=state)
    reply = await rig.launch(sandbox)
    assert (reply.status, reply.error) == (400, "invalid_grant")
    assert reply.description.startswith(words)
    assert rig.counts(sandbox.id) == {f"token_refused:{state}": 1}
    assert rig.rows(schema.token) == []


async def test_a_revoked_tenant_gets_nothing(rig: Rig) -> None:
    """A sandbox of a revoked tenant is refused."""
    sandbox = rig.sandbox()
    with db.begin(rig.engine) as conn:
        conn.execute(sa.update(schema.tenant).values(state="revoked"))
    assert (await rig.launch(sandbox)).description.startswith("tenant is revoked")


async def test_a_revoked_grant_gets_nothing(rig: Rig) -> None:
    """A sandbox whose root grant is revoked is refused."""
    sandbox = rig.sandbox()
    with db.begin(rig.engine) as conn:
        conn.execute(sa.update(schema.grant_).values(state="revoked"))
    assert (await rig.launch(sandbox)).description.startswith("sandbox revoked")


@pytest.mark.parametrize("scope", ["global", "tenant", "sandbox", "grant"])
async def test_a_cut_off_kills_launch_credentials_up_to_its_second(rig: Rig, scope: str) -> None:
    """A launch credential issued at or before a cut-off is dead, one issued after it works."""
    old = rig.sandbox()
    dead = rig.verify(await rig.launch(old))
    idents = {"global": "*", "tenant": TENANT, "sandbox": old.id, "grant": old.grant}
    rig.revoke(scope, idents[scope], NOW)
    reply = await rig.launch(old)
    assert (reply.error, reply.description[:15]) == ("invalid_grant", "sandbox revoked")
    rig.clock.advance(1)
    fresh = rig.verify(await rig.launch(rig.replace_launch(old)))
    assert fresh.issued_at == NOW + 1
    assert fresh.token_id != dead.token_id  # though only a second has passed


@pytest.mark.parametrize("scope", ["jti", "kid", "sandbox"])
async def test_absolute_revocations_of_the_credential_hold_for_good(rig: Rig, scope: str) -> None:
    """A launch credential that is named, or whose key is, never works again."""
    sandbox = rig.sandbox()
    kid = rig.keys.active(Purpose.LAUNCH).kid
    rig.revoke(scope, {"jti": sandbox.launch_jti, "kid": kid, "sandbox": sandbox.id}[scope])
    rig.clock.advance(100)
    reply = await rig.launch(sandbox)
    assert (reply.status, reply.error) == (400, "invalid_grant")
    assert "revoked" in reply.description


async def test_a_lone_token_revoked_is_not_given_out_again(rig: Rig) -> None:
    """After a token id is revoked the next exchange gives another token at once."""
    sandbox = rig.sandbox()
    first = rig.verify(await rig.launch(sandbox))
    rig.revoke("jti", first.token_id)
    assert rig.verify(await rig.launch(sandbox)).token_id != first.token_id


async def test_a_revoked_signing_key_signs_nothing(rig: Rig) -> None:
    """With the active access key revoked the endpoint is unavailable, not issuing dead tokens."""
    sandbox = rig.sandbox()
    rig.revoke("kid", rig.keys.active(Purpose.ACCESS).kid)
    reply = await rig.launch(sandbox)
    assert (reply.status, reply.error) == (503, "temporarily_unavailable")
    assert "signing key is revoked" in reply.description
    assert rig.rows(schema.token) == []


async def test_a_token_of_the_cut_offs_second_waits_for_the_next(rig: Rig) -> None:
    """Asked for in a cut-off's second, the token is issued in the second after it."""
    sandbox = rig.sandbox(iat=NOW + 1)  # registered by a broker whose clock is a second ahead
    rig.clock.advance(0.25)
    rig.revoke("tenant", TENANT, NOW)
    claims = rig.verify(await rig.launch(sandbox))
    assert claims.issued_at == NOW + 1
    assert rig.slept == [pytest.approx(0.76)]


async def test_waiting_for_a_cut_off_ends(rig: Rig) -> None:
    """A cut-off far ahead is waited for twice, then the answer is 503, never a token."""
    sandbox = rig.sandbox(iat=NOW + 20)
    rig.revoke("global", "*", NOW + 15)
    reply = await rig.launch(sandbox)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert rig.slept == [1.5, 1.5]
    assert rig.rows(schema.token) == []


async def test_a_replaced_launch_credential_lives_sixty_seconds(rig: Rig) -> None:
    """The old launch credential works for 60 s after its replacement, then is told of it."""
    old = rig.sandbox()
    new = rig.replace_launch(old)
    rig.clock.advance(59)
    assert (await rig.launch(old)).status == 200
    assert (await rig.launch(new)).status == 200
    rig.clock.advance(1)
    reply = await rig.launch(old)
    assert (reply.error, reply.description) == (
        "invalid_grant",
        "launch credential replaced; use the newest one",
    )
    assert (await rig.launch(new)).status == 200


async def test_a_credential_replaced_twice_does_not_come_back(rig: Rig) -> None:
    """The grace belongs to the last replaced launch credential only."""
    first = rig.sandbox()
    second = rig.replace_launch(first)
    rig.clock.advance(61)
    rig.replace_launch(second)
    assert (await rig.launch(first)).error == "invalid_grant"
    assert (await rig.launch(second)).status == 200


async def test_a_wrong_organization_is_told(rig: Rig) -> None:
    """A client with a good credential and another tenant's id is told the right one."""
    reply = await rig.launch(rig.sandbox(), organization_id="globex")
    assert (reply.error, TENANT in reply.description) == ("invalid_grant", True)


async def test_b20_small_skew_passes_large_skew_does_not(rig: Rig) -> None:
    """B20: a launch credential issued 25 s ahead of our clock works, 300 s ahead does not."""
    assert (await rig.launch(rig.sandbox(iat=NOW + 25))).status == 200
    assert "future" in (await rig.launch(rig.sandbox(iat=NOW + 300))).description


async def test_store_gone_is_503_with_retry_after(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store the answer is 503, Retry-After 5 and temporarily_unavailable."""
    sandbox = rig.sandbox()

    def gone(_: object) -> object:
        raise db.StoreUnavailable("gone")

    monkeypatch.setattr(db, "begin", gone)
    reply = await rig.launch(sandbox)
    assert (reply.status, reply.error) == (503, "temporarily_unavailable")
    assert (reply.headers["retry-after"], reply.headers["cache-control"]) == ("5", "no-store")


async def test_token_exchange_of_a_launch_credential(rig: Rig) -> None:
    """RFC 8693 with a launch credential answers like jwt-bearer, naming the issued type."""
    sandbox = rig.sandbox()
    reply = await rig.exchange_form(
        subject_token=sandbox.launch, subject_token_type=oauth.TYPE_JWT, audience=AUDIENCE
    )
    assert rig.verify(reply).sandbox == sandbox.id
    assert reply.body["issued_token_type"] == oauth.TYPE_ACCESS_TOKEN


async def test_peer_header_is_believed_on_the_unix_socket_only(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """The sandbox's address comes from x-daypass-peer on the Unix socket, never over TCP."""
    caplog.set_level(logging.INFO)
    sandbox = rig.sandbox()
    body = f'{{"grant_type":"{oauth.JWT_BEARER}","assertion":"{sandbox.launch}"}}'.encode()
    await rig.exchange(body, headers={"x-daypass-peer": "10.1.2.3"})
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    assert [one["peer"] for one in fields if "token_id" in one] == ["10.1.2.3"]
    assert all(sandbox.launch not in str(one) for one in fields)


def _revocations() -> st.SearchStrategy[list[tuple[str, int]]]:
    scopes = st.sampled_from(["global", "tenant", "sandbox", "grant"])
    return st.lists(st.tuples(scopes, st.integers(-3, 3)), max_size=4)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cut_offs=_revocations(), ahead=st.integers(0, 3), part=st.floats(0, 0.99))
async def test_no_token_is_ever_issued_at_or_before_a_cut_off(
    rig: Rig, cut_offs: list[tuple[str, int]], ahead: int, part: float
) -> None:
    """Whatever cut-offs stand, an issued token is later than all of them, and not revoked."""
    rig.clock.time = NOW + part
    sandbox: Sandbox = rig.sandbox(iat=NOW + ahead)
    with db.begin(rig.engine) as conn:
        conn.execute(sa.delete(schema.revocation))
    idents = {"global": "*", "tenant": TENANT, "sandbox": sandbox.id, "grant": sandbox.grant}
    for scope, offset in cut_offs:
        rig.revoke(scope, idents[scope], NOW + offset)
    latest = max((NOW + offset for _, offset in cut_offs), default=0)
    reply = await rig.launch(sandbox)
    if reply.status == 200:
        assert rig.verify(reply).issued_at > latest
    else:
        assert reply.error in ("invalid_grant", "temporarily_unavailable")
    assert all(row.iat > latest for row in rig.rows(schema.token, sandbox=sandbox.id))
