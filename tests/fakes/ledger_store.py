"""A ledger's store in memory, with the checks of a real one and failures on demand."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from daypass_proxy.ledger.account import WRITTEN, Account
from daypass_proxy.ledger.store import (
    OPENED,
    RESIZED,
    ROW,
    SETTLED,
    BatchFailed,
    Changes,
    Row,
    Span,
    StoreFailed,
)


class MemoryStore:
    """A `Store` whose rows are dictionaries by column; it is its own transaction.

    `locked` are accounts that another process holds. `fails` is raised by the next commit.
    """

    one_lock = True

    def __init__(self, *accounts: Account) -> None:
        self.accounts_kept = {one.id: one for one in accounts}
        self.usage: dict[str, dict[str, Any]] = {}
        self.incidents: dict[tuple[str, str, int], int] = {}
        self.locked: set[str] = set()
        self.fails: list[Exception] = []
        self.batches: list[Changes] = []
        self.patience: list[float | None] = []
        """How long each transaction begun waits for a lock."""
        self.asked: list[str] = []
        """Leaves whose chains were looked up."""
        self.closed = 0

    def begin(self, *, reading: bool = False, lock_seconds: float | None = None) -> MemoryStore:
        """See `Store.begin`."""
        self.patience.append(lock_seconds)
        return self

    def close(self) -> None:
        """See `Store.close`."""
        self.closed += 1

    def rows(self, usage_ids: Collection[str], started: Span | None = None) -> list[Row]:
        """See `Transaction.rows`."""
        return [self._row(one) for one in sorted(usage_ids) if one in self.usage]

    def renew(
        self, usage_ids: Collection[str], lease_until: int, started: Span | None = None
    ) -> None:
        """See `Transaction.renew`."""
        for one in usage_ids:
            if self.usage[one]["state"] == "open":
                self.usage[one]["lease_until"] = lease_until

    def expired(self, now_ms: int, limit: int) -> list[Row]:
        """See `Transaction.expired`."""
        over = (
            one
            for one, row in self.usage.items()
            if row["state"] == "open" and row["lease_until"] <= now_ms
        )
        return [self._row(one) for one in sorted(over)[:limit]]

    def chains(self, leaves: Collection[str]) -> dict[str, tuple[str, ...]]:
        """See `Transaction.chains`."""
        self.asked += sorted(leaves)
        found = {}
        for leaf in leaves:
            up: list[str] = []
            name: str | None = leaf
            while name in self.accounts_kept:
                up.append(name)
                name = self.accounts_kept[name].parent
            if up and name is None:
                found[leaf] = tuple(up)
        return found

    def accounts(self, account_ids: Collection[str]) -> list[Account]:
        """See `Transaction.accounts`."""
        if self.locked & set(account_ids):
            raise BatchFailed("lock timeout", locked=True)
        found = [
            self.accounts_kept[one] for one in sorted(account_ids) if one in self.accounts_kept
        ]
        return msgspec.convert(msgspec.to_builtins(found), list[Account])

    def commit(self, changes: Changes) -> None:
        """See `Transaction.commit`."""
        if self.fails:
            raise self.fails.pop(0)
        ids = [row[0] for row in changes.opened]
        if len(set(ids)) < len(ids) or set(ids) & set(self.usage):
            raise BatchFailed("usage id exists", locked=False)
        self.batches.append(changes)
        for opened in changes.opened:
            values = dict(zip(OPENED, opened, strict=True))
            self.usage[str(opened[0])] = dict.fromkeys(ROW) | {"estimated": 0} | values
            self.usage[str(opened[0])]["state"] = "open"
        for columns, rows in ((RESIZED, changes.resized), (SETTLED, changes.settled)):
            for row in rows:
                assert not self._final(str(row[-1])), "settled usage is final"
                self.usage[str(row[-1])].update(zip(columns, row, strict=True))
        for settled in changes.settled:
            self.usage[str(settled[-1])]["state"] = "settled"
        for written in changes.accounts:
            for name, value in zip(WRITTEN, written, strict=True):
                if name != "updated_at":
                    setattr(self.accounts_kept[str(written[-1])], name, value)
        for subject, kind, minute, number in changes.incidents:
            key = (subject, kind, minute)
            self.incidents[key] = self.incidents.get(key, 0) + number

    def roll_back(self) -> None:
        """See `Transaction.roll_back`: nothing is changed before `commit`."""

    def gone(self, message: str = "gone", *, doubtful: bool = False) -> None:
        """Let the next commit fail as a store does that went away."""
        self.fails.append(StoreFailed(message, doubtful=doubtful))

    def _final(self, usage_id: str) -> bool:
        row = self.usage[usage_id]
        return row["state"] == "settled" and (row["outcome"], row["estimated"]) != ("crashed", 1)

    def _row(self, usage_id: str) -> Row:
        row = self.usage[usage_id]
        return Row(*(row[column] for column in ROW))
