"""What many tests need: waiting for a condition, and signing tokens with keys made on the spot."""

import asyncio
import base64
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from daypass_core.claims import Claims, access_payload, subject
from daypass_core.jwks import PublicKeys, thumbprint, to_jwk
from daypass_core.scope import Detail, Scope
from tests.fakes.clock import DEFAULT_NOW

_T = TypeVar("_T")
_INTERVAL = 0.01

ISSUER = "https://broker.test"
AUDIENCE = "daypass-proxy"
TRUST_DOMAIN = "daypass.test"
TENANT = "acme"
SANDBOX = "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa"
NOW = int(DEFAULT_NOW)


def eventually(fn: Callable[[], _T], timeout: float = 5.0) -> _T:
    """Call `fn` until it returns something true and return that; fail after `timeout` seconds."""
    patience = _Patience(timeout)
    while True:
        late = patience.is_over()
        result = fn()
        if result:
            return result
        if late:
            raise AssertionError(f"not true within {timeout} s; last result: {result!r}")
        time.sleep(_INTERVAL)


@overload
async def aeventually(fn: Callable[[], Awaitable[_T]], timeout: float = 5.0) -> _T: ...
@overload
async def aeventually(fn: Callable[[], _T], timeout: float = 5.0) -> _T: ...
async def aeventually(fn: Callable[[], Any], timeout: float = 5.0) -> Any:
    """Do as `eventually` does without blocking the loop; `fn` may be a coroutine function."""
    patience = _Patience(timeout)
    while True:
        late = patience.is_over()
        result = fn()
        if isinstance(result, Awaitable):
            result = await result
        if result:
            return result
        if late:
            raise AssertionError(f"not true within {timeout} s; last result: {result!r}")
        await asyncio.sleep(_INTERVAL)


class _Patience:
    """So many seconds, and three times as many where that leaves no room for fifty tries.

    While the machine stands still nobody gets on, so that time alone says nothing.
    """

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._ends_late = self._ends + 2 * seconds
        self._tries = min(50, int(seconds / _INTERVAL))

    def is_over(self) -> bool:
        """Say, before a try, whether it is the last one."""
        self._tries -= 1
        return time.monotonic() > (self._ends if self._tries < 0 else self._ends_late)


def begin_together(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Let processes go on that each print "ready" and then wait for a line; what they print then.

    All must end with 0.
    """
    for each in processes:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in processes:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    found = [each.communicate(timeout=120)[0].strip() for each in processes]
    assert [each.returncode for each in processes] == [0] * len(processes)
    return found


@contextmanager
def full_pipe() -> Iterator[int]:
    """The end of a pipe to write to, which has no room and whose reader does not read."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    with suppress(BlockingIOError):
        while os.write(into, b"x" * 4096):
            pass
    os.set_blocking(into, True)
    try:
        yield into
    finally:
        os.close(into)
        os.close(out)


@dataclass(frozen=True)
class SigningKey:
    """An ES256 key pair and its name."""

    private: ec.EllipticCurvePrivateKey
    kid: str

    @property
    def public(self) -> ec.EllipticCurvePublicKey:
        return self.private.public_key()

    @property
    def jwk(self) -> dict[str, str]:
        return to_jwk(self.public)


def signing_key(seed: str | None = None) -> SigningKey:
    """Make an ES256 key: random, or the same one for the same `seed`."""
    if seed is None:
        private = ec.generate_private_key(ec.SECP256R1())
    else:
        scalar = int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big") >> 1
        private = ec.derive_private_key(scalar, ec.SECP256R1())
    return SigningKey(private, thumbprint(private.public_key()))


def public_keys(*keys: SigningKey) -> PublicKeys:
    """Return the key set of these keys."""
    return PublicKeys({key.kid: key.public for key in keys})


def make_claims(
    *,
    now: int = NOW,
    ttl: int = 600,
    tenant: str = TENANT,
    sandbox: str = SANDBOX,
    grants: tuple[str, ...] = ("grt_root",),
    token_id: str = "tok_one",
    key_id: str = "",
    issuer: str = ISSUER,
    audience: str = AUDIENCE,
    scope: Scope | None = None,
    source: tuple[str, ...] = (),
) -> Claims:
    """Return claims as the broker would issue them at `now`."""
    return Claims(
        issuer=issuer,
        audience=audience,
        subject=subject(TRUST_DOMAIN, tenant, sandbox),
        tenant=tenant,
        sandbox=sandbox,
        grants=grants,
        token_id=token_id,
        key_id=key_id,
        issued_at=now,
        not_before=now,
        expires_at=now + ttl,
        scope=scope or make_scope(),
        source=source,
    )


def make_scope(
    *,
    endpoints: tuple[str, ...] = ("messages", "count_tokens", "models"),
    models: tuple[str, ...] = ("claude-sonnet-*",),
    features: tuple[str, ...] = (),
    allowed_domains: tuple[str, ...] = (),
    max_output_tokens: int | None = None,
    body: str = "compat",
) -> Scope:
    """Return a scope for one provider, anthropic."""
    cap = max_output_tokens
    return Scope((Detail("anthropic", endpoints, models, features, allowed_domains, cap, body),))


def access_token(key: SigningKey, claims: Claims | None = None) -> str:
    """Return a signed access token for `claims` (those of `make_claims()` by default)."""
    return sign(key, access_payload(claims or make_claims()))


def sign(
    key: SigningKey,
    payload: Mapping[str, object] | bytes,
    *,
    typ: str = "at+jwt",
    header: Mapping[str, object] | bytes | None = None,
) -> str:
    """Sign any payload under any header; bytes are signed as they are, to write odd JSON.

    Signatures are deterministic (RFC 6979), so vectors made with it do not change.
    """
    if header is None:
        header = {"alg": "ES256", "typ": typ, "kid": key.kid}
    signed = f"{_part(header)}.{_part(payload)}"
    return f"{signed}.{base64url(raw_signature(key, signed.encode('ascii')))}"


def raw_signature(key: SigningKey, message: bytes) -> bytes:
    """Return the ES256 signature of a message as JWS has it, 64 bytes; deterministic."""
    der = key.private.sign(message, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
    r, s = decode_dss_signature(der)
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def base64url(data: bytes) -> str:
    """Encode without padding, as JWTs do."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _part(value: Mapping[str, object] | bytes) -> str:
    if isinstance(value, bytes):
        return base64url(value)
    return base64url(json.dumps(value, separators=(",", ":")).encode("utf-8"))
