"""The rows of revocations and their version, which proxies poll.

Whoever revokes takes the version row first, FOR UPDATE; whoever issues takes it first, FOR SHARE.
So a revocation sees everything issued before it, and nothing is issued past it unseen. On SQLite
the write transaction is that lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from daypass_broker import schema
from daypass_broker.act import Act
from daypass_core.revocation import CHANNEL, Revocation, RevocationSet

GLOBAL_IDENT = "*"

# Rows live as long as anything they end could. That is a launch credential, which lives a day and
# is named by scope jti as well; a minute on top covers the leeway of verifiers and clocks.
_MARGIN_SECONDS = 60
_DAY_SECONDS = 24 * 3600 + _MARGIN_SECONDS
# A key must not come back by waiting: its row has no end (year 9999) while the key is known.
_NEVER = 253_402_300_799


def lock_version(conn: sa.Connection) -> int:
    """Take the version row FOR UPDATE and return the version; the first lock of a revocation."""
    return _version(conn, share=False)


def share_version(conn: sa.Connection) -> int:
    """Take the version row FOR SHARE and return the version; the first lock of an issuing."""
    return _version(conn, share=True)


def current_version(conn: sa.Connection) -> int:
    """Return the version without any lock."""
    return int(conn.execute(sa.select(schema.revocation_version.c.version)).scalar_one())


def append(
    act: Act,
    scope: str,
    ident: str,
    not_before: int | None,
    reason: str,
    *,
    until: int | None = None,
) -> sa.Row[Any]:
    """Write one row at the next version and return it; the caller holds `lock_version`.

    `not_before` (epoch seconds) makes it a cut-off, None absolute. `until` is when nothing that it
    ends is left, where that is known to be sooner than for others.
    """
    table = schema.revocation
    prune(act)
    version = lock_version(act.conn) + 1
    row_id = act.new_id("rev")
    usual = _expiry(scope, act.second if not_before is None else not_before)
    act.conn.execute(sa.update(schema.revocation_version).values(version=version))
    if act.conn.dialect.name == "postgresql":
        # Sent by the commit. Proxies poll the version anyway; this makes them look at once.
        act.conn.exec_driver_sql(f"NOTIFY {CHANNEL}")
    act.conn.execute(
        sa.insert(table).values(
            id=row_id,
            scope=scope,
            ident=ident,
            not_before=not_before,
            expires_at=usual if until is None else min(until, usual),
            reason=reason,
            actor=act.actor,
            created_at=act.at,
            version=version,
        )
    )
    _drop_superseded(act, row_id, scope, ident, not_before)
    return act.conn.execute(sa.select(table).where(table.c.id == row_id)).one()


def _drop_superseded(act: Act, row_id: str, scope: str, ident: str, not_before: int | None) -> None:
    """Remove rows that the new one says again or says less: many would slow every reload down.

    The audit trail keeps what was revoked when, and by whom.
    """
    table = schema.revocation
    same = (table.c.scope == scope) & (table.c.ident == ident) & (table.c.id != row_id)
    if not_before is not None:
        same &= table.c.not_before <= not_before
    act.conn.execute(sa.delete(table).where(same))


def cut_off(
    conn: sa.Connection, tenant: str, sandbox: str | None = None, grants: Sequence[str] = ()
) -> int | None:
    """Return the latest second (epoch) whose tokens are ended for these, None without a cut-off."""
    row = schema.revocation.c
    concerned = sa.or_(
        row.scope == "global",
        (row.scope == "tenant") & (row.ident == tenant),
        (row.scope == "sandbox") & (row.ident == sandbox),
        (row.scope == "grant") & row.ident.in_(grants),
    )
    return conn.execute(sa.select(sa.func.max(row.not_before)).where(concerned)).scalar()


def in_force(conn: sa.Connection, named: Mapping[str, Collection[str]]) -> RevocationSet:
    """Return the revocations that name one of these, by scope, and the global ones."""
    table = schema.revocation
    concerned = sa.or_(
        table.c.scope == "global",
        *((table.c.scope == scope) & table.c.ident.in_(idents) for scope, idents in named.items()),
    )
    rows = conn.execute(
        sa.select(table.c.scope, table.c.ident, table.c.not_before, table.c.expires_at).where(
            concerned
        )
    )
    return RevocationSet.from_rows(
        Revocation(row.scope, row.ident, row.not_before, row.expires_at) for row in rows
    )


def newest(conn: sa.Connection, tenant: str | None, *, limit: int) -> list[sa.Row[Any]]:
    """Return revocations, newest first; with a tenant those that name something of it."""
    table = schema.revocation
    query = sa.select(table).order_by(table.c.version.desc()).limit(limit)
    if tenant is not None:
        query = query.where(_of_tenant(tenant))
    return list(conn.execute(query))


def _version(conn: sa.Connection, *, share: bool) -> int:
    query = sa.select(schema.revocation_version.c.version)
    return int(conn.execute(query.with_for_update(read=share)).scalar_one())


def _expiry(scope: str, start: int) -> int:
    return _NEVER if scope == "kid" else start + _DAY_SECONDS


def prune(act: Act) -> int:
    """Remove rows that can end nothing any more: their absence changes no verdict. Return how many.

    The caller holds `lock_version`, or is about to take it.
    """
    table = schema.revocation
    unknown_key = (table.c.scope == "kid") & ~table.c.ident.in_(sa.select(schema.signing_key.c.kid))
    old = table.c.created_at < act.at - _DAY_SECONDS * 1000
    dead = (table.c.expires_at < act.second) | (unknown_key & old)
    return act.conn.execute(sa.delete(table).where(dead)).rowcount


def _of_tenant(tenant: str) -> sa.ColumnElement[bool]:
    row, sandboxes = schema.revocation.c, schema.sandbox.c
    mine = sa.select(sandboxes.id).where(sandboxes.tenant == tenant)
    grants = sa.select(schema.grant_.c.id).where(schema.grant_.c.sandbox.in_(mine))
    tokens = sa.select(schema.token.c.jti).where(schema.token.c.tenant == tenant)
    launches = sa.select(sandboxes.launch_jti).where(sandboxes.tenant == tenant)
    replaced = sa.select(sandboxes.previous_launch_jti).where(
        sandboxes.tenant == tenant, sandboxes.previous_launch_jti.is_not(None)
    )
    jtis = sa.union_all(tokens, launches, replaced)
    return sa.or_(
        (row.scope == "tenant") & (row.ident == tenant),
        (row.scope == "sandbox") & row.ident.in_(mine),
        (row.scope == "grant") & row.ident.in_(grants),
        (row.scope == "jti") & row.ident.in_(jtis),
    )
