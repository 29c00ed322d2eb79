"""Assertions of a registered issuer, honest and hostile, through the whole gate over TLS."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import sqlalchemy as sa

from daypass_broker import db, schema
from daypass_broker.attest.federation import Workload
from daypass_broker.oauth import OAuthError
from daypass_broker.rule import Rule, State
from daypass_core.verify import Reason, TokenRefused
from tests.servers.ca import Authority
from tests.servers.issuer import Issuer, encode
from tests.unit.broker.hostile import HOSTILE, Forge, signed
from tests.unit.broker.rig import Rig
from tests.unit.broker.workloads import Gate

pytestmark = pytest.mark.usefixtures("patience")

LOOPBACK = ("127.0.0.0/8",)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that the issuer's certificate is of."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def one_issuer(authority: Authority) -> Iterator[Issuer]:
    """One issuer for the whole module: keys are slow to make."""
    with Issuer(authority) as issuer:
        yield issuer


@pytest.fixture
def issuer(one_issuer: Issuer) -> Issuer:
    """The issuer as good as new."""
    one_issuer.requests.clear()
    one_issuer.behave = None
    one_issuer.named = one_issuer.url
    one_issuer.keys = [pair.jwk for pair in one_issuer.pairs.values()]
    return one_issuer


@pytest.fixture
def gate(rig: Rig, issuer: Issuer, authority: Authority) -> Gate:
    """A gate to that issuer."""
    return Gate(rig, issuer, authority, LOOPBACK)


@pytest.fixture
def rule(gate: Gate) -> Rule:
    """An ordinary rule."""
    return gate.rule()


async def refusal(gate: Gate, token: str, rule: Rule | str) -> TokenRefused:
    """How the gate refuses an assertion."""
    with pytest.raises(TokenRefused) as caught:
        await gate.attest(token, rule)
    return caught.value


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "ES384", "EdDSA"])
async def test_an_assertion_names_its_workload(gate: Gate, rule: Rule, algorithm: str) -> None:
    """Every asymmetric algorithm of the list verifies against discovered keys."""
    now = int(gate.rig.clock.now())
    found = await gate.attest(gate.token(algorithm=algorithm), rule)
    assert found.rule == rule
    assert json.loads(found.identity) == {"sub": "workload-1"}
    assert (found.issued_at, found.expires_at) == (now, now + 300)
    assert found.claims == {"sub": "workload-1"}


@pytest.mark.parametrize("header", [{"typ": None}, {"typ": "jwt"}, {"typ": "JOSE"}, {"x5t": "a"}])
async def test_headers_of_honest_issuers_pass(
    gate: Gate, rule: Rule, issuer: Issuer, header: dict[str, Any]
) -> None:
    """GitHub sends a certificate's thumbprint, clusters no `typ`, SPIFFE another one."""
    assert await gate.attest(signed(issuer, gate, header), rule)


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_assertions_are_refused(
    gate: Gate, rule: Rule, issuer: Issuer, name: str
) -> None:
    """Nothing in the corpus passes, and the honest assertion beside it does."""
    forge = Forge(gate, issuer)
    assert await gate.attest(forge.good, rule)
    await refusal(gate, HOSTILE[name](forge), rule)


async def test_strangers_are_told_apart_from_the_issuers_own(gate: Gate, rule: Rule) -> None:
    """`signature_verified` is true exactly for what the issuer signed, for us, by this rule."""
    signed = await refusal(gate, gate.token(sub="workload-3"), rule)
    assert (signed.signature_verified, signed.reason) == (True, Reason.BAD_CLAIMS)
    assert "sub" in signed.detail
    assert "workload-3" not in signed.detail
    late = await refusal(gate, gate.token(iat=1, exp=2), rule)
    assert (late.signature_verified, late.reason) == (True, Reason.EXPIRED)
    assert not (await refusal(gate, gate.token(aud="x"), rule)).signature_verified
    assert not (await refusal(gate, gate.token()[:-4] + "AAAA", rule)).signature_verified


@pytest.mark.parametrize(
    ("claims", "good"),
    [
        ({"iat": 2, "nbf": 2}, True),
        ({"iat": 25, "nbf": 25}, True),
        ({"iat": 300, "nbf": 0, "exp": 400}, False),
        ({"exp": -2, "iat": -100}, True),
        ({"exp": -5, "iat": -100}, False),
        ({"nbf": -600}, True),
    ],
)
async def test_clocks_may_differ_a_little(
    gate: Gate, rule: Rule, claims: dict[str, int], good: bool
) -> None:
    """B20: half a minute ahead is a clock, five minutes are not; expired is expired."""
    now = int(gate.rig.clock.now())
    token = gate.token(**{name: now + offset for name, offset in claims.items()})
    if good:
        assert await gate.attest(token, rule)
    else:
        await refusal(gate, token, rule)


