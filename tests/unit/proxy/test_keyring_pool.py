"""The pool: turns by weight, cool-downs for a model, and one sandbox's rate that stays its own."""

from collections import Counter

import pytest

from daypass_core.secret import Secret, parse_reference
from daypass_proxy.key_references import PooledKeys, Weighted, parse_keys, shared
from daypass_proxy.keyring import Keyring, KeyUnavailable
from daypass_proxy.keyring_pool import (
    COOL_MOST_SECONDS,
    COOL_SECONDS,
    MODELS_KEPT,
    REFUSED_SECONDS,
    Cause,
    KeyPool,
    PoolKey,
    Use,
    cool_seconds,
)
from daypass_proxy.providers.anthropic import Anthropic
from tests.canary import CANARY
from tests.fakes.clock import FakeClock
from tests.fakes.keys import FakeVault

MODEL, OTHER = "claude-sonnet-4-6", "claude-opus-4-6"


def pool(*weights: int) -> KeyPool:
    """A pool of keys named by their place."""
    return KeyPool(
        [PoolKey(parse_reference(f"env://K{n}"), weight, Use()) for n, weight in enumerate(weights)]
    )


def names(found: KeyPool, count: int, now: float = 0.0, model: str = MODEL) -> str:
    """The places of the keys that `count` calls of many sandboxes begin with."""
    keys = [found.first(model, f"sbx_{n}", now) for n in range(count)]
    return "".join(key.reference.path[1:] for key in keys if key)


def test_smooth_weighted_order() -> None:
    """Each key gets its part of the calls, and no key has a row of turns that it could share."""
    assert names(pool(5, 1, 1), 7) == "0010200"
    assert names(pool(1, 1), 4) == "0101"
    assert Counter(names(pool(3, 2, 1), 600)) == {"0": 300, "1": 200, "2": 100}


def test_cool_down_is_of_one_model() -> None:
    """A key that cools down has no turn for that model until the time is over, but for others."""
    found = pool(1, 1)
    assert found.cool(found.keys[0], Cause.OVERLOADED, 10, MODEL, "sbx_a", 0)
    assert names(found, 4, 9.9) == "1111"
    assert set(names(found, 4, 9.9, OTHER)) == {"0", "1"}
    assert set(names(found, 4, 10.0)) == {"0", "1"}


def test_refused_key_cools_down_for_all_models() -> None:
    """A key that the provider does not know has no turn for any model, until it is another."""
    found = pool(1, 1)
    assert found.cool(found.keys[0], Cause.REFUSED, 60, MODEL, "sbx_a", 0)
    assert names(found, 2, 1.0, OTHER) == "11"
    found.renewed(parse_reference("env://K0"))
    assert set(names(found, 4, 1.0, OTHER)) == {"0", "1"}


def test_all_cool_down() -> None:
    """While all cool down a call begins with the one that is ready first, and goes on with none."""
    found = pool(1, 1)
    found.cool(found.keys[0], Cause.OVERLOADED, 20, MODEL, "sbx_a", 0)
    found.cool(found.keys[1], Cause.OVERLOADED, 10, MODEL, "sbx_a", 0)
    assert names(found, 3, 1.0) == "111"
    assert found.another(MODEL, 1.0, [found.keys[1]]) is None
    assert found.first(MODEL, "sbx_a", 1.0, found.keys) is None


def test_own_rate_stays_with_its_sandbox() -> None:
    """A sandbox that sent most of a key's requests keeps its 429 and the key; others move away."""
    found = pool(1, 1)
    busy, other = found.keys
    for _ in range(6):
        busy.sent(MODEL, "sbx_busy", 0)
    for n in range(5):
        busy.sent(MODEL, f"sbx_{n}", 0)
    assert not found.cool(busy, Cause.RATE, 30, MODEL, "sbx_busy", 1)
    assert found.first(MODEL, "sbx_busy", 2) is busy
    assert found.first(MODEL, "sbx_busy", 29) is busy
    assert {found.first(MODEL, "sbx_1", 2) for _ in range(3)} == {other}
    assert busy.use.cooled == {Cause.RATE: 1}


@pytest.mark.parametrize(("own", "others", "moves"), [(4, 0, True), (5, 0, False), (6, 6, True)])
def test_what_an_own_rate_is(own: int, others: int, moves: bool) -> None:
    """It takes five requests within a minute, and more than half of all with that key and model."""
    found = pool(1, 1)
    for sandbox, count in (("sbx_a", own), ("sbx_b", others)):
        for _ in range(count):
            found.keys[0].sent(MODEL, sandbox, 0)
            found.keys[0].sent(OTHER, "sbx_b", 0)
    assert found.cool(found.keys[0], Cause.RATE, 30, MODEL, "sbx_a", 1) is moves


