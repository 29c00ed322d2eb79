"""Our side: the settled usage rows of a range of days, summed by model, day and kind.

Reads one snapshot, and writes nothing, so it may run beside a proxy. A row counts on the day of UTC
on which its call began.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from daypass_proxy.ledger import schema
from daypass_proxy.ledger.usage import Pass
from daypass_proxy.reconcile import Booked, Day, Kind, Unreadable, used

_DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1)
_STATEMENT_MS = 60_000

Query = Callable[[str, Sequence[object]], list[Sequence[Any]]]
"""Runs one statement with `?` for its parameters."""
Name = Callable[[str], str]
"""Gives a model the name under which both sides are compared."""


@dataclass(frozen=True, slots=True)
class Range:
    """Whole days of UTC, `until` not included; only of one tenant, where one is named."""

    since: date
    until: date
    tenant: str | None = None


_WRITTEN = "COALESCE(cache_creation_input_tokens, 0)"
_WRITTEN_1H = "COALESCE(cache_creation_1h_input_tokens, 0)"
_SUMS = {
    Kind.INPUT: "SUM(COALESCE(input_tokens, 0))",
    Kind.CACHE_WRITE_5M: f"SUM({_WRITTEN} - {_WRITTEN_1H})",
    Kind.CACHE_WRITE_1H: f"SUM({_WRITTEN_1H})",
    Kind.CACHE_READ: "SUM(COALESCE(cache_read_input_tokens, 0))",
    Kind.OUTPUT: "SUM(COALESCE(output_tokens, 0))",
    Kind.WEB_SEARCH: "SUM(COALESCE(web_search_requests, 0))",
}
_WHERE = "provider = 'anthropic' AND started_at >= ? AND started_at < ?"
_TOTALS = f"""
SELECT started_at / {_DAY_MS}, model, estimated, {", ".join(_SUMS.values())}
FROM usage WHERE {{where}} AND state = 'settled' GROUP BY 1, 2, 3
"""  # noqa: S608 - our own constants
_PASSES = f"""
SELECT started_at / {_DAY_MS}, model, estimated, passes
FROM usage WHERE {{where}} AND state = 'settled' AND passes IS NOT NULL
"""  # noqa: S608
_OPEN = "SELECT COUNT(*) FROM usage WHERE {where} AND state = 'open'"
_CRASHED = "SELECT COUNT(*) FROM usage WHERE {where} AND outcome = 'crashed'"
_EDGE = """
SELECT COUNT(*) FROM usage WHERE {where} AND state = 'settled'
AND ((started_at < ? AND settled_at >= ?) OR (started_at < ? AND settled_at >= ?))
"""
_PRUNED = """
SELECT MAX(until_at) FROM usage_pruned WHERE file IS NOT NULL AND EXISTS (
    SELECT 1 FROM usage_pruned WHERE file IS NOT NULL AND until_at > ? AND month_at < ?)
"""


def read(database_url: str, range_: Range, name: Name) -> Booked:
    """Return what is booked in a range, models called as `name` says; raises Unreadable."""
    with _snapshot(database_url) as query:
        return _read(query, range_, name)


def _read(query: Query, range_: Range, name: Name) -> Booked:
    since, until = _ms(range_.since), _ms(range_.until)
    tenant = "" if range_.tenant is None else " AND tenant = ?"
    named = [] if range_.tenant is None else [range_.tenant]

    def ask(statement: str, first: int, last: int, *more: int) -> list[Sequence[Any]]:
        return query(statement.format(where=_WHERE + tenant), [first, last, *named, *more])

    for (pruned_until,) in query(_PRUNED, [since, until]):
        if pruned_until is not None:
            first = _EPOCH + timedelta(milliseconds=pruned_until)
            raise Unreadable(
                f"calls of these days were pruned, and are in the exports: ask from {first} on"
            )
    total: dict[Day, Counter[Kind]] = defaultdict(Counter)
    estimated: dict[Day, Counter[Kind]] = defaultdict(Counter)
    rows = [*_totals(ask(_TOTALS, since, until)), *_passes(ask(_PASSES, since, until))]
    for number, model, guess, figures in rows:
        day = Day(_EPOCH + timedelta(days=number), name(model))
        total[day].update(figures)
        if guess:
            estimated[day].update(figures)
    ((open_calls,),) = ask(_OPEN, since, until)
    ((crashed_calls,),) = ask(_CRASHED, since, until)
    # Calls are cut after an hour by default, and after a day whatever the settings say.
    ((edge_calls,),) = ask(_EDGE, since - _DAY_MS, until, since, since, until, until)
    return Booked(
        total=used(total),
        estimated=used(estimated),
        open_calls=int(open_calls),
        crashed_calls=int(crashed_calls),
        edge_calls=int(edge_calls),
    )


_Row = tuple[int, str, bool, Counter[Kind]]


def _totals(rows: list[Sequence[Any]]) -> Iterator[_Row]:
    for day, model, estimated, *sums in rows:
        figures = Counter({kind: int(sum_) for kind, sum_ in zip(_SUMS, sums, strict=True)})
        yield int(day), model, bool(estimated), figures


def _passes(rows: list[Sequence[Any]]) -> Iterator[_Row]:
    """Yield what passes add to the totals of their rows, or move to another model.

    A pass of kind `message` is in the totals already, as the request's own model.
    """
    for day, model, estimated, text in rows:
        for each in msgspec.json.decode(text, type=tuple[Pass, ...]):
            figures = _figures(each)
            by = each.model or model
            if each.kind == "message":
                taken: Counter[Kind] = Counter()
                taken.subtract(figures)
                yield int(day), model, bool(estimated), taken
            yield int(day), by, bool(estimated), figures


def _figures(each: Pass) -> Counter[Kind]:
    written = each.cache_creation_input_tokens or 0
    written_1h = each.cache_creation_1h_input_tokens or 0
    return Counter(
        {
            Kind.INPUT: each.input_tokens or 0,
            Kind.CACHE_WRITE_5M: written - written_1h,
            Kind.CACHE_WRITE_1H: written_1h,
            Kind.CACHE_READ: each.cache_read_input_tokens or 0,
            Kind.OUTPUT: each.output_tokens or 0,
        }
    )


def _ms(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000


@contextmanager
def _snapshot(database_url: str) -> Iterator[Query]:
    """Open the database read-only, in one transaction; raises Unreadable, in the block too."""
    if not database_url.startswith("sqlite:///"):
        # The driver is an extra, which an installation on SQLite has not.
        from daypass_proxy.reconcile.booked_postgres import snapshot

        with snapshot(database_url, _STATEMENT_MS) as query:
            yield query
        return
    path = Path(database_url.removeprefix("sqlite:///").partition("?")[0])
    try:
        address = f"file:{quote(str(path))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            if (objection := schema.of_sqlite(connection)) is not None:
                raise Unreadable(f"cannot read {path}: {objection}")
            yield lambda statement, values: connection.execute(statement, values).fetchall()
    except sqlite3.Error as error:
        raise Unreadable(f"cannot read {path}: {error}") from None
