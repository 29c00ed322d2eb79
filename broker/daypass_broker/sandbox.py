"""Sandboxes: made, ended, restored, given a new launch credential; and looked up.

Making one writes its row, its root grant and its account. Nothing here holds a token: the launch
credential is signed afterwards from `launch_jti` and `launch_iat`, so the same row always gives the
same credential. Acts that issue share the version row of revocations, acts that end lock it. What
happens to a sandbox between those two is in `life`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from daypass_broker import (
    account,
    db,
    ended,
    idempotency,
    lineage,
    policy,
    revocation,
    sandbox_request,
    schema,
)
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.credential import Principal
from daypass_broker.limits import Value
from daypass_broker.policy import Allotment, Profile, Tenant
from daypass_broker.sandbox_request import SandboxRequest
from daypass_core.claims import account_id
from daypass_core.problem import Code, refuse
from daypass_core.scope import scope_to_wire
from daypass_core.source import ANY, FIRST

# A client that has just read the old launch credential still gets its token with it.
LAUNCH_GRACE_MS = 60_000
LINGER_SECONDS = 300
"""How long the end of a sandbox is told at least: by then every proxy has heard it, or cut all."""


def create(
    act: Act,
    principal: Principal,
    request: SandboxRequest,
    *,
    min_token_ttl: int,
    key: idempotency.Key | None = None,
) -> list[sa.Row[Any]]:
    """Make the sandboxes of a request, or find those the same key made before.

    The act was opened with `revocation.share_version`. Raises Refusal naming the field.
    """
    ids = [act.new_id("sbx") for _ in range(request.count or 1)]
    if key is not None:
        earlier = idempotency.claim(act, key, ids)
        if earlier is not None:
            return [one(act.conn, sandbox_id) for sandbox_id in earlier]
    tenant, profile = sandbox_request.find_profile(act.conn, principal, request)
    allotment = policy.allot(profile, tenant, request.wish, min_token_ttl=min_token_ttl)
    check_reachable(request.connect, allotment.source)
    issued_at = _after(act, revocation.cut_off(act.conn, tenant.name))
    for sandbox_id in ids:
        _insert(act, sandbox_id, tenant, profile, request, allotment, issued_at)
    return [one(act.conn, sandbox_id) for sandbox_id in ids]


def get(conn: sa.Connection, principal: Principal, sandbox_id: str) -> sa.Row[Any]:
    """Return a sandbox with its account; raises Refusal (not found, also for other tenants')."""
    row = conn.execute(_with_account().where(schema.sandbox.c.id == sandbox_id)).first()
    if row is None or not principal.may_see(row.tenant):
        raise refuse(Code.NOT_FOUND, "no such sandbox")
    return row


def search(
    conn: sa.Connection,
    principal: Principal,
    *,
    tenant: str | None = None,
    state: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[sa.Row[Any]]:
    """Return sandboxes, newest first, after the one with id `after`.

    `state` is idle, active, expired (active past its deadline), ended or revoked.
    """
    columns = schema.sandbox.c
    query = _with_account().order_by(columns.created_at.desc(), columns.id.desc()).limit(limit)
    for wanted in (tenant, principal.tenant):
        if wanted is not None:
            query = query.where(columns.tenant == wanted)
    if state is not None:
        query = query.where(_in_state(state, db.now_ms(conn) // 1000))
    if after is not None:
        created_at = get(conn, principal, after).created_at
        older = columns.created_at < created_at
        query = query.where(older | ((columns.created_at == created_at) & (columns.id < after)))
    return list(conn.execute(query))


def end(act: Act, principal: Principal, sandbox_id: str) -> sa.Row[Any]:
    """End a sandbox for good; ending it again changes nothing.

    Whose workload would get a new one after its deadline: not any more, also if that has passed.
    The act was opened with `revocation.lock_version`. Raises Refusal (not found).
    """
    row = locked(act, principal, sandbox_id)
    if row.state != "ended":
        close(act, row, "asked")
    ended.mark_ended(act, sandbox_id)
    return one(act.conn, sandbox_id)


def close(act: Act, row: sa.Row[Any], cause: str) -> None:
    """End a sandbox that has not ended, whose row is locked; `cause` is told to the audit.

    The act was opened with `revocation.lock_version`.
    """
    update(act, row.id, state="ended", ended_at=act.at)
    # Nothing of it outlives its deadline. A row of a day for each would slow every reload down.
    until = max(row.deadline, act.second) + LINGER_SECONDS
    written = revocation.append(act, "sandbox", row.id, None, "sandbox ended", until=until)
    tell(act, AuditTag.SANDBOX_ENDED, row, {"cause": cause, "revocation": written.id})


def restore(act: Act, principal: Principal, sandbox_id: str) -> sa.Row[Any]:
    """Take back the revocation of a sandbox and its root grant, with a new launch credential.

    Everything issued before the cut-off stays ended. The act was opened with
    `revocation.share_version`. Raises Refusal: not an admin, not found, not revoked, too late.
    """
    if not principal.is_admin:
        raise refuse(Code.FORBIDDEN, "restoring is for admins only")
    row = locked(act, principal, sandbox_id)
    if row.state != "revoked":
        raise refuse(Code.CONFLICT, f"sandbox is {row.state}, not revoked", field="state")
    # One that was never given out goes back to the pool: its time has not begun.
    was_idle = row.activated_at is None
    if not was_idle:
        _check_deadline(act, row)
    grants = schema.grant_
    root = (grants.c.sandbox == sandbox_id) & grants.c.parent.is_(None)
    act.conn.execute(sa.update(grants).where(root).values(state="active"))
    if was_idle:
        update(act, sandbox_id, state="idle")
    else:
        # Nobody could say that it lives while it was revoked.
        replaced = {"previous_launch_jti": None, "previous_launch_until_at": None}
        renew_launch(act, row, state="active", heartbeat_at=act.at, **replaced)
    tell(act, AuditTag.SANDBOX_RESTORED, row, {})
    return one(act.conn, sandbox_id)


def limit(
    act: Act, principal: Principal, sandbox_id: str, wanted: Mapping[str, Value | None]
) -> sa.Row[Any]:
    """Change limits of a live sandbox, by column; None takes a limit away.

    The next call meets them. The act was opened with `revocation.share_version`. Raises Refusal:
    not found, ended, or naming the field of which somebody who is not an admin wants more.
    """
    row = locked(act, principal, sandbox_id)
    if row.state == "ended":
        raise refuse(Code.CONFLICT, "sandbox is ended", field="state")
    account.change(act, principal, row, wanted)
    return one(act.conn, sandbox_id)


def replace_launch(act: Act, principal: Principal, sandbox_id: str) -> sa.Row[Any]:
    """Give a sandbox a new launch credential; the one before it dies in `LAUNCH_GRACE_MS`.

    A sandbox that is bound to its first address may begin anew from another one; its old credential
    and renewals die at once, since they could be the first. The act was opened with
    `revocation.share_version`. Raises Refusal: not found, not active, attested.
    """
    row = locked(act, principal, sandbox_id)
    if row.launch == policy.ATTESTED:
        told = "sandbox is attested by its workload identity: it has no launch credential"
        raise refuse(Code.CONFLICT, told, field="launch")
    if row.state != "active":
        raise refuse(Code.CONFLICT, f"sandbox is {row.state}, not active", field="state")
    _check_deadline(act, row)
    grace = 0 if row.source == FIRST else LAUNCH_GRACE_MS
    renew_launch(
        act, row, previous_launch_jti=row.launch_jti, previous_launch_until_at=act.at + grace
    )
    tell(act, AuditTag.LAUNCH_REPLACED, row, {"replaced": row.launch_jti})
    return one(act.conn, sandbox_id)


def _insert(
    act: Act,
    sandbox_id: str,
    tenant: Tenant,
    profile: Profile,
    request: SandboxRequest,
    allotment: Allotment,
    issued_at: int,
) -> None:
    # Of an idle sandbox the two say how long it will live; `life.activate` moves both.
    deadline = issued_at + allotment.lifetime_s
    vendor = request.vendor
    scope = db.to_json(scope_to_wire(allotment.scope))
    act.conn.execute(
        sa.insert(schema.sandbox).values(
            id=sandbox_id,
            tenant=tenant.name,
            profile=profile.name,
            state="idle" if request.idle else "active",
            launch=allotment.launch,
            launch_jti=act.new_id("lch"),
            launch_iat=issued_at,
            scope=scope,
            token_ttl_s=allotment.token_ttl_s,
            labels=db.to_json(request.labels),
            connect=request.connect,
            bucket_level=policy.ISSUANCE_BUCKET,
            bucket_at=act.at,
            deadline=deadline,
            created_by=act.actor,
            created_at=act.at,
            source=allotment.source,
            on_clone=allotment.on_clone,
            heartbeat_s=allotment.heartbeat_s,
            heartbeat_at=act.at,
            activated_at=None if request.idle else act.at,
            vendor=None if vendor is None else vendor.name,
            vendor_id=None if vendor is None else vendor.ident,
        )
    )
    grant_id = act.new_id("grt")
    act.conn.execute(
        sa.insert(schema.grant_).values(
            id=grant_id,
            sandbox=sandbox_id,
            scope=scope,
            expires_at=deadline,
            state="active",
            created_at=act.at,
        )
    )
    account.make(act, sandbox_id, tenant, allotment.limits)
    told = {"profile": profile.name, "deadline": deadline, "limits": allotment.limits.given()}
    where = {"tenant": tenant.name, "sandbox": sandbox_id}
    act.tell(AuditTag.SANDBOX_CREATED, **where, subject=sandbox_id, detail=told)
    act.tell(AuditTag.GRANT_ISSUED, **where, subject=grant_id, detail={"expires_at": deadline})


def _after(act: Act, cut_off: int | None) -> int:
    """Return the `iat` of a launch credential made now: after the cut-off, at most a second on.

    A cut-off of this very second would otherwise end what is only just being made.
    """
    return act.second if cut_off is None else max(act.second, cut_off + 1)


def renew_launch(act: Act, row: sa.Row[Any], **values: object) -> int:
    """Give a row a new launch credential, unspent and bound nowhere; return its `iat`.

    An attested one stays where it is bound: it has no new credential, and an assertion of before,
    wherever it is, must not come first. `values` are further columns.
    """
    if row.launch != policy.ATTESTED:
        values |= {"source_bound": None}
        if row.source == FIRST:
            lineage.supersede(act, row)
    roots = sa.select(schema.grant_.c.id).where(
        schema.grant_.c.sandbox == row.id, schema.grant_.c.parent.is_(None)
    )
    grants = act.conn.execute(roots).scalars().all()
    cut_off = revocation.cut_off(act.conn, row.tenant, row.id, grants)
    issued_at = _after(act, cut_off)
    update(
        act,
        row.id,
        launch_jti=act.new_id("lch"),
        launch_iat=issued_at,
        launch_used_at=None,
        **values,
    )
    return issued_at


def check_reachable(connect: str, source: str) -> None:
    """Refuse a binding that nobody could meet: a client of a Unix socket has no address."""
    if connect == "socket" and source != ANY:
        raise refuse(
            Code.INVALID_REQUEST,
            "connect: a sandbox on a Unix socket has no address to be bound to: use direct, or"
            " source any",
            field="connect",
        )


def update(act: Act, sandbox_id: str, **values: object) -> None:
    """Write columns of a sandbox's row."""
    table = schema.sandbox
    act.conn.execute(sa.update(table).where(table.c.id == sandbox_id).values(**values))


def _check_deadline(act: Act, row: sa.Row[Any]) -> None:
    # One second more than now, because a launch credential may have to start in the next one.
    if row.deadline <= act.second + 1:
        raise refuse(Code.CONFLICT, "deadline has passed: make a new sandbox", field="deadline")


def locked(act: Act, principal: Principal, sandbox_id: str) -> sa.Row[Any]:
    """Lock a sandbox and return it with its account; raises Refusal (not found)."""
    table = schema.sandbox
    act.conn.execute(sa.select(table.c.id).where(table.c.id == sandbox_id).with_for_update())
    return get(act.conn, principal, sandbox_id)


def one(conn: sa.Connection, sandbox_id: str) -> sa.Row[Any]:
    """Return a sandbox that there is, with its account."""
    return conn.execute(_with_account().where(schema.sandbox.c.id == sandbox_id)).one()


def _with_account() -> sa.Select[Any]:
    columns = schema.account.c
    amounts = (columns.ceiling_nano, columns.spent_nano, columns.reserved_nano)
    aside = (columns.lent_nano, columns.lent_used_nano)
    # By its id, which is the key: grants below have accounts of the same sandbox.
    own = columns.id == sa.literal(account_id("")) + schema.sandbox.c.id
    joined = schema.sandbox.outerjoin(schema.account, own)
    return sa.select(schema.sandbox, *amounts, *aside, columns.overdraft_nano).select_from(joined)


def _in_state(state: str, now: int) -> sa.ColumnElement[bool]:
    columns = schema.sandbox.c
    if state == "expired":
        return (columns.state == "active") & (columns.deadline <= now)
    if state == "active":
        return (columns.state == "active") & (columns.deadline > now)
    return columns.state == state


def tell(act: Act, tag: AuditTag, row: sa.Row[Any], detail: dict[str, object]) -> None:
    """Tell the audit what became of a sandbox."""
    act.tell(tag, tenant=row.tenant, sandbox=row.id, subject=row.id, detail=detail)
