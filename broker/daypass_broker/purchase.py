"""What a narrower token is to have, as its buyer asks for it at the token endpoint.

Three parameters of a token exchange with an access token, all JSON or a number in text, all of them
optional: what is left out is as the buyer's. Reading is strict and says nothing about the buyer;
`delegate` holds the purchase against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from daypass_broker import limits
from daypass_broker.fields import FieldError, Fields, read_json
from daypass_broker.limits import UNLIMITED, Limits
from daypass_broker.oauth import OAuthError, invalid
from daypass_core.claims import MAX_ACCESS_LIFE
from daypass_core.scope import Scope, ScopeError, parse_scope

DETAILS = "authorization_details"
LIMITS = "daypass_limits"
LIFETIME = "daypass_lifetime_seconds"
PARAMETERS = (DETAILS, LIMITS, LIFETIME)


@dataclass(frozen=True, slots=True)
class Purchase:
    """What is asked for; `limits.ceiling_nano` is the slice of the buyer's budget.

    None in a part: as much as the buyer has.
    """

    scope: Scope | None = None
    limits: Limits = UNLIMITED
    lifetime_s: int | None = None


def read(parameters: Mapping[str, str]) -> Purchase:
    """Read a purchase; raises OAuthError naming the field."""
    return Purchase(
        scope=_scope(parameters.get(DETAILS)),
        limits=_limits(parameters.get(LIMITS)),
        lifetime_s=_lifetime(parameters.get(LIFETIME)),
    )


def refused_details(error: ScopeError) -> str:
    """Say what is wrong with `authorization_details`."""
    return f"{error.field}: {error.reason}"


def _scope(text: str | None) -> Scope | None:
    if text is None:
        return None
    try:
        return parse_scope(read_json(text.encode("utf-8", "surrogatepass")))
    except FieldError as error:
        raise OAuthError("invalid_authorization_details", f"{DETAILS}: {error.reason}") from None
    except ScopeError as error:
        raise OAuthError("invalid_authorization_details", refused_details(error)) from None


def _limits(text: str | None) -> Limits:
    if text is None:
        return UNLIMITED
    try:
        given = Fields(read_json(text.encode("utf-8", "surrogatepass")), LIMITS)
        found = limits.read(given)
        given.done()
    except FieldError as error:
        raise invalid(str(error)) from None
    return found


def _lifetime(text: str | None) -> int | None:
    if text is None:
        return None
    # isascii() too: other scripts have digits that int() would read.
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_ACCESS_LIFE))
    if not digits or not 1 <= int(text) <= MAX_ACCESS_LIFE:
        raise invalid(f"{LIFETIME} must be an integer from 1 to {MAX_ACCESS_LIFE}")
    return int(text)
