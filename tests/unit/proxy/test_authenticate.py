"""Authentication: one credential by position, verified once, judged at every use."""

import json

import pytest

from daypass_core.claims import access_payload
from daypass_core.problem import Code, Problem
from daypass_core.revocation import Verdict
from daypass_proxy import authenticate as module
from daypass_proxy.authenticate import FailureLimiter
from daypass_proxy.exchange import UNIX_PEER
from tests.fakes.authenticator import Rig
from tests.fakes.clock import FakeClock
from tests.fakes.proxy import KEY
from tests.support import NOW, SANDBOX, access_token, make_claims, sign, signing_key

OTHER = signing_key("other")
TOKEN = access_token(KEY)


@pytest.fixture
def rig() -> Rig:
    """Return a proxy that knows one key."""
    return Rig()


# -- which credential


@pytest.mark.parametrize(
    "header",
    [
        (b"authorization", f"Bearer {TOKEN}"),
        (b"authorization", f"bearer {TOKEN}"),
        (b"authorization", f"BEARER   {TOKEN} "),
        (b"x-api-key", TOKEN),
        (b"x-goog-api-key", TOKEN),
        (b"api-key", TOKEN),
    ],
)
async def test_every_position_is_accepted(rig: Rig, header: tuple[bytes, str]) -> None:
    """B38: the token is accepted in each credential header, the scheme in any case."""
    claims = await rig.claims(header)
    assert claims.sandbox == SANDBOX
    assert not rig.counted


async def test_no_credential(rig: Rig) -> None:
    """B01: a request without a credential is 401 before anything is looked up."""
    assert (await rig.refused()).code is Code.MISSING_TOKEN
    assert rig.fetches == 0


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Basic dTpw", TOKEN])
async def test_bad_authorization_does_not_fall_through(rig: Rig, value: str) -> None:
    """B01, row 23: an unusable Authorization is the credential even beside a good x-api-key."""
    problem = await rig.refused((b"authorization", value), (b"x-api-key", "sk-other"))
    assert problem.status == 401


async def test_both_headers_equal(rig: Rig) -> None:
    """B38: the same token in two headers (a helper of Claude Code) is one credential."""
    assert await rig.claims((b"authorization", f"Bearer {TOKEN}"), (b"x-api-key", TOKEN))
    assert not rig.counted


async def test_a_foreign_second_credential_is_dropped_and_recorded(rig: Rig) -> None:
    """B38, rows 1 and 2: Authorization wins; another key beside it is counted by header only."""
    await rig.claims(
        (b"x-api-key", "sk-ant-api03-real"),
        (b"authorization", f"Bearer {TOKEN}"),
        (b"api-key", "other"),
    )
    assert rig.counted == {
        (SANDBOX, "foreign_credential:x-api-key"): 1,
        (SANDBOX, "foreign_credential:api-key"): 1,
    }


async def test_two_different_tokens(rig: Rig) -> None:
    """Row 1: a second, different JWT is a 400, whichever of them is good."""
    second = access_token(KEY, make_claims(token_id="tok_two"))
    problem = await rig.refused((b"authorization", f"Bearer {TOKEN}"), (b"x-api-key", second))
    assert problem.code is Code.INVALID_REQUEST
    problem = await rig.refused((b"x-api-key", TOKEN), (b"api-key", f"Bearer {second}"))
    assert problem.status == 400


