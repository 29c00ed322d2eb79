"""OAuth on the wire: token requests in, in both dialects, and RFC 6749 §5 answers out.

Stock clients send JSON with the `jwt-bearer` grant (RFC 7523); our own send a form or JSON with the
`token-exchange` grant (RFC 8693). Both become one `TokenRequest`. Nothing here looks into a
credential: whatever has not been verified is named `unverified_…`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qsl

TOKEN_PATH = "/v1/oauth/token"  # noqa: S105 - a path
JWKS_PATH = "/.well-known/jwks.json"
METADATA_PATH = "/.well-known/oauth-authorization-server"

MAX_BODY_BYTES = 24 * 1024
_MAX_PARAMETERS = 32

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a grant type
TYPE_JWT = "urn:ietf:params:oauth:token-type:jwt"
TYPE_REFRESH_TOKEN = "urn:ietf:params:oauth:token-type:refresh_token"  # noqa: S105
TYPE_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105

# The one federation rule there is: "a launch credential of this broker".
FEDERATION_RULE_ID = "fdrl_daypass_launch"

# What these would ask for cannot be carried into the token, and a request must not be answered
# with more than it asked for, so a value here is a refusal, not something to overlook.
_NOT_SUPPORTED = (
    "actor_token",
    "actor_token_type",
    "authorization_details",
    "scope",
    "service_account_id",
)

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


class Presented(StrEnum):
    """Which kind of credential the caller says it presents."""

    ASSERTION = "assertion"
    RENEWAL = "renewal"


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One well-formed token request; nothing in it is verified yet."""

    grant_type: str
    presented: Presented
    unverified_credential: str = field(repr=False)
    federation_rule_id: str | None = None
    organization_id: str | None = None


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


def parse(content_type: str, body: bytes, *, audience: str) -> TokenRequest:
    """Read a token request; `audience` is the only audience a caller may name.

    Raises OAuthError. Parameters we do not know are ignored (RFC 6749 §3.2), parameters that would
    narrow or redirect the token are refused.
    """
    parameters = _parameters(content_type, body)
    for name in _NOT_SUPPORTED:
        if name in parameters:
            raise _invalid(f"{name} is not supported here, leave it out")
    if parameters.get("workspace_id", "default") != "default":
        raise _invalid("workspace_id is not known here, leave it out")
    grant_type = _required(parameters, "grant_type")
    if grant_type == JWT_BEARER:
        presented, credential = Presented.ASSERTION, _required(parameters, "assertion")
    elif grant_type == TOKEN_EXCHANGE:
        presented, credential = _read_exchange(parameters, audience)
    else:
        raise OAuthError(
            "unsupported_grant_type", f"grant_type must be {JWT_BEARER} or {TOKEN_EXCHANGE}"
        )
    return TokenRequest(
        grant_type=grant_type,
        presented=presented,
        unverified_credential=credential,
        federation_rule_id=parameters.get("federation_rule_id"),
        organization_id=parameters.get("organization_id"),
    )


def _read_exchange(parameters: Mapping[str, str], audience: str) -> tuple[Presented, str]:
    """Read the parameters of RFC 8693 §2.1."""
    credential = _required(parameters, "subject_token")
    kinds = {TYPE_JWT: Presented.ASSERTION, TYPE_REFRESH_TOKEN: Presented.RENEWAL}
    presented = kinds.get(_required(parameters, "subject_token_type"))
    if presented is None:
        raise _invalid(f"subject_token_type must be {TYPE_JWT} or {TYPE_REFRESH_TOKEN}")
    if parameters.get("requested_token_type", TYPE_ACCESS_TOKEN) != TYPE_ACCESS_TOKEN:
        raise _invalid(f"requested_token_type must be {TYPE_ACCESS_TOKEN}")
    for name in ("audience", "resource"):
        if parameters.get(name, audience) != audience:
            raise OAuthError("invalid_target", f"{name} must be {audience}, or left out")
    return presented, credential


def _parameters(content_type: str, body: bytes) -> dict[str, str]:
    """Read the body as parameters, each at most once; empty values count as absent (RFC 6749)."""
    if len(body) > MAX_BODY_BYTES:
        raise too_large()
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/json":
        pairs = _json_pairs(body)
    elif media_type == "application/x-www-form-urlencoded":
        pairs = _form_pairs(body)
    else:
        raise _invalid("content-type must be application/json or application/x-www-form-urlencoded")
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise _invalid("a parameter is given more than once")
    return {name: value for name, value in pairs if value}


def _form_pairs(body: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except ValueError:  # UnicodeDecodeError is one
        raise _invalid("body is not a form") from None


def _json_pairs(body: bytes) -> list[tuple[str, str]]:
    try:
        # The pairs hook keeps duplicates visible; a nested object becomes a list of pairs too.
        pairs = json.loads(body.decode("utf-8"), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        raise _invalid("body is not JSON") from None
    if not isinstance(pairs, _Pairs) or len(pairs) > _MAX_PARAMETERS:
        raise _invalid("body must be one JSON object of parameters")
    texts: list[tuple[str, str]] = []
    for name, value in pairs:
        text = "" if value is None else value
        if not isinstance(text, str):
            raise _invalid("every parameter must be a string")
        texts.append((name, text))
    return texts


class _Pairs(list[tuple[str, object]]):
    """The members of a JSON object in order, duplicates included."""


def _required(parameters: Mapping[str, str], name: str) -> str:
    value = parameters.get(name)
    if value is None:
        raise _invalid(f"{name} is missing")
    return value


def _invalid(description: str) -> OAuthError:
    return OAuthError("invalid_request", description)


def too_large() -> OAuthError:
    """Return the refusal of a body over MAX_BODY_BYTES."""
    return _invalid(f"body is larger than {MAX_BODY_BYTES} bytes")


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
        "grant_types_supported": [JWT_BEARER, TOKEN_EXCHANGE],
        "response_types_supported": [],
        "token_endpoint_auth_methods_supported": ["none"],
    }
