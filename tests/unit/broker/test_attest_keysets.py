"""Issuers' keys over time: found again when they change, gone when nobody can vouch for them."""

import asyncio
import json
from typing import Any

import pytest

from daypass_broker.attest import jws
from daypass_broker.attest.https import FetchError
from daypass_broker.attest.keysets import (
    COOL_DOWN_SECONDS,
    FRESH_SECONDS,
    RETRY_SECONDS,
    STALE_SECONDS,
    KeySets,
    KeysUnavailable,
)
from tests.fakes.clock import FakeClock
from tests.servers.issuer import SigningPair
from tests.support import signing_key

ISSUER = "https://issuer.test"
DISCOVERY = f"{ISSUER}/.well-known/openid-configuration"


class Web:
    """What the issuer publishes, and what it was asked for."""

    def __init__(self) -> None:
        self.keys = [signing_key("a").jwk | {"kid": "a"}]
        self.discovery: object = {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"}
        self.down = False
        self.asked: list[str] = []
        self.gate: asyncio.Event | None = None

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if self.gate is not None:
            await self.gate.wait()
        if self.down:
            raise FetchError("issuer.test answered 503")
        return json.dumps(self.discovery if url == DISCOVERY else {"keys": self.keys}).encode()

    def add(self, kid: str) -> None:
        """Publish one key more."""
        self.keys = [*self.keys, signing_key(kid).jwk | {"kid": kid}]


@pytest.fixture
def web() -> Web:
    """An issuer with one key."""
    return Web()


@pytest.fixture
def sets(web: Web, clock: FakeClock) -> KeySets:
    """Key sets that nobody has asked for yet."""
    return KeySets(web.fetch, clock.monotonic)


async def find(sets: KeySets, kid: str) -> bool:
    """Whether the issuer has a key."""
    return await sets.find(ISSUER, None, kid) is not None


async def test_a_known_key_asks_nobody(sets: KeySets, web: Web) -> None:
    """Discovery and key set once, then memory."""
    for _ in range(20):
        assert await find(sets, "a")
    assert web.asked == [DISCOVERY, f"{ISSUER}/keys"]


async def test_a_new_key_is_found_at_once(sets: KeySets, web: Web, clock: FakeClock) -> None:
    """B14: what an issuer signs with a new key right after a fetch needs no restart."""
    assert await find(sets, "a")
    web.add("b")
    clock.advance(1)
    assert await find(sets, "b")


async def test_made_up_keys_cost_one_fetch_a_cool_down(
    sets: KeySets, web: Web, clock: FakeClock
) -> None:
    """Strangers name keys for nothing; one that came meanwhile is found when it is over."""
    assert await find(sets, "a")
    web.asked.clear()
    for number in range(100):
        assert not await find(sets, f"made-up-{number}")
    assert len(web.asked) == 2
    web.add("b")
    clock.advance(COOL_DOWN_SECONDS)
    assert not await find(sets, "b")
    clock.advance(0.1)
    assert await find(sets, "b")
    assert await find(sets, "a")


async def test_a_withdrawn_key_dies(sets: KeySets, web: Web, clock: FakeClock) -> None:
    """B14: what the issuer no longer publishes verifies nothing after the set got old."""
    web.add("b")
    assert await find(sets, "a")
    web.keys = web.keys[1:]
    clock.advance(FRESH_SECONDS)
    assert await find(sets, "a")
    clock.advance(0.1)
    assert not await find(sets, "a")
    assert await find(sets, "b")


async def test_an_issuer_that_is_down_keeps_its_keys_for_an_hour(
    sets: KeySets, web: Web, clock: FakeClock
) -> None:
    """B14: 503 does not make known keys unusable, and no key is used for ever."""
    assert await find(sets, "a")
    web.down = True
    clock.advance(STALE_SECONDS)
    assert await find(sets, "a")
    clock.advance(1)
    with pytest.raises(KeysUnavailable, match=r"issuer\.test"):
        await find(sets, "a")
    web.down = False
    clock.advance(RETRY_SECONDS)
    assert await find(sets, "a")


async def test_a_failing_issuer_is_left_alone_for_a_moment(
    sets: KeySets, web: Web, clock: FakeClock
) -> None:
    """Many exchanges during an outage are one attempt each few seconds."""
    web.down = True
    for _ in range(10):
        with pytest.raises(KeysUnavailable):
            await find(sets, "a")
    assert len(web.asked) == 1
    clock.advance(RETRY_SECONDS)
    with pytest.raises(KeysUnavailable):
        await find(sets, "a")
    assert len(web.asked) == 2


async def test_many_at_once_fetch_once(sets: KeySets, web: Web) -> None:
    """B21: twenty exchanges that find the set empty send one request each way."""
    web.gate = asyncio.Event()
    asking = [asyncio.ensure_future(find(sets, "a")) for _ in range(20)]
    await asyncio.sleep(0)
    web.gate.set()
    assert all(await asyncio.gather(*asking))
    assert len(web.asked) == 2


async def test_a_slow_issuer_holds_up_one(sets: KeySets, web: Web, clock: FakeClock) -> None:
    """While one exchange fetches an old set anew, others go on with the keys that are known."""
    assert await find(sets, "a")
    clock.advance(FRESH_SECONDS + 1)
    web.gate = asyncio.Event()
    fetching = asyncio.ensure_future(find(sets, "a"))
    await asyncio.sleep(0)
    assert await asyncio.wait_for(find(sets, "a"), 1)
    web.gate.set()
    assert await fetching


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": ISSUER + "/", "jwks_uri": f"{ISSUER}/keys"},
        {"issuer": "https://evil.test", "jwks_uri": f"{ISSUER}/keys"},
        {"jwks_uri": f"{ISSUER}/keys"},
        {"issuer": ISSUER, "jwks_uri": "http://issuer.test/keys"},
        {"issuer": ISSUER, "jwks_uri": None},
        [],
    ],
)
async def test_discovery_must_speak_of_the_issuer(
    sets: KeySets, web: Web, document: object
) -> None:
    """A document of another issuer, or keys without TLS, are no keys of this one."""
    web.discovery = document
    with pytest.raises(KeysUnavailable):
        await find(sets, "a")