@pytest.mark.parametrize("name", [b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key"])
async def test_one_header_twice(rig: Rig, name: bytes) -> None:
    """B38, row 1: two lines of one credential header are 400, even when equal."""
    value = f"Bearer {TOKEN}" if name == b"authorization" else TOKEN
    assert (await rig.refused((name, value), (name, value))).status == 400


async def test_own_real_key_is_not_a_token(rig: Rig) -> None:
    """Row 2, B01: a provider key or a made-up one is 401."""
    assert (await rig.refused((b"x-api-key", "sk-ant-api03-real"))).status == 401
    assert (await rig.refused((b"x-api-key", "fake"))).status == 401


# -- which tokens


def altered(**changes: object) -> dict[str, object]:
    """Return the payload of a good token with changes; None takes a claim away."""
    payload = {**access_payload(make_claims()), **changes}
    return {name: value for name, value in payload.items() if value is not None}


@pytest.mark.parametrize(
    "token",
    [
        access_token(OTHER),
        sign(KEY, altered(), header={"alg": "none", "typ": "at+jwt", "kid": KEY.kid}),
        sign(KEY, altered(), header={"alg": "HS256", "typ": "at+jwt", "kid": KEY.kid}),
        sign(KEY, altered(), header={"alg": "ES256", "typ": "at+jwt"}),
        sign(KEY, altered(), header={"alg": "ES256", "typ": "at+jwt", "kid": "../../etc/passwd"}),
        sign(
            KEY,
            altered(),
            header={"alg": "ES256", "typ": "at+jwt", "kid": KEY.kid, "jku": "https://evil.test"},
        ),
        sign(KEY, altered(), typ="JWT"),
        sign(KEY, altered(), typ="launch+jwt"),
        sign(KEY, altered(aud="other-service")),
        sign(KEY, altered(aud="https://broker.test/v1/oauth/token")),
        sign(KEY, altered(iss="https://evil.test")),
        sign(KEY, altered(exp=None)),
        sign(KEY, altered(admin=True)),
        TOKEN[:-4] + "AAAA",
        TOKEN + "x" * 5000,
        "a.b.c",
        "\xff\xfe",
    ],
)
async def test_bad_tokens(rig: Rig, token: str) -> None:
    """B01, B20, rows 20 and 21: each forged, foreign or odd token is the same constant 401."""
    problem = await rig.refused(token=token)
    assert problem == Problem.of(Code.INVALID_TOKEN)


@pytest.mark.parametrize(("iat", "ok"), [(0, True), (2, True), (300, False)])
async def test_small_clock_skew(rig: Rig, iat: int, ok: bool) -> None:
    """B20: a token from a clock a little ahead is good; one far ahead is refused, and not as bad:

    the broker has signed it, so the clock that is wrong may be ours.
    """
    token = access_token(KEY, make_claims(now=NOW + iat))
    if ok:
        assert await rig.claims(token=token)
    else:
        assert (await rig.refused(token=token)).status == 503


async def test_a_token_of_the_future_has_the_time_asked_for(rig: Rig) -> None:
    """A proxy whose clock is behind asks the broker, which puts it right, and the token is good."""

    async def put_right() -> None:
        rig.clock.time += 60

    await rig.claims(token=TOKEN)
    rig.hang = put_right
    rig.clock.advance(2)
    assert await rig.claims(token=access_token(KEY, make_claims(now=NOW + 60)))
    assert rig.fetches == 2


async def test_expired(rig: Rig) -> None:
    """B19, B20: an expired token is the plain 401 that makes clients renew; 2 s are forgiven."""
    token = access_token(KEY, make_claims(now=NOW - 602, ttl=600))
    assert await rig.claims(token=token)
    token = access_token(KEY, make_claims(now=NOW - 700, ttl=600))
    assert await rig.refused(token=token) == Problem.of(Code.TOKEN_EXPIRED)


async def test_answers_hold_nothing_of_the_token(rig: Rig) -> None:
    """Row 42: a refusal echoes neither the token nor its claims."""
    token = sign(KEY, altered(tenant="secret-tenant"))
    assert "secret" not in json.dumps(str(await rig.refused(token=token)))


# -- the cache


async def test_a_known_token_is_not_verified_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second use of a token costs no signature check."""
    first = await rig.claims(token=TOKEN)
    monkeypatch.setattr(module, "verify_access", None)
    assert await rig.claims((b"x-api-key", TOKEN)) is first


async def test_a_known_token_expires(rig: Rig) -> None:
    """B19: expiry is checked at every use of a known token."""
    await rig.claims(token=TOKEN)
    rig.clock.advance(604)
    assert await rig.claims(token=TOKEN)
    rig.clock.advance(1)
    assert await rig.refused(token=TOKEN) == Problem.of(Code.TOKEN_EXPIRED)
    assert (await rig.refused(token=TOKEN)).status == 401


async def test_tokens_with_a_common_start_are_not_confused(rig: Rig) -> None:
    """Row 22: a token that shares all but its end with a known one is not taken for it."""
    await rig.claims(token=TOKEN)
    for cut in (1, 10, 80):
        assert (await rig.refused(token=TOKEN[:-cut])).status == 401


async def test_cache_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest known token makes room for the newest."""
    monkeypatch.setattr(module, "MAX_CACHED", 2)
    tokens = [access_token(KEY, make_claims(token_id=f"tok_{i}")) for i in range(3)]
    for token in tokens:
        await rig.claims(token=token)
    assert len(rig.authenticator._cache) == 2
    assert await rig.claims(token=tokens[0])


async def test_what_has_long_expired_is_forgotten(rig: Rig) -> None:
    """New tokens push out those that expired a minute ago, so none stays for its number alone."""
    old = [access_token(KEY, make_claims(token_id=f"tok_{i}")) for i in range(6)]
    for token in old:
        await rig.claims(token=token)
    rig.clock.advance(700)
    now = int(rig.clock.now())
    for i in range(3):
        young = make_claims(token_id=f"new_{i}", now=now)
        await rig.claims(token=access_token(KEY, young))
    assert len(rig.authenticator._cache) == 3
    assert await rig.refused(token=old[0]) == Problem.of(Code.TOKEN_EXPIRED)


# -- revocation


async def test_revoked(rig: Rig) -> None:
    """B19: a revoked token, known or not, is 401 with x-should-retry: false."""
    rig.view.says = Verdict.REVOKED
    assert await rig.refused(token=TOKEN) == Problem.of(Code.TOKEN_REVOKED)
    assert await rig.refused(token=TOKEN) == Problem.of(Code.TOKEN_REVOKED)
    rig.view.says = None
    assert await rig.claims(token=TOKEN)
    rig.view.says = Verdict.REVOKED
    assert (await rig.refused(token=TOKEN)).should_retry is False


async def test_one_ended_token_is_answered_like_expiry(rig: Rig) -> None:
    """A single ended token is the plain 401 that allows a renewal."""
    rig.view.says = Verdict.TOKEN_ENDED
    assert await rig.refused(token=TOKEN) == Problem.of(Code.TOKEN_EXPIRED)


async def test_stale_view(rig: Rig) -> None:
    """Without a fresh view nobody is let in, known token or not."""
    await rig.claims(token=TOKEN)
    rig.view.stale = True
    assert (await rig.refused(token=TOKEN)).code is Code.VIEW_STALE


async def test_no_foreign_key_is_counted_for_the_revoked(rig: Rig) -> None:
    """An incident is only counted for a caller that was let in."""
    rig.view.says = Verdict.REVOKED
    await rig.refused((b"x-api-key", "sk"), token=TOKEN)
    assert not rig.counted


# -- the failure limiter


async def test_failures_of_a_peer_are_limited(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a peer only so many bad signatures a second are checked, then unseen tokens get 429."""
    monkeypatch.setattr(module, "FAILURES_PER_SECOND", 20.0)
    await rig.claims(token=TOKEN)
    forged = TOKEN[:-4] + ("AAAA" if TOKEN[-4:] != "AAAA" else "BBBA")
    for _ in range(20):
        assert (await rig.refused(token=forged)).status == 401
    problem = await rig.refused(token=forged)
    assert (problem.status, problem.retry_after) == (429, 1)
    unseen = access_token(KEY, make_claims(token_id="tok_new"))
    assert (await rig.refused(token=unseen)).status == 429
    # A known token and another peer always pass.
    assert await rig.claims(token=TOKEN)
    assert await rig.claims(token=unseen, peer="10.0.0.8")
    rig.clock.advance(0.06)
    assert (await rig.refused(token=forged)).status == 401


async def test_peers_on_the_socket_do_not_lock_each_other_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a shared Unix socket all are one peer, so the bad tokens of one limit nobody."""
    monkeypatch.setattr(module, "FAILURES_PER_SECOND", 20.0)
    forged = TOKEN[:-4] + ("AAAA" if TOKEN[-4:] != "AAAA" else "BBBA")
    for _ in range(40):
        assert (await rig.refused(token=forged, peer=UNIX_PEER)).status == 401
    assert await rig.claims(token=TOKEN, peer=UNIX_PEER)


async def test_malformed_tokens_lock_nobody_out(rig: Rig) -> None:
    """What fails on its form costs no signature check, so a flood of it limits nobody."""
    for _ in range(2000):
        assert (await rig.refused(token="a.b.c")).status == 401
    assert await rig.claims(token=TOKEN)


def test_limiter_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of peers does not grow the limiter without end."""
    monkeypatch.setattr(module, "MAX_PEERS", 10)
    limiter = FailureLimiter(FakeClock())
    for i in range(100):
        limiter.failed(f"10.0.0.{i}")
    assert len(limiter._buckets) == 10