def test_an_old_rate_is_forgotten() -> None:
    """Requests of more than a minute ago make no rate."""
    found = pool(1, 1)
    for _ in range(50):
        found.keys[0].sent(MODEL, "sbx_a", 0)
    found.keys[0].sent(MODEL, "sbx_a", 60)
    assert found.cool(found.keys[0], Cause.RATE, 30, MODEL, "sbx_a", 60)


def test_one_sandbox_cools_one_key() -> None:
    """A sandbox that met one limit cannot make a second key cool down, nor be moved again."""
    found = pool(1, 1, 1)
    first, second, third = found.keys
    assert found.cool(first, Cause.RATE, 30, MODEL, "sbx_a", 0)
    assert not found.cool(second, Cause.RATE, 30, MODEL, "sbx_a", 1)
    assert second.cooling(MODEL, 1) is None
    assert found.cool(second, Cause.RATE, 30, MODEL, "sbx_b", 1), "another sandbox may"
    assert found.cool(third, Cause.RATE, 30, MODEL, "sbx_a", 31), "and so may it, later"


def test_calls_that_were_under_way() -> None:
    """What comes late with a key that cools down makes it longer, and counts and takes no more."""
    found = pool(1, 1)
    first, second = found.keys
    for n in range(9):
        assert found.cool(first, Cause.RATE, 10, MODEL, f"sbx_{n}", n)
    assert first.use.cooled == {Cause.RATE: 1}
    assert first.cooling(MODEL, 17.9)
    assert first.cooling(MODEL, 18) is None
    assert found.cool(second, Cause.RATE, 10, MODEL, "sbx_5", 9), "it was not the one that met it"
    assert not found.cool(second, Cause.RATE, 10, MODEL, "sbx_0", 9)


def test_own_rate_that_comes_late() -> None:
    """Who used a key up stays with it, though another sandbox was the first to hear of it."""
    found = pool(1, 1)
    first, _ = found.keys
    for _ in range(9):
        first.sent(MODEL, "sbx_busy", 0)
    assert found.cool(first, Cause.RATE, 10, MODEL, "sbx_a", 0)
    assert not found.cool(first, Cause.RATE, 5, MODEL, "sbx_busy", 1)
    assert found.first(MODEL, "sbx_busy", 9) is first


@pytest.mark.parametrize(
    ("cause", "name", "value", "seconds"),
    [
        (Cause.RATE, b"retry-after", b"7", 7),
        (Cause.OVERLOADED, b"retry-after", b"0.5", 0.5),
        (Cause.RATE, b"retry-after-ms", b"1500", 1.5),
        (Cause.RATE, b"retry-after", b"0", 0),
        (Cause.RATE, b"retry-after", b"4294967", COOL_MOST_SECONDS),
        (Cause.RATE, b"retry-after", b"-1", COOL_SECONDS),
        (Cause.RATE, b"retry-after", b"nan", COOL_SECONDS),
        (Cause.RATE, b"retry-after", b"1e9", COOL_SECONDS),
        (Cause.RATE, b"retry-after", b"Tue, 01 Dec 2026 00:00:00 GMT", COOL_SECONDS),
        (Cause.RATE, b"x", b"1", COOL_SECONDS),
        (Cause.REFUSED, b"retry-after", b"7", REFUSED_SECONDS),
    ],
)
def test_length_of_a_cool_down(cause: Cause, name: bytes, value: bytes, seconds: float) -> None:
    """B48: at most what `retry-after` says and a minute; five seconds where it says nothing."""
    assert cool_seconds(cause, ((name, value),)) == seconds


