"""What is asked of a new or an idle sandbox: bodies read strictly, tenant and profile found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from daypass_broker import limits, policy, policy_store, schema, source
from daypass_broker.credential import Principal
from daypass_broker.fields import Fields
from daypass_broker.policy import (
    LAUNCH_MODES,
    MAX_LIFETIME_SECONDS,
    Profile,
    Tenant,
    Wish,
)
from daypass_core.claims import MAX_ACCESS_LIFE
from daypass_core.problem import Code, Refusal, refuse
from daypass_core.scope import Scope, ScopeError, parse_scope

CONNECTS = ("direct", "socket")
MAX_COUNT = 100
_MAX_LABELS = 16
_LABEL = re.compile(r"[a-z0-9][a-z0-9._/-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Vendor:
    """Who runs the sandbox, and under which id; its webhooks name it so."""

    name: str
    ident: str


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """A well-formed request; whether it may be granted is decided in `sandbox.create`."""

    tenant: str | None = None
    profile: str | None = None
    wish: Wish = field(default_factory=Wish)
    labels: dict[str, str] = field(default_factory=dict)
    connect: str = CONNECTS[0]
    count: int | None = None
    idle: bool = False
    vendor: Vendor | None = None


@dataclass(frozen=True, slots=True)
class Activation:
    """What becomes known when an idle sandbox is given out; None leaves what was registered."""

    source: str | None = None
    lifetime_s: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    vendor: Vendor | None = None


def read(body: object) -> SandboxRequest:
    """Read a decoded body; raises FieldError naming the field."""
    fields = Fields(body)
    request = SandboxRequest(
        tenant=fields.name("tenant"),
        profile=fields.name("profile"),
        wish=Wish(
            scope=_scope(fields),
            launch=fields.text("launch", choices=LAUNCH_MODES),
            lifetime_s=fields.integer("lifetime_seconds", least=1, most=MAX_LIFETIME_SECONDS),
            token_ttl_s=fields.integer("token_ttl_seconds", least=1, most=MAX_ACCESS_LIFE),
            limits=limits.read(fields),
            source=source.read(fields),
            heartbeat_s=policy.read_heartbeat(fields),
        ),
        labels=_labels(fields),
        connect=fields.text("connect", choices=CONNECTS) or CONNECTS[0],
        count=fields.integer("count", least=1, most=MAX_COUNT),
        idle=fields.flag("idle") or False,
        vendor=_vendor(fields),
    )
    fields.done()
    if request.vendor is not None and request.count is not None:
        raise fields.error("vendor_id", "names one sandbox: leave it or count out")
    return request


def read_activation(body: object) -> Activation:
    """Read the decoded body of an activation; raises FieldError naming the field."""
    fields = Fields(body)
    activation = Activation(
        source=source.read(fields),
        lifetime_s=fields.integer("lifetime_seconds", least=1, most=MAX_LIFETIME_SECONDS),
        labels=_labels(fields),
        vendor=_vendor(fields),
    )
    fields.done()
    return activation


def find_profile(
    conn: sa.Connection, principal: Principal, request: SandboxRequest
) -> tuple[Tenant, Profile]:
    """Return the tenant and profile a request means; raises Refusal naming the field.

    Left out, they are what there is no choice about: an orchestrator's own tenant, the only tenant,
    the only profile of the tenant.
    """
    named = request.tenant or principal.tenant or _only_tenant(conn)
    found = policy_store.load_tenant(conn, named)
    if found is None or not principal.may_see(named):
        raise refuse(Code.NOT_FOUND, f"tenant: no tenant {named}", field="tenant")
    tenant, active = found
    if not active:
        raise refuse(Code.FORBIDDEN, f"tenant: {named} is revoked", field="tenant")
    allowed = tenant.profiles
    name = request.profile or (allowed[0] if len(allowed) == 1 else None)
    if name is None:
        raise _must_choose("profile", allowed)
    profile = policy_store.load_profile(conn, name) if name in allowed else None
    if profile is None:
        raise refuse(
            Code.BEYOND_PROFILE,
            f"profile: tenant {named} may use {', '.join(allowed)}",
            field="profile",
        )
    return tenant, profile


def _only_tenant(conn: sa.Connection) -> str:
    tenants = conn.execute(sa.select(schema.tenant.c.id).order_by(schema.tenant.c.id)).scalars()
    names = [str(name) for name in tenants]
    if len(names) != 1:
        raise _must_choose("tenant", names)
    return names[0]


def _must_choose(field_name: str, names: Sequence[str]) -> Refusal:
    if names:
        words = f"is missing: choose one of {', '.join(names[:20])}"
    else:
        words = "is missing, and there is none yet: apply a policy"
    return refuse(Code.INVALID_REQUEST, f"{field_name}: {words}", field=field_name)


def _scope(fields: Fields) -> Scope | None:
    value = fields.raw("authorization_details")
    if value is None:
        return None
    try:
        return parse_scope(value)
    except ScopeError as error:
        raise fields.error(error.field, error.reason) from None


def _vendor(fields: Fields) -> Vendor | None:
    name, ident = fields.name("vendor"), fields.text("vendor_id", longest=128)
    if name is None and ident is None:
        return None
    return Vendor(fields.must("vendor", name), fields.must("vendor_id", ident))


def _labels(fields: Fields) -> dict[str, str]:
    value = fields.raw("labels")
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MAX_LABELS:
        raise fields.error("labels", f"must be an object of at most {_MAX_LABELS} texts")
    inner = Fields(value, fields.at("labels"))
    labels: dict[str, str] = {}
    for name in value:
        if not _LABEL.fullmatch(name):
            raise fields.error("labels", f"names must match {_LABEL.pattern}")
        labels[name] = inner.must(name, inner.text(name))
    return labels
