"""Sixty and more ways to tamper with a signed token, and what a verifier says to each.

Each is applied to one good token of ours and to tokens that claim the same but are signed by
somebody else (`token_signers`). None may pass. Used by `make_access_tokens`; what is tampered with
keeps the signature it had.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support import SigningKey, base64url
from tests.vectors.token_signers import Parts, part

FORGED, ODD = "bad_signature", "malformed"
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


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
    yield "r of the order", FORGED, replaced(lambda raw: ORDER.to_bytes(32, "big") + raw[32:])
    yield "all bits set", FORGED, replaced(lambda raw: b"\xff" * len(raw))
    yield "signature cut short", ODD, replaced(lambda raw: raw[:-1])
    yield "signature twice", ODD, replaced(lambda raw: raw + raw)
    yield "signature of zero bytes", ODD, replaced(lambda raw: b"")
    yield "s of the order", FORGED, replaced(lambda raw: raw[:32] + ORDER.to_bytes(32, "big"))
    yield "r and s of one", FORGED, replaced(lambda raw: (bytes(31) + b"\x01") * 2)
    yield "signature in front of the signature", ODD, replaced(lambda raw: raw[:32] + raw)
    yield "a zero byte in front", ODD, replaced(lambda raw: b"\x00" + raw)


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
    yield "another issuer", FORGED, lambda parts: parts.claiming(iss="https://evil.test")
    yield "valid earlier", FORGED, lambda parts: parts.claiming(nbf=parts.payload["nbf"] - 60)
    yield "more output", FORGED, detail(max_output_tokens=1_000_000)
    yield "another provider", FORGED, detail(provider="openai")
    yield (
        "two details",
        FORGED,
        lambda parts: parts.claiming(
            authorization_details=parts.payload["authorization_details"] * 2
        ),
    )
    yield "usable from everywhere", FORGED, lambda parts: parts.claiming(source=["0.0.0.0/0"])
    yield "acting for another", FORGED, lambda parts: parts.claiming(act={"sub": other})
    yield "bound to a key", FORGED, lambda parts: parts.claiming(cnf={"jkt": "x"})
    yield (
        "claims in another order",
        FORGED,
        lambda parts: parts.but(payload=dict(reversed(list(parts.payload.items())))),
    )


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
    yield "alg HS384", ODD, lambda parts: parts.heading(alg="HS384", k="x")
    yield "alg ES256K", ODD, lambda parts: parts.heading(alg="ES256K", crv="secp256k1")
    yield "alg Ed25519", ODD, lambda parts: parts.heading(alg="Ed25519")
    yield "alg with a blank", ODD, lambda parts: parts.heading(alg="ES256 ")
    yield "alg null", ODD, lambda parts: parts.heading(alg=None)
    yield "typ JWT", "wrong_type", lambda parts: parts.heading(typ="JWT")
    yield "typ of a renewal", "wrong_type", lambda parts: parts.heading(typ="renew+jwt")
    yield "kid empty", "unknown_key", lambda parts: parts.heading(kid="")
    yield "x5c", ODD, lambda parts: parts.heading(x5c=["MIIB"])
    yield "x5u", ODD, lambda parts: parts.heading(x5u="https://evil.test/c")
    yield "compressed", ODD, lambda parts: parts.heading(zip="DEF")
    yield "payload not encoded", ODD, lambda parts: parts.heading(b64=False, crit=["b64"])


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
    yield "a part more", ODD, lambda parts: parts.token() + ".e30"
    yield "no signature part", ODD, lambda parts: parts.token().rpartition(".")[0]
    yield "a scheme in front", ODD, lambda parts: "Bearer " + parts.token()
    yield "twice with a comma", ODD, lambda parts: f"{parts.token()},{parts.token()}"
    yield "in quotes", ODD, lambda parts: f'"{parts.token()}"'
    yield "a line break behind", ODD, lambda parts: parts.token() + "\n"
    yield "over 4096 bytes", ODD, lambda parts: parts.claiming(jti="t" * 3000)
