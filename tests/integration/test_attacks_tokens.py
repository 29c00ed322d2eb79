"""Attacks with tokens: forged, odd, expired and foreign ones, at the proxy and the broker."""

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.servers.client import RawStream
from tests.servers.stack import Answer, Stack, call
from tests.servers.stub import StubUpstream
from tests.support import SigningKey, base64url, eventually, sign, signing_key

BODY = json.dumps(
    {"model": "claude-sonnet-4-5", "max_tokens": 8, "messages": [{"role": "user", "content": "x"}]}
).encode()
JSON = {"content-type": "application/json"}
INVALID = "access token is not valid here"


@pytest.fixture
def sandbox(stack: Stack) -> dict[str, Any]:
    """A fresh sandbox."""
    return stack.sandbox()


@pytest.fixture
def token(stack: Stack, sandbox: dict[str, Any]) -> str:
    """An access token of the sandbox."""
    return stack.access_token(sandbox)


@pytest.fixture
def key(stack: Stack) -> SigningKey:
    """The broker's own signing key for access tokens: what a broken signer could do with it."""
    (path,) = (stack.folder / "keys").glob("access-*.pem")
    private = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return SigningKey(private, path.stem.removeprefix("access-"))


def payload_of(token: str) -> dict[str, Any]:
    """The claims of a token, unverified."""
    part = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return claims


def changed(token: str, **changes: object) -> dict[str, Any]:
    """The claims of a token with changes; None takes a claim away."""
    claims = payload_of(token) | changes
    return {name: value for name, value in claims.items() if value is not None}


def send(stack: Stack, headers: dict[str, str]) -> Answer:
    """One call with these headers."""
    return call(stack.proxy_url, "POST", "/v1/messages", BODY, JSON | headers)


def bearer(stack: Stack, token: str) -> Answer:
    """One call with this bearer."""
    return send(stack, {"authorization": f"Bearer {token}"})


HEADERS: dict[str, dict[str, object]] = {
    "alg none": {"alg": "none"},
    "alg None": {"alg": "nOnE"},
    "alg HS256": {"alg": "HS256"},
    "alg RS256": {"alg": "RS256"},
    "alg ES384": {"alg": "ES384"},
    "alg list": {"alg": ["ES256", "none"]},
    "typ JWT": {"typ": "JWT"},
    "typ in capitals": {"typ": "AT+JWT"},
    "typ of a launch credential": {"typ": "launch+jwt"},
    "jku": {"jku": "https://evil.example/jwks.json"},
    "x5u": {"x5u": "https://evil.example/chain.pem"},
    "crit": {"crit": ["b64"], "b64": False},
    "kid of a file": {"kid": "../../../dev/null"},
    "kid of a query": {"kid": "' UNION SELECT public_jwk FROM signing_key--"},
    "kid number": {"kid": 1},
    "kid null": {"kid": None},
}


@pytest.mark.parametrize("kind", HEADERS)
def test_row_20_odd_headers_are_refused(
    stack: Stack, upstream: StubUpstream, token: str, key: SigningKey, kind: str
) -> None:
    """Row 20: any other header parameter or value is 401, even under our own signature."""
    header = {"alg": "ES256", "typ": "at+jwt", "kid": key.kid} | HEADERS[kind]
    answer = bearer(stack, sign(key, payload_of(token), header=header))
    assert (answer.status, answer.json()["error"]["message"]) == (401, INVALID)
    assert upstream.requests == []


def test_row_20_keys_are_never_taken_from_the_token(
    stack: Stack, upstream: StubUpstream, token: str, key: SigningKey
) -> None:
    """Row 20: an embedded key, our public key as HMAC secret, an unknown kid: each is 401."""
    foreign = signing_key("foreign")
    claims = payload_of(token)
    plain = {"alg": "ES256", "typ": "at+jwt", "kid": foreign.kid}
    pem = key.public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    signed = (
        base64url(json.dumps({"alg": "HS256", "typ": "at+jwt", "kid": key.kid}).encode())
        + f".{token.split('.')[1]}"
    )
    confused = f"{signed}.{base64url(hmac.digest(pem, signed.encode(), hashlib.sha256))}"
    embedded = sign(foreign, claims, header=plain | {"jwk": foreign.jwk})
    for forged in (embedded, sign(foreign, claims, header=plain), confused):
        assert bearer(stack, forged).json()["error"]["message"] == INVALID
    assert upstream.requests == []


