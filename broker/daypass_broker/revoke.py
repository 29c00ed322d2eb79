"""Revoking: find what is meant, write the row, mark what it ends, tell the audit; one transaction.

A cut-off marks the sandboxes and grants it ends as revoked, because an attested workload could
always ask anew; they stay so until restored. Revoking a grant ends everything bought with it;
revoking a tenant closes it until it is restored, unless the order is for what was issued up to a
moment only. One key (`kid`) or one token (`jti`) is absolute and marks no sandbox: other keys and
the next token are fine. What a token has bought ends with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from daypass_broker import ended, revocation, schema
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.credential import Principal
from daypass_broker.revocation import GLOBAL_IDENT
from daypass_core.problem import Code, Refusal, refuse

ABSOLUTE_SCOPES = ("kid", "jti")
_ADMIN_SCOPES = ("global", "kid")


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be revoked; `not_before` is epoch seconds, None means now.

    `bounded` orders end what was issued up to then and no more: they close no tenant.
    """

    scope: str
    ident: str = GLOBAL_IDENT
    not_before: int | None = None
    reason: str = ""
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """The row as written, how much it marked revoked, and how many live access tokens it ends."""

    row: sa.Row[Any]
    sandboxes: int = 0
    grants: int = 0
    tenants: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """Whose thing it is; None where it is nobody's."""

    tenant: str | None = None
    sandbox: str | None = None


def revoke(act: Act, principal: Principal, order: Order, known: Target | None = None) -> Effect:
    """Carry out an order; the act was opened with `revocation.lock_version`.

    `known` is whose it is where a verified token says so: such a token is revoked also when the
    store has no record of it. Raises Refusal: a scope this principal may not use, something unknown
    (or of another tenant, which is the same to them), a cut-off in the future.
    """
    if order.scope in _ADMIN_SCOPES and not principal.is_admin:
        raise refuse(Code.FORBIDDEN, f"scope: {order.scope} is for admins only", field="scope")
    target = known or _find(act.conn, order)
    if target is None or (target.tenant and not principal.may_see(target.tenant)):
        raise refuse(Code.NOT_FOUND, f"ident: no such {order.scope}", field="ident")
    tokens = _tokens(act, order, target)
    not_before = _cut_off(order, _now(act, tokens))
    # The row itself comes last, so that its version is the one that says all of it.
    bought = _end_bought(act, principal, order, target) if order.scope == "jti" else []
    row = _write(act, order, target, not_before)
    effect = Effect(
        row,
        grants=sum(one.grants for one in bought),
        tokens=sum(one.tokens for one in bought) + _live(act, tokens, not_before),
    )
    return effect if not_before is None else _mark(act, order, target, not_before, effect)


def _write(act: Act, order: Order, target: Target, not_before: int | None) -> sa.Row[Any]:
    """Write the row and tell it."""
    row = revocation.append(act, order.scope, order.ident, not_before, order.reason)
    act.tell(
        AuditTag.REVOCATION_CREATED,
        tenant=target.tenant,
        sandbox=target.sandbox,
        subject=row.id,
        detail={
            "scope": order.scope,
            "ident": order.ident,
            "not_before": not_before,
            "reason": order.reason,
            "version": row.version,
        },
    )
    return row


def _end_bought(act: Act, principal: Principal, order: Order, target: Target) -> list[Effect]:
    """Revoke the grants that a token has bought: a thief of it would go on with one of those."""
    grants = schema.grant_.c
    bought = sa.select(grants.id).where(
        grants.sandbox == target.sandbox,
        grants.bought_with == order.ident,
        # A row for each that is over would only slow every proxy down.
        grants.expires_at > act.second,
    )
    orders = [
        Order("grant", grant, reason=order.reason) for grant in act.conn.execute(bought).scalars()
    ]
    return [revoke(act, principal, one, target) for one in orders]


def _mark(act: Act, order: Order, target: Target, not_before: int, so_far: Effect) -> Effect:
    """Mark what a cut-off ends; return the effect with what was marked."""
    grants = tenants = 0
    if order.scope == "grant":
        grants = ended.mark_subtree(act, order.ident, target.sandbox, not_before)
    if order.scope == "sandbox":
        grants = ended.mark_ended(act, order.ident, not_before)
    sandboxes, bought = ended.mark_sandboxes(act, _sandboxes(order, target, not_before))
    if order.scope == "tenant" and not (order.bounded or order.not_before is not None):
        tenants = ended.close_tenant(act, order.ident)
    return replace(so_far, sandboxes=sandboxes, grants=grants + bought, tenants=tenants)


