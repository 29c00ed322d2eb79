"""Incidents read back: who was refused or looked wrong, in which minute, and how often.

Brokers and proxies add to the same rows, so there is one place to look. A subject is a
sandbox, a federation rule, or the credential of an admin or orchestrator; its tenant is looked up
where it has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from daypass_broker import schema, times
from daypass_core.problem import Code, refuse

FIELDS = ("minute", "subject", "tenant", "kind", "count")
"""The fields of a row, in their order."""
_MINUTE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Which incidents; `since` and `until` bound their minute, in epoch seconds, `until` excluded.

    `kind` is a whole kind, or the part of it before the colon.
    """

    tenant: str | None = None
    sandbox: str | None = None
    kind: str | None = None
    since: int | None = None
    until: int | None = None


def search(
    conn: sa.Connection, wanted: IncidentFilter, *, limit: int, after: str | None = None
) -> dict[str, Any]:
    """Return incidents, newest minute first; `after` is `next` of the page before.

    Raises Refusal for an `after` that is none.
    """
    rows, owners = schema.incident, (schema.sandbox, schema.credential, schema.federation_rule)
    joined: sa.FromClause = rows
    for owner in owners:
        joined = joined.outerjoin(owner, owner.c.id == rows.c.subject)
    tenant = sa.func.coalesce(*(owner.c.tenant for owner in owners))
    query = (
        sa.select(rows, tenant.label("tenant"))
        .select_from(joined)
        .where(*_matching(wanted, tenant))
        .order_by(rows.c.minute.desc(), rows.c.subject, rows.c.kind)
    )
    if after is not None:
        query = query.where(_following(after))
    found = conn.execute(query.limit(limit + 1)).all()
    return {
        "rows": [_row(row) for row in found[:limit]],
        "next": _cursor(found[limit - 1]) if len(found) > limit else None,
    }


def _matching(
    wanted: IncidentFilter, tenant: sa.ColumnElement[Any]
) -> list[sa.ColumnElement[bool]]:
    columns = schema.incident.c
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.tenant is not None:
        conditions.append(tenant == wanted.tenant)
    if wanted.sandbox is not None:
        conditions.append(columns.subject == wanted.sandbox)
    if wanted.kind is not None:
        family = columns.kind.startswith(f"{wanted.kind}:", autoescape=True)
        conditions.append((columns.kind == wanted.kind) | family)
    if wanted.since is not None:
        conditions.append(columns.minute >= wanted.since // _MINUTE_SECONDS)
    if wanted.until is not None:
        conditions.append(columns.minute * _MINUTE_SECONDS < wanted.until)
    return conditions


def _cursor(row: sa.Row[Any]) -> str:
    return f"{row.minute}/{row.subject}/{row.kind}"


def _following(after: str) -> sa.ColumnElement[bool]:
    minute, _, rest = after.partition("/")
    subject, slash, kind = rest.partition("/")
    if not slash or not (minute.isascii() and minute.isdigit() and len(minute) < 16):
        raise refuse(Code.INVALID_REQUEST, "after: is not the `next` of a page", field="after")
    columns = schema.incident.c
    same_minute = columns.minute == int(minute)
    later = (columns.subject > subject) | ((columns.subject == subject) & (columns.kind > kind))
    return (columns.minute < int(minute)) | (same_minute & later)


def _row(row: sa.Row[Any]) -> dict[str, object]:
    return {
        "minute": times.format_second(row.minute * _MINUTE_SECONDS),
        "subject": row.subject,
        "tenant": row.tenant,
        "kind": row.kind,
        # By name: `count` is a method of every row.
        "count": row._mapping["count"],
    }
