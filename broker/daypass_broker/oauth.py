"""OAuth on the wire: its words, the answers of RFC 6749 §5, and the metadata of RFC 8414.

What comes in is read by `token_request`, with the words from here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

TOKEN_PATH = "/v1/oauth/token"  # noqa: S105 - a path
JWKS_PATH = "/.well-known/jwks.json"
METADATA_PATH = "/.well-known/oauth-authorization-server"

MAX_BODY_BYTES = 24 * 1024

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
REFRESH_TOKEN = "refresh_token"  # noqa: S105 - a grant type
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a grant type
GRANT_TYPES = (JWT_BEARER, REFRESH_TOKEN, TOKEN_EXCHANGE)
TYPE_JWT = "urn:ietf:params:oauth:token-type:jwt"
TYPE_REFRESH_TOKEN = "urn:ietf:params:oauth:token-type:refresh_token"  # noqa: S105
TYPE_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105

FEDERATION_RULE_ID = "fdrl_daypass_launch"
"""The rule that is always there: "a launch credential of this broker"."""

# RFC 6749 §5.2 allows these bytes in error_description: printable ASCII without `"` and `\`.
_NOT_ALLOWED_IN_DESCRIPTION = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e]")


class OAuthError(Exception):
    """A refusal as the caller sees it; `description` is for callers we may help."""

    def __init__(
        self,
        error: str,
        description: str = "",
        *,
        status: int = 400,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(error)
        self.error = error
        self.description = description
        self.status = status
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """What the caller gets; `expires_in` is seconds from now."""

    access_token: str = field(repr=False)
    expires_in: int
    refresh_token: str | None = field(default=None, repr=False)
    exchanged: bool = False


@dataclass(frozen=True, slots=True)
class Rendered:
    """An answer ready for the wire."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def invalid(description: str) -> OAuthError:
    """Return the refusal of a request that is not as it must be."""
    return OAuthError("invalid_request", description)


def too_large() -> OAuthError:
    """Return the refusal of a body over MAX_BODY_BYTES."""
    return invalid(f"body is larger than {MAX_BODY_BYTES} bytes")


def unavailable(description: str, *, retry_after: int = 5) -> OAuthError:
    """Return the answer when we cannot know: 503, try again in `retry_after` seconds."""
    return OAuthError("temporarily_unavailable", description, status=503, retry_after=retry_after)


def server_error() -> OAuthError:
    """Return the answer when something of ours broke; what it was is in our log only."""
    return OAuthError("server_error", status=500)


def render(answer: TokenAnswer) -> Rendered:
    """Write the answer of RFC 6749 §5.1, with `issued_token_type` for an exchange (RFC 8693)."""
    body: dict[str, object] = {
        "access_token": answer.access_token,
        "token_type": "Bearer",
        "expires_in": answer.expires_in,
    }
    if answer.exchanged:
        body["issued_token_type"] = TYPE_ACCESS_TOKEN
    if answer.refresh_token is not None:
        body["refresh_token"] = answer.refresh_token
    return _rendered(200, body, None)


def render_error(error: OAuthError) -> Rendered:
    """Write the error of RFC 6749 §5.2: 400, or 503 with Retry-After, never 401 or 403."""
    body: dict[str, object] = {"error": error.error}
    if error.description:
        body["error_description"] = _NOT_ALLOWED_IN_DESCRIPTION.sub("'", error.description)
    return _rendered(error.status, body, error.retry_after)


def _rendered(status: int, body: Mapping[str, object], retry_after: int | None) -> Rendered:
    headers = {"content-type": "application/json", "cache-control": "no-store"}
    if retry_after is not None:
        headers["retry-after"] = str(retry_after)
    return Rendered(status, headers, json.dumps(body, separators=(",", ":")).encode())


def metadata(issuer: str) -> dict[str, object]:
    """Return the authorization server metadata of RFC 8414 §2; `issuer` stays string-equal."""
    return {
        "issuer": issuer,
        "token_endpoint": issuer + TOKEN_PATH,
        "jwks_uri": issuer + JWKS_PATH,
        "grant_types_supported": list(GRANT_TYPES),
        "response_types_supported": [],
        "token_endpoint_auth_methods_supported": ["none"],
    }
