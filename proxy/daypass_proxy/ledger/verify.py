"""Recompute every account from the usage rows: `python -m daypass_proxy verify`.

The accounts are running sums, kept by the same transactions that write the rows. This is the check
that they are right, to the nano-dollar; and that what an account has set aside and not yet used is
what its children have left of their slices. Rows that were pruned are in it by the sums that were
carried over when they were (docs/retention.md). It reads one snapshot, row by row, and may run
beside everything else; what it keeps in memory are the accounts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from daypass_proxy.ledger import schema
from daypass_proxy.ledger.store import Unreadable

SUMS: Final = (
    "spent_nano",
    "reserved_nano",
    "overdraft_nano",
    "tokens_spent",
    "tokens_reserved",
    "open_calls",
    "day_spent_nano",
    "month_spent_nano",
    "lent_used_nano",
)
"""The columns of an account that are sums of its rows, or of its children's."""

_WINDOWS = "day_from, day_until, month_from, month_until"
_SLICE = "parent, CASE sliced WHEN 1 THEN ceiling_nano END, lent_nano"
_ACCOUNTS = f"SELECT id, {_SLICE}, {_WINDOWS}, {', '.join(SUMS)} FROM account"  # noqa: S608 - ours
_ROWS = """
SELECT accounts, state, reserved_nano, reserved_tokens, cost_nano, tokens, settled_at FROM usage
"""
_CARRIED = """
SELECT account, spent_nano, overdraft_nano, tokens_spent, day_from, day_spent_nano, month_from,
    month_spent_nano FROM usage_carried
"""
_SQLITE = "sqlite:///"

Snapshot = tuple[Iterable[tuple[Any, ...]], ...]
"""The rows of `_ACCOUNTS`, of `_CARRIED` and of `_ROWS`, as of one moment."""


_Carried = tuple[int, int]
"""When a window began (epoch milliseconds), and what was spent in it by rows that were pruned."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A sum that an account's column does not hold; `recorded` is None without an account."""

    account: str
    column: str
    recorded: int | None
    computed: int

    def __str__(self) -> str:
        recorded = "no account" if self.recorded is None else f"{self.recorded} recorded"
        return f"{self.account}: {self.column}: {recorded}, {self.computed} by its usage rows"


@dataclass(slots=True)
class _Sums:
    """What the rows of one account come to, in the order of `SUMS`.

    `slice` is what its parent has set aside for it, if anything, and `lent` what it has set aside.
    """

    parent: str | None = None
    slice: int | None = None
    lent: int = 0
    day: range = range(0)
    month: range = range(0)
    recorded: tuple[int | None, ...] = (None,) * len(SUMS)
    computed: list[int] = field(default_factory=lambda: [0] * len(SUMS))

    def add_open(self, held: int, held_tokens: int) -> None:
        """Add a call in flight."""
        self.computed[1] += held
        self.computed[4] += held_tokens
        self.computed[5] += 1

    def add_settled(self, held: int, cost: int, tokens: int, settled_at: int) -> None:
        """Add a bill; `settled_at` says whether it counts in the windows the account is in."""
        self.computed[0] += cost
        self.computed[2] += max(cost - held, 0)
        self.computed[3] += tokens
        self.computed[6] += cost if settled_at in self.day else 0
        self.computed[7] += cost if settled_at in self.month else 0

    def add_carried(
        self, spent: int, overdraft: int, tokens: int, day: _Carried, month: _Carried
    ) -> None:
        """Add what was pruned; that of a window only if the account is in that window still."""
        self.computed[0] += spent
        self.computed[2] += overdraft
        self.computed[3] += tokens
        self.computed[6] += day[1] if day[0] == self.day.start else 0
        self.computed[7] += month[1] if month[0] == self.month.start else 0

    def add_child(self, child: _Sums) -> None:
        """Take what a child has left of its slice from what is set aside: the rest is used."""
        spent, held = child.computed[:2]
        self.computed[8] -= max((child.slice or 0) - spent - held, 0)


def verify(target: Path | str) -> list[Discrepancy]:
    """Return every difference between the accounts and their usage rows; empty when all is right.

    `target` is a SQLite file, or a database URL as in DAYPASS_DATABASE_URL. Raises Unreadable.
    """
    with _snapshot(target) as (accounts, carried, rows):
        sums = _add_up(accounts, carried, rows)
    return [
        Discrepancy(account, column, held, due)
        for account in sorted(sums)
        for column, held, due in zip(
            SUMS, sums[account].recorded, sums[account].computed, strict=True
        )
        if held != due
    ]


def _add_up(
    accounts: Iterable[tuple[Any, ...]],
    carried: Iterable[tuple[Any, ...]],
    rows: Iterable[tuple[Any, ...]],
) -> dict[str, _Sums]:
    sums: dict[str, _Sums] = {}
    for account, parent, own, lent, *others in accounts:
        day_from, day_until, month_from, month_until, *recorded = others
        windows = range(day_from, day_until), range(month_from, month_until)
        sums[account] = _Sums(parent, own, lent, *windows, tuple(recorded))
    for account, spent, overdraft, tokens_spent, day_from, day, month_from, month in carried:
        kept = sums.setdefault(account, _Sums())
        kept.add_carried(spent, overdraft, tokens_spent, (day_from, day), (month_from, month))
    for booked_in, state, held, held_tokens, cost, tokens, settled_at in rows:
        for account in booked_in.split(" "):
            booked = sums.setdefault(account, _Sums())
            if state == "open":
                booked.add_open(held, held_tokens)
            else:
                booked.add_settled(held, cost, tokens or 0, settled_at)
    for one in sums.values():
        one.computed[8] += one.lent
        if one.parent in sums:
            sums[one.parent].add_child(one)
    return sums


def _snapshot(target: Path | str) -> AbstractContextManager[Snapshot]:
    if isinstance(target, Path) or not target.startswith("postgresql"):
        return _sqlite(Path(str(target).removeprefix(_SQLITE)))
    try:
        from daypass_proxy.ledger.verify_postgres import snapshot
    except ModuleNotFoundError as error:
        raise Unreadable(
            "PostgreSQL needs a driver: pip install 'daypass-proxy[postgres]'"
        ) from error
    return snapshot(target, _ACCOUNTS, _CARRIED, _ROWS)


@contextmanager
def _sqlite(path: Path) -> Iterator[Snapshot]:
    try:
        address = f"file:{quote(str(path))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
            connection.execute("BEGIN")  # one snapshot for all queries
            if (objection := schema.of_sqlite(connection)) is not None:
                raise Unreadable(objection)
            yield tuple(map(connection.execute, (_ACCOUNTS, _CARRIED, _ROWS)))
    except sqlite3.Error as error:
        raise Unreadable(str(error)) from error
