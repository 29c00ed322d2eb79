"""Key sets: read strictly, named by thumbprint."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from daypass_core.jwks import JwksError, parse_jwks, thumbprint, to_jwk
from tests.support import base64url, signing_key

KEY = signing_key("one")
OTHER = signing_key("two")
JWK: dict[str, Any] = KEY.jwk


def test_round_trip() -> None:
    """A published key set reads back as the same keys under their names."""
    document = {"keys": [KEY.jwk, OTHER.jwk]}
    for form in (document, json.dumps(document), json.dumps(document).encode()):
        keys = parse_jwks(form)
        assert set(keys) == {KEY.kid, OTHER.kid}
        assert len(keys) == 2
        assert keys[KEY.kid].public_numbers() == KEY.public.public_numbers()


def test_thumbprint_of_the_rfc_example_form() -> None:
    """The thumbprint hashes exactly crv, kty, x, y in this order without blanks (RFC 7638 §3)."""
    import hashlib

    text = '{"crv":"P-256","kty":"EC","x":"%s","y":"%s"}' % (JWK["x"], JWK["y"])  # noqa: UP031
    assert thumbprint(KEY.public) == base64url(hashlib.sha256(text.encode()).digest())


def test_coordinates_keep_their_length() -> None:
    """Coordinates with leading zero bytes are written in full, so thumbprints agree everywhere."""
    for number in range(400):
        jwk = signing_key(str(number)).jwk
        assert (len(jwk["x"]), len(jwk["y"])) == (43, 43)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"d": "AAAA"}, "private key"),
        ({"kid": "mine"}, "thumbprint"),
        ({"kid": OTHER.kid}, "thumbprint"),
        ({"kid": None}, "thumbprint"),
        ({"alg": "HS256"}, "alg"),
        ({"alg": "ES384"}, "alg"),
        ({"kty": "oct"}, "kty"),
        ({"crv": "P-384"}, "crv"),
        ({"use": "enc"}, "use"),
        ({"x": OTHER.jwk["x"]}, "point"),
        ({"x": JWK["x"] + "="}, "point"),
        ({"x": JWK["x"][:-1]}, "point"),
        ({"x": 5}, "point"),
        ({"x5u": "https://evil.test"}, "exactly"),
        ({"key_ops": ["verify"]}, "exactly"),
    ],
)
def test_strict_keys(change: dict[str, Any], reason: str) -> None:
    """A key that is not exactly as we publish it refuses the whole set."""
    with pytest.raises(JwksError, match=reason):
        parse_jwks({"keys": [OTHER.jwk, {**JWK, **change}]})


@pytest.mark.parametrize("member", list(JWK))
def test_missing_member(member: str) -> None:
    """A key without one of its members is refused."""
    with pytest.raises(JwksError, match="exactly"):
        parse_jwks({"keys": [{key: value for key, value in JWK.items() if key != member}]})


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b'{"keys":{}}',
        b'{"keys":[]}',
        b'{"keys":["a"]}',
        b"\xff",
        b"[" * 60_000,
        b" " * 70_000,
    ],
)
def test_documents(document: bytes) -> None:
    """What is no key set, or an empty one, is refused."""
    with pytest.raises(JwksError):
        parse_jwks(document)


def test_same_key_twice() -> None:
    """A set that holds a key twice is refused."""
    with pytest.raises(JwksError, match="twice"):
        parse_jwks({"keys": [JWK, JWK]})


def test_too_many() -> None:
    """A set of more keys than any rotation needs is refused."""
    with pytest.raises(JwksError, match="32"):
        parse_jwks({"keys": [JWK] * 33})


def test_other_curves_are_not_written() -> None:
    """A key on another curve has no JWK here."""
    with pytest.raises(JwksError, match="P-256"):
        to_jwk(ec.generate_private_key(ec.SECP384R1()).public_key())
