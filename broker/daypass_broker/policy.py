"""Who may have what: the policy document, read strictly into records.

Profiles say what a sandbox may call and spend, tenants which profiles they may ask for,
orchestrators to which tenant they belong. `apply` writes these records to the store; a sandbox
request is measured against its profile here too, so both meanings of "may" stand in one file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from daypass_broker import limits, source
from daypass_broker.fields import Fields
from daypass_broker.limits import UNLIMITED, UTC, Limits
from daypass_core.claims import MAX_ACCESS_LIFE
from daypass_core.problem import Code, Refusal, refuse
from daypass_core.scope import Scope, ScopeError, narrow, parse_scope
from daypass_core.source import ANY

LAUNCH_MODES = ("reusable", "single_use")
ATTESTED = "attested"
"""How a workload's sandbox is launched: by its assertions, never by a credential of ours."""
ON_CLONE = ("quarantine", "revoke", "child")
"""What becomes of a copied sandbox: nobody renews, all ends, or the copy gets its own grant."""
MAX_DEPTH = 3
"""How many grants may stand below a sandbox's root."""
MIN_HEARTBEAT_SECONDS = 10
MAX_LIFETIME_SECONDS = 24 * 3600
_LIFETIME_SECONDS = 4 * 3600
_TOKEN_TTL_SECONDS = 600
ISSUANCE_BUCKET = 60.0
"""How many access tokens a sandbox may ask for at once; its bucket begins full."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a sandbox may be given: its defaults, and the limits of what it may ask for.

    `limits` are those without two bounds: all but the budget. `source` is as in a sandbox's row. A
    sandbox that nobody says to be alive for `heartbeat_s` is ended.
    """

    name: str
    scope: Scope
    budget_nano: int
    max_budget_nano: int
    lifetime_s: int
    max_lifetime_s: int
    token_ttl_s: int
    launch: str
    limits: Limits = UNLIMITED
    source: str = ANY
    on_clone: str = ON_CLONE[0]
    heartbeat_s: int | None = None
    max_depth: int = MAX_DEPTH


@dataclass(frozen=True, slots=True)
class Tenant:
    """Which profiles a tenant may use, and what all its sandboxes together may use."""

    name: str
    profiles: tuple[str, ...]
    time_zone: str = UTC
    limits: Limits = UNLIMITED


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole document; `orchestrators` maps to tenants."""

    profiles: tuple[Profile, ...]
    tenants: tuple[Tenant, ...]
    orchestrators: dict[str, str]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a sandbox request asks of its profile; None means the profile's default."""

    scope: Scope | None = None
    launch: str | None = None
    lifetime_s: int | None = None
    token_ttl_s: int | None = None
    limits: Limits = UNLIMITED
    source: str | None = None
    heartbeat_s: int | None = None


@dataclass(frozen=True, slots=True)
class Allotment:
    """What a sandbox gets."""

    scope: Scope
    launch: str
    lifetime_s: int
    token_ttl_s: int
    limits: Limits
    source: str
    on_clone: str
    heartbeat_s: int | None


def parse(document: object, *, min_token_ttl: int) -> Policy:
    """Read a decoded policy document; raises FieldError with the path of what is wrong."""
    fields = Fields(document)
    profiles = tuple(
        _profile(name, inner, min_token_ttl) for name, inner in fields.children("profiles")
    )
    tenants = tuple(_tenants(fields))
    orchestrators = dict(_orchestrators(fields))
    fields.done()
    return Policy(profiles, tenants, orchestrators)


def allot(profile: Profile, tenant: Tenant, wish: Wish, *, min_token_ttl: int) -> Allotment:
    """Return what the request gets; raises Refusal (beyond_profile) naming the field.

    A request can only take less than its profile gives.
    """
    for field, reason in limits.beyond(_most(profile, tenant), wish.limits):
        raise _beyond(profile, field, reason)
    seconds = (
        ("lifetime_seconds", wish.lifetime_s, profile.max_lifetime_s),
        ("token_ttl_seconds", wish.token_ttl_s, profile.token_ttl_s),
        ("heartbeat_seconds", wish.heartbeat_s, profile.heartbeat_s),
    )
    for field, wanted, most in seconds:
        if wanted is not None and most is not None and wanted > most:
            raise _beyond(profile, field, f"must be at most {most}")
    if wish.token_ttl_s is not None and wish.token_ttl_s < min_token_ttl:
        raise refuse(
            Code.INVALID_REQUEST,
            f"token_ttl_seconds: must be at least {min_token_ttl}",
            field="token_ttl_seconds",
        )
    if wish.launch == "reusable" and profile.launch == "single_use":
        raise _beyond(profile, "launch", "must be single_use")
    return Allotment(
        scope=_narrowed(profile, wish.scope),
        launch=wish.launch or profile.launch,
        lifetime_s=_given(wish.lifetime_s, profile.lifetime_s),
        token_ttl_s=_given(wish.token_ttl_s, profile.token_ttl_s),
        limits=wish.limits.below(replace(profile.limits, ceiling_nano=profile.budget_nano)),
        source=_bound(profile, wish.source),
        on_clone=profile.on_clone,
        heartbeat_s=profile.heartbeat_s if wish.heartbeat_s is None else wish.heartbeat_s,
    )


