"""Verifying a token: the only file that turns a string from the wire into claims.

PyJWT checks the ES256 signature; everything around it is ours, because the library accepts what
we must not: another `typ`, further header parameters, times as text or 1e308, duplicate keys,
tokens of megabytes. Order: form first (size, characters, header, key id, strict JSON), all of it
cheaper than a signature; then the signature; only then what the claims mean. So nothing is ever
concluded from a claim that was not signed, and garbage costs microseconds (RFC 8725, RFC 9068).
"""

import base64
import json
import re
from collections.abc import Callable
from enum import StrEnum
from typing import NoReturn, TypeVar

import jwt

from daypass_core.claims import (
    ACCESS_TYPE,
    LAUNCH_TYPE,
    RENEWAL_TYPE,
    Claims,
    ClaimsError,
    LaunchClaims,
    RenewalClaims,
    SignedClaims,
    parse_access,
    parse_launch,
    parse_renewal,
)
from daypass_core.jwks import PublicKeys

MAX_TOKEN_BYTES = 4096
LEEWAY = 5
"""Seconds of grace around `exp` and `nbf`: clocks of broker and proxy, and a request under way."""
MAX_FUTURE = 30
"""Seconds `iat` may lie ahead: beyond that a clock is wrong and cut-offs would not hold."""

_ALGORITHM = "ES256"
_ES256 = jwt.get_algorithm_by_name(_ALGORITHM)
_SIGNATURE_BYTES = 64
_HEADER = frozenset({"alg", "typ", "kid"})
# Three parts of base64url. fullmatch, so no newline slips in at the end as it would with `$`.
_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_MAX_DIGITS = 15
_MAX_OPENERS = 256  # bounds the nesting, and with it the decoder's recursion, on every Python


class Reason(StrEnum):
    """Why a token is refused."""

    MALFORMED = "malformed"
    WRONG_TYPE = "wrong_type"
    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    WRONG_ISSUER = "wrong_issuer"
    WRONG_AUDIENCE = "wrong_audience"
    BAD_CLAIMS = "bad_claims"


