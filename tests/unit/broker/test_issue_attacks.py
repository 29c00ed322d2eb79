"""Attacks on the token endpoint: forged headers, crossed kinds of tokens, wrong addressees."""

from dataclasses import replace

import pytest

from daypass_broker import oauth, schema
from daypass_broker.key_files import FileHalf
from daypass_broker.keys import Purpose
from daypass_broker.settings import Settings
from daypass_core.claims import LaunchClaims, launch_payload, subject
from tests.support import ISSUER, NOW, TRUST_DOMAIN, SigningKey, sign, signing_key
from tests.unit.broker.rig import Rig


def own_key(rig: Rig, purpose: Purpose) -> SigningKey:
    """The broker's own key, to sign things it would not."""
    key = rig.keys.active(purpose)
    assert isinstance(key.half, FileHalf)
    return SigningKey(key.half.private, key.kid)


async def test_strangers_learn_nothing_and_write_nothing(rig: Rig) -> None:
    """A credential whose signature does not hold gets invalid_grant alone and leaves no row."""
    sandbox = rig.sandbox()
    head, payload, signature = sandbox.launch.split(".")
    flipped = ("A" if signature[0] != "A" else "B") + signature[1:]
    stranger = signing_key("stranger")
    claims = rig.launch_claims(sandbox.id, "reusable", "lch_x", NOW, NOW + 100)
    named = SigningKey(stranger.private, rig.keys.active(Purpose.LAUNCH).kid)
    forged = sign(named, launch_payload(claims), typ="launch+jwt")
    for credential in (f"{head}.{payload}.{flipped}", forged, "x", "a.b.c", "é" * 9):
        reply = await rig.launch(credential)
        assert (reply.status, reply.body) == (400, {"error": "invalid_grant"})
    assert rig.rows(schema.incident) == []
    assert len(rig.rows(schema.audit)) == len(list(Purpose))  # the three keys' own events


def header_attacks(kid: str) -> dict[str, object]:
    """Headers that have fooled verifiers elsewhere."""
    good = {"alg": "ES256", "typ": "launch+jwt", "kid": kid}
    return {
        "alg none": good | {"alg": "none"},
        "alg noNE": good | {"alg": "noNE"},
        "alg HS256": good | {"alg": "HS256"},
        "alg list": good | {"alg": ["ES256"]},
        "kid unknown": good | {"kid": "../../etc/passwd"},
        "kid sql": good | {"kid": "' OR 1=1 --"},
        "kid number": good | {"kid": 1},
        "jku": good | {"jku": "https://attacker.test/jwks.json"},
        "jwk": good | {"jwk": signing_key("attacker").jwk},
        "x5u": good | {"x5u": "https://attacker.test/x"},
        "crit": good | {"crit": ["exp"]},
        "no typ": {"alg": "ES256", "kid": kid},
        "no kid": {"alg": "ES256", "typ": "launch+jwt"},
        "typ JWT": good | {"typ": "JWT"},
        "duplicate alg": b'{"alg":"ES256","alg":"none","typ":"launch+jwt","kid":"%s"}'
        % kid.encode(),
    }


@pytest.mark.parametrize("attack", sorted(header_attacks("")))
async def test_row_20_header_attacks_are_strangers(rig: Rig, attack: str) -> None:
    """Row 20: no header trick passes, even under our own signature, and none is explained."""
    sandbox = rig.sandbox()
    key = own_key(rig, Purpose.LAUNCH)
    claims = rig.launch_claims(sandbox.id, "reusable", sandbox.launch_jti, NOW, sandbox.deadline)
    header = header_attacks(key.kid)[attack]
    assert isinstance(header, dict | bytes)
    reply = await rig.launch(sign(key, launch_payload(claims), header=header))
    assert (reply.status, reply.body) == (400, {"error": "invalid_grant"})


async def test_row_21_no_kind_of_token_passes_for_another(rig: Rig) -> None:
    """Row 21: access, launch and renewal tokens are refused wherever another kind belongs."""
    reusable, single = rig.sandbox(), rig.sandbox("single_use")
    access = (await rig.launch(reusable)).body["access_token"]
    renewal = (await rig.launch(single)).body["refresh_token"]
    for kind, credential in (
        (oauth.TYPE_JWT, access),
        (oauth.TYPE_JWT, renewal),
        (oauth.TYPE_REFRESH_TOKEN, access),
        (oauth.TYPE_REFRESH_TOKEN, reusable.launch),
    ):
        reply = await rig.exchange_form(subject_token=credential, subject_token_type=kind)
        assert (reply.status, reply.body) == (400, {"error": "invalid_grant"})
    for credential in (access, renewal):
        assert (await rig.launch(credential)).body == {"error": "invalid_grant"}
    assert (await rig.renew(renewal)).status == 200  # none of it used the renewal up


@pytest.mark.parametrize("signer", [Purpose.ACCESS, Purpose.RENEWAL])
async def test_row_21_a_key_of_another_purpose_signs_no_launch(rig: Rig, signer: Purpose) -> None:
    """Row 21: a launch credential signed with the access or renewal key is refused."""
    sandbox = rig.sandbox()
    claims = rig.launch_claims(sandbox.id, "reusable", sandbox.launch_jti, NOW, sandbox.deadline)
    forged = sign(own_key(rig, signer), launch_payload(claims), typ="launch+jwt")
    assert (await rig.launch(forged)).body == {"error": "invalid_grant"}


@pytest.mark.parametrize("field", ["issuer", "audience"])
async def test_a_credential_for_elsewhere_is_refused(rig: Rig, field: str) -> None:
    """A signed launch credential for another issuer or audience is refused and counted."""
    sandbox = rig.sandbox()
    claims = rig.launch_claims(sandbox.id, "reusable", sandbox.launch_jti, NOW, sandbox.deadline)
    values = {name: getattr(claims, name) for name in LaunchClaims.__dataclass_fields__}
    other = LaunchClaims(**values | {field: "https://elsewhere.test"})
    foreign = sign(own_key(rig, Purpose.LAUNCH), launch_payload(other), typ="launch+jwt")
    reply = await rig.launch(foreign)
    assert (reply.status, reply.error) == (400, "invalid_grant")
    assert rig.counts(sandbox.id) == {f"token_refused:wrong_{field}": 1}


async def test_a_signed_credential_of_an_unknown_sandbox_is_refused(rig: Rig) -> None:
    """A signature alone is not enough: without a sandbox row nothing is issued."""
    claims = rig.launch_claims("sbx_gone", "reusable", "lch_gone", NOW, NOW + 100)
    reply = await rig.launch(rig.services.signer.sign_launch(claims))
    assert (reply.error, reply.description) == ("invalid_grant", "sandbox is not known here")


async def test_a_sandbox_is_found_under_its_own_tenant_only(rig: Rig) -> None:
    """Row 25: signed claims that put a sandbox into another tenant find no sandbox."""
    sandbox = rig.sandbox()
    claims = rig.launch_claims(sandbox.id, "reusable", sandbox.launch_jti, NOW, sandbox.deadline)
    named = subject(TRUST_DOMAIN, "globex", sandbox.id)
    crossed = replace(claims, tenant="globex", subject=named)
    reply = await rig.launch(rig.services.signer.sign_launch(crossed))
    assert (reply.error, reply.description) == ("invalid_grant", "sandbox is not known here")


def test_broker_audience_is_not_the_proxys(rig: Rig) -> None:
    """What the token endpoint accepts and what the proxy accepts differ in audience."""
    named: Settings = rig.services.settings
    assert named.broker_audience != named.audience
    assert named.broker_audience == ISSUER
