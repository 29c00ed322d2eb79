"""Revoking: find what is meant, write the row, mark what it ends, tell the audit; one transaction.

A cut-off marks the sandboxes and grants it ends as revoked, because an attested workload could
always ask anew; they stay so until restored. One key (`kid`) or one token (`jti`) is absolute and
marks nothing: other keys and the next token are fine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from daypass_broker import db, revocation, schema
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.credential import Principal
from daypass_broker.revocation import GLOBAL_IDENT
from daypass_core.problem import Code, Refusal, refuse

ABSOLUTE_SCOPES = ("kid", "jti")
_ADMIN_SCOPES = ("global", "kid")


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be revoked; `not_before` is epoch seconds, None means now."""

    scope: str
    ident: str = GLOBAL_IDENT
    not_before: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """The row as written, and how many sandboxes and grants it marked revoked."""

    row: sa.Row[Any]
    sandboxes: int
    grants: int


@dataclass(frozen=True, slots=True)
class _Target:
    """Whose thing it is; None where it is nobody's."""

    tenant: str | None = None
    sandbox: str | None = None


def revoke(act: Act, principal: Principal, order: Order) -> Effect:
    """Carry out an order; the act was opened with `revocation.lock_version`.

    Raises Refusal: a scope this principal may not use, something unknown (or of another tenant,
    which is the same to them), a cut-off in the future.
    """
    if order.scope in _ADMIN_SCOPES and not principal.is_admin:
        raise refuse(Code.FORBIDDEN, f"scope: {order.scope} is for admins only", field="scope")
    target = _find(act.conn, order)
    if target is None or (target.tenant and not principal.may_see(target.tenant)):
        raise refuse(Code.NOT_FOUND, f"ident: no such {order.scope}", field="ident")
    not_before = _cut_off(order, _now(act, order))
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
    if not_before is None:
        return Effect(row, 0, 0)
    grants = _mark_grant(act, order, target, not_before)
    return Effect(row, _mark_sandboxes(act, order, target, not_before, grants), grants)


def _find(conn: sa.Connection, order: Order) -> _Target | None:
    """Return whose the thing is, None when there is none: a typing error must not look done."""
    sandboxes, tokens, grants = schema.sandbox.c, schema.token.c, schema.grant_.c
    if order.scope == "global":
        return _Target()
    if order.scope == "kid":
        keys = schema.signing_key.c
        return None if _first(conn, keys.kid == order.ident, keys.kid) is None else _Target()
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
    return None if row is None else _Target(*row)


def _first(
    conn: sa.Connection, where: sa.ColumnElement[bool], *columns: sa.Column[Any]
) -> sa.Row[Any] | None:
    return conn.execute(sa.select(*columns).where(where)).first()


def _now(act: Act, order: Order) -> int:
    """Return the second that "now" is for this order: not before any token it is to end.

    The database's clock may have gone back (a fail-over), and brokers do not follow it there.
    """
    tokens = schema.token.c
    concerned = {
        "global": sa.true(),
        "tenant": tokens.tenant == order.ident,
        "sandbox": tokens.sandbox == order.ident,
        "grant": tokens.grant_id == order.ident,
    }.get(order.scope, sa.false())
    newest = act.conn.execute(sa.select(sa.func.max(tokens.iat)).where(concerned)).scalar()
    return max(act.second, newest or 0)


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


def _mark_grant(act: Act, order: Order, target: _Target, not_before: int) -> int:
    if order.scope != "grant":
        return 0
    grants = schema.grant_
    ended = act.conn.execute(
        sa.update(grants)
        .where(
            grants.c.id == order.ident,
            grants.c.state == "active",
            grants.c.created_at < (not_before + 1) * 1000,
        )
        .values(state="revoked")
    ).rowcount
    if ended:
        act.tell(
            AuditTag.GRANT_REVOKED,
            tenant=target.tenant,
            sandbox=target.sandbox,
            subject=order.ident,
        )
    return ended


def _mark_sandboxes(
    act: Act, order: Order, target: _Target, not_before: int, ended_grants: int
) -> int:
    """Mark active sandboxes whose launch credential the cut-off ends; tell each one's end."""
    if order.scope == "grant" and not ended_grants:
        return 0
    sandboxes = schema.sandbox.c
    ended = sandboxes.state == "active"
    if order.not_before is not None:
        # As of now it is all of them, one whose launch credential starts in a second included.
        ended &= sandboxes.launch_iat <= not_before
    if order.scope == "tenant":
        ended &= sandboxes.tenant == order.ident
    elif order.scope == "sandbox":
        ended &= sandboxes.id == order.ident
    elif order.scope == "grant":
        # Every token of a sandbox hangs on its root grant: without that one it is over.
        roots = sa.select(schema.grant_.c.id).where(schema.grant_.c.parent.is_(None))
        is_root = sa.literal(order.ident).in_(roots)
        ended = (sandboxes.state == "active") & (sandboxes.id == target.sandbox) & is_root
    _tell_ends(act, ended)
    return act.conn.execute(sa.update(schema.sandbox).where(ended).values(state="revoked")).rowcount


def _tell_ends(act: Act, ended: sa.ColumnElement[bool]) -> None:
    """Append one event a sandbox in one statement: a global cut-off may end thousands."""
    sandboxes = schema.sandbox.c
    values: dict[str, sa.ColumnElement[Any]] = {
        "at": sa.literal(act.at, sa.BigInteger),
        "tag": sa.literal(AuditTag.SANDBOX_REVOKED.value, sa.Text),
        "actor": sa.literal(act.actor, sa.Text),
        "tenant": sandboxes.tenant,
        "sandbox": sandboxes.id,
        "subject": sandboxes.id,
        "detail": sa.literal(db.to_json({}), sa.Text),
        "request_id": sa.literal(act.request_id, sa.Text),
    }
    chosen = sa.select(*list(values.values())).where(ended).order_by(sandboxes.id)
    act.conn.execute(sa.insert(schema.audit).from_select(list(values), chosen))