class TokenRefused(Exception):
    """The token is not good here. `detail` is for our log; it names claims, never their values."""

    def __init__(self, reason: Reason, *, signature_verified: bool, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.signature_verified = signature_verified
        self.detail = detail


def verify_access(
    unverified_token: str, keys: PublicKeys, *, issuer: str, audience: str, now: float
) -> Claims:
    """Return the claims of an access token valid at `now` (epoch seconds), else TokenRefused."""
    header, payload = _verify_signature(unverified_token, ACCESS_TYPE, keys)
    claims = _read(parse_access, header, payload, issuer, audience, now)
    if claims.not_before > now + LEEWAY:
        _refuse_signed(Reason.NOT_YET_VALID, "nbf")
    return claims


def verify_launch(
    unverified_token: str, keys: PublicKeys, *, issuer: str, audience: str, now: float
) -> LaunchClaims:
    """Return the claims of a launch credential valid at `now`, else TokenRefused."""
    header, payload = _verify_signature(unverified_token, LAUNCH_TYPE, keys)
    return _read(parse_launch, header, payload, issuer, audience, now)


def verify_renewal(
    unverified_token: str, keys: PublicKeys, *, issuer: str, audience: str, now: float
) -> RenewalClaims:
    """Return the claims of a renewal generation valid at `now`, else TokenRefused."""
    header, payload = _verify_signature(unverified_token, RENEWAL_TYPE, keys)
    return _read(parse_renewal, header, payload, issuer, audience, now)


def unverified_type(unverified_token: str) -> str | None:
    """Return the `typ` the token claims to have, to choose the verifier; None when malformed."""
    return _unverified_parameter(unverified_token, "typ")


def unverified_key_id(unverified_token: str) -> str | None:
    """Return the `kid` the token claims, to decide on a key-set refresh; None when malformed."""
    return _unverified_parameter(unverified_token, "kid")


def _verify_signature(
    unverified_token: str, token_type: str, keys: PublicKeys
) -> tuple[dict[str, object], SignedClaims]:
    """Return header and payload once form and signature hold."""
    unverified_header, payload_part, signature_part = _split(unverified_token)
    if unverified_header["typ"] != token_type:
        _refuse(Reason.WRONG_TYPE, f"typ must be {token_type}")
    key = keys.get(str(unverified_header["kid"]))
    if key is None:
        _refuse(Reason.UNKNOWN_KEY, "kid")
    signature = _from_base64url(signature_part)
    if len(signature) != _SIGNATURE_BYTES:
        _refuse(Reason.MALFORMED, "signature length")
    unverified_payload = _strict_object(_from_base64url(payload_part))
    signed = unverified_token[: -len(signature_part) - 1].encode("ascii")
    if not _ES256.verify(signed, key, signature):
        _refuse(Reason.BAD_SIGNATURE)
    return unverified_header, SignedClaims(unverified_payload)


_Parsed = TypeVar("_Parsed", Claims, LaunchClaims, RenewalClaims)


def _read(
    parse: Callable[[dict[str, object], SignedClaims], _Parsed],
    header: dict[str, object],
    payload: SignedClaims,
    issuer: str,
    audience: str,
    now: float,
) -> _Parsed:
    """Parse a signed payload and check what every kind of token must satisfy."""
    try:
        claims = parse(header, payload)
    except ClaimsError as error:
        _refuse_signed(Reason.BAD_CLAIMS, str(error))
    if claims.issuer != issuer:
        _refuse_signed(Reason.WRONG_ISSUER, "iss")
    if claims.audience != audience:
        _refuse_signed(Reason.WRONG_AUDIENCE, "aud")
    if now >= claims.expires_at + LEEWAY:
        _refuse_signed(Reason.EXPIRED, "exp")
    if claims.issued_at > now + MAX_FUTURE:
        _refuse_signed(Reason.NOT_YET_VALID, "iat")
    return claims


def _split(unverified_token: str) -> tuple[dict[str, object], str, str]:
    """Return the checked header and the other two parts, all still unverified."""
    if len(unverified_token) > MAX_TOKEN_BYTES:
        _refuse(Reason.MALFORMED, "too long")
    if not _COMPACT.fullmatch(unverified_token):
        _refuse(Reason.MALFORMED, "not three parts of base64url")
    header_part, payload_part, signature_part = unverified_token.split(".")
    header = _strict_object(_from_base64url(header_part))
    if header.keys() != _HEADER:
        _refuse(Reason.MALFORMED, "header must be exactly alg, typ, kid")
    if header["alg"] != _ALGORITHM:
        _refuse(Reason.MALFORMED, f"alg must be {_ALGORITHM}")
    if not isinstance(header["typ"], str) or not isinstance(header["kid"], str):
        _refuse(Reason.MALFORMED, "typ and kid must be strings")
    return header, payload_part, signature_part


def _unverified_parameter(unverified_token: str, name: str) -> str | None:
    try:
        header, _, _ = _split(unverified_token)
    except TokenRefused:
        return None
    return str(header[name])


def _from_base64url(part: str) -> bytes:
    """Decode canonical base64url only, so one byte string has one spelling."""
    if len(part) % 4 == 1:
        _refuse(Reason.MALFORMED, "base64url length")
    data = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii") != part:
        _refuse(Reason.MALFORMED, "base64url is not canonical")
    return data


def _strict_object(data: bytes) -> dict[str, object]:
    """Decode a JSON object: UTF-8, no duplicate keys at any depth, integers only."""
    if data.count(b"[") + data.count(b"{") > _MAX_OPENERS:
        _refuse(Reason.MALFORMED, "nested too deep")
    try:
        value = _DECODER.decode(data.decode("utf-8"))
    except ValueError:
        _refuse(Reason.MALFORMED, "not strict JSON")
    if not isinstance(value, dict):
        _refuse(Reason.MALFORMED, "not a JSON object")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("integer too long")
    return int(digits)


def _no_number(text: str) -> NoReturn:
    raise ValueError("only integers are numbers here")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_float=_no_number,
    parse_int=_integer,
    parse_constant=_no_number,
)


def _refuse(reason: Reason, detail: str = "") -> NoReturn:
    """Refuse before the signature held: the sender may be anybody."""
    raise TokenRefused(reason, signature_verified=False, detail=detail) from None


def _refuse_signed(reason: Reason, detail: str) -> NoReturn:
    """Refuse a token of ours: the sender may be told why."""
    raise TokenRefused(reason, signature_verified=True, detail=detail) from None
