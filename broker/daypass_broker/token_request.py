"""A token request as it comes in: three dialects, one record.

Stock clients send JSON with the `jwt-bearer` grant (RFC 7523), or with `refresh_token` (RFC 6749
§6) where they hold a renewal generation; our own send a form or JSON with `token-exchange` (RFC
8693). Nothing here looks into a credential: whatever has not been verified is named `unverified_…`.
What would narrow or redirect a token and cannot be carried into it is refused, never overlooked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qsl

from daypass_broker import purchase
from daypass_broker.oauth import (
    GRANT_TYPES,
    JWT_BEARER,
    MAX_BODY_BYTES,
    REFRESH_TOKEN,
    TOKEN_EXCHANGE,
    TYPE_ACCESS_TOKEN,
    TYPE_JWT,
    TYPE_REFRESH_TOKEN,
    OAuthError,
    invalid,
    too_large,
)
from daypass_broker.purchase import Purchase

MAX_CREDENTIAL_BYTES = 16 * 1024
"""What stock clients send at most; our own credentials are far smaller."""
_MAX_PARAMETERS = 32

# What these ask for is not known here: another identity than the credential's, or less than its
# scope. A client that sends one would take the token for something that it is not.
_NOT_SUPPORTED = (
    "actor_token",
    "actor_token_type",
    "scope",
    "service_account_id",
)
# Clients are public: whoever proves to be somebody by more than the credential would be ignored.
_CLIENT_PROOFS = ("client_secret", "client_assertion", "client_assertion_type")
# What the names of the parameters begin with that make a token narrower.
_NARROWING = ("daypass_", "authorization_details")


class Presented(StrEnum):
    """Which kind of credential the caller says it presents."""

    ASSERTION = "assertion"
    RENEWAL = "renewal"
    ACCESS = "access"


_SUBJECTS = {
    TYPE_JWT: Presented.ASSERTION,
    TYPE_REFRESH_TOKEN: Presented.RENEWAL,
    TYPE_ACCESS_TOKEN: Presented.ACCESS,
}


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One well-formed token request; nothing in it is verified yet.

    `purchase` is what a narrower token is to have, when an access token is presented.
    """

    grant_type: str
    presented: Presented
    unverified_credential: str = field(repr=False)
    federation_rule_id: str | None = None
    organization_id: str | None = None
    purchase: Purchase | None = None


def parse(content_type: str, body: bytes, *, audience: str) -> TokenRequest:
    """Read a token request; `audience` is the only audience a caller may name.

    Raises OAuthError. Parameters we do not know are ignored (RFC 6749 §3.2), `client_id` too:
    clients are public, and a credential says by itself whose it is. Not so those that are called
    nearly like one of ours: a limit that is misspelt must not be none.
    """
    parameters = _parameters(content_type, body)
    _refuse_unsupported(parameters)
    grant_type = _required(parameters, "grant_type")
    presented, credential = _credential(parameters, grant_type)
    if len(credential) > MAX_CREDENTIAL_BYTES:
        raise invalid(f"the credential is larger than {MAX_CREDENTIAL_BYTES} bytes")
    for name in ("audience", "resource"):
        if parameters.get(name, audience) != audience:
            raise OAuthError("invalid_target", f"{name} must be {audience}, or left out")
    rule = parameters.get("federation_rule_id")
    if rule is not None and presented is not Presented.ASSERTION:
        raise invalid("federation_rule_id is for workload identities only, leave it out")
    return TokenRequest(
        grant_type=grant_type,
        presented=presented,
        unverified_credential=credential,
        federation_rule_id=rule,
        organization_id=parameters.get("organization_id"),
        purchase=_purchase(parameters, presented),
    )


def _refuse_unsupported(parameters: Mapping[str, str]) -> None:
    for name in _NOT_SUPPORTED:
        if name in parameters:
            raise invalid(f"{name} is not supported here, leave it out")
    for name in _CLIENT_PROOFS:
        if name in parameters:
            raise invalid(f"{name}: clients are public here, leave it out")
    for name in parameters:
        if name.lower().startswith(_NARROWING) and name not in purchase.PARAMETERS:
            known = ", ".join(purchase.PARAMETERS)
            raise invalid(f"{name[:64]} is not known here; there are {known}")
    if parameters.get("workspace_id", "default") != "default":
        raise invalid("workspace_id is not known here, leave it out")


def _credential(parameters: Mapping[str, str], grant_type: str) -> tuple[Presented, str]:
    if grant_type == JWT_BEARER:
        return Presented.ASSERTION, _required(parameters, "assertion")
    if grant_type == REFRESH_TOKEN:
        return Presented.RENEWAL, _required(parameters, "refresh_token")
    if grant_type == TOKEN_EXCHANGE:
        return _subject(parameters)
    raise OAuthError("unsupported_grant_type", f"grant_type must be {' or '.join(GRANT_TYPES)}")


def _subject(parameters: Mapping[str, str]) -> tuple[Presented, str]:
    """Read the parameters of RFC 8693 §2.1."""
    credential = _required(parameters, "subject_token")
    presented = _SUBJECTS.get(_required(parameters, "subject_token_type"))
    if presented is None:
        raise invalid(f"subject_token_type must be {' or '.join(_SUBJECTS)}")
    if parameters.get("requested_token_type", TYPE_ACCESS_TOKEN) != TYPE_ACCESS_TOKEN:
        raise invalid(f"requested_token_type must be {TYPE_ACCESS_TOKEN}")
    return presented, credential


def _purchase(parameters: Mapping[str, str], presented: Presented) -> Purchase | None:
    if presented is Presented.ACCESS:
        return purchase.read(parameters)
    for name in purchase.PARAMETERS:
        if name in parameters:
            raise invalid(
                f"{name} narrows an access token: present one as subject_token, or leave it out"
            )
    return None


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
        raise invalid("content-type must be application/json or application/x-www-form-urlencoded")
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise invalid("a parameter is given more than once")
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
        raise invalid("body is not a form") from None


def _json_pairs(body: bytes) -> list[tuple[str, str]]:
    try:
        # The pairs hook keeps duplicates visible; a nested object becomes a list of pairs too.
        pairs = json.loads(body.decode("utf-8"), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        raise invalid("body is not JSON") from None
    if not isinstance(pairs, _Pairs) or len(pairs) > _MAX_PARAMETERS:
        raise invalid("body must be one JSON object of parameters")
    texts: list[tuple[str, str]] = []
    for name, value in pairs:
        text = "" if value is None else value
        if not isinstance(text, str):
            raise invalid("every parameter must be a string")
        texts.append((name, text))
    return texts


class _Pairs(list[tuple[str, object]]):
    """The members of a JSON object in order, duplicates included."""


def _required(parameters: Mapping[str, str], name: str) -> str:
    value = parameters.get(name)
    if value is None:
        raise invalid(f"{name} is missing")
    return value
