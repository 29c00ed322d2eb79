"""What calls used and cost, read back: rows, and sums by whatever they have in common.

Token columns are the provider's own figures for the call. Passes that these leave out (an advisor,
a compaction) are in `tokens`, which counts everything, and apart in `passes` and `pass_tokens`;
they belong to the call, and so to the model that was asked. Nothing here writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from daypass_broker import db, schema, times
from daypass_core import money
from daypass_core.problem import Code, refuse

GROUPS = {
    "tenant": "tenant",
    "sandbox": "sandbox",
    "token": "token_id",
    "model": "model",
    "day": "started_at",
}
"""What calls can be summed by beside labels, and the column each is in."""
_LABEL = re.compile(r"label:([a-z0-9][a-z0-9._/-]{0,62})", re.ASCII)
_DAY_MS = 86_400_000
_TOTALS = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)
_FIGURES = (
    "input_tokens",
    "output_tokens",
    "thinking_tokens",
    "cache_creation_input_tokens",
    "cache_creation_1h_input_tokens",
    "cache_read_input_tokens",
    "web_search_requests",
)
SUM_FIELDS = (
    *("calls", "open_calls", "estimated_calls", "cost_usd", "reserved_usd", "tokens"),
    *("reserved_tokens", *_FIGURES, "passes", "pass_tokens"),
)
"""The fields of a sum, in their order."""
CALL_FIELDS = (
    *("id", "attempt", "state", "tenant", "sandbox", "grant", "token", "provider", "endpoint"),
    *("model", "stream", "outcome", "estimated", "http_status", "upstream_request_id"),
    *("cost_usd", "reserved_usd", "tokens", "reserved_tokens", *_FIGURES, "service_tier"),
    *("speed", "inference_geo", "passes", "started_at", "settled_at"),
)
"""The fields of a call, in their order."""


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Which calls; `since` and `until` bound their start, in epoch seconds, `until` excluded."""

    tenant: str | None = None
    sandbox: str | None = None
    model: str | None = None
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Grouping:
    """What calls are summed by: one of `GROUPS`, or the label `label` of their sandbox."""

    name: str
    label: str | None = None

    @classmethod
    def of(cls, text: str) -> Grouping:
        """Read `group_by`; raises ValueError saying what it may be."""
        label = _LABEL.fullmatch(text)
        if label is None and text not in GROUPS:
            raise ValueError(f"must be one of {', '.join(GROUPS)}, or label:KEY")
        return cls(text, label[1]) if label else cls(text)

    @property
    def field(self) -> str:
        """The field of a row that names its group."""
        return "label" if self.label else self.name


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
        **_pruned(conn, wanted),
    }


def grouped(
    conn: sa.Connection,
    wanted: UsageFilter,
    by: Grouping,
    *,
    limit: int,
    after: str | None = None,
) -> dict[str, object]:
    """Return sums per group, and the totals over all of them. Days are UTC.

    In the order of their names, calls without the label last; `after` is the last one shown before.
    Raises Refusal for a day that is none.
    """
    matching = _matching(wanted)
    calls = _keyed(conn, by).where(*matching).subquery()
    key = calls.c.group_key
    query = sa.select(key, *_sums(conn, calls.c)).group_by(key).order_by(key.is_(None), key)
    if after is not None:
        query = query.where((key > _key(by, after)) | key.is_(None))
    found = conn.execute(query.limit(limit + 1)).all()
    rows = [{by.field: _shown(by, row.group_key), **_sum(row)} for row in found[:limit]]
    return {
        "group_by": by.name,
        "rows": rows,
        "totals": _totals(conn, matching),
        "next": rows[-1][by.field] if len(found) > limit else None,
        **_pruned(conn, wanted),
    }


def _pruned(conn: sa.Connection, wanted: UsageFilter) -> dict[str, object]:
    """Say which part of the time that is asked for was pruned, and the files it is in.

    Empty if none was. A month counts as soon as it is exported: from then on rows go.
    """
    table = schema.usage_pruned
    query = sa.select(table).where(table.c.file.is_not(None)).order_by(table.c.month_at)
    if wanted.since is not None:
        query = query.where(table.c.until_at > wanted.since * 1000)
    if wanted.until is not None:
        query = query.where(table.c.month_at < wanted.until * 1000)
    months = conn.execute(query).all()
    if not months:
        return {}
    before = max(month.until_at for month in months) // 1000
    exports = [month.file for month in months]
    return {"pruned": {"before": times.format_second(before), "exports": exports}}


