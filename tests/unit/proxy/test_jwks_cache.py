"""The broker's key set in the proxy: fetched rarely, renewed, kept when the broker is away."""

import asyncio

import pytest

from daypass_proxy import jwks_cache
from tests.fakes.authenticator import Rig
from tests.fakes.proxy import KEY
from tests.support import access_token, make_claims, signing_key

OTHER = signing_key("other")
TOKEN = access_token(KEY)


@pytest.fixture
def rig() -> Rig:
    """Return a proxy that knows one key."""
    return Rig()


async def test_unknown_key_ids_fetch_at_most_every_second(rig: Rig) -> None:
    """Row 20: however many key ids are invented, the broker is asked once a second."""
    await rig.claims(token=TOKEN)
    assert rig.fetches == 1
    for second in range(1, 4):
        rig.clock.advance(1)
        for i in range(10):
            refused = await rig.refused(token=access_token(signing_key(f"forger{i}")))
            assert refused.status == 401
        assert rig.fetches == 1 + second


async def test_a_new_key_is_found_at_once(rig: Rig) -> None:
    """A token of a key published since the last fetch is accepted, without a gap."""
    await rig.claims(token=TOKEN)
    rig.published = (KEY, OTHER)
    rig.clock.advance(1)
    assert await rig.claims(token=access_token(OTHER))
    assert rig.fetches == 2


async def test_a_new_key_is_found_in_a_flood(rig: Rig) -> None:
    """Somebody who invents key ids all the time does not hide a new key: each fetch brings it."""
    await rig.claims(token=TOKEN)
    for tenth in range(50):
        if tenth == 20:
            rig.published = (KEY, OTHER)  # five seconds before it signs; here: three
        rig.clock.advance(0.1)
        await rig.refused(token=access_token(signing_key(f"forger{tenth}")))
    before = rig.fetches
    assert await rig.claims(token=access_token(OTHER))
    assert rig.fetches == before


async def test_a_withdrawn_key_stops_verifying(rig: Rig) -> None:
    """After its next renewal, 300 s, the set no longer holds a withdrawn key."""
    await rig.claims(token=TOKEN)
    rig.published = (OTHER,)
    rig.clock.advance(301)
    unseen = access_token(KEY, make_claims(now=int(rig.clock.now()), token_id="tok_new"))
    assert await rig.claims(token=unseen)  # renewed behind this request
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = access_token(KEY, make_claims(now=int(rig.clock.now()), token_id="tok_later"))
    assert (await rig.refused(token=later)).status == 401


async def test_the_last_good_set_outlives_the_broker(rig: Rig) -> None:
    """With the broker away, known keys verify for as long as a token from before can live."""
    await rig.claims(token=TOKEN)
    rig.down = True
    rig.clock.advance(3604)
    unseen = access_token(KEY, make_claims(now=int(rig.clock.now()), token_id="tok_new"))
    assert await rig.claims(token=unseen)
    rig.clock.advance(1)
    later = access_token(KEY, make_claims(now=int(rig.clock.now()), token_id="tok_later"))
    assert (await rig.refused(token=later)).status == 503
    rig.down = False
    rig.clock.advance(1)
    assert await rig.claims(token=later)


async def test_an_unknown_key_without_the_broker(rig: Rig) -> None:
    """A key that may have been published since is 503, not 401: clients must not give up."""
    await rig.claims(token=TOKEN)
    rig.down = True
    rig.clock.advance(1)
    assert (await rig.refused(token=access_token(OTHER))).status == 503
    assert (await rig.refused(token=access_token(OTHER))).status == 503
    assert rig.fetches == 2
    rig.down, rig.published = False, (KEY, OTHER)
    rig.clock.advance(1)
    assert await rig.claims(token=access_token(OTHER))


async def test_a_broker_that_hangs_holds_nobody(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown key waits so long for an answer and no longer; known ones do not wait at all."""
    await rig.claims(token=TOKEN)
    answered = asyncio.Event()
    rig.hang = answered.wait
    monkeypatch.setattr(jwks_cache, "WAIT_SECONDS", 0.01)
    rig.clock.advance(400)
    async with asyncio.timeout(5):
        assert (await rig.refused(token=access_token(OTHER))).status == 503
    unseen = access_token(KEY, make_claims(now=int(rig.clock.now()), token_id="tok_new"))
    assert await rig.claims(token=unseen)
    assert rig.fetches == 2
    answered.set()
    await rig.keys.close()


async def test_no_key_set_yet(rig: Rig) -> None:
    """Before any key set was read the answer is 503, not 401: clients must not renew."""
    rig.down = True
    assert (await rig.refused(token=TOKEN)).status == 503
    assert (await rig.refused(token=TOKEN)).status == 503
    assert rig.fetches == 1
    rig.down = False
    rig.clock.advance(1)
    assert await rig.claims(token=TOKEN)


async def test_a_bad_key_set_is_not_taken_over(rig: Rig) -> None:
    """A set that cannot be read leaves the good one in place."""
    await rig.claims(token=TOKEN)
    rig.published = ()
    rig.clock.advance(1)
    await rig.refused(token=access_token(OTHER))
    assert rig.fetches == 2
    assert await rig.claims(token=access_token(KEY, make_claims(token_id="tok_new")))


async def test_many_callers_share_one_fetch(rig: Rig) -> None:
    """Callers that arrive together wait for the same fetch."""
    tokens = [access_token(KEY, make_claims(token_id=f"tok_{i}")) for i in range(5)]
    await asyncio.gather(*(rig.claims(token=token) for token in tokens))
    assert rig.fetches == 1
    await rig.keys.close()
