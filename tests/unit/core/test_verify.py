"""Verification, by the vectors and by property."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daypass_core.claims import (
    LaunchClaims,
    RenewalClaims,
    access_payload,
    launch_payload,
    renewal_payload,
    subject,
)
from daypass_core.jwks import PublicKeys, parse_jwks
from daypass_core.verify import (
    Reason,
    TokenRefused,
    unverified_key_id,
    unverified_type,
    verify_access,
    verify_launch,
    verify_renewal,
)
from tests.support import (
    AUDIENCE,
    ISSUER,
    NOW,
    SANDBOX,
    TENANT,
    TRUST_DOMAIN,
    access_token,
    make_claims,
    public_keys,
    sign,
    signing_key,
)
from tests.vectors.make_access_tokens import TARGET, document

DOCUMENT: dict[str, Any] = json.loads(TARGET.read_text(encoding="utf-8"))
VECTORS: list[dict[str, Any]] = DOCUMENT["vectors"]
VECTOR_KEYS = parse_jwks(DOCUMENT["jwks"])
KEY = signing_key("unit")
KEYS = public_keys(KEY)
LAUNCH = LaunchClaims(
    issuer=ISSUER,
    audience="daypass-broker",
    subject=subject(TRUST_DOMAIN, TENANT, SANDBOX),
    tenant=TENANT,
    sandbox=SANDBOX,
    token_id="lch_one",
    issued_at=NOW,
    expires_at=NOW + 14_400,
    mode="single_use",
    key_id=KEY.kid,
)
RENEWAL = RenewalClaims(
    issuer=ISSUER,
    audience="daypass-broker",
    subject=LAUNCH.subject,
    tenant=TENANT,
    sandbox=SANDBOX,
    token_id="tok_ren",
    issued_at=NOW,
    expires_at=NOW + 14_400,
    lineage="lin_one",
    generation=1,
    key_id=KEY.kid,
)


def _payload() -> dict[str, object]:
    return access_payload(make_claims())


def verify(token: str, keys: PublicKeys = KEYS, now: float = NOW) -> Any:
    """Verify as the proxy of the tests does."""
    return verify_access(token, keys, issuer=ISSUER, audience=AUDIENCE, now=now)


def refusal(token: str, keys: PublicKeys = KEYS, now: float = NOW) -> TokenRefused:
    """Return how the token is refused."""
    with pytest.raises(TokenRefused) as caught:
        verify(token, keys, now)
    return caught.value


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_vectors(vector: dict[str, Any]) -> None:
    """Every vector is answered with its word (row 20)."""
    try:
        verify_access(
            vector["token"],
            VECTOR_KEYS,
            issuer=DOCUMENT["issuer"],
            audience=DOCUMENT["audience"],
            now=vector["now"],
        )
        answer, verified = "valid", True
    except TokenRefused as error:
        answer, verified = str(error.reason), error.signature_verified
    assert (answer, verified) == (vector["expect"], vector["signature_verified"])


def test_vectors_are_up_to_date() -> None:
    """The committed vectors are what their script writes."""
    assert Path(TARGET).read_text(encoding="utf-8") == document()


def test_vectors_cover_every_reason() -> None:
    """Each refusal word occurs in the vectors, and their names are different."""
    assert {vector["expect"] for vector in VECTORS} == {"valid", *Reason}
    assert len({vector["name"] for vector in VECTORS}) == len(VECTORS) >= 40


def test_valid() -> None:
    """A good token gives exactly the claims that were signed."""
    assert verify(access_token(KEY)) == make_claims(key_id=KEY.kid)


@given(st.text(max_size=300))
def test_any_text_is_refused(text: str) -> None:
    """No text at all crashes the verifier or passes it."""
    assert refusal(text).reason is Reason.MALFORMED


@given(position=st.integers(0, 5000), character=st.characters(max_codepoint=0x7F))
def test_any_changed_character_is_refused(position: int, character: str) -> None:
    """A token with one character changed is not good any more."""
    token = access_token(KEY)
    position %= len(token)
    changed = token[:position] + character + token[position + 1 :]
    if changed != token:
        assert not refusal(changed).signature_verified


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=5,
    ),
    st.sampled_from([*_payload(), "other"]),
)
@example(["grt_other"], "grants")
def test_any_signed_value(value: object, claim: str) -> None:
    """A claim with any other value is refused or of the right kind, never a crash."""
    try:
        verify(sign(KEY, {**_payload(), claim: value}))
    except TokenRefused:
        return
    assert type(value) is {"nbf": int, "jti": str, "grants": list}.get(claim)


def test_unsigned_claims_conclude_nothing() -> None:
    """A forged token is a bad signature, whatever else its claims would be."""
    forged = access_token(signing_key("stranger"), make_claims(issuer="https://evil.test"))
    _, payload, signature = forged.split(".")
    ours = access_token(KEY).split(".")[0]
    assert refusal(f"{ours}.{payload}.{signature}").reason is Reason.BAD_SIGNATURE


def test_launch_and_renewal() -> None:
    """The other two kinds verify with their own type and audience only (row 21)."""
    launch = sign(KEY, launch_payload(LAUNCH), typ="launch+jwt")
    renewal = sign(KEY, renewal_payload(RENEWAL), typ="renew+jwt")
    common: dict[str, Any] = {"issuer": ISSUER, "audience": "daypass-broker", "now": NOW}
    assert verify_launch(launch, KEYS, **common) == LAUNCH
    assert verify_renewal(renewal, KEYS, **common) == RENEWAL
    assert refusal(launch).reason is Reason.WRONG_TYPE
    with pytest.raises(TokenRefused, match="wrong_type"):
        verify_launch(renewal, KEYS, **common)
    with pytest.raises(TokenRefused, match="wrong_type"):
        verify_renewal(access_token(KEY), KEYS, **common)
    with pytest.raises(TokenRefused, match="wrong_audience"):
        verify_launch(launch, KEYS, **{**common, "audience": AUDIENCE})
    with pytest.raises(TokenRefused, match="expired"):
        verify_renewal(renewal, KEYS, **{**common, "now": NOW + 14_405})


def test_launch_under_the_access_type() -> None:
    """A launch credential re-signed as an access token still lacks its claims."""
    assert refusal(sign(KEY, launch_payload(LAUNCH))).reason is Reason.BAD_CLAIMS


def test_unverified_looks() -> None:
    """Type and key id can be looked at before verifying, and are None for what is no token."""
    token = access_token(KEY)
    assert unverified_type(token) == "at+jwt"
    assert unverified_key_id(token) == KEY.kid
    for text in ("", "sk-ant-api03-x", "a.b.c", "e30.e30.e30", token + "\n", "." * 10_000):
        assert unverified_type(text) is None
        assert unverified_key_id(text) is None


def test_refusals_hold_no_values() -> None:
    """What is said about a refused token holds nothing of the token (row 42)."""
    marker = "sbx_marker"
    token = access_token(KEY, make_claims(sandbox=marker, audience="elsewhere-audience"))
    error = refusal(token)
    assert error.__cause__ is None
    for part in (marker, "elsewhere", *token.split(".")):
        assert part not in f"{error} {error.detail}"


def test_garbage_is_cheap() -> None:
    """Refusing a megabyte of anything takes far less than a signature check."""
    texts = ["." * 1_000_000, "a" * 1_000_000, "{" * 1_000_000, "\u00e9" * 1_000_000]
    took = []
    for _ in range(10):
        started = time.thread_time()
        for text in texts:
            refusal(text)
        took.append(time.thread_time() - started)
    assert min(took) < 0.01
