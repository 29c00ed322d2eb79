"""Writes `access_tokens.json` and `tampered_tokens.json`: tokens and a verifier's answer to each.

The files are language-neutral: any verifier of daypass access tokens can be run against them. The
keys are fixed test keys and signatures deterministic, so writing twice gives the same bytes.

    python -m tests.vectors.make_access_tokens
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from daypass_core.claims import access_payload
from tests.support import AUDIENCE, ISSUER, NOW, base64url, make_claims, sign, signing_key
from tests.vectors.bound_claims import accepted, refused
from tests.vectors.token_mutations import FORGED, ODD, ORDER, mutations
from tests.vectors.token_signers import part, signers

TARGET = Path(__file__).with_name("access_tokens.json")
TAMPERED = Path(__file__).with_name("tampered_tokens.json")
KEY = signing_key("daypass test vectors")
STRANGER = signing_key("somebody else")
PAYLOAD = access_payload(make_claims())
HEADER = {"alg": "ES256", "typ": "at+jwt", "kid": KEY.kid}
TIMES = ("iat", "nbf", "exp")


@dataclass(frozen=True)
class Vector:
    """One token; `expect` is `valid` or a refusal word, `verified` whether its signature held."""

    name: str
    token: str
    expect: str
    verified: bool = False
    now: float = NOW


def main() -> None:
    """Write the files."""
    TARGET.write_text(document(), encoding="utf-8")
    TAMPERED.write_text(tampered_document(), encoding="utf-8")


def document() -> str:
    """Return the content of `access_tokens.json`."""
    return _document(vectors())


def tampered_document() -> str:
    """Return the content of `tampered_tokens.json`."""
    return _document(tampered())


def _document(vectors: Iterable[Vector]) -> str:
    listed = [
        {
            "name": vector.name,
            "token": vector.token,
            "now": vector.now,
            "expect": vector.expect,
            "signature_verified": vector.verified,
        }
        for vector in vectors
    ]
    content = {
        "issuer": ISSUER,
        "audience": AUDIENCE,
        "jwks": {"keys": [KEY.jwk]},
        "vectors": listed,
    }
    return json.dumps(content, indent=1) + "\n"


def vectors() -> Iterator[Vector]:
    """Yield every vector."""
    yield Vector("valid", good(), "valid", verified=True)
    yield from algorithms()
    yield from headers()
    yield from keys()
    yield from forms()
    yield from json_forms()
    yield from times()
    yield from claims()
    yield from bound()
    yield from scopes()


def algorithms() -> Iterator[Vector]:
    """Yield signatures by anything but ES256."""
    for name in ("none", "noNE", "NONE", "HS256", "es256", "ES384", "RS256", "EdDSA", ""):
        yield Vector(f"alg {name or 'empty'}", signed(header={**HEADER, "alg": name}), "malformed")
    yield Vector("alg null", signed(header={**HEADER, "alg": None}), "malformed")
    unsigned = f"{part({**HEADER, 'alg': 'none'})}.{part(PAYLOAD)}."
    yield Vector("alg none without signature", unsigned, "malformed")
    pem = KEY.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for name in ("HS256", "ES256"):
        text = f"{part({**HEADER, 'alg': name})}.{part(PAYLOAD)}"
        mac = hmac.digest(pem, text.encode(), hashlib.sha256)
        yield Vector(f"hmac with the public key as {name}", f"{text}.{base64url(mac)}", "malformed")
    yield Vector("sixty-four zero bytes", with_signature(base64url(bytes(64))), "bad_signature")
    yield Vector("signature of another token", with_signature(other_signature()), "bad_signature")
    # ECDSA has two signatures of every text; either may be sent, for these claims and no others.
    yield Vector("the other root of s", with_signature(other_root()), "valid", verified=True)


def headers() -> Iterator[Vector]:
    """Yield headers with a parameter too many, too few, or of another kind."""
    extras: dict[str, object] = {
        "jku": "https://evil.test/jwks.json",
        "x5u": "https://evil.test/cert.pem",
        "jwk": STRANGER.jwk,
        "x5c": ["MIIB"],
        "crit": ["exp"],
        "b64": False,
        "cty": "JWT",
        "zip": "DEF",
    }
    for name, value in extras.items():
        yield Vector(f"header {name}", signed(header={**HEADER, name: value}), "malformed")
    for name in HEADER:
        short = {key: value for key, value in HEADER.items() if key != name}
        yield Vector(f"header without {name}", signed(header=short), "malformed")
    for typ in ("JWT", "launch+jwt", "renew+jwt", "AT+JWT", "application/at+jwt", ""):
        wrong = signed(header={**HEADER, "typ": typ})
        yield Vector(f"typ {typ or 'empty'}", wrong, "wrong_type")
    yield Vector("typ number", signed(header={**HEADER, "typ": 1}), "malformed")
    twice = b'{"alg":"none","alg":"ES256","typ":"at+jwt","kid":"%s"}' % KEY.kid.encode()
    yield Vector("header with alg twice", signed(header=twice), "malformed")
    yield Vector("header not an object", signed(header=b'["ES256"]'), "malformed")


def keys() -> Iterator[Vector]:
    """Yield key ids we do not have, and keys that are not the one named."""
    for kid in (STRANGER.kid, "", "../../etc/passwd", "' OR 1=1 --", f"{KEY.kid} ", "__class__"):
        unknown = signed(header={**HEADER, "kid": kid})
        yield Vector(f"kid {kid or 'empty'}", unknown, "unknown_key")
    yield Vector("kid list", signed(header={**HEADER, "kid": [KEY.kid]}), "malformed")
    yield Vector("kid null", signed(header={**HEADER, "kid": None}), "malformed")
    forged = sign(STRANGER, PAYLOAD, header=HEADER)
    yield Vector("signed by a stranger under our kid", forged, "bad_signature")


def forms() -> Iterator[Vector]:
    """Yield strings that are not exactly one compact token."""
    token = good()
    header, payload, signature = token.split(".")
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    # 64 bytes leave four unused bits in the last character: the next letter decodes to the same.
    twin = signature[:-1] + last[last.index(signature[-1]) + 1]
    texts = {
        "empty": "",
        "two parts": f"{header}.{payload}",
        "four parts": f"{token}.{signature}",
        "five parts": f"{header}..{payload}.{signature}.AA",
        "empty payload": f"{header}..{signature}",
        "empty signature": f"{header}.{payload}.",
        "trailing newline": f"{token}\n",
        "leading blank": f" {token}",
        "padding": f"{token}==",
        "standard base64 alphabet": f"{header}.{payload}.{'+' * 86}",
        "json serialisation": json.dumps({"payload": payload, "signatures": []}),
        "nul byte": f"{token}\x00",
        "not ascii": f"{token[:-1]}\u00e9",
        "fullwidth dot": token.replace(".", "\uff0e", 1),
        "base64 not canonical": f"{header}.{payload}.{twin}",
        "base64 of impossible length": f"{header}.{payload}{'A' * ((1 - len(payload)) % 4)}.AAAA",
        "short signature": f"{header}.{payload}.{base64url(bytes(63))}",
        "long signature": f"{header}.{payload}.{base64url(bytes(65))}",
        "der signature": f"{header}.{payload}.{base64url(der(signature))}",
    }
    for name, text in texts.items():
        yield Vector(name, text, "malformed")
    long = signed({**PAYLOAD, "jti": "t" * 3000})
    yield Vector("longer than 4096 bytes", long, "malformed")
    yield Vector("ten thousand dots", "." * 10_000, "malformed")


def json_forms() -> Iterator[Vector]:
    """Yield signed payloads that are not strict JSON."""
    text = json.dumps(PAYLOAD, separators=(",", ":"))
    payloads = {
        "duplicate claim": text.replace('{"iss"', '{"exp":9999999999,"iss"', 1).encode(),
        "duplicate claim with escapes": text.replace(
            '{"iss"', '{"\\u0065xp":9999999999,"iss"', 1
        ).encode(),
        "duplicate key in a detail": text.replace(
            '"provider"', '"models":["*"],"provider"', 1
        ).encode(),
        "payload a list": b"[]",
        "payload a string": b'"at+jwt"',
        "payload not JSON": b"iss=broker",
        "payload with text behind": text.encode() + b"{}",
        "payload with a byte order mark": b"\xef\xbb\xbf" + text.encode(),
        "payload in UTF-16": text.encode("utf-16"),
        "payload not UTF-8": text.encode().replace(b"acme", b"ac\xffe", 1),
        "payload nested 1000 deep": b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}",
        "exp 1e308": with_raw("exp", b"1e308"),
        "exp float": with_raw("exp", b"%d.0" % PAYLOAD_EXP),
        "exp NaN": with_raw("exp", b"NaN"),
        "exp Infinity": with_raw("exp", b"Infinity"),
        "exp of 400 digits": with_raw("exp", b"9" * 400),
    }
    for name, payload in payloads.items():
        yield Vector(name, signed(payload), "malformed")


def times() -> Iterator[Vector]:
    """Yield the edges of the leeway (5 s, both ways) and of a future iat (30 s)."""
    exp = PAYLOAD_EXP
    yield Vector("at exp", good(), "valid", verified=True, now=exp)
    yield Vector("4.999 s after exp", good(), "valid", verified=True, now=exp + 4.999)
    yield Vector("5 s after exp", good(), "expired", verified=True, now=exp + 5)
    yield Vector("a day after exp", good(), "expired", verified=True, now=exp + 86_400)
    yield Vector("5 s before nbf", good(), "valid", verified=True, now=NOW - 5)
    yield Vector("5.001 s before nbf", good(), "not_yet_valid", verified=True, now=NOW - 5.001)
    early = signed({**PAYLOAD, "nbf": NOW - 60})
    yield Vector("iat 30 s ahead", early, "valid", verified=True, now=NOW - 30)
    yield Vector("iat 30.001 s ahead", early, "not_yet_valid", verified=True, now=NOW - 30.001)
    stolen = sign(STRANGER, PAYLOAD, header=HEADER)
    yield Vector("expired and forged", stolen, "bad_signature", now=exp + 60)


def claims() -> Iterator[Vector]:
    """Yield claim sets of ours that are not exactly right."""
    for name in PAYLOAD:
        short = {key: value for key, value in PAYLOAD.items() if key != name}
        yield bad(f"without {name}", short)
    for name in TIMES:
        for label, value in (("string", str(PAYLOAD[name])), ("true", True), ("null", None)):
            yield bad(f"{name} {label}", {**PAYLOAD, name: value})
        yield bad(f"{name} negative", {**PAYLOAD, name: -1})
        yield bad(f"{name} in the far future", {**PAYLOAD, name: 99_999_999_999_999})
    changes: dict[str, dict[str, object]] = {
        "exp equal to iat": {"exp": NOW},
        "exp before nbf": {"nbf": PAYLOAD_EXP + 1},
        "longer life than an hour": {"exp": NOW + 3601},
        "aud list": {"aud": [AUDIENCE]},
        "aud list of two": {"aud": [AUDIENCE, "other"]},
        "iss null": {"iss": None},
        "client_id of another": {"client_id": "spiffe://daypass.test/tenant/acme/sandbox/sbx_b"},
        "tenant not of sub": {"tenant": "other"},
        "tenant of another form": {"tenant": "Acme"},
        "jti empty": {"jti": ""},
        "jti number": {"jti": 7},
        "grants empty": {"grants": []},
        "grants string": {"grants": "grt_root"},
        "grants five deep": {"grants": [f"grt_{i}" for i in range(5)]},
        "grants twice the same": {"grants": ["grt_a", "grt_a"]},
        "grants of numbers": {"grants": [1]},
        "unknown claim": {"admin": True},
        "claim scope": {"scope": "everything"},
    }
    for name, change in changes.items():
        yield bad(name, {**PAYLOAD, **change})
    for sub in ("", "acme", "spiffe://daypass.test/tenant/acme", subject_of("a/../b")):
        yield bad(f"sub {sub or 'empty'}", {**PAYLOAD, "sub": sub, "client_id": sub})
    for name, claim, word in (
        ("iss of another", {"iss": "https://evil.test"}, "wrong_issuer"),
        ("iss with a slash", {"iss": f"{ISSUER}/"}, "wrong_issuer"),
        ("aud of another", {"aud": "daypass-broker"}, "wrong_audience"),
        ("aud in capitals", {"aud": AUDIENCE.upper()}, "wrong_audience"),
    ):
        yield Vector(name, signed({**PAYLOAD, **claim}), word, verified=True)


def bound() -> Iterator[Vector]:
    """Yield claims that bind a token to a place, to the grants it was bought by, and to a key."""
    for name, change in accepted(PAYLOAD).items():
        yield Vector(name, signed({**PAYLOAD, **change}), "valid", verified=True)
    for name, change in refused(PAYLOAD).items():
        yield bad(name, {**PAYLOAD, **change})


def scopes() -> Iterator[Vector]:
    """Yield scopes that are not understood in full."""
    detail = PAYLOAD["authorization_details"][0]  # type: ignore[index]
    changes: dict[str, dict[str, object]] = {
        "unknown type": {"type": "llm_everything"},
        "unknown field": {"temperature": 1},
        "unknown provider": {"provider": "acme-ai"},
        "unknown endpoint": {"endpoints": ["messages", "files"]},
        "endpoints empty": {"endpoints": []},
        "models empty": {"models": []},
        "models string": {"models": "*"},
        "model with a star inside": {"models": ["claude-*-5"]},
        "model with two stars": {"models": ["claude-**"]},
        "model of numbers": {"models": [1]},
        "features string": {"features": "web_search"},
        "max_output_tokens true": {"max_output_tokens": True},
        "max_output_tokens string": {"max_output_tokens": "100"},
        "max_output_tokens zero": {"max_output_tokens": 0},
        "max_output_tokens null": {"max_output_tokens": None},
    }
    for name, change in changes.items():
        yield bad(f"scope {name}", {**PAYLOAD, "authorization_details": [{**detail, **change}]})
    for name in detail:
        short = {key: value for key, value in detail.items() if key != name}
        yield bad(f"scope without {name}", {**PAYLOAD, "authorization_details": [short]})
    for name, value in (
        ("empty", []),
        ("object", detail),
        ("null", None),
        ("string", "*"),
        ("same provider twice", [detail, detail]),
        ("list in list", [[detail]]),
    ):
        yield bad(f"scope {name}", {**PAYLOAD, "authorization_details": value})


def tampered() -> Iterator[Vector]:
    """Yield every signer's token tampered with in every way; to another `alg` all are malformed."""
    for signer, parts in signers(KEY, STRANGER, PAYLOAD).items():
        foreign = parts.header["alg"] != HEADER["alg"]
        if parts.token() != good():
            yield Vector(f"untouched, {signer}", parts.token(), ODD if foreign else FORGED)
        for name, word, tamper in mutations(KEY, STRANGER):
            yield Vector(f"{name}, {signer}", tamper(parts), ODD if foreign else word)


