"""What a sandbox vendor says in a webhook, once its signature holds.

Two forms: E2B's own, and Standard Webhooks (standardwebhooks.com) for everybody else. Only the
signature says who speaks, so it is checked over the raw bytes before anything is read, and a
stranger is told one thing for every reason. What is too old is refused: remembered events are
deleted some time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from daypass_broker import times
from daypass_broker.fields import FieldError, read_json
from daypass_core.secret import Secret

E2B = "e2b"

Kind = Literal["ended", "paused", "other"]

# E2B signs when something happened, not when it is sent, and repeats itself for half a minute.
E2B_WINDOW_SECONDS = 24 * 3600
WINDOW_SECONDS = 300
_EARLY_SECONDS = 300
_ID = re.compile(r"[\x21-\x7e]{1,256}", re.ASCII)
_PREFIX = "whsec_"
_LEAST_SECRET = 24

_E2B_KINDS: Mapping[str, Kind] = {
    "sandbox.lifecycle.killed": "ended",
    "sandbox.lifecycle.paused": "paused",
}
_KINDS: Mapping[str, Kind] = {"sandbox.ended": "ended", "sandbox.paused": "paused"}


class NotSigned(Exception):
    """The signature does not hold, is missing, or is too old."""


class UnusableSecret(Exception):
    """The secret is too short, or not of the form its webhooks need; says which."""


@dataclass(frozen=True, slots=True)
class VendorEvent:
    """What happened to the sandbox that the vendor calls `sandbox`; `ident` is unique with it."""

    ident: str
    kind: Kind
    sandbox: str


def read(
    vendor: str, secret: Secret, headers: Mapping[str, str], body: bytes, now: float
) -> VendorEvent:
    """Return the event of a webhook that was received at `now` (epoch seconds).

    Names of `headers` are in lower case. Raises NotSigned, UnusableSecret, and FieldError for a
    signed body that says nothing.
    """
    if vendor == E2B:
        return _read_e2b(secret, headers, body, now)
    return _read_standard(secret, headers, body, now)


def _read_e2b(secret: Secret, headers: Mapping[str, str], body: bytes, now: float) -> VendorEvent:
    """Read E2B's form: base64 of SHA-256 over the secret and the body, without padding.

    Such a hash can be continued by whoever has seen one, with bytes that are no UTF-8: a body must
    be, so nothing can be added to one.
    """
    key = secret.reveal().encode()
    if len(key) < _LEAST_SECRET:
        raise UnusableSecret(f"must have at least {_LEAST_SECRET} characters")
    digest = base64.b64encode(hashlib.sha256(key + body).digest()).rstrip(b"=")
    given = headers.get("e2b-signature", "").encode().rstrip(b"=")
    if not hmac.compare_digest(digest, given):
        raise NotSigned
    said = _object(read_json(body), "body")
    _check_time(_second(said, "timestamp"), now, E2B_WINDOW_SECONDS)
    kind = _E2B_KINDS.get(_text(said, "type"), "other")
    # Both spellings are in use.
    name = "sandbox_id" if "sandbox_id" in said else "sandboxId"
    return VendorEvent(_ident(_text(said, "id")), kind, _text(said, name))


def _read_standard(
    secret: Secret, headers: Mapping[str, str], body: bytes, now: float
) -> VendorEvent:
    ident, moment = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    signed = b".".join((ident.encode(), moment.encode(), body))
    digest = base64.b64encode(hmac.digest(_key(secret), signed, "sha256"))
    given = [each.encode() for each in headers.get("webhook-signature", "").split(" ")]
    # Several while a secret is changed; each is compared, whichever holds.
    held = [hmac.compare_digest(b"v1," + digest, each) for each in given]
    if not any(held) or not re.fullmatch(r"[0-9]{1,11}", moment, re.ASCII):
        raise NotSigned
    _check_time(int(moment), now, WINDOW_SECONDS)
    said = _object(read_json(body), "body")
    kind = _KINDS.get(_text(said, "type"), "other")
    if kind == "other":
        return VendorEvent(_ident(ident), kind, "")
    return VendorEvent(_ident(ident), kind, _text(_object(said.get("data"), "data"), "sandbox"))


def _key(secret: Secret) -> bytes:
    text = secret.reveal()
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_PREFIX) or len(key) < _LEAST_SECRET:
        raise UnusableSecret(f"must be {_PREFIX} and base64 of at least {_LEAST_SECRET} bytes")
    return key


def _check_time(second: int, now: float, window: int) -> None:
    if not now - window <= second <= now + _EARLY_SECONDS:
        raise NotSigned


def _second(said: Mapping[str, object], field: str) -> int:
    try:
        return times.parse_second(_text(said, field))
    except FieldError:
        raise
    except ValueError as error:
        raise FieldError(field, str(error)) from None


def _object(value: object, field: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise FieldError(field, "must be an object")
    return value


def _text(said: Mapping[str, object], field: str) -> str:
    value = said.get(field)
    if not isinstance(value, str) or not 0 < len(value) <= 128:
        raise FieldError(field, "must have 1 to 128 characters")
    return value


def _ident(text: str) -> str:
    if not _ID.fullmatch(text):
        raise FieldError("id", "must have 1 to 256 printable characters without blanks")
    return text
