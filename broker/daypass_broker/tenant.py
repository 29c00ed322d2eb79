"""Tenants: looked up, and taken back into service after a revocation closed one.

A closed tenant can register no sandbox and be issued no token. Which sandboxes it had stays a
question of its own: each is restored by itself, or made anew.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from daypass_broker import schema
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.credential import Principal
from daypass_core.problem import Code, refuse


def search(conn: sa.Connection, principal: Principal) -> list[sa.Row[Any]]:
    """Return every tenant this principal may see, by name, with how many sandboxes are active."""
    tenants, sandboxes = schema.tenant, schema.sandbox.c
    active = (
        sa.select(sa.func.count())
        .where(sandboxes.tenant == tenants.c.id, sandboxes.state == "active")
        .scalar_subquery()
    )
    query = sa.select(tenants, active.label("sandboxes")).order_by(tenants.c.id)
    if principal.tenant is not None:
        query = query.where(tenants.c.id == principal.tenant)
    return list(conn.execute(query))


def restore(act: Act, principal: Principal, tenant: str) -> sa.Row[Any]:
    """Open a closed tenant again; whatever was issued before stays ended.

    The act was opened with `revocation.share_version`. Raises Refusal: not an admin, not found, not
    closed.
    """
    if not principal.is_admin:
        raise refuse(Code.FORBIDDEN, "restoring is for admins only")
    table = schema.tenant
    row = act.conn.execute(sa.select(table).where(table.c.id == tenant).with_for_update()).first()
    if row is None:
        raise refuse(Code.NOT_FOUND, "no such tenant")
    if row.state != "revoked":
        raise refuse(Code.CONFLICT, f"tenant is {row.state}, not revoked", field="state")
    act.conn.execute(
        sa.update(table).where(table.c.id == tenant).values(state="active", updated_at=act.at)
    )
    act.tell(AuditTag.TENANT_RESTORED, tenant=tenant, subject=tenant)
    (restored,) = (found for found in search(act.conn, principal) if found.id == tenant)
    return restored