async def test_no_other_rule_is_tried(gate: Gate, rule: Rule) -> None:
    """A proof that fails the rule it was shown for does not fall through to one that it meets."""
    other = gate.rule(conditions={"sub": "workload-9"})
    assert await gate.attest(gate.token(sub="workload-9"), other)
    await refusal(gate, gate.token(), other)
    await refusal(gate, gate.token(), "fdrl_" + "a" * 26)
    assert await gate.attest(gate.token(), rule)


async def test_a_disabled_rule_stops_at_the_next_look(gate: Gate, rule: Rule) -> None:
    """A broker sees it within a second, and again when it is enabled."""
    assert await gate.attest(gate.token(), rule)
    gate.set_state(rule, State.DISABLED)
    gate.rig.clock.advance(1)
    await refusal(gate, gate.token(), rule)
    gate.set_state(rule, State.ACTIVE)
    gate.rig.clock.advance(1)
    assert await gate.attest(gate.token(), rule)


async def test_nobody_queues_for_a_store_that_hangs(
    gate: Gate, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B32: all that wait for the rules go on with those in memory after the first failure."""
    assert await gate.attest(gate.token(), rule)
    asked, federation = list[float](), gate.federation

    def hanging() -> None:
        asked.append(gate.rig.clock.monotonic())
        gate.rig.clock.advance(10)
        raise db.StoreUnavailable("the database does not answer")

    monkeypatch.setattr(federation, "_read", hanging)
    gate.rig.clock.advance(1)
    found = await asyncio.gather(*(gate.attest(gate.token(), rule) for _ in range(10)))
    assert len(found) == 10
    assert len(asked) == 1


async def test_made_up_rules_cost_the_store_nothing(gate: Gate, rule: Rule) -> None:
    """A flood of unknown names asks the store at most once a second, and the issuer never."""
    assert await gate.attest(gate.token(), rule)
    gate.issuer.requests.clear()
    asked: list[str] = []

    def counting(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("BEGIN"):
            asked.append(statement)

    sa.event.listen(gate.rig.engine, "before_cursor_execute", counting)
    for number in range(50):
        await refusal(gate, gate.token(), f"fdrl_{number}")
    assert asked == []
    gate.rig.clock.advance(1)
    for number in range(50):
        await refusal(gate, gate.token(), f"fdrl_{number}")
    assert len(asked) == 1
    assert gate.issuer.asked == []


async def test_the_digest_does_not_depend_on_the_signature(
    gate: Gate, rule: Rule, issuer: Issuer
) -> None:
    """ECDSA has two good signatures for everything: used once must mean both of them."""
    token = gate.token()
    message, _, part = token.rpartition(".")
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    raw = jwt.utils.base64url_decode(part)
    other = raw[:32] + (order - int.from_bytes(raw[32:], "big")).to_bytes(32, "big")
    twin = f"{message}.{encode(other)}"
    assert twin != token
    assert (await gate.attest(twin, rule)).digest == (await gate.attest(token, rule)).digest


async def test_inline_keys_ask_nobody(gate: Gate, issuer: Issuer) -> None:
    """A rule that brings its keys works without the issuer being reachable."""
    rule = gate.rule(keys={"inline": {"keys": issuer.keys}})
    assert isinstance(await gate.attest(gate.token(), rule), Workload)
    assert issuer.requests == []


async def test_keys_by_url_are_not_discovered(gate: Gate, issuer: Issuer) -> None:
    """A rule that names the key set's URL asks for that alone."""
    rule = gate.rule(keys={"url": issuer.url + "/keys"})
    assert await gate.attest(gate.token(), rule)
    assert issuer.asked == ["/keys"]


async def test_an_issuer_that_cannot_be_asked_is_503(gate: Gate, issuer: Issuer) -> None:
    """Not knowing is no refusal: the caller comes back, nobody is told that it is bad."""
    rule = gate.rule(issuer="https://127.0.0.1:1")
    token = gate.token(iss="https://127.0.0.1:1")
    with pytest.raises(OAuthError) as caught:
        await gate.attest(token, rule)
    assert (caught.value.status, caught.value.retry_after) == (503, 5)


async def test_private_addresses_are_refused_unless_set(
    rig: Rig, issuer: Issuer, authority: Authority, tmp_path: Path
) -> None:
    """A rule cannot make the broker knock at machines of the inside."""
    closed = Gate(rig, issuer, authority, ())
    rule = closed.rule()
    with pytest.raises(OAuthError):
        await closed.attest(closed.token(), rule)
    assert issuer.requests == []
    assert rig.rows(schema.assertion) == []


@pytest.mark.parametrize(("named", "good"), [(None, True), ("PS256", True), ("RS256", False)])
async def test_a_key_is_for_its_algorithm(
    gate: Gate, rule: Rule, issuer: Issuer, named: str | None, good: bool
) -> None:
    """A good PS256 signature by a key that is published for RS256 is no signature (RFC 8725)."""
    key = issuer.pairs["PS256"].jwk
    issuer.keys = [key if named is None else {**key, "alg": named}]
    shown = gate.token(algorithm="PS256")
    if good:
        assert await gate.attest(shown, rule)
    else:
        assert (await refusal(gate, shown, rule)).reason is Reason.BAD_SIGNATURE