def _keyed(conn: sa.Connection, by: Grouping) -> sa.Select[Any]:
    """Select calls, with what they are grouped by."""
    calls, sandbox = schema.usage, schema.sandbox
    if by.label is None:
        column = calls.c[GROUPS[by.name]]
        key = column // _DAY_MS if by.name == "day" else column
        return sa.select(calls, key.label("group_key"))
    if conn.dialect.name == "postgresql":
        labels = sa.cast(sandbox.c.labels, postgresql.JSONB)
        label = sa.func.jsonb_extract_path_text(labels, by.label, type_=sa.Text)
    else:
        label = sa.func.json_extract(sandbox.c.labels, f'$."{by.label}"', type_=sa.Text)
    joined = calls.outerjoin(sandbox, sandbox.c.id == calls.c.sandbox)
    return sa.select(calls, label.label("group_key")).select_from(joined)


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


def _sums(conn: sa.Connection, columns: Any) -> list[sa.Label[Any]]:
    is_open = columns.state == "open"
    said = sum((sa.func.coalesce(columns[name], 0) for name in _TOTALS), sa.literal(0))
    beside = sa.case((columns.passes.is_not(None), columns.tokens - said), else_=0)
    named: dict[str, sa.ColumnElement[Any]] = {
        "calls": sa.func.count(),
        "open_calls": _sum_of(sa.case((is_open, 1), else_=0)),
        "estimated_calls": _sum_of(columns.estimated),
        "cost_nano": _sum_of(columns.cost_nano),
        "reserved_nano": _sum_of(sa.case((is_open, columns.reserved_nano), else_=0)),
        "tokens": _sum_of(columns.tokens),
        "reserved_tokens": _sum_of(sa.case((is_open, columns.reserved_tokens), else_=0)),
        **{name: _sum_of(columns[name]) for name in _FIGURES},
        "passes": _sum_of(_length(conn, columns.passes)),
        "pass_tokens": _sum_of(beside),
    }
    return [expression.label(name) for name, expression in named.items()]


def _length(conn: sa.Connection, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return how many elements a JSON list in a text column has; NULL for NULL."""
    if conn.dialect.name == "postgresql":
        return sa.func.json_array_length(sa.cast(column, postgresql.JSON))
    return sa.func.json_array_length(column)


def _sum_of(expression: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    # Postgres sums BIGINT to NUMERIC; we count in 64 bits.
    return sa.cast(sa.func.coalesce(sa.func.sum(expression), 0), sa.BigInteger)


def _totals(conn: sa.Connection, matching: list[sa.ColumnElement[bool]]) -> dict[str, object]:
    return _sum(conn.execute(sa.select(*_sums(conn, schema.usage.c)).where(*matching)).one())


def _sum(row: sa.Row[Any]) -> dict[str, object]:
    usd = {
        "cost_usd": money.format_usd(row.cost_nano),
        "reserved_usd": money.format_usd(row.reserved_nano),
    }
    return {name: usd[name] if name in usd else getattr(row, name) for name in SUM_FIELDS}


def _shown(by: Grouping, key: Any) -> str | None:
    if by.name == "day":
        return times.format_second(int(key) * 86_400)[:10]
    return None if key is None else str(key)


def _key(by: Grouping, text: str) -> int | str:
    if by.name != "day":
        return text
    try:
        return times.parse_second(text) // 86_400
    except ValueError as error:
        raise refuse(Code.INVALID_REQUEST, f"after: {error}", field="after") from None


def _call(row: sa.Row[Any]) -> dict[str, object]:
    settled = row.state == "settled"
    differently: dict[str, object] = {
        "grant": row.grant_id,
        "token": row.token_id,
        "stream": bool(row.stream),
        "estimated": bool(row.estimated),
        "cost_usd": money.format_usd(row.cost_nano) if settled else None,
        "reserved_usd": money.format_usd(0 if settled else row.reserved_nano),
        "reserved_tokens": 0 if settled else row.reserved_tokens,
        "passes": [] if row.passes is None else db.from_json(row.passes),
        "started_at": times.format_ms(row.started_at),
        "settled_at": None if row.settled_at is None else times.format_ms(row.settled_at),
    }
    return {
        name: differently[name] if name in differently else getattr(row, name)
        for name in CALL_FIELDS
    }
