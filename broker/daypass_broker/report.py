"""What happened, read back: usage rows and their sums, audit events. Nothing here writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from daypass_broker import db, schema, times
from daypass_core import money
from daypass_core.problem import Code, refuse

GROUPS = ("tenant", "sandbox", "model", "day")
_DAY_MS = 86_400_000
_TOKENS = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_creation_1h_input_tokens",
    "cache_read_input_tokens",
)


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Which calls; `since` and `until` bound their start, in epoch seconds, `until` excluded."""

    tenant: str | None = None
    sandbox: str | None = None
    model: str | None = None
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which audit events."""

    tenant: str | None = None
    sandbox: str | None = None
    tag: str | None = None


def usage(
    conn: sa.Connection, wanted: UsageFilter, *, limit: int, after: str | None = None
) -> dict[str, object]:
    """Return calls, newest first, and the totals of all that match, shown or not.

    `after` is the id of the last call shown before. Raises Refusal for an unknown one.
    """
    table = schema.usage
    matching = _matching(wanted)
    query = sa.select(table).where(*matching)
    if after is not None:
        query = query.where(_before(conn, after, matching))
    query = query.order_by(table.c.started_at.desc(), table.c.id.desc()).limit(limit + 1)
    found = conn.execute(query).all()
    return {
        "rows": [_call(row) for row in found[:limit]],
        "totals": _totals(conn, matching),
        "next": found[limit - 1].id if len(found) > limit else None,
    }


def grouped(
    conn: sa.Connection,
    wanted: UsageFilter,
    group_by: str,
    *,
    limit: int,
    after: str | None = None,
) -> dict[str, object]:
    """Return sums per tenant, sandbox, model or day (UTC), and the totals over all of them.

    In the order of their names; `after` is the last one shown before. Raises Refusal for a day that
    is none.
    """
    columns = schema.usage.c
    key = columns.started_at // _DAY_MS if group_by == "day" else columns[group_by]
    matching = _matching(wanted)
    query = sa.select(key.label("key"), *_sums()).where(*matching).group_by(key).order_by(key)
    if after is not None:
        query = query.where(key > (_day(after) if group_by == "day" else after))
    found = conn.execute(query.limit(limit + 1)).all()
    rows = [{group_by: _key(group_by, row.key), **_sum(row)} for row in found[:limit]]
    return {
        "group_by": group_by,
        "rows": rows,
        "totals": _totals(conn, matching),
        "next": rows[-1][group_by] if len(found) > limit else None,
    }


def audit_events(
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


def _matching(wanted: UsageFilter) -> list[sa.ColumnElement[bool]]:
    columns = schema.usage.c
    conditions: list[sa.ColumnElement[bool]] = [
        columns[name] == getattr(wanted, name)
        for name in ("tenant", "sandbox", "model")
        if getattr(wanted, name) is not None
    ]
    if wanted.since is not None:
        conditions.append(columns.started_at >= wanted.since * 1000)
    if wanted.until is not None:
        conditions.append(columns.started_at < wanted.until * 1000)
    return conditions


def _before(
    conn: sa.Connection, after: str, matching: list[sa.ColumnElement[bool]]
) -> sa.ColumnElement[bool]:
    columns = schema.usage.c
    # Looked up among what the asker may see, so that no id of another tenant can be confirmed.
    query = sa.select(columns.started_at).where(columns.id == after, *matching)
    started_at = conn.execute(query).scalar()
    if started_at is None:
        raise refuse(Code.INVALID_REQUEST, "after: is not the id of such a call", field="after")
    same_moment = (columns.started_at == started_at) & (columns.id < after)
    before: sa.ColumnElement[bool] = (columns.started_at < started_at) | same_moment
    return before


def _sums() -> list[sa.Label[Any]]:
    columns = schema.usage.c
    held = sa.case((columns.state == "open", columns.reserved_nano), else_=0)
    named: dict[str, sa.ColumnElement[Any]] = {
        "calls": sa.func.count(),
        "open_calls": _sum_of(sa.case((columns.state == "open", 1), else_=0)),
        "estimated_calls": _sum_of(columns.estimated),
        "cost_nano": _sum_of(columns.cost_nano),
        "reserved_nano": _sum_of(held),
        **{name: _sum_of(columns[name]) for name in _TOKENS},
    }
    return [expression.label(name) for name, expression in named.items()]


def _sum_of(expression: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    # Postgres sums BIGINT to NUMERIC; we count in 64 bits.
    return sa.cast(sa.func.coalesce(sa.func.sum(expression), 0), sa.BigInteger)


def _totals(conn: sa.Connection, matching: list[sa.ColumnElement[bool]]) -> dict[str, object]:
    return _sum(conn.execute(sa.select(*_sums()).where(*matching)).one())


def _sum(row: sa.Row[Any]) -> dict[str, object]:
    return {
        "calls": row.calls,
        "open_calls": row.open_calls,
        "estimated_calls": row.estimated_calls,
        "cost_usd": money.format_usd(row.cost_nano),
        "reserved_usd": money.format_usd(row.reserved_nano),
        **{name: getattr(row, name) for name in _TOKENS},
    }


def _key(group_by: str, key: Any) -> str:
    return times.format_second(int(key) * 86_400)[:10] if group_by == "day" else str(key)


def _day(text: str) -> int:
    try:
        return times.parse_second(text) // 86_400
    except ValueError as error:
        raise refuse(Code.INVALID_REQUEST, f"after: {error}", field="after") from None


def _call(row: sa.Row[Any]) -> dict[str, object]:
    settled = row.state == "settled"
    return {
        "id": row.id,
        "attempt": row.attempt,
        "state": row.state,
        "tenant": row.tenant,
        "sandbox": row.sandbox,
        "grant": row.grant_id,
        "token": row.token_id,
        "provider": row.provider,
        "endpoint": row.endpoint,
        "model": row.model,
        "stream": bool(row.stream),
        "outcome": row.outcome,
        "estimated": bool(row.estimated),
        "http_status": row.http_status,
        "upstream_request_id": row.upstream_request_id,
        "cost_usd": money.format_usd(row.cost_nano) if settled else None,
        "reserved_usd": money.format_usd(0 if settled else row.reserved_nano),
        **{name: getattr(row, name) for name in _TOKENS},
        "started_at": times.format_ms(row.started_at),
        "settled_at": None if row.settled_at is None else times.format_ms(row.settled_at),
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