CLAIMS: dict[str, dict[str, object]] = {
    "no exp": {"exp": None},
    "no jti": {"jti": None},
    "no sub": {"sub": None},
    "no grants": {"grants": None},
    "no scope": {"authorization_details": None},
    "exp as text": {"exp": "9999999999"},
    "exp as fraction": {"exp": 9999999999.5},
    "exp true": {"exp": True},
    "exp never": {"exp": 10**15},
    "audience list": {"aud": ["daypass-proxy"]},
    "audience of the broker": {"aud": "daypass-broker"},
    "other issuer": {"iss": "https://evil.example"},
    "tenant without its sub": {"tenant": "globex"},
    "client_id without its sub": {"client_id": "spiffe://daypass.local/tenant/acme/sandbox/x"},
    "bound to a key": {"cnf": {"jkt": "x"}},
    "bound to a source": {"source": ["10.0.0.0/8"]},
    "unknown claim": {"admin": True},
    "unknown detail type": {"authorization_details": [{"type": "everything"}]},
    "sub number": {"sub": 1},
    "jti list": {"jti": ["tok_1"]},
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_row_20_b20_odd_claims_are_refused(
    stack: Stack, upstream: StubUpstream, token: str, key: SigningKey, kind: str
) -> None:
    """Row 20, B20: a claim that is missing, unknown or of another kind refuses the token."""
    assert bearer(stack, sign(key, changed(token, **CLAIMS[kind]))).status == 401
    assert upstream.requests == []


def test_row_20_other_spellings_of_a_token_are_refused(
    stack: Stack, upstream: StubUpstream, token: str, key: SigningKey
) -> None:
    """Row 20: duplicate claims, padding, more parts, other encodings, 4 KiB: 401 or 400, always."""
    header, payload, signature = token.split(".")
    twice = json.dumps(payload_of(token))[:-1] + ',"exp":9999999999}'
    spellings = [
        sign(key, twice.encode()),
        f"{header}.{payload}.{signature}=",
        f"{header}.{payload}.{signature}.{signature}",
        f"{header}..{payload}.{signature}",
        f"{header}.{payload}.{signature}%0a",
        f"{header}.{payload}.{'A' * 86}",
        f"{header}.{payload}.",
        f"{header}.{payload}",
        token.replace("-", "+").replace("_", "/") + "/",
        token + "A" * 4096,
        f"{token},{token}",
        f"{token} {token}",
    ]
    for spelling in spellings:
        assert bearer(stack, spelling).status in (400, 401), spelling
    assert upstream.requests == []


@pytest.mark.parametrize(
    ("times", "status"),
    [
        ({"iat": 2, "nbf": 2}, 200),
        ({"iat": 25, "nbf": 0}, 200),
        ({"iat": 25, "nbf": 25}, 503),
        ({"iat": 300, "nbf": 0}, 503),
        ({"iat": 300, "nbf": 300}, 503),
        ({"iat": -100, "nbf": -100, "exp": -2}, 200),
        ({"iat": -100, "nbf": -100, "exp": -10}, 401),
        ({"iat": -3000, "nbf": -3000, "exp": 900}, 401),
        ({"iat": 0, "nbf": 900}, 401),  # valid only after its end
    ],
)
def test_b20_small_clock_differences_are_forgiven(
    stack: Stack, token: str, key: SigningKey, times: dict[str, int], status: int
) -> None:
    """B20: 5 s of leeway for exp and nbf, 30 s for a future iat, and a life of an hour at most.

    Of the future: the clock that is wrong may be ours, so it is no 401, which would say that the
    token is bad. An answer that took long is one to other differences, so it is asked for again.
    """
    judged, in_time = 0, 0
    while time.time() >= in_time:
        now = int(time.time())
        claims = changed(token, **{name: now + offset for name, offset in times.items()})
        judged, in_time = bearer(stack, sign(key, claims)).status, now + 2
    assert judged == status


def test_b19_each_end_of_a_token_has_its_status(
    stack: Stack, sandbox: dict[str, Any], token: str, key: SigningKey
) -> None:
    """B19: expired, malformed and revoked are 401 with a challenge; beyond scope is 403."""
    now = int(time.time())
    expired = bearer(stack, sign(key, changed(token, iat=now - 100, nbf=now - 100, exp=now - 60)))
    malformed = bearer(stack, "x.y.z")
    stack.admin("POST", "/v1/revocations", {"scope": "sandbox", "ident": sandbox["id"]})
    eventually(lambda: bearer(stack, token).status == 401)
    revoked = bearer(stack, token)
    for answer in (expired, malformed, revoked):
        assert answer.status == 401
        assert answer.json()["error"]["type"] == "authentication_error"
        assert answer.headers["www-authenticate"].startswith('Bearer error="invalid_token"')
        assert ("expired" in answer.headers["www-authenticate"]) == (answer is expired)
    assert "x-should-retry" not in malformed.headers
    assert expired.headers["x-should-retry"] == revoked.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("endpoints", "method", "path"),
    [
        (["models"], "POST", "/v1/messages"),
        (["messages"], "POST", "/v1/messages/count_tokens"),
        (["messages"], "GET", "/v1/models"),
        (["messages"], "GET", "/v1/models/claude-sonnet-4-5"),
    ],
)
def test_b19_beyond_scope_is_403(
    stack: Stack, upstream: StubUpstream, endpoints: list[str], method: str, path: str
) -> None:
    """B19: an endpoint outside the scope is 403 permission_error, which no client retries."""
    detail = {"type": "llm_inference", "provider": "anthropic", "models": ["claude-*"]}
    narrow = stack.sandbox(authorization_details=[detail | {"endpoints": endpoints}])
    headers = JSON | {"authorization": f"Bearer {stack.access_token(narrow)}"}
    body = BODY if method == "POST" else None
    answer = call(stack.proxy_url, method, path, body, headers)
    assert (answer.status, answer.json()["error"]["type"]) == (403, "permission_error")
    assert answer.headers["x-should-retry"] == "false"
    assert upstream.requests == []
    eventually(lambda: stack.incidents(narrow["id"]).get("call_refused:insufficient_scope") == 1)


