"""The exchanges at the token endpoint, as bytes on the wire; when to renew is `_token`'s.

A launch credential is exchanged by RFC 7523 (the form the official clients use), a renewal
generation by RFC 8693. Both credentials are opaque strings here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from daypass._errors import DaypassError, Refused, Unavailable, Unreachable
from daypass._http import Answer, Origin, refusal

TOKEN_PATH = "/v1/oauth/token"  # noqa: S105 - a path
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a grant type
REFRESH_TOKEN = "urn:ietf:params:oauth:token-type:refresh_token"  # noqa: S105 - a token type
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a token type


@dataclass(frozen=True)
class Issued:
    """One answer of the token endpoint; `lifetime` in seconds, credentials hidden from repr."""

    access_token: str = field(repr=False)
    lifetime: float
    refresh_token: str | None = field(default=None, repr=False)


def exchange_launch(
    origin: Origin, launch: str, *, rule: str | None, organization: str | None
) -> Issued:
    """Exchange a launch credential (RFC 7523 §2.1) for an access token.

    Raises `Revoked`, `Refused`, `Unavailable` or `Unreachable`.
    """
    body = {"grant_type": JWT_BEARER, "assertion": launch}
    if rule:
        body["federation_rule_id"] = rule
    if organization:
        body["organization_id"] = organization
    return _issued(origin.call("POST", TOKEN_PATH, body=body))


def renew(origin: Origin, refresh_token: str) -> Issued:
    """Exchange a renewal generation (RFC 8693 §2.1) for the next access token and generation.

    Raises as `exchange_launch`.
    """
    body = {
        "grant_type": TOKEN_EXCHANGE,
        "subject_token": refresh_token,
        "subject_token_type": REFRESH_TOKEN,
        "requested_token_type": ACCESS_TOKEN,
    }
    return _issued(origin.call("POST", TOKEN_PATH, body=body))


def buy(
    origin: Origin,
    token: str,
    *,
    details: Sequence[Mapping[str, object]] | None,
    limits: Mapping[str, object],
    lifetime: int | None,
) -> Issued:
    """Buy a narrower access token with an access token (RFC 8693 §2.1).

    What is None or empty is as the buyer's. Never repeated: a budget would be set aside twice.
    Raises as `exchange_launch`.
    """
    body = {
        "grant_type": TOKEN_EXCHANGE,
        "subject_token": token,
        "subject_token_type": ACCESS_TOKEN,
        "requested_token_type": ACCESS_TOKEN,
    }
    if details is not None:
        body["authorization_details"] = json.dumps(details)
    if limits:
        body["daypass_limits"] = json.dumps(limits)
    if lifetime is not None:
        body["daypass_lifetime_seconds"] = str(lifetime)
    return _issued(origin.call("POST", TOKEN_PATH, body=body))


def repeatable(error: DaypassError, *, renewal: bool) -> bool:
    """Whether the same exchange may be sent again at once after `error`.

    A launch credential may be good for one use, and a second use is taken for a clone: it is
    repeated only if the first request cannot have arrived or was turned away undone. A renewal
    whose answer was lost may be repeated, the broker grants it ten seconds.
    """
    if isinstance(error, Unavailable):
        return True
    return isinstance(error, Unreachable) and (renewal or not error.sent)


def _issued(answer: Answer) -> Issued:
    if answer.status != 200:
        raise refusal(answer)
    found = answer.json()
    if not isinstance(found, dict):
        raise _strange("not a JSON object")
    token, lifetime = found.get("access_token"), found.get("expires_in")
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise _strange("without an access token")
    if isinstance(lifetime, bool) or not isinstance(lifetime, (int, float)) or lifetime <= 0:
        raise _strange("without a lifetime")
    if str(found.get("token_type", "bearer")).lower() != "bearer":
        raise _strange("with a token that is not a bearer token")
    following = found.get("refresh_token")
    return Issued(token, float(lifetime), following if isinstance(following, str) else None)


def _strange(what: str) -> Refused:
    return Refused(
        f"the token endpoint sent an answer {what}",
        hint="check that the base URL is a daypass proxy",
        status=200,
    )
