"""What a cut-off ends beside tokens: sandboxes, their grants and a tenant are marked as revoked.

A token that is cut off could be asked for anew, so whoever could ask is marked too, and stays so
until restored. Part of `revoke`, in its transaction. Each mark is one audit event, all of them
written by one statement, because a global cut-off may end thousands.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from daypass_broker import db, policy, schema
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag

_GRANTS, _SANDBOXES = schema.grant_.c, schema.sandbox.c


def subtree(
    grant: str, sandbox: str | None, now: int, *, created_before: int | None = None
) -> sa.Select[Any]:
    """Select the ids of a grant and of everything living that was bought with it, at any depth.

    What has expired by `now` (epoch seconds) is over anyway, and a sandbox could have bought ten
    thousands of those. `created_before` (epoch milliseconds) bounds the named grant alone; what was
    bought with it came later and ends with it all the same.
    """
    # The sandbox is known from the grant's row; its index keeps the walk inside its own grants.
    inside = _GRANTS.sandbox == sandbox
    top = sa.select(_GRANTS.id).where(inside, _GRANTS.id == grant)
    if created_before is not None:
        top = top.where(_GRANTS.created_at < created_before)
    tree = top.cte("subtree", recursive=True)
    below = sa.select(_GRANTS.id).where(inside, _GRANTS.parent == tree.c.id, _lives(now))
    return sa.select(tree.union(below).c.id)


def mark_subtree(act: Act, grant: str, sandbox: str | None, not_before: int) -> int:
    """Mark a grant made up to `not_before` (epoch seconds), and all below it; return how many."""
    # Read first: of an UPDATE that begins with a CTE, SQLite does not say how many rows it changed.
    before = (not_before + 1) * 1000
    tree = act.conn.execute(subtree(grant, sandbox, act.second, created_before=before))
    return _mark_grants(act, _GRANTS.id.in_(tree.scalars().all()))


def mark_sandboxes(act: Act, which: sa.ColumnElement[bool]) -> tuple[int, int]:
    """Mark sandboxes and the living grants bought in them; return how many of each.

    Root grants keep their state: they are what a sandbox is restored to.
    """
    ended = sa.select(_SANDBOXES.id).where(which)
    bought = _GRANTS.parent.is_not(None) & _lives(act.second)
    grants = _mark_grants(act, bought & _GRANTS.sandbox.in_(ended))
    _tell(act, AuditTag.SANDBOX_REVOKED, _SANDBOXES.id, sa.select().where(which))
    marked = act.conn.execute(sa.update(schema.sandbox).where(which).values(state="revoked"))
    return marked.rowcount, grants


def mark_ended(act: Act, sandbox: str, not_before: int | None = None) -> int:
    """Mark the root grant of a workload's sandbox that has ended; return how many.

    Its rule may give the workload a new one after the deadline of that; now it must not. With
    `not_before` (epoch seconds) only one that was begun up to then.
    """
    ended = sa.select(_SANDBOXES.id).where(
        _SANDBOXES.id == sandbox, _SANDBOXES.state == "ended", _SANDBOXES.launch == policy.ATTESTED
    )
    if not_before is not None:
        ended = ended.where(_SANDBOXES.launch_iat <= not_before)
    return _mark_grants(act, _GRANTS.parent.is_(None) & _GRANTS.sandbox.in_(ended))


def close_tenant(act: Act, tenant: str) -> int:
    """Let nothing be issued to a tenant any more; return 1, or 0 when it was closed before."""
    table = schema.tenant
    open_one = (table.c.id == tenant) & (table.c.state == "active")
    closed = act.conn.execute(
        sa.update(table).where(open_one).values(state="revoked", updated_at=act.at)
    ).rowcount
    if closed:
        act.tell(AuditTag.TENANT_REVOKED, tenant=tenant, subject=tenant)
    return closed


def _lives(now: int) -> sa.ColumnElement[bool]:
    return _GRANTS.expires_at > now


def _mark_grants(act: Act, which: sa.ColumnElement[bool]) -> int:
    active = which & (_GRANTS.state == "active")
    joined = sa.select().where(active, _SANDBOXES.id == _GRANTS.sandbox)
    _tell(act, AuditTag.GRANT_REVOKED, _GRANTS.id, joined)
    return act.conn.execute(sa.update(schema.grant_).where(active).values(state="revoked")).rowcount


def _tell(act: Act, tag: AuditTag, subject: sa.Column[str], chosen: sa.Select[Any]) -> None:
    """Append one event a row of `chosen`, which selects from sandboxes."""
    values: dict[str, sa.ColumnElement[Any]] = {
        "at": sa.literal(act.at, sa.BigInteger),
        "tag": sa.literal(tag.value, sa.Text),
        "actor": sa.literal(act.actor, sa.Text),
        "tenant": _SANDBOXES.tenant,
        "sandbox": _SANDBOXES.id,
        "subject": subject,
        "detail": sa.literal(db.to_json({}), sa.Text),
        "request_id": sa.literal(act.request_id, sa.Text),
    }
    rows = chosen.add_columns(*values.values()).order_by(subject)
    act.conn.execute(sa.insert(schema.audit).from_select(list(values), rows))
