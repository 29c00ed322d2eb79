"""What pruned usage rows came to, by account: `usage_carried`, which `ledger verify` adds.

An account's counters are running sums of its rows; taking rows away must leave their sums. Of a
window (the day, the month) an account may still stand in an old one if nothing was booked since:
what was spent in it is carried with the moment it began, and means nothing once it is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from daypass_broker import db, schema

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Windows:
    """The bounds of an account's day and month, in epoch milliseconds."""

    day_from: int = 0
    day_until: int = 0
    month_from: int = 0
    month_until: int = 0


@dataclass(slots=True)
class _Sums:
    windows: Windows
    calls: int = 0
    spent: int = 0
    overdraft: int = 0
    tokens: int = 0
    day: int = 0
    month: int = 0


class Fold:
    """Adds up settled usage rows by account; `windows` are those that such rows may lie in."""

    def __init__(self, windows: Mapping[str, Windows]) -> None:
        self._windows = windows
        self._sums: dict[str, _Sums] = {}
        self.calls = 0
        self.cost_nano = 0
        self.tokens = 0

    def add(self, row: Mapping[Any, Any]) -> None:
        """Add one settled row, given by its columns."""
        cost, held, tokens = row["cost_nano"], row["reserved_nano"], row["tokens"] or 0
        self.calls += 1
        self.cost_nano += cost
        self.tokens += tokens
        for account in row["accounts"].split(" "):
            sums = self._sums.get(account)
            if sums is None:
                windows = self._windows.get(account, Windows())
                sums = self._sums[account] = _Sums(windows)
            within = sums.windows
            sums.calls += 1
            sums.spent += cost
            sums.overdraft += max(cost - held, 0)
            sums.tokens += tokens
            if within.day_from <= row["settled_at"] < within.day_until:
                sums.day += cost
            if within.month_from <= row["settled_at"] < within.month_until:
                sums.month += cost

    def save(self, conn: sa.Connection, until_at: int) -> None:
        """Add the sums to what is carried already; the rows leave in the same transaction."""
        rows = [
            {
                "account": account,
                "calls": sums.calls,
                "spent_nano": sums.spent,
                "overdraft_nano": sums.overdraft,
                "tokens_spent": sums.tokens,
                "day_from": sums.windows.day_from,
                "day_spent_nano": sums.day,
                "month_from": sums.windows.month_from,
                "month_spent_nano": sums.month,
                "until_at": until_at,
            }
            for account, sums in sorted(self._sums.items())
        ]
        statement = _add(conn)
        for start in range(0, len(rows), _AT_ONCE):
            conn.execute(statement, rows[start : start + _AT_ONCE])


def windows_since(conn: sa.Connection, start: int) -> dict[str, Windows]:
    """Return the windows that are over no earlier than `start` (epoch milliseconds), by account."""
    return _windows(conn, (schema.account.c.day_until > start) | _month_until(start))


def windows_of(conn: sa.Connection, accounts: set[str]) -> dict[str, Windows]:
    """Return the windows of some accounts."""
    return _windows(conn, schema.account.c.id.in_(sorted(accounts)))


def _month_until(start: int) -> sa.ColumnElement[bool]:
    return schema.account.c.month_until > start


def _windows(conn: sa.Connection, which: sa.ColumnElement[bool]) -> dict[str, Windows]:
    column = schema.account.c
    bounds = (column.day_from, column.day_until, column.month_from, column.month_until)
    rows = conn.execute(sa.select(column.id, *bounds).where(which))
    return {row[0]: Windows(*row[1:]) for row in rows}


def _add(conn: sa.Connection) -> sa.Executable:
    """Return the statement that adds a row of sums to the account's."""
    table = schema.usage_carried
    insert = db.insert(conn, table)
    old, new = table.c, insert.excluded
    added = {
        name: old[name] + new[name]
        for name in ("calls", "spent_nano", "overdraft_nano", "tokens_spent")
    }
    for window in ("day", "month"):
        began, spent = f"{window}_from", f"{window}_spent_nano"
        added[spent] = sa.case(
            (new[began] == old[began], old[spent] + new[spent]),
            (new[began] == 0, old[spent]),
            else_=new[spent],
        )
        added[began] = sa.case((new[began] == 0, old[began]), else_=new[began])
    latest = sa.case((new.until_at > old.until_at, new.until_at), else_=old.until_at)
    return insert.on_conflict_do_update(
        index_elements=["account"], set_=added | {"until_at": latest}
    )