def _most(profile: Profile, tenant: Tenant) -> Limits:
    """The most a request may ask for. How calls are held may come from the tenant, or be usual."""
    given = replace(profile.limits, ceiling_nano=profile.max_budget_nano)
    return given.below(limits.terms(tenant.limits.below(limits.USUAL)))


def _given(wanted: int | None, default: int) -> int:
    return default if wanted is None else wanted


def _narrowed(profile: Profile, wanted: Scope | None) -> Scope:
    if wanted is None:
        return profile.scope
    try:
        return narrow(profile.scope, wanted)
    except ScopeError as error:
        raise _beyond(profile, error.field, error.reason) from None


def _bound(profile: Profile, wanted: str | None) -> str:
    try:
        return source.narrowed(profile.source, wanted)
    except ValueError as error:
        raise _beyond(profile, "source", str(error)) from None


def _beyond(profile: Profile, field: str, reason: str) -> Refusal:
    return refuse(
        Code.BEYOND_PROFILE,
        f"{field}: {reason} in profile {profile.name}",
        field=field,
        hint="ask for less, or have the platform team widen the profile",
    )


def _profile(name: str, fields: Fields, min_token_ttl: int) -> Profile:
    budget = fields.must("budget_usd", fields.usd("budget_usd"))
    most_budget = fields.usd("max_budget_usd")
    lifetime = fields.integer("lifetime_seconds", least=1, most=MAX_LIFETIME_SECONDS)
    most_lifetime = fields.integer("max_lifetime_seconds", least=1, most=MAX_LIFETIME_SECONDS)
    ttl = fields.integer("token_ttl_seconds", least=min_token_ttl, most=MAX_ACCESS_LIFE)
    launch = fields.text("launch", choices=LAUNCH_MODES)
    on_clone = fields.text("on_clone", choices=ON_CLONE)
    depth = fields.integer("max_depth", least=0, most=MAX_DEPTH)
    heartbeat = read_heartbeat(fields)
    scope = _scope(fields)
    others = limits.read(fields, budget=False)
    bound = source.read(fields)
    fields.done()
    profile = Profile(
        name=name,
        scope=scope,
        budget_nano=budget,
        max_budget_nano=_given(most_budget, budget),
        lifetime_s=_given(lifetime, min(_LIFETIME_SECONDS, most_lifetime or MAX_LIFETIME_SECONDS)),
        max_lifetime_s=_given(most_lifetime, MAX_LIFETIME_SECONDS),
        token_ttl_s=_given(ttl, max(_TOKEN_TTL_SECONDS, min_token_ttl)),
        launch=launch or LAUNCH_MODES[0],
        limits=others,
        source=bound or ANY,
        on_clone=on_clone or ON_CLONE[0],
        heartbeat_s=heartbeat,
        max_depth=_given(depth, MAX_DEPTH),
    )
    if profile.max_budget_nano < profile.budget_nano:
        raise fields.error("max_budget_usd", "must be at least budget_usd")
    if profile.on_clone == "child" and not profile.max_depth:
        raise fields.error("on_clone", "child needs a max_depth of at least 1")
    if profile.max_lifetime_s < profile.lifetime_s:
        raise fields.error("max_lifetime_seconds", "must be at least lifetime_seconds")
    return profile


def read_heartbeat(fields: Fields) -> int | None:
    """Take `heartbeat_seconds`; raises FieldError."""
    return fields.integer(
        "heartbeat_seconds", least=MIN_HEARTBEAT_SECONDS, most=MAX_LIFETIME_SECONDS
    )


def _scope(fields: Fields) -> Scope:
    value = fields.must("authorization_details", fields.raw("authorization_details"))
    try:
        return parse_scope(value)
    except ScopeError as error:
        raise fields.error(error.field, error.reason) from None


def _tenants(fields: Fields) -> Iterator[Tenant]:
    for name, inner in fields.children("tenants"):
        yield Tenant(
            name=name,
            profiles=inner.must("profiles", inner.names("profiles")),
            time_zone=limits.time_zone(inner, "time_zone") or UTC,
            limits=limits.read(inner),
        )
        inner.done()


def _orchestrators(fields: Fields) -> Iterator[tuple[str, str]]:
    for name, inner in fields.children("orchestrators"):
        yield name, inner.must("tenant", inner.name("tenant"))
        inner.done()
