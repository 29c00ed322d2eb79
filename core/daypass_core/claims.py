"""What the three kinds of tokens say: the access token, the launch credential, the renewal.

The broker turns these records into payloads to sign (`*_payload`); `verify` hands payloads whose
signature held to `parse_*`. Claim sets are exact: a missing claim refuses the token, and so does
an unknown one, because a restriction we do not understand must not be dropped (`cnf` stays unknown
until it is enforced). Wire names stay at the wire, words in code.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Literal, NewType, TypedDict

from daypass_core.scope import Scope, ScopeError, parse_scope, scope_to_wire

SignedClaims = NewType("SignedClaims", dict[str, object])
"""A payload whose signature held; only `verify` makes one."""

ACCESS_TYPE = "at+jwt"
LAUNCH_TYPE = "launch+jwt"
RENEWAL_TYPE = "renew+jwt"

MAX_GRANTS = 4
MAX_SOURCES = 8
MAX_ACCESS_LIFE = 3600
"""Longest life of an access token in seconds. Revocations are kept for this long, so a token that
could outlive its revocation is refused however well it is signed."""

_MAX_TIME = 2**40  # far beyond any sane date, far below where doubles lose seconds
_TRUST_DOMAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,254}")
_TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_SUBJECT = re.compile(
    rf"spiffe://{_TRUST_DOMAIN.pattern}"
    rf"/tenant/(?P<tenant>{_TENANT.pattern})"
    rf"/sandbox/(?P<sandbox>{_ID.pattern})"
)
_COMMON = frozenset({"iss", "aud", "sub", "tenant", "jti", "iat", "exp"})
_ACCESS = _COMMON | {"client_id", "grants", "nbf", "authorization_details"}
# A token says these where they hold, and is refused where they hold and it does not.
_ACCESS_OPTIONAL = frozenset({"source", "act"})
_LAUNCH = _COMMON | {"mode"}
_RENEWAL = _COMMON | {"lineage", "generation"}


class ClaimsError(ValueError):
    """A claim is missing, unknown or not of its kind; `claim` is its wire name."""

    def __init__(self, claim: str, reason: str) -> None:
        super().__init__(f"{claim}: {reason}")
        self.claim = claim
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxClaims:
    """What all three kinds of tokens say of their sandbox; times in epoch seconds.

    `key_id` is the `kid` of the header: set by `parse_*`, empty in claims that are to be signed.
    """

    issuer: str
    audience: str
    subject: str
    tenant: str
    sandbox: str
    token_id: str
    issued_at: int
    expires_at: int
    key_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims(SandboxClaims):
    """An access token (RFC 9068); grants from the root to the leaf.

    `source` are the networks (CIDR) it may be used from, empty for anywhere.
    """

    grants: tuple[str, ...]
    not_before: int
    scope: Scope
    source: tuple[str, ...] = ()

    @property
    def account(self) -> str:
        """The account that its calls are paid from first."""
        leaf = self.grants[-1]
        return account_id(self.sandbox) if len(self.grants) == 1 else grant_account_id(leaf)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchClaims(SandboxClaims):
    """A launch credential: what a sandbox is started with."""

    mode: Literal["reusable", "single_use"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalClaims(SandboxClaims):
    """One generation of a renewal lineage."""

    lineage: str
    generation: int


def subject(trust_domain: str, tenant: str, sandbox: str) -> str:
    """Return the SPIFFE id that is `sub` and `client_id` of every token of this sandbox."""
    return f"spiffe://{trust_domain}/tenant/{tenant}/sandbox/{sandbox}"


def parse_trust_domain(text: str) -> str:
    """Return the text if it can stand in a `sub`; raises ValueError that does not repeat it."""
    if not _TRUST_DOMAIN.fullmatch(text):
        raise ValueError(
            "must be a domain in lower case: letters, digits, '.', '_' and '-', at most 255"
        )
    return text


def account_id(sandbox: str) -> str:
    """Return the id of a sandbox's own account, which its calls are paid from."""
    return f"sandbox:{sandbox}"


def grant_account_id(grant: str) -> str:
    """Return the id of the account of a grant that was bought by another one."""
    return f"grant:{grant}"


def actor(subject: str, grants: tuple[str, ...]) -> dict[str, object] | None:
    """Return the `act` claim (RFC 8693 §4.1) of a token with these grants, None for a root's.

    The current actor is outermost and who it acts for is nested inside; the sandbox itself is
    `sub` and is not repeated.
    """
    nested: dict[str, object] | None = None
    for grant in grants[1:]:
        nested = {"sub": f"{subject}/grant/{grant}"} | ({} if nested is None else {"act": nested})
    return nested


def access_payload(claims: Claims) -> dict[str, object]:
    """Return what the broker signs for an access token."""
    payload = {
        **_common_payload(claims),
        "client_id": claims.subject,
        "grants": list(claims.grants),
        "nbf": claims.not_before,
        "authorization_details": scope_to_wire(claims.scope),
    }
    if claims.source:
        payload["source"] = list(claims.source)
    act = actor(claims.subject, claims.grants)
    return payload if act is None else {**payload, "act": act}


def launch_payload(claims: LaunchClaims) -> dict[str, object]:
    """Return what the broker signs for a launch credential."""
    return {**_common_payload(claims), "mode": claims.mode}


def renewal_payload(claims: RenewalClaims) -> dict[str, object]:
    """Return what the broker signs for a renewal generation."""
    return {
        **_common_payload(claims),
        "lineage": claims.lineage,
        "generation": claims.generation,
    }