async def test_sets_of_removed_rules_are_dropped(sets: KeySets, web: Web) -> None:
    """What no rule names is not remembered."""
    assert await find(sets, "a")
    sets.forget(set())
    assert await find(sets, "a")
    assert len(web.asked) == 4


def test_ambiguous_and_foreign_keys_are_left_out() -> None:
    """A kid of two keys, private halves, secrets, encryption keys and short RSA are no keys."""
    good = signing_key("good").jwk | {"kid": "good"}
    rsa = SigningPair("RS256", "rsa").jwk
    left_out: list[dict[str, Any]] = [
        signing_key("x").jwk | {"kid": "twice"},
        signing_key("y").jwk | {"kid": "twice"},
        signing_key("z").jwk | {"kid": "twice"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"},
        {**good, "kid": "private", "d": "x"},
        {**good, "kid": "enc", "use": "enc"},
        {**good, "kid": "ops", "key_ops": ["sign"]},
        {**good, "kid": "curve", "crv": "P-521"},
        {**good, "kid": "point", "x": good["y"]},
        {**good, "kid": "alg", "alg": "ES384"},
        {**good, "kid": "alg-list", "alg": ["ES256"]},
        {**rsa, "kid": "short", "n": rsa["n"][:170]},
        {**rsa, "kid": "exponent", "e": "AQAAAAAAAQ"},
        {**rsa, "kid": "rs512", "alg": "RS512"},
        {**good, "kid": 1},
    ]
    found = jws.read_keys({"keys": [good, rsa, *left_out, "text", None]})
    assert set(found) == {"good", "rsa"}
    assert found["rsa"].algorithms == {"RS256", "PS256"}
    assert found["good"].algorithms == {"ES256"}
    named = jws.read_keys({"keys": [{**rsa, "alg": "RS256"}]})
    assert named["rsa"].algorithms == {"RS256"}


@pytest.mark.parametrize("document", [None, [], {}, {"keys": {}}, {"keys": [{}] * 65}])
def test_what_is_no_key_set_is_refused(document: object) -> None:
    """And one without end, too."""
    with pytest.raises(ValueError, match="JWK set"):
        jws.read_keys(document)
