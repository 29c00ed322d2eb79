"""Signing: three kinds of JWT with their own type and key, and a header without anything else."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from daypass_broker.keys import Purpose
from daypass_core.claims import RenewalClaims, access_payload, subject
from daypass_core.jwks import PublicKeys
from daypass_core.verify import (
    MAX_TOKEN_BYTES,
    TokenRefused,
    verify_access,
    verify_launch,
    verify_renewal,
)
from tests.support import AUDIENCE, ISSUER, NOW, TENANT, TRUST_DOMAIN, make_claims, make_scope
from tests.unit.broker.rig import Rig

Verify = Callable[..., object]


def header(token: str) -> dict[str, Any]:
    """The first part of a token, decoded."""
    part = token.split(".")[0]
    decoded: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return decoded


def payload(token: str) -> dict[str, Any]:
    """The second part of a token, decoded."""
    return header(token.split(".", 1)[1])


def one_of_each(rig: Rig) -> dict[Purpose, str]:
    """A token of every kind, as the broker signs them."""
    signer, audience = rig.services.signer, rig.services.settings.broker_audience
    access = make_claims(key_id=rig.keys.active(Purpose.ACCESS).kid)
    launch = rig.launch_claims("sbx_a", "reusable", "lch_a", NOW, NOW + 600)
    renewal = RenewalClaims(
        issuer=ISSUER,
        audience=audience,
        subject=subject(TRUST_DOMAIN, TENANT, "sbx_a"),
        tenant=TENANT,
        sandbox="sbx_a",
        token_id="lin_a-1",
        issued_at=NOW,
        expires_at=NOW + 600,
        lineage="lin_a",
        generation=1,
    )
    return {
        Purpose.ACCESS: signer.sign_access(access),
        Purpose.LAUNCH: signer.sign_launch(launch),
        Purpose.RENEWAL: signer.sign_renewal(renewal),
    }


def test_the_header_is_exactly_alg_typ_kid(rig: Rig) -> None:
    """Every token has ES256, its own type, the active key's id, and no other header parameter."""
    types = {Purpose.ACCESS: "at+jwt", Purpose.LAUNCH: "launch+jwt", Purpose.RENEWAL: "renew+jwt"}
    for purpose, token in one_of_each(rig).items():
        kid = rig.keys.active(purpose).kid
        assert header(token) == {"alg": "ES256", "typ": types[purpose], "kid": kid}


def test_each_kind_verifies_as_itself_only(rig: Rig) -> None:
    """Row 21: of the nine pairs of kind and verifier three hold, whatever keys are at hand."""
    every = PublicKeys(
        {kid: key for purpose in Purpose for kid, key in rig.keys.public(purpose).items()}
    )
    verifiers: dict[Purpose, tuple[Verify, str]] = {
        Purpose.ACCESS: (verify_access, AUDIENCE),
        Purpose.LAUNCH: (verify_launch, ISSUER),
        Purpose.RENEWAL: (verify_renewal, ISSUER),
    }
    for kind, token in one_of_each(rig).items():
        for expected, (verify, audience) in verifiers.items():
            if kind is expected:
                verify(token, every, issuer=ISSUER, audience=audience, now=NOW)
                continue
            with pytest.raises(TokenRefused):
                verify(token, every, issuer=ISSUER, audience=audience, now=NOW)


def test_the_payload_is_what_core_says(rig: Rig) -> None:
    """The signed claims are exactly those `access_payload` lists, with sub equal to client_id."""
    claims = make_claims(key_id=rig.keys.active(Purpose.ACCESS).kid)
    signed = payload(rig.services.signer.sign_access(claims))
    assert signed == json.loads(json.dumps(access_payload(claims)))
    assert signed["sub"] == signed["client_id"]


def test_another_key_than_the_recorded_one_is_refused(rig: Rig) -> None:
    """A token is never signed with a key its row does not name."""
    with pytest.raises(ValueError, match="another key"):
        rig.services.signer.sign_access(make_claims(key_id="other"))


def test_a_token_no_verifier_would_read_is_not_signed(rig: Rig) -> None:
    """A scope of forty models fits the 4 KiB every verifier allows; what does not is an error."""
    key_id = rig.keys.active(Purpose.ACCESS).kid
    models = tuple(f"claude-model-number-{n}-2026" for n in range(64))
    fitting = make_claims(key_id=key_id, scope=make_scope(models=models[:40]))
    assert len(rig.services.signer.sign_access(fitting)) < MAX_TOKEN_BYTES
    too_large = make_claims(
        key_id=key_id, scope=make_scope(models=tuple(f"{m}-{m}" for m in models))
    )
    with pytest.raises(ValueError, match="narrow the scope"):
        rig.services.signer.sign_access(too_large)
