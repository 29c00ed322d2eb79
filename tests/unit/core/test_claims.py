"""Claims: what the broker signs is what the proxy reads."""

from collections.abc import Callable
from typing import Any

import pytest

from daypass_core.claims import (
    ClaimsError,
    LaunchClaims,
    RenewalClaims,
    SignedClaims,
    access_payload,
    launch_payload,
    parse_access,
    parse_launch,
    parse_renewal,
    parse_trust_domain,
    renewal_payload,
    subject,
)
from tests.support import AUDIENCE, ISSUER, NOW, SANDBOX, TENANT, TRUST_DOMAIN, make_claims

HEADER = {"kid": "k1"}
COMMON: dict[str, Any] = {
    "issuer": ISSUER,
    "audience": AUDIENCE,
    "subject": subject(TRUST_DOMAIN, TENANT, SANDBOX),
    "tenant": TENANT,
    "sandbox": SANDBOX,
    "token_id": "lch_one",
    "issued_at": NOW,
    "expires_at": NOW + 14_400,
    "key_id": "k1",
}
LAUNCH = LaunchClaims(**COMMON, mode="reusable")
RENEWAL = RenewalClaims(**COMMON, lineage="lin_one", generation=3)


def test_access_round_trip() -> None:
    """The payload of an access token reads back as the claims it was made of."""
    claims = make_claims(key_id="k1", grants=("grt_root", "grt_leaf"))
    payload = access_payload(claims)
    assert payload["sub"] == payload["client_id"] == COMMON["subject"]
    assert parse_access(HEADER, SignedClaims(payload)) == claims


def test_launch_round_trip() -> None:
    """The payload of a launch credential reads back as the claims it was made of."""
    assert parse_launch(HEADER, SignedClaims(launch_payload(LAUNCH))) == LAUNCH


def test_renewal_round_trip() -> None:
    """The payload of a renewal generation reads back as the claims it was made of."""
    assert parse_renewal(HEADER, SignedClaims(renewal_payload(RENEWAL))) == RENEWAL


@pytest.mark.parametrize(
    ("payload", "parse", "claim"),
    [
        (payload, parse, claim)
        for payload, parse in (
            (launch_payload(LAUNCH), parse_launch),
            (renewal_payload(RENEWAL), parse_renewal),
        )
        for claim in payload
    ],
)
def test_every_claim_is_needed(
    payload: dict[str, object], parse: Callable[..., object], claim: str
) -> None:
    """A credential of the sandbox without one of its claims is refused by the claim's name."""
    short = {name: value for name, value in payload.items() if name != claim}
    with pytest.raises(ClaimsError) as caught:
        parse(HEADER, SignedClaims(short))
    assert caught.value.claim == claim


@pytest.mark.parametrize("mode", ["", "forever", None, 1])
def test_launch_modes(mode: object) -> None:
    """A launch mode that is not known is refused."""
    with pytest.raises(ClaimsError, match="mode"):
        parse_launch(HEADER, SignedClaims({**launch_payload(LAUNCH), "mode": mode}))


@pytest.mark.parametrize("generation", [0, -1, True, 1.5, "1", None, 2**60])
def test_generations(generation: object) -> None:
    """A generation is a positive integer and nothing that resembles one."""
    payload = {**renewal_payload(RENEWAL), "generation": generation}
    with pytest.raises(ClaimsError, match="generation"):
        parse_renewal(HEADER, SignedClaims(payload))


def test_unknown_claims_are_not_named() -> None:
    """The name of an unknown claim is not repeated: it is somebody else's text."""
    with pytest.raises(ClaimsError) as caught:
        parse_launch(HEADER, SignedClaims({**launch_payload(LAUNCH), "\x1b[31mevil": 1}))
    assert "evil" not in str(caught.value)


def test_kinds_are_exclusive() -> None:
    """No kind of token can be read as another (row 21)."""
    payloads = [
        SignedClaims(access_payload(make_claims())),
        SignedClaims(launch_payload(LAUNCH)),
        SignedClaims(renewal_payload(RENEWAL)),
    ]
    parsers: list[Any] = [parse_access, parse_launch, parse_renewal]
    for i, parse in enumerate(parsers):
        for j, payload in enumerate(payloads):
            if i != j:
                with pytest.raises(ClaimsError):
                    parse(HEADER, payload)


@pytest.mark.parametrize("domain", ["daypass.local", "a", "0-x_y.test", "x" * 255])
def test_trust_domains(domain: str) -> None:
    """What is taken as a trust domain reads back from a subject made with it."""
    named = subject(parse_trust_domain(domain), TENANT, SANDBOX)
    payload = {**launch_payload(LAUNCH), "sub": named}
    assert parse_launch(HEADER, SignedClaims(payload)).subject == named


@pytest.mark.parametrize("domain", ["", "Daypass.Local", "-a", "a/b", "a b", "x" * 256, "a\n"])
def test_what_is_no_trust_domain(domain: str) -> None:
    """What every verifier would refuse in a subject is refused before anything is signed."""
    with pytest.raises(ValueError, match="lower case"):
        parse_trust_domain(domain)
