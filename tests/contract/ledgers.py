"""What the ledger's contract tests need of a back end: to prepare it, look into it, be in its way.

`Backend` is the same for all; `SqliteBackend` adds what only SQLite knows. Another back end joins
by a class with the same few methods, and by its name in `conftest.BACKENDS`.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

from daypass_core.clock import Clock
from daypass_proxy.ledger import (
    Balance,
    Hold,
    LedgerRefused,
    Limit,
    LimitState,
    Outcome,
    Reservation,
    Reserved,
    Settlement,
    Usage,
)
from daypass_proxy.ledger.face import LONGEST_WAIT, BatchedLedger
from daypass_proxy.ledger.refusals import REMEMBERED_SECONDS
from daypass_proxy.ledger.sqlite import SqliteStore
from daypass_proxy.ledger.store import OpenStore
from daypass_proxy.ledger.verify import verify

CENT = 10_000_000
LEASE = 60.0
FORGOTTEN = REMEMBERED_SECONDS
"""Seconds after which a refusal is looked up anew."""


def reservation(
    usage_id: str,
    nano: int,
    *,
    tokens: int = 0,
    account: str = "a",
    sandbox: str = "sbx_1",
    tenant: str = "acme",
    stream: bool = True,
    output: tuple[int, int, int] = (0, 0, 0),
) -> Reservation:
    """Return a reservation whose other fields do not matter.

    `output` are the fewest and the most output tokens, and the nano-dollars of each.
    """
    return Reservation(
        usage_id=usage_id,
        attempt=1,
        account=account,
        tenant=tenant,
        sandbox=sandbox,
        grant_id="grt_1",
        token_id="tok_1",
        provider="anthropic",
        endpoint="messages",
        model="claude-opus-5",
        stream=stream,
        base=Hold(nano, tokens),
        output_least=output[0],
        output_most=output[1],
        output_nano=output[2],
    )


def bill(
    usage_id: str,
    cost_nano: int,
    *,
    outcome: Outcome = Outcome.COMPLETE,
    usage: Usage = Usage(10, 20, 0, None, 0),  # noqa: B008 - frozen
    estimated: bool = False,
) -> Settlement:
    """Return the settlement of a call that cost so much."""
    return Settlement(usage_id, outcome, usage, cost_nano, estimated, 200, "req_upstream")


def left(answer: Reserved | LedgerRefused, limit: Limit = Limit.BUDGET, account: str = "a") -> int:
    """Return what an admitted call leaves of a limit."""
    assert isinstance(answer, Reserved), answer
    (state,) = [one for one in answer.limits if (one.limit, one.account) == (limit, account)]
    return state.left


def refused(reason: str, wanted: int, ceiling: int, used: int, held: int) -> LedgerRefused:
    """Return the refusal of a call that the budget of `a` has no room for."""
    state = LimitState(Limit.BUDGET, "a", ceiling, used, held)
    return LedgerRefused(reason, state, wanted)  # type: ignore[arg-type]


def money(balance: Balance | None) -> tuple[int, int, int]:
    """Return spent, reserved and overdraft of a balance."""
    assert balance is not None
    return balance.spent_nano, balance.reserved_nano, balance.overdraft_nano


Query = Callable[..., list[tuple[Any, ...]]]
"""Runs one statement, with `?` for each value that follows, and returns its rows."""


class Backend(ABC):
    """A migrated database of its own; `address` is what `verify` and `ledger_worker.py` take."""

    address: str

    @abstractmethod
    def open_store(self, busy_seconds: float) -> OpenStore:
        """Return what connects a ledger to it."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Query]:
        """Give what runs one statement after another, in a transaction of another connection."""

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement, with `?` for each value, in another connection; return its rows."""
        with self.transaction() as query:
            return query(statement, *values)

    @abstractmethod
    def row(self, usage_id: str) -> dict[str, Any]:
        """Return one usage row by column; empty without one."""

    @abstractmethod
    def locked(self) -> AbstractContextManager[None]:
        """Let another process hold what every batch needs for the length of a block."""

    @abstractmethod
    def assert_whole(self) -> None:
        """Fail unless the database itself is in order."""

    @asynccontextmanager
    async def ledger(
        self,
        clock: Clock,
        worker: str = "w1",
        busy_seconds: float = 5.0,
        longest_wait: float = LONGEST_WAIT,
    ) -> AsyncIterator[BatchedLedger]:
        """Open a ledger for the length of a block."""
        ledger = await self.open(clock, worker, busy_seconds, longest_wait)
        try:
            yield ledger
        finally:
            await ledger.close()

    async def open(
        self,
        clock: Clock,
        worker: str = "w1",
        busy_seconds: float = 5.0,
        longest_wait: float = LONGEST_WAIT,
    ) -> BatchedLedger:
        """Open a ledger, to be closed by the caller."""
        store = self.open_store(busy_seconds)
        return await BatchedLedger.open(store, worker, clock, LEASE, longest_wait=longest_wait)

    def account(
        self,
        name: str = "a",
        ceiling_nano: int | None = 50 * CENT,
        *,
        parent: str | None = None,
        **columns: object,
    ) -> None:
        """Create an account, or change its limits, as the broker does."""
        self.query(
            "INSERT INTO account (id, kind, tenant, parent, updated_at)"
            " VALUES (?, 'sandbox', 'acme', ?, 0) ON CONFLICT (id) DO NOTHING",
            name,
            parent,
        )
        for column, value in {"ceiling_nano": ceiling_nano, **columns}.items():
            self.query(f"UPDATE account SET {column} = ? WHERE id = ?", value, name)

    def buy(self, buyer: str, child: str, nano: int) -> bool:
        """Set a slice aside for a new account, as the broker does; False where there is no room."""
        bought = self.query(
            "UPDATE account SET lent_nano = lent_nano + ? WHERE id = ? AND (ceiling_nano IS NULL OR"
            " ceiling_nano >= spent_nano + reserved_nano + lent_nano - lent_used_nano + ?)"
            " RETURNING id",
            nano,
            buyer,
            nano,
        )
        if bought:  # calls of it may come once it is there: only then is it to be used
            self.account(child, nano, parent=buyer, sliced=1)
        return bool(bought)

    def give_back(self, child: str) -> None:
        """Give back what is left of a slice, as the broker does."""
        buyer = self.column("parent", child)
        with self.transaction() as query:
            for account in sorted((child, buyer)):  # locked in the order of their ids
                query("UPDATE account SET updated_at = 0 WHERE id = ?", account)
            found = query(
                "SELECT ceiling_nano - spent_nano - reserved_nano FROM account"
                " WHERE id = ? AND sliced = 1",
                child,
            )
            for (left,) in found:
                less = "UPDATE account SET lent_nano = lent_nano - ? WHERE id = ?"
                query(less, max(left, 0), buyer)
                query("UPDATE account SET sliced = 0 WHERE id = ?", child)

    def column(self, column: str, account: str = "a") -> Any:
        """Return one column of an account."""
        statement = f"SELECT {column} FROM account WHERE id = ?"
        return self.query(statement, account)[0][0]

    def sums(self, account: str = "a") -> tuple[int, int, int]:
        """Return spent, reserved and overdraft of an account."""
        (found,) = self.query(
            "SELECT spent_nano, reserved_nano, overdraft_nano FROM account WHERE id = ?", account
        )
        return found[0], found[1], found[2]

    @contextmanager
    def worker(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run `ledger_worker.py` on this database; it ends when the block does."""
        script = Path(__file__).with_name("ledger_worker.py")
        process = subprocess.Popen(
            [sys.executable, str(script), self.address, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(60)

    def assert_right(self) -> None:
        """Fail unless every account is the sum of its rows and the database is in order."""
        assert [str(found) for found in verify(self.address)] == []
        self.assert_whole()


class SqliteBackend(Backend):
    """A migrated SQLite file."""

    def __init__(self, path: Path, template: Path) -> None:
        self.path = path
        self.address = str(path)
        shutil.copy(template, path)

    def open_store(self, busy_seconds: float) -> Callable[[], SqliteStore]:
        """See `Backend.open_store`."""
        return lambda: SqliteStore(self.path, busy_seconds)

    @contextmanager
    def transaction(self) -> Iterator[Query]:
        """See `Backend.transaction`."""
        with closing(sqlite3.connect(self.path, timeout=5.0, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            yield lambda statement, *values: connection.execute(statement, values).fetchall()
            connection.execute("COMMIT")

    def row(self, usage_id: str) -> dict[str, Any]:
        """See `Backend.row`."""
        with closing(sqlite3.connect(self.path, timeout=5.0)) as connection:
            connection.row_factory = sqlite3.Row
            found = connection.execute("SELECT * FROM usage WHERE id = ?", (usage_id,)).fetchone()
            return dict(found) if found else {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """See `Backend.locked`: the write lock of the file."""
        with self.worker("lock") as process:
            assert hear(process) == {"locked": True}
            yield

    def assert_whole(self) -> None:
        """See `Backend.assert_whole`."""
        assert self.query("PRAGMA integrity_check") == [("ok",)]


def hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next thing a worker says; empty once it is gone, also in the middle of a line."""
    assert process.stdout is not None
    text = process.stdout.readline()
    said: dict[str, Any] = json.loads(text) if text.endswith("\n") else {}
    return said


def tell(process: subprocess.Popen[str]) -> None:
    """Let a worker go on to its next step."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


class Wall:
    """A clock for tests beside real processes: the machine's time, moved on at will."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        """Return epoch seconds."""
        return time.time() + self.ahead

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic() + self.ahead
