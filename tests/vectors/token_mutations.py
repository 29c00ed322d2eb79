"""Forty ways to tamper with a token that somebody signed, and what a verifier says to each.

Each is applied to one good token of ours and to tokens that claim the same but are signed by
somebody else: by another ES256 key, with EdDSA, with RS256, all under our key id. None may pass.
Used by `make_access_tokens`; what is tampered with keeps the signature it had.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support import SigningKey, base64url, sign

FORGED, ODD = "bad_signature", "malformed"
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
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
    for name, sign_with in (("EdDSA", _eddsa), ("RS256", _rs256)):
        other = {**header, "alg": name}
        text = f"{part(other)}.{part(payload)}".encode()
        signed[name] = Parts(other, payload, sign_with(text))
    return signed


def _eddsa(text: bytes) -> bytes:
    seed = hashlib.sha256(b"daypass test vectors").digest()
    return ed25519.Ed25519PrivateKey.from_private_bytes(seed).sign(text)


def _rs256(text: bytes) -> bytes:
    exponent = pow(65537, -1, (_P - 1) * (_Q - 1))
    numbers = rsa.RSAPrivateNumbers(
        _P, _Q, exponent, exponent % (_P - 1), exponent % (_Q - 1), pow(_Q, -1, _P),
        rsa.RSAPublicNumbers(65537, _P * _Q),
    )  # fmt: skip
    return numbers.private_key().sign(text, padding.PKCS1v15(), hashes.SHA256())


def mutations(key: SigningKey, stranger: SigningKey) -> Iterator[tuple[str, str, Any]]:
    """Yield name, the answer to our own token tampered with so, and the function that does it."""
    yield from _signatures()
    yield from _payloads()
    yield from _headers(key, stranger)
    yield from _wrappers()


Tamper = Callable[[Parts], str]
Listed = Iterator[tuple[str, str, Tamper]]


def _signatures() -> Listed:
    def replaced(change: Callable[[bytes], bytes]) -> Tamper:
        return lambda parts: parts.but(signature=change(parts.signature))

    yield (
        "first bit of the signature",
        FORGED,
        replaced(lambda raw: bytes([raw[0] ^ 128]) + raw[1:]),
    )
    yield "last bit of the signature", FORGED, replaced(lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]))
    yield "r of zero", FORGED, replaced(lambda raw: bytes(32) + raw[32:])
    yield "s of zero", FORGED, replaced(lambda raw: raw[:32] + bytes(len(raw) - 32))
    yield "r and s exchanged", FORGED, replaced(lambda raw: raw[32:] + raw[:32])
    yield "r of the order", FORGED, replaced(lambda raw: _ORDER.to_bytes(32, "big") + raw[32:])
    yield "all bits set", FORGED, replaced(lambda raw: b"\xff" * len(raw))
    yield "signature cut short", ODD, replaced(lambda raw: raw[:-1])
    yield "signature twice", ODD, replaced(lambda raw: raw + raw)
    yield "signature of zero bytes", ODD, replaced(lambda raw: b"")


def _payloads() -> Listed:
    def detail(**fields: object) -> Tamper:
        return lambda parts: parts.claiming(
            authorization_details=[{**parts.payload["authorization_details"][0], **fields}]
        )

    other = "spiffe://daypass.test/tenant/other/sandbox/sbx_b"
    yield "longer life", FORGED, lambda parts: parts.claiming(exp=parts.payload["exp"] + 60)
    yield "issued later", FORGED, lambda parts: parts.claiming(iat=parts.payload["iat"] + 1)
    yield "another audience", FORGED, lambda parts: parts.claiming(aud="daypass-broker")
    yield (
        "another tenant",
        FORGED,
        lambda parts: parts.claiming(sub=other, client_id=other, tenant="other"),
    )
    yield "another id", FORGED, lambda parts: parts.claiming(jti="tok_other")
    yield "more grants", FORGED, lambda parts: parts.claiming(grants=["grt_root", "grt_more"])
    yield "every model", FORGED, detail(models=["*"])
    yield "one more endpoint", FORGED, detail(endpoints=["messages", "count_tokens"])
    yield "one more feature", FORGED, detail(features=["web_fetch"])
    yield "a claim more", FORGED, lambda parts: parts.claiming(admin=True)
    yield (
        "a claim less",
        FORGED,
        lambda parts: parts.but(
            payload={name: parts.payload[name] for name in parts.payload if name != "nbf"}
        ),
    )
    yield "no claims", FORGED, lambda parts: parts.but(payload={})


def _headers(key: SigningKey, stranger: SigningKey) -> Listed:
    pem = key.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def mac(parts: Parts) -> str:
        text = f"{part({**parts.header, 'alg': 'HS256'})}.{part(parts.payload)}"
        return f"{text}.{base64url(hmac.digest(pem, text.encode(), hashlib.sha256))}"

    yield "alg none", ODD, lambda parts: parts.heading(alg="none")
    yield "alg nOnE, no signature", ODD, lambda parts: parts.heading(alg="nOnE")[:-86]
    yield "alg HS256 with the public key", ODD, mac
    yield "alg RS256", ODD, lambda parts: parts.heading(alg="RS256", n=0)
    yield "alg EdDSA", ODD, lambda parts: parts.heading(alg="EdDSA", crv="Ed25519")
    yield "alg a list", ODD, lambda parts: parts.heading(alg=["ES256"])
    yield "typ of a launch", "wrong_type", lambda parts: parts.heading(typ="launch+jwt")
    yield "kid of a stranger", "unknown_key", lambda parts: parts.heading(kid=stranger.kid)
    yield "kid of a file", "unknown_key", lambda parts: parts.heading(kid="/dev/null")
    yield "jwk of a stranger", ODD, lambda parts: parts.heading(jwk=stranger.jwk)
    yield "jku of a stranger", ODD, lambda parts: parts.heading(jku="https://evil.test/k")
    yield "crit", ODD, lambda parts: parts.heading(crit=["exp"], exp=0)


def _wrappers() -> Listed:
    def reordered(parts: Parts) -> str:
        return parts.but(header=dict(reversed(list(parts.header.items()))))

    def spaced(parts: Parts) -> str:
        _, rest = parts.token().split(".", 1)
        return f"{part(parts.header, (', ', ': '))}.{rest}"

    def turned(parts: Parts) -> str:
        header, payload, signature = parts.token().split(".")
        return f"{payload}.{header}.{signature}"

    yield "header in another order", FORGED, reordered
    yield "header with blanks", FORGED, spaced
    yield "parts exchanged", ODD, turned
    yield "dots as %2e", ODD, lambda parts: parts.token().replace(".", "%2e")
    yield "a token in a token", ODD, lambda parts: f"{part(parts.header)}.{part(parts.token())}.AA"
    yield "everything in capitals", ODD, lambda parts: parts.token().upper()
    yield "a blank inside", ODD, lambda parts: parts.token().replace(".", ". ", 1)
    yield "padded parts", ODD, lambda parts: parts.token().replace(".", "=.")