def good() -> str:
    """Return the token everything else departs from."""
    return signed()


def bad(name: str, payload: dict[str, object]) -> Vector:
    """Return a well signed token whose claims are not acceptable."""
    return Vector(name, signed(payload), "bad_claims", verified=True)


def signed(
    payload: Mapping[str, object] | bytes = PAYLOAD,
    *,
    header: Mapping[str, object] | bytes = HEADER,
) -> str:
    """Sign with the test key, whatever header and payload say."""
    return sign(KEY, payload, header=header)


def with_signature(signature: str) -> str:
    """Return the good token under another signature."""
    return f"{good().rpartition('.')[0]}.{signature}"


def other_signature() -> str:
    """Return the signature of a token that differs in its id."""
    return signed({**PAYLOAD, "jti": "tok_two"}).rpartition(".")[2]


def other_root() -> str:
    """Return the second signature that ECDSA allows; anybody can make it from the first."""
    signature = good().rpartition(".")[2]
    raw = base64.urlsafe_b64decode(signature + "==")
    s = ORDER - int.from_bytes(raw[32:], "big")
    return base64url(raw[:32] + s.to_bytes(32, "big"))


def der(signature: str) -> bytes:
    """Return a signature in the form of X.509 instead of the 64 bytes of RFC 7518 §3.4."""
    raw = base64.urlsafe_b64decode(signature + "==")
    return encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))


def with_raw(claim: str, value: bytes) -> bytes:
    """Return the payload with the JSON text of one claim replaced."""
    marked = json.dumps({**PAYLOAD, claim: "@"}, separators=(",", ":")).encode()
    return marked.replace(b'"@"', value)


def subject_of(sandbox: str) -> str:
    """Return a subject for any sandbox name."""
    return f"spiffe://daypass.test/tenant/acme/sandbox/{sandbox}"


PAYLOAD_EXP = make_claims().expires_at


if __name__ == "__main__":
    main()
