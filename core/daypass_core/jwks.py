"""Public keys: reading and writing JSON Web Key Sets (RFC 7517), ES256 and nothing else.

The broker publishes its key set, proxies read it. One key has one algorithm and one name, its
RFC 7638 thumbprint; a set with anything else in it is refused whole, because a half-read key set
hides a mistake until the day of a rotation.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping

from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePublicKey,
    EllipticCurvePublicNumbers,
)

_COORDINATE = re.compile(r"[A-Za-z0-9_-]{43}")  # 32 bytes, base64url without padding
_MAX_BYTES = 64 * 1024
MAX_KEYS = 32
"""Most keys of a set: whoever publishes one keeps to it, or no reader takes any of them."""
_FIXED = {"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256"}


class JwksError(ValueError):
    """The key set cannot be used."""


class PublicKeys(Mapping[str, EllipticCurvePublicKey]):
    """Verification keys by key id; immutable, replaced whole at a rotation."""

    def __init__(self, keys: Mapping[str, EllipticCurvePublicKey]) -> None:
        self._keys = dict(keys)

    def __getitem__(self, key_id: str) -> EllipticCurvePublicKey:
        return self._keys[key_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def parse_jwks(document: bytes | str | Mapping[str, object]) -> PublicKeys:
    """Read a key set; raises JwksError when any part of it is not exactly as we publish it."""
    if isinstance(document, bytes | str):
        document = _decode(document)
    entries = document.get("keys")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_KEYS:
        raise JwksError(f"key set must hold 1 to {MAX_KEYS} keys")
    keys: dict[str, EllipticCurvePublicKey] = {}
    for entry in entries:
        key_id, key = _parse_key(entry)
        if key_id in keys:
            raise JwksError("key set holds the same key twice")
        keys[key_id] = key
    return PublicKeys(keys)


def to_jwk(public_key: EllipticCurvePublicKey) -> dict[str, str]:
    """Return the public JWK, named by its thumbprint; raises JwksError on another curve."""
    return {
        **_required_members(public_key),
        "use": "sig",
        "alg": "ES256",
        "kid": thumbprint(public_key),
    }


def thumbprint(public_key: EllipticCurvePublicKey) -> str:
    """Return the RFC 7638 SHA-256 thumbprint, base64url without padding."""
    members = json.dumps(_required_members(public_key), sort_keys=True, separators=(",", ":"))
    return _base64url(hashlib.sha256(members.encode("ascii")).digest())


def _decode(document: bytes | str) -> Mapping[str, object]:
    if len(document) > _MAX_BYTES:
        raise JwksError(f"key set is larger than {_MAX_BYTES} bytes")
    try:
        decoded = json.loads(document)
    except (ValueError, RecursionError):
        raise JwksError("key set is not JSON") from None
    if not isinstance(decoded, dict):
        raise JwksError("key set must be a JSON object")
    return decoded


def _parse_key(entry: object) -> tuple[str, EllipticCurvePublicKey]:
    if not isinstance(entry, dict):
        raise JwksError("key must be an object")
    if "d" in entry:
        raise JwksError("key set holds a private key; revoke that key and publish public keys only")
    if entry.keys() != {*_FIXED, "x", "y", "kid"}:
        raise JwksError("key must have exactly kty, crv, x, y, use, alg and kid")
    for member, value in _FIXED.items():
        if entry[member] != value:
            raise JwksError(f"{member} of a key must be {value}")
    try:
        numbers = EllipticCurvePublicNumbers(
            _coordinate(entry["x"]), _coordinate(entry["y"]), SECP256R1()
        )
        key = numbers.public_key()
    except ValueError:
        raise JwksError("x and y of a key must be a point on P-256") from None
    key_id = thumbprint(key)
    if entry["kid"] != key_id:
        raise JwksError("kid of a key must be its RFC 7638 thumbprint")
    return key_id, key


def _coordinate(value: object) -> int:
    if not isinstance(value, str) or not _COORDINATE.fullmatch(value):
        raise ValueError("not a coordinate")
    return int.from_bytes(base64.urlsafe_b64decode(value + "="), "big")


def _required_members(public_key: EllipticCurvePublicKey) -> dict[str, str]:
    """Return the members RFC 7638 §3.2 hashes for an EC key."""
    if not isinstance(public_key.curve, SECP256R1):
        raise JwksError("only P-256 keys are used here")
    numbers = public_key.public_numbers()
    return {
        "kty": "EC",
        "crv": "P-256",
        "x": _base64url(numbers.x.to_bytes(32, "big")),
        "y": _base64url(numbers.y.to_bytes(32, "big")),
    }


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
