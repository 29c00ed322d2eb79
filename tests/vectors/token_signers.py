"""Tokens that claim the same, signed by us and by everybody else: one for each algorithm.

All under our key id. Signatures are deterministic, so the vectors made of them do not change.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support import SigningKey, base64url, sign

_SEED = hashlib.sha256(b"daypass test vectors").digest()
# Two primes of 512 bits: a key for tests only, fixed so that its signatures are.
_P = int(
    "cecbd4b368a7a265f4c036f9db7991856d2fac2ac10c5cefd18db33da2905973"
    "1780a56ebffea5f6d7d9bd54dfa4ce0502cf44fd22c6d9ceb033603ad4b44b2b",
    16,
)
_Q = int(
    "f5f47402a525b53bc8ee41e11738f54768bb4900e826706525f24bbef5fd622f"
    "1f621a4b2017149cec0ef85001fc84c80edf07c0de347d94b85f3fe62b1dee2b",
    16,
)


@dataclass(frozen=True)
class Parts:
    """A signed token, taken apart."""

    header: Mapping[str, Any]
    payload: Mapping[str, Any]
    signature: bytes

    def token(self) -> str:
        """Return it put together again."""
        return ".".join((part(self.header), part(self.payload), base64url(self.signature)))

    def but(
        self,
        header: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
        signature: bytes | None = None,
    ) -> str:
        """Return the token with parts replaced and others as they were."""
        return Parts(
            self.header if header is None else header,
            self.payload if payload is None else payload,
            self.signature if signature is None else signature,
        ).token()

    def claiming(self, **claims: object) -> str:
        """Return the token with claims changed."""
        return self.but(payload={**self.payload, **claims})

    def heading(self, **parameters: object) -> str:
        """Return the token with parameters of the header changed."""
        return self.but(header={**self.header, **parameters})


def part(value: object, separators: tuple[str, str] = (",", ":")) -> str:
    """Return a value as one part of a token."""
    return base64url(json.dumps(value, separators=separators).encode())


def signers(key: SigningKey, stranger: SigningKey, payload: Mapping[str, Any]) -> dict[str, Parts]:
    """Return a token of ours, and the same claims signed by others under our key id."""
    header = {"alg": "ES256", "typ": "at+jwt", "kid": key.kid}
    signed: dict[str, Parts] = {}
    for name, by in (("ES256", key), ("ES256 of a stranger", stranger)):
        signature = sign(by, payload, header=header).rpartition(".")[2]
        signed[name] = Parts(header, payload, base64.urlsafe_b64decode(signature + "=="))
    others: dict[str, Callable[[bytes], bytes]] = {
        "EdDSA": _eddsa,
        "RS256": _rs256,
        "PS256": _ps256,
        "ES384": _es384,
        "HS256": lambda text: _hs256(key, text),
    }
    for name, sign_with in others.items():
        other = {**header, "alg": name}
        text = f"{part(other)}.{part(payload)}".encode()
        signed[name] = Parts(other, payload, sign_with(text))
    return signed


def _eddsa(text: bytes) -> bytes:
    return ed25519.Ed25519PrivateKey.from_private_bytes(_SEED).sign(text)


def _rs256(text: bytes) -> bytes:
    return _rsa_key().sign(text, padding.PKCS1v15(), hashes.SHA256())


def _ps256(text: bytes) -> bytes:
    # RFC 7518 wants a salt as long as the hash; without one the signature is always the same.
    return _rsa_key().sign(text, padding.PSS(padding.MGF1(hashes.SHA256()), 0), hashes.SHA256())


def _rsa_key() -> rsa.RSAPrivateKey:
    exponent = pow(65537, -1, (_P - 1) * (_Q - 1))
    numbers = rsa.RSAPrivateNumbers(
        _P, _Q, exponent, exponent % (_P - 1), exponent % (_Q - 1), pow(_Q, -1, _P),
        rsa.RSAPublicNumbers(65537, _P * _Q),
    )  # fmt: skip
    return numbers.private_key()


def _es384(text: bytes) -> bytes:
    key = ec.derive_private_key(int.from_bytes(_SEED, "big"), ec.SECP384R1())
    der = key.sign(text, ec.ECDSA(hashes.SHA384(), deterministic_signing=True))
    r, s = decode_dss_signature(der)
    return r.to_bytes(48, "big") + s.to_bytes(48, "big")


def _hs256(key: SigningKey, text: bytes) -> bytes:
    """Sign with what everybody knows: the text of our public key as the secret."""
    pem = key.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return hmac.digest(pem, text, hashlib.sha256)
