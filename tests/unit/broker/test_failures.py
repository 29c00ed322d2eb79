"""Failed proofs per source: guessing is slowed down, whoever was good before is not."""

import json

from daypass_broker import oauth
from daypass_broker.failures import Failures
from tests.unit.broker.rig import Reply, Rig

PEER = "10.1.2.3"


async def present(rig: Rig, credential: str, peer: str = PEER) -> Reply:
    """Exchange a credential from an address."""
    asked = json.dumps({"grant_type": oauth.JWT_BEARER, "assertion": credential}).encode()
    return await rig.exchange(asked, headers={"x-daypass-peer": peer})


def test_twenty_failures_then_two_a_second() -> None:
    """A source has twenty failures at once and two more with every second."""
    failures = Failures()
    for number in range(20):
        assert failures.allows(PEER, "x", 0.0), number
        failures.failed(PEER, "x", 0.0)
    assert not failures.allows(PEER, "x", 0.0)
    assert not failures.allows(PEER, "x", 0.4)
    assert failures.allows(PEER, "x", 0.5)
    failures.failed(PEER, "x", 0.5)
    assert not failures.allows(PEER, "x", 0.5)
    assert failures.allows("10.1.2.4", "x", 0.5)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    """A moment before the last failure refills nothing, and takes nothing away."""
    failures = Failures()
    for _ in range(20):
        failures.failed(PEER, "x", 100.0)
    assert not failures.allows(PEER, "x", 0.0)
    assert failures.allows(PEER, "x", 100.5)


def test_ipv6_counts_by_its_64() -> None:
    """A host has a whole /64: changing the address within it changes nothing."""
    failures = Failures()
    for number in range(20):
        failures.failed(f"2001:db8::{number:x}", "x", 0.0)
    assert not failures.allows("2001:db8::ffff:1", "x", 0.0)
    assert failures.allows("2001:db8:0:1::1", "x", 0.0)


def test_who_has_no_address_is_not_slowed_down() -> None:
    """Behind a Unix socket all are one: the failures of one must not stop the others."""
    failures = Failures()
    for _ in range(100):
        failures.failed("unix", "x", 0.0)
        failures.failed("", "x", 0.0)
    assert failures.allows("unix", "x", 0.0)
    assert failures.allows("", "x", 0.0)


def test_what_verified_before_passes_until_it_fails() -> None:
    """A known credential is looked at whatever its neighbours do; one failure makes it unknown."""
    failures = Failures()
    failures.verified("good")
    for _ in range(20):
        failures.failed(PEER, "x", 0.0)
    assert failures.allows(PEER, "good", 0.0)
    failures.failed(PEER, "good", 0.0)
    assert not failures.allows(PEER, "good", 0.0)


def test_memory_is_bounded() -> None:
    """However many addresses and credentials come by, the oldest are forgotten."""
    failures = Failures()
    failures.verified("first")
    for number in range(10_001):
        failures.failed(f"10.{number >> 16}.{(number >> 8) & 255}.{number & 255}", "x", 0.0)
        failures.verified(str(number))
    assert len(failures._buckets) == len(failures._known) == 10_000
    for _ in range(20):
        failures.failed(PEER, "x", 0.0)
    assert not failures.allows(PEER, "first", 0.0)


async def test_a_guesser_is_stopped_and_its_neighbour_goes_on(rig: Rig) -> None:
    """After twenty strange credentials of one address even a good new one has to wait there."""
    neighbour, fresh = rig.sandbox(), rig.sandbox()
    assert (await present(rig, neighbour.launch)).status == 200
    for _ in range(20):
        assert (await present(rig, "a.b.c")).body == {"error": "invalid_grant"}
    reply = await present(rig, fresh.launch)
    assert (reply.status, reply.body) == (400, {"error": "slow_down"})
    assert reply.headers["retry-after"] == "1"
    assert (await present(rig, neighbour.launch)).status == 200
    assert (await present(rig, fresh.launch, "10.9.9.9")).status == 200
    rig.clock.advance(0.5)
    assert (await present(rig, rig.sandbox().launch)).status == 200


async def test_a_generation_is_known_when_it_is_given_out(rig: Rig) -> None:
    """Each renewal has a new credential: the one just given out passes like an old one."""
    token = (await present(rig, rig.sandbox("single_use").launch)).body["refresh_token"]
    for _ in range(20):
        await present(rig, "a.b.c")
    asked = json.dumps({"grant_type": "refresh_token", "refresh_token": token}).encode()
    reply = await rig.exchange(asked, headers={"x-daypass-peer": PEER})
    assert reply.status == 200
