"""Audit events and incident counters: written in the transaction of the act, and read back.

An event row exists exactly when the act was committed. Refusals of known subjects are counted, one
row per (subject, kind, minute), so that nobody can fill the disk by being refused; strangers'
refusals never write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from daypass_broker import db, schema, times

_MINUTE_MS = 60_000


class AuditTag(StrEnum):
    """Every audit event there is; grammar `subject.verb-past`, alphabetical."""

    AUDIT_PRUNED = "audit.pruned"
    CREDENTIAL_ISSUED = "credential.issued"
    CREDENTIAL_REVOKED = "credential.revoked"
    GRANT_ISSUED = "grant.issued"
    GRANT_RETURNED = "grant.returned"
    GRANT_REVOKED = "grant.revoked"
    KEY_ACTIVATED = "key.activated"
    KEY_PREPARED = "key.prepared"
    KEY_RETIRED = "key.retired"
    LAUNCH_REPLACED = "launch.replaced"
    LINEAGE_QUARANTINED = "lineage.quarantined"
    LINEAGE_ROTATED = "lineage.rotated"
    LINEAGE_STARTED = "lineage.started"
    POLICY_APPLIED = "policy.applied"
    REVOCATION_CREATED = "revocation.created"
    RULE_CREATED = "rule.created"
    RULE_DISABLED = "rule.disabled"
    RULE_ENABLED = "rule.enabled"
    RULE_REMOVED = "rule.removed"
    SANDBOX_ACTIVATED = "sandbox.activated"
    SANDBOX_CREATED = "sandbox.created"
    SANDBOX_ENDED = "sandbox.ended"
    SANDBOX_ENROLLED = "sandbox.enrolled"
    SANDBOX_LIMITED = "sandbox.limited"
    SANDBOX_PAUSED = "sandbox.paused"
    SANDBOX_RESTORED = "sandbox.restored"
    SANDBOX_REVOKED = "sandbox.revoked"
    SOURCE_PINNED = "source.pinned"
    TENANT_RESTORED = "tenant.restored"
    TENANT_REVOKED = "tenant.revoked"
    TOKEN_ISSUED = "token.issued"  # noqa: S105
    USAGE_PRUNED = "usage.pruned"


def append(
    conn: sa.Connection,
    tag: AuditTag,
    actor: str,
    *,
    at: int,
    tenant: str | None = None,
    sandbox: str | None = None,
    subject: str | None = None,
    detail: Mapping[str, object] | None = None,
    request_id: str | None = None,
) -> None:
    """Append one event; `at` is `db.now_ms`, `actor` a credential id, sandbox id or "system".

    `detail` must be JSON and must never hold a token, key or secret.
    """
    conn.execute(
        sa.insert(schema.audit).values(
            at=at,
            tag=tag.value,
            actor=actor,
            tenant=tenant,
            sandbox=sandbox,
            subject=subject,
            detail=db.to_json(dict(detail or {})),
            request_id=request_id,
        )
    )


def newest(conn: sa.Connection) -> int:
    """Return when the last event was, in epoch milliseconds; 0 without one."""
    query = sa.select(schema.audit.c.at).order_by(schema.audit.c.seq.desc()).limit(1)
    return int(conn.execute(query).scalar() or 0)


def count(conn: sa.Connection, subject: str, kind: str, at: int) -> None:
    """Count a refusal or incident of a known subject in the minute of `at` (milliseconds)."""
    row = db.insert(conn, schema.incident).values(
        subject=subject, kind=kind, minute=at // _MINUTE_MS, count=1
    )
    conn.execute(
        row.on_conflict_do_update(
            index_elements=["subject", "kind", "minute"],
            set_={"count": schema.incident.c.count + 1},
        )
    )


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which audit events."""

    tenant: str | None = None
    sandbox: str | None = None
    tag: str | None = None


def search(
    conn: sa.Connection, wanted: AuditFilter, *, limit: int, after: int | None
) -> dict[str, object]:
    """Return audit events, newest first, from those written before the event number `after`."""
    table = schema.audit
    query = sa.select(table)
    for name in ("tenant", "sandbox", "tag"):
        value = getattr(wanted, name)
        if value is not None:
            query = query.where(table.c[name] == value)
    if after is not None:
        query = query.where(table.c.seq < after)
    found = conn.execute(query.order_by(table.c.seq.desc()).limit(limit + 1)).all()
    return {
        "events": [_event(row) for row in found[:limit]],
        "next": found[limit - 1].seq if len(found) > limit else None,
    }


def _event(row: sa.Row[Any]) -> dict[str, object]:
    return {
        "seq": row.seq,
        "at": times.format_ms(row.at),
        "tag": row.tag,
        "actor": row.actor,
        "tenant": row.tenant,
        "sandbox": row.sandbox,
        "subject": row.subject,
        "detail": db.from_json(row.detail),
        "request_id": row.request_id,
    }