def test_a_pool_in_the_settings() -> None:
    """Several references of a tenant are a pool, with weights; one alone is what it always was."""
    keys = parse_keys("acme=3*env://A|file:///run/a|b*c|vault://secret/llm/{tenant}#k,beta=env://B")
    assert keys == {
        "acme": PooledKeys(
            (
                Weighted(parse_reference("env://A"), 3),
                Weighted(parse_reference("file:///run/a|b*c")),
                Weighted(parse_reference("vault://secret/llm/acme#k")),
            )
        ),
        "beta": parse_reference("env://B"),
    }


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a=env://A|env://A", "twice"),
        ("a=0*env://A|env://B", "weight"),
        ("a=101*env://A|env://B", "weight"),
        ("a=2*env://A", "expected"),
        ("a=env://A|sk-ant-pasted", "expected"),
        ("a=env://A|x*env://B", "expected"),
        ("a=env://A|", "expected"),
        ("a=" + "|".join(f"env://A{n}" for n in range(17)), "more than 16"),
    ],
)
def test_pools_that_are_refused(value: str, words: str) -> None:
    """What cannot be read as a pool names its entry and what is wrong, and repeats nothing."""
    with pytest.raises(ValueError, match=f"entry 1.*{words}") as caught:
        parse_keys(value)
    assert "pasted" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "meet"),
    [
        ("acme=env://A|env://B,beta=env://B|env://C", True),
        ("acme=env://A|env://B,beta=env://C", False),
        ("*=vault://s/{tenant}/a#k|env://B", True),
        ("*=vault://s/{tenant}/a#k|vault://s/{tenant}/b#k", False),
        ("*=vault://s/{tenant}-a#k|vault://s/{tenant}-b#k", False),
        ("*=vault://s/{tenant}#k|vault://s/{tenant}#other", False),
        ("*=vault://s/{tenant}#k|vault://s/x-{tenant}#k", True),
        ("*=vault://s/{tenant}#k|file:///run/{tenant},acme=file:///run/beta", True),
    ],
)
def test_pools_that_share_a_key(keys: str, meet: bool) -> None:
    """A key of one tenant's pool is no other tenant's, unless that is switched on."""
    assert shared(parse_keys(keys)) is meet


async def test_leak_of_another_key_of_the_pool() -> None:
    """Row 15: an answer is searched for every key of the tenant's pool, of no other tenant's."""
    secrets = {name: f"sk-ant-{name * 8}" for name in ("one", "two", "globex")}
    ring = Keyring(
        {"anthropic": parse_keys("acme=env://ONE|env://TWO,globex=env://GLOBEX")},
        env_secrets={name.upper(): Secret(value) for name, value in secrets.items()},
        vault=FakeVault(),
        clock=FakeClock(),
    )
    await ring.start()
    for name, found in (("one", True), ("two", True), ("globex", False)):
        assert ring.leaks("acme", "anthropic", secrets[name].encode()) is found
    assert ring.leaks("globex", "anthropic", secrets["globex"].encode())
    assert not ring.leaks("globex", "anthropic", secrets["one"].encode())
    assert ring.pool("globex", "anthropic") is None
    assert ring.pool("nobody", "anthropic") is None
    await ring.close()


async def test_a_pool_of_templates() -> None:
    """Each tenant of a "*" pool has a pool of its own keys; they are counted by the template."""
    vault = FakeVault(acme_a="one-of-acme", acme_b="two-of-acme")
    template = "vault://secret/{tenant}_a#k|vault://secret/{tenant}_b#k"
    ring = Keyring(
        {"anthropic": parse_keys(f"*={template}")},
        env_secrets={},
        vault=vault,
        clock=FakeClock(),
    )
    await ring.start()
    assert vault.reads == {}
    found = ring.pool("acme", "anthropic")
    assert found is not None
    assert found is ring.pool("acme", "anthropic")
    assert found is not ring.pool("globex", "anthropic")
    with pytest.raises(KeyUnavailable, match="no key of"):
        ring.pool("../acme", "anthropic")
    provider = Anthropic()
    assert [await ring.header_for("acme", provider, key) for key in found.keys] == [
        (b"x-api-key", b"one-of-acme"),
        (b"x-api-key", b"two-of-acme"),
    ]
    assert set(ring.uses) == {("anthropic", each) for each in template.split("|")}
    assert CANARY not in repr(found.keys)
    await ring.close()


def test_invented_models_take_no_more_room() -> None:
    """Row 17: under a wildcard a sandbox may name models without end; a key keeps a bounded few."""
    found = pool(1, 1)
    key = found.keys[0]
    assert found.cool(key, Cause.REFUSED, 60, MODEL, "sbx_a", 0)
    for n in range(2 * MODELS_KEPT):
        key.sent(f"{MODEL}-{n}", "sbx_a", 0)
        found.cool(key, Cause.OVERLOADED, 10, f"{MODEL}-{n}", "sbx_a", 0)
    assert len(key._minutes) == len(key._cooling) == MODELS_KEPT
    # What is of all models stays in force.
    assert set(names(found, 4, 1.0, OTHER)) == {"1"}