def parse_access(header: Mapping[str, object], payload: SignedClaims) -> Claims:
    """Read a verified access token; raises ClaimsError."""
    common = _parse_common(header, payload, _ACCESS, _ACCESS_OPTIONAL)
    if payload["client_id"] != common["subject"]:
        raise ClaimsError("client_id", "must equal sub")
    not_before = _time(payload, "nbf")
    if not_before >= common["expires_at"]:
        raise ClaimsError("exp", "must be after nbf")
    if common["expires_at"] - common["issued_at"] > MAX_ACCESS_LIFE:
        raise ClaimsError("exp", f"must be at most {MAX_ACCESS_LIFE} s after iat")
    try:
        scope = parse_scope(payload["authorization_details"])
    except ScopeError as error:
        raise ClaimsError(error.field, error.reason) from None
    grants = _grants(payload["grants"])
    if "act" in payload and payload["act"] is None:
        raise ClaimsError("act", "must be left out where there is none")
    if payload.get("act") != actor(common["subject"], grants):
        raise ClaimsError("act", "must name the grants below the root, the leaf outermost")
    return Claims(
        **common, grants=grants, not_before=not_before, scope=scope, source=_source(payload)
    )


def parse_launch(header: Mapping[str, object], payload: SignedClaims) -> LaunchClaims:
    """Read a verified launch credential; raises ClaimsError."""
    common = _parse_common(header, payload, _LAUNCH)
    mode = payload["mode"]
    if mode != "reusable" and mode != "single_use":
        raise ClaimsError("mode", "must be reusable or single_use")
    return LaunchClaims(**common, mode="reusable" if mode == "reusable" else "single_use")


def parse_renewal(header: Mapping[str, object], payload: SignedClaims) -> RenewalClaims:
    """Read a verified renewal generation; raises ClaimsError."""
    common = _parse_common(header, payload, _RENEWAL)
    generation = payload["generation"]
    if type(generation) is not int or not 1 <= generation < _MAX_TIME:
        raise ClaimsError("generation", "must be a positive integer")
    return RenewalClaims(**common, lineage=_match(payload, "lineage", _ID), generation=generation)


class _Common(TypedDict):
    """The fields of SandboxClaims, read from a payload."""

    issuer: str
    audience: str
    subject: str
    tenant: str
    sandbox: str
    token_id: str
    issued_at: int
    expires_at: int
    key_id: str


def _common_payload(claims: SandboxClaims) -> dict[str, object]:
    return {
        "iss": claims.issuer,
        "aud": claims.audience,
        "sub": claims.subject,
        "tenant": claims.tenant,
        "jti": claims.token_id,
        "iat": claims.issued_at,
        "exp": claims.expires_at,
    }


def _parse_common(
    header: Mapping[str, object],
    payload: SignedClaims,
    expected: frozenset[str],
    optional: frozenset[str] = frozenset(),
) -> _Common:
    for claim in payload:
        if claim not in expected and claim not in optional:
            raise ClaimsError("(unknown)", "a claim that is not understood refuses the token")
    for claim in sorted(expected):
        if claim not in payload:
            raise ClaimsError(claim, "is missing")
    subject = _text(payload, "sub")
    parts = _SUBJECT.fullmatch(subject)
    if parts is None:
        raise ClaimsError("sub", "must be spiffe://domain/tenant/t/sandbox/s")
    tenant = _match(payload, "tenant", _TENANT)
    if tenant != parts["tenant"]:
        raise ClaimsError("tenant", "must be the tenant of sub")
    issued_at, expires_at = _time(payload, "iat"), _time(payload, "exp")
    if issued_at >= expires_at:
        raise ClaimsError("exp", "must be after iat")
    return _Common(
        issuer=_text(payload, "iss"),
        audience=_text(payload, "aud"),
        subject=subject,
        tenant=tenant,
        sandbox=parts["sandbox"],
        token_id=_match(payload, "jti", _ID),
        issued_at=issued_at,
        expires_at=expires_at,
        key_id=str(header["kid"]),
    )


def _grants(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_GRANTS:
        raise ClaimsError("grants", f"must be a list of 1 to {MAX_GRANTS} grants")
    if not all(isinstance(grant, str) and _ID.fullmatch(grant) for grant in value):
        raise ClaimsError("grants", "must be grant ids")
    if len(set(value)) != len(value):
        raise ClaimsError("grants", "must be different from each other")
    return tuple(value)


def _source(payload: SignedClaims) -> tuple[str, ...]:
    """Return the networks of `source`: a claim without any would bind nobody and is refused."""
    if "source" not in payload:
        return ()
    value = payload["source"]
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_SOURCES:
        raise ClaimsError("source", f"must be a list of 1 to {MAX_SOURCES} networks")
    for network in value:
        try:
            # A scope id (`fe80::%eth0/64`) is a name of the machine that wrote it, not of a place.
            exact = (
                isinstance(network, str)
                and "%" not in network
                and str(ip_network(network)) == network
            )
        except ValueError:
            exact = False
        if not exact:
            raise ClaimsError("source", "must be networks in CIDR form")
    return tuple(value)


def _text(payload: SignedClaims, claim: str) -> str:
    value = payload[claim]
    if not isinstance(value, str) or not value:
        raise ClaimsError(claim, "must be a string")
    return value


def _match(payload: SignedClaims, claim: str, pattern: re.Pattern[str]) -> str:
    value = _text(payload, claim)
    if not pattern.fullmatch(value):
        raise ClaimsError(claim, "is not of the expected form")
    return value


def _time(payload: SignedClaims, claim: str) -> int:
    value = payload[claim]
    # type() and not isinstance(): true is an int in Python, and no date.
    if type(value) is not int or not 0 <= value < _MAX_TIME:
        raise ClaimsError(claim, "must be an integer of epoch seconds")
    return value
