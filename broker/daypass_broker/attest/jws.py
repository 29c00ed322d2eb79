"""Somebody else's JWT: its form, its keys, its signature. Nothing here knows what claims mean.

Stricter than the standards where that costs honest issuers nothing: compact form, canonical
base64url, a short list of header parameters, asymmetric algorithms, and each key for the algorithms
of its kind only (RFC 8725). A token never says which key to believe: `jku`, `jwk`, `x5u`, `x5c`,
`crit` refuse it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers

from daypass_core.verify import Reason, TokenRefused

MAX_TOKEN_BYTES = 16 * 1024
"""As much as stock clients read from an identity token file."""
MAX_KEYS = 64

PublicKey = RSAPublicKey | ec.EllipticCurvePublicKey | Ed25519PublicKey

_HEADER = frozenset({"alg", "kid", "typ", "x5t", "x5t#S256"})  # the last two are labels, not read
# Others' access tokens, and ours of all three kinds, have a `typ` of their own and stop here.
_TYPES = frozenset({"jwt", "jose"})
_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_MAX_KID = 512
_MAX_OPENERS = 256
_RSA_BITS = (2048, 8192)
_MAX_EXPONENT = 2**32  # a longer one only makes each check expensive
_CURVES: dict[str, tuple[ec.EllipticCurve, str]] = {
    "P-256": (ec.SECP256R1(), "ES256"),
    "P-384": (ec.SECP384R1(), "ES384"),
}
_ALGORITHMS = {
    name: jwt.get_algorithm_by_name(name) for name in ("RS256", "PS256", "ES256", "ES384", "EdDSA")
}
# RFC 9864 has a name for the one curve that we take.
_ALGORITHMS["Ed25519"] = _ALGORITHMS["EdDSA"]


@dataclass(frozen=True, slots=True)
class Assertion:
    """A well-formed JWT of which nothing is verified yet; `signed` is what the signature covers."""

    algorithm: str
    key_id: str
    unverified_claims: Mapping[str, object]
    signed: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Key:
    """A public key and the algorithms it may be used with."""

    public: PublicKey
    algorithms: frozenset[str]


def parse(unverified_token: str) -> Assertion:
    """Split a token; raises TokenRefused for every form but the one described above."""
    if len(unverified_token) > MAX_TOKEN_BYTES:
        refuse(Reason.MALFORMED, "too long")
    if not _COMPACT.fullmatch(unverified_token):
        refuse(Reason.MALFORMED, "not three parts of base64url")
    head, payload, signature = unverified_token.split(".")
    header = _object(_decode(head))
    if not header.keys() <= _HEADER:
        refuse(Reason.MALFORMED, "header has parameters that are not taken")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        refuse(Reason.MALFORMED, "alg")
    if not isinstance(key_id, str) or not 0 < len(key_id) <= _MAX_KID:
        refuse(Reason.MALFORMED, "kid")
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        refuse(Reason.WRONG_TYPE, "typ")
    return Assertion(
        algorithm=algorithm,
        key_id=key_id,
        unverified_claims=_object(_decode(payload)),
        signed=f"{head}.{payload}".encode("ascii"),
        signature=_decode(signature),
    )


def verify(assertion: Assertion, key: Key) -> Mapping[str, object]:
    """Return the claims once the signature held; raises TokenRefused."""
    if assertion.algorithm not in key.algorithms:
        refuse(Reason.BAD_SIGNATURE, "alg is not the key's")
    algorithm: Any = _ALGORITHMS[assertion.algorithm]
    try:
        good = algorithm.verify(assertion.signed, key.public, assertion.signature)
    except ValueError:  # a signature of another length
        good = False
    if not good:
        refuse(Reason.BAD_SIGNATURE)
    return assertion.unverified_claims


def read_keys(document: object) -> dict[str, Key]:
    """Read a JWK set (RFC 7517) by key id; raises ValueError when it is none or is without end.

    Keys of other kinds and uses are left out, as issuers publish those too. So is every key whose
    id stands for two keys, and every private one: which of them signed, nobody could say.
    """
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise ValueError(f"must be a JWK set of at most {MAX_KEYS} keys")
    found: dict[str, Key] = {}
    twice: set[str] = set()
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str):
            continue
        key_id = entry["kid"]
        if key_id in found or key_id in twice:
            twice.add(key_id)
            found.pop(key_id, None)
            continue
        twice.add(key_id)
        key = _key(entry)
        if key is not None:
            found[key_id] = key
    return found


def decode_json(data: bytes) -> object:
    """Decode JSON in UTF-8 without duplicate names; raises ValueError."""
    if data.count(b"[") + data.count(b"{") > 64 * _MAX_OPENERS:
        raise ValueError("nested without end")
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except RecursionError:
        raise ValueError("nested too deep") from None


def refuse(reason: Reason, detail: str = "", *, signed: bool = False) -> NoReturn:
    """Refuse a token; `detail` names claims, never their values."""
    raise TokenRefused(reason, signature_verified=signed, detail=detail) from None


def _key(entry: Mapping[str, object]) -> Key | None:
    operations = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig" or "d" in entry:
        return None
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    try:
        public, algorithms = _public(entry)
    except (ValueError, TypeError, KeyError):
        return None
    named = entry.get("alg")
    if named is not None:
        algorithms &= {named} if isinstance(named, str) else set()
    return Key(public, frozenset(algorithms)) if algorithms else None


def _public(entry: Mapping[str, object]) -> tuple[PublicKey, set[str]]:
    kind = entry.get("kty")
    if kind == "RSA":
        exponent, modulus = _integer(entry["e"]), _integer(entry["n"])
        if exponent > _MAX_EXPONENT or not _RSA_BITS[0] <= modulus.bit_length() <= _RSA_BITS[1]:
            raise ValueError("RSA key of a size that is not taken")
        return RSAPublicNumbers(exponent, modulus).public_key(), {"RS256", "PS256"}
    if kind == "EC":
        curve, algorithm = _CURVES[str(entry["crv"])]
        numbers = ec.EllipticCurvePublicNumbers(_integer(entry["x"]), _integer(entry["y"]), curve)
        return numbers.public_key(), {algorithm}
    if kind == "OKP" and entry.get("crv") == "Ed25519":
        return Ed25519PublicKey.from_public_bytes(_bytes(entry["x"])), {"EdDSA", "Ed25519"}
    raise ValueError("a kind of key that is not taken")


def _integer(value: object) -> int:
    return int.from_bytes(_bytes(value), "big")


def _bytes(value: object) -> bytes:
    if not isinstance(value, str) or len(value) > 2048:
        raise ValueError("not base64url")
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))


def _decode(part: str) -> bytes:
    """Decode canonical base64url only, so that one byte string has one spelling."""
    try:
        data = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error:
        refuse(Reason.MALFORMED, "base64url")
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii") != part:
        refuse(Reason.MALFORMED, "base64url is not canonical")
    return data


def _object(data: bytes) -> dict[str, object]:
    if data.count(b"[") + data.count(b"{") > _MAX_OPENERS:
        refuse(Reason.MALFORMED, "nested too deep")
    try:
        value = decode_json(data)
        # Half of a character, written as an escape, could be stored nowhere.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except ValueError:
        refuse(Reason.MALFORMED, "not strict JSON")
    if not isinstance(value, dict):
        refuse(Reason.MALFORMED, "not a JSON object")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate name")
    return found


def _no_constant(_: str) -> NoReturn:
    raise ValueError("not a JSON number")