def _find(conn: sa.Connection, order: Order) -> Target | None:
    """Return whose the thing is, None when there is none: a typing error must not look done."""
    sandboxes, tokens, grants = schema.sandbox.c, schema.token.c, schema.grant_.c
    if order.scope == "global":
        return Target()
    if order.scope == "kid":
        keys = schema.signing_key.c
        return None if _first(conn, keys.kid == order.ident, keys.kid) is None else Target()
    if order.scope == "tenant":
        row = _first(conn, schema.tenant.c.id == order.ident, schema.tenant.c.id)
    elif order.scope == "sandbox":
        row = _first(conn, sandboxes.id == order.ident, sandboxes.tenant, sandboxes.id)
    elif order.scope == "grant":
        mine = (grants.id == order.ident) & (grants.sandbox == sandboxes.id)
        row = _first(conn, mine, sandboxes.tenant, sandboxes.id)
    else:
        # A launch credential that was replaced still works for a minute.
        launch = sa.literal(order.ident).in_((sandboxes.launch_jti, sandboxes.previous_launch_jti))
        row = _first(conn, tokens.jti == order.ident, tokens.tenant, tokens.sandbox) or _first(
            conn, launch, sandboxes.tenant, sandboxes.id
        )
    return None if row is None else Target(*row)


def _first(
    conn: sa.Connection, where: sa.ColumnElement[bool], *columns: sa.Column[Any]
) -> sa.Row[Any] | None:
    return conn.execute(sa.select(*columns).where(where)).first()


def _tokens(act: Act, order: Order, target: Target) -> sa.ColumnElement[bool]:
    """Return which access tokens the order is about, whatever their times."""
    tokens = schema.token.c
    if order.scope == "grant":
        return tokens.grant_id.in_(ended.subtree(order.ident, target.sandbox, act.second))
    named = {
        "tenant": tokens.tenant,
        "sandbox": tokens.sandbox,
        "kid": tokens.kid,
        "jti": tokens.jti,
    }
    return sa.true() if order.scope == "global" else named[order.scope] == order.ident


def _now(act: Act, tokens: sa.ColumnElement[bool]) -> int:
    """Return the second that "now" is for this order: not before any token it is to end.

    The database's clock may have gone back (a fail-over), and brokers do not follow it there.
    """
    live = tokens & (schema.token.c.exp > act.second)
    newest = act.conn.execute(sa.select(sa.func.max(schema.token.c.iat)).where(live)).scalar()
    return max(act.second, newest or 0)


def _live(act: Act, tokens: sa.ColumnElement[bool], not_before: int | None) -> int:
    """Count the access tokens that could still be used and end now."""
    columns = schema.token.c
    which = tokens & (columns.exp > act.second)
    if not_before is not None:
        which &= columns.iat <= not_before
    return int(act.conn.execute(sa.select(sa.func.count()).where(which)).scalar_one())


def _cut_off(order: Order, now: int) -> int | None:
    if order.scope in ABSOLUTE_SCOPES:
        if order.not_before is not None:
            raise _bad_cut_off(f"scope {order.scope} is absolute, leave it out")
        return None
    if order.not_before is None:
        return now
    if order.not_before > now:
        # What has not been issued yet cannot be taken back, and nobody could renew until then.
        raise _bad_cut_off("must not be in the future")
    return order.not_before


def _bad_cut_off(reason: str) -> Refusal:
    return refuse(Code.INVALID_REQUEST, f"not_before: {reason}", field="not_before")


def _sandboxes(order: Order, target: Target, not_before: int) -> sa.ColumnElement[bool]:
    """Return which sandboxes the cut-off ends: those whose launch credential it covers."""
    sandboxes, grants = schema.sandbox.c, schema.grant_.c
    active = sandboxes.state == "active"
    if order.scope == "grant":
        # Every token of a sandbox hangs on its root grant: without that one it is over.
        root = sa.select(grants.sandbox).where(
            grants.id == order.ident,
            grants.parent.is_(None),
            grants.created_at < (not_before + 1) * 1000,
        )
        return active & sandboxes.id.in_(root)
    if order.not_before is not None:
        # As of now it is all of them, one whose launch credential starts in a second included.
        active &= sandboxes.launch_iat <= not_before
    if order.scope == "tenant":
        return active & (sandboxes.tenant == order.ident)
    if order.scope == "sandbox":
        # One that is named must not be woken either; of others nothing was issued to idle ones.
        idle = sandboxes.state == "idle"
        return (active | idle) & (sandboxes.id == order.ident)
    return active
