"""The life of a sandbox between register and end: activated, said to be alive, overdue.

A warm pool registers sandboxes idle. An idle one has neither credential nor token, so a template or
a snapshot of it is worth nothing; when it is given out it is activated, and its time begins. The
reaper ends those whose time is over.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from daypass_broker import db, policy, policy_store, sandbox, schema, source
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.credential import Principal
from daypass_broker.sandbox_request import Activation
from daypass_core.problem import Code, Refusal, refuse

IDLE_MS = 24 * 3600 * 1000
"""How long a sandbox may be idle."""


def activate(
    act: Act, principal: Principal, sandbox_id: str, activation: Activation
) -> sa.Row[Any]:
    """Give an idle sandbox out: from now it has a launch credential, a deadline and a heartbeat.

    The act was opened with `revocation.share_version`. Raises Refusal: not found, not idle, its
    tenant or itself revoked, or naming a field that goes beyond what was registered.
    """
    row = sandbox.locked(act, principal, sandbox_id)
    _check_idle(act, row)
    lifetime = row.deadline - row.launch_iat
    if activation.lifetime_s is not None and activation.lifetime_s > lifetime:
        raise _beyond("lifetime_seconds", f"must be at most {lifetime}")
    try:
        bound = source.narrowed(row.source, activation.source)
    except ValueError as error:
        raise _beyond("source", str(error)) from None
    sandbox.check_reachable(row.connect, bound)
    issued_at = sandbox.renew_launch(
        act,
        row,
        state="active",
        source=bound,
        labels=db.to_json({**db.from_json(row.labels), **activation.labels}),
        bucket_level=policy.ISSUANCE_BUCKET,
        bucket_at=act.at,
        activated_at=act.at,
        heartbeat_at=act.at,
        **_vendor(activation),
    )
    deadline = issued_at + (activation.lifetime_s or lifetime)
    sandbox.update(act, sandbox_id, deadline=deadline)
    grants = schema.grant_.c
    act.conn.execute(
        sa.update(schema.grant_).where(grants.sandbox == sandbox_id).values(expires_at=deadline)
    )
    sandbox.tell(act, AuditTag.SANDBOX_ACTIVATED, row, {"deadline": deadline})
    return sandbox.one(act.conn, sandbox_id)


def beat(act: Act, principal: Principal, sandbox_id: str) -> sa.Row[Any]:
    """Note that a sandbox lives. Raises Refusal: not found, not active, or too late.

    Nothing brings one back whose time is over, even before the reaper has come round.
    """
    row = sandbox.locked(act, principal, sandbox_id)
    if row.state != "active":
        raise refuse(Code.CONFLICT, f"sandbox is {row.state}, not active", field="state")
    mine = sa.select(schema.sandbox.c.id).where(schema.sandbox.c.id == row.id, overdue(act.at))
    if act.conn.execute(mine).first() is not None:
        told = "too late: its deadline or heartbeat has passed; make a new sandbox"
        raise refuse(Code.CONFLICT, told, field="state")
    sandbox.update(act, sandbox_id, heartbeat_at=act.at)
    return sandbox.one(act.conn, sandbox_id)


def overdue(now_ms: int) -> sa.ColumnElement[bool]:
    """Say in SQL which sandboxes are to be ended at this moment (epoch milliseconds)."""
    row = schema.sandbox.c
    silent = row.heartbeat_at + row.heartbeat_s * 1000 <= now_ms
    return sa.or_(
        (row.state == "active") & (row.deadline <= now_ms // 1000),
        (row.state == "active") & row.heartbeat_s.is_not(None) & silent,
        (row.state == "idle") & (row.created_at + IDLE_MS <= now_ms),
    )


def cause(row: sa.Row[Any], now_ms: int) -> str:
    """Say why an overdue sandbox is over: deadline, heartbeat or idle."""
    if row.state == "idle":
        return "idle"
    return "deadline" if row.deadline * 1000 <= now_ms else "heartbeat"


def _check_idle(act: Act, row: sa.Row[Any]) -> None:
    if row.state != "idle":
        told = f"sandbox is {row.state}, not idle"
        if row.state == "active":
            told += "; if the answer was lost, ask for a new launch credential"
        raise refuse(Code.CONFLICT, told, field="state")
    if row.created_at + IDLE_MS <= act.at:
        told = "sandbox was idle for too long; make a new one"
        raise refuse(Code.CONFLICT, told, field="state")
    found = policy_store.load_tenant(act.conn, row.tenant)
    if found is None or not found[1]:
        raise refuse(Code.FORBIDDEN, f"tenant: {row.tenant} is revoked", field="tenant")
    grants = schema.grant_.c
    root = sa.select(grants.state).where(grants.sandbox == row.id, grants.parent.is_(None))
    if act.conn.execute(root).scalar_one() != "active":
        told = "the grant of this sandbox was revoked while it was idle; make a new one"
        raise refuse(Code.CONFLICT, told, field="state")


def _vendor(activation: Activation) -> dict[str, object]:
    vendor = activation.vendor
    return {} if vendor is None else {"vendor": vendor.name, "vendor_id": vendor.ident}


def _beyond(field: str, reason: str) -> Refusal:
    told = f"{field}: {reason}, as it was registered"
    return refuse(Code.BEYOND_PROFILE, told, field=field)