def test_row_22_no_part_of_a_known_token_passes(
    stack: Stack, upstream: StubUpstream, token: str
) -> None:
    """Row 22: beside a token that is known by now, its prefixes and variants are unknown."""
    assert bearer(stack, token).status == 200
    header, payload, signature = token.split(".")
    last = "A" if signature[-1] != "A" else "Q"
    variants = [
        token[:-1],
        token + "A",
        f"{header}.{payload}.{signature[:-1]}{last}",
        f"{header}.{payload}.{signature.swapcase()}",
        token.upper(),
        f"{header}.{payload.swapcase()}.{signature}",
        hashlib.sha256(token.encode()).hexdigest(),
    ]
    assert {bearer(stack, variant).status for variant in variants} == {401}
    assert len(upstream.requests) == 1


def test_row_22_tokens_of_one_header_stay_apart(stack: Stack, token: str) -> None:
    """Row 22: two tokens that begin alike are two callers, each with its own account."""
    other = stack.sandbox("globex")
    theirs = stack.access_token(other)
    assert theirs[:100] == token[:100]
    for one in (token, theirs, token, theirs, theirs):
        assert bearer(stack, one).status == 200
    assert len(stack.settled(other, 3)) == 3
    assert {row["tenant"] for row in stack.usage(other)} == {"globex"}


@pytest.mark.parametrize(
    "first", ["Bearer x.y.z", "Bearer sk-ant-x", "Bearer", "Basic dTpw", "Digest x", "Token {t}"]
)
def test_row_23_a_bad_credential_ends_the_request(
    stack: Stack, upstream: StubUpstream, token: str, first: str
) -> None:
    """Row 23: behind a bad Authorization the good token in x-api-key is not tried."""
    answer = send(stack, {"authorization": first.format(t=token), "x-api-key": token})
    assert answer.status in (400, 401)
    assert upstream.requests == []


@pytest.mark.parametrize(
    "text", ["' OR 1=1--", "'; DROP TABLE token;--", "1 UNION SELECT hash FROM credential", "%' --"]
)
def test_row_24_sql_in_a_credential_is_only_text(
    stack: Stack, sandbox: dict[str, Any], text: str
) -> None:
    """Row 24: at every door SQL in a credential, id or parameter is refused and changes nothing."""
    tokens = stack.rows("SELECT count(*) AS n FROM token")
    for headers in ({"authorization": f"Bearer {text}"}, {"x-api-key": text}):
        assert send(stack, headers).status == 401
    for shape in (text, f"dpa_{'a' * 26}_{text}", f"dpo_{text}_{'a' * 32}"):
        assert stack.admin("GET", "/v1/sandboxes", credential=shape).status == 401
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": text}
    answer = call(stack.proxy_url, "POST", "/v1/oauth/token", json.dumps(form).encode(), JSON)
    assert (answer.status, answer.json()) == (400, {"error": "invalid_grant"})
    assert stack.admin("POST", "/v1/revocations", {"scope": "jti", "ident": text}).status == 404
    assert stack.rows("SELECT count(*) AS n FROM token") == tokens
    assert stack.exchange(sandbox).status == 200


def test_strangers_keep_nobody_out(stack: Stack) -> None:
    """Refused tokens of a peer do not lock new tokens of others behind the same address out."""
    lines = b"GET /v1/self HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a.b.c\r\n\r\n"
    for _ in range(200):
        stream = RawStream.send(stack.proxy_url, lines)
        stream.rest()
        assert stream.status == 401
    assert bearer(stack, stack.access_token(stack.sandbox())).status == 200
