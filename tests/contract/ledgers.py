"""What the ledger's contract tests need of a store: to prepare it, look into it, be in its way.

`SqliteStore` is the one there is; another back end joins by a class of the same methods.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

from daypass_core.clock import Clock
from daypass_proxy.ledger import Outcome, Reservation, Settlement, Usage
from daypass_proxy.ledger.sqlite import SqliteLedger
from daypass_proxy.ledger.verify import verify

CENT = 10_000_000
LEASE = 60.0


def reservation(
    usage_id: str, amount_nano: int, *, account: str = "a", sandbox: str = "sbx_1"
) -> Reservation:
    """Return a reservation whose other fields do not matter."""
    return Reservation(
        usage_id=usage_id,
        attempt=1,
        account=account,
        tenant="acme",
        sandbox=sandbox,
        grant_id="grt_1",
        token_id="tok_1",
        provider="anthropic",
        endpoint="messages",
        model="claude-opus-5",
        stream=True,
        amount_nano=amount_nano,
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


class SqliteStore:
    """A migrated SQLite file."""

    def __init__(self, path: Path, template: Path) -> None:
        self.path = path
        shutil.copy(template, path)

    @asynccontextmanager
    async def ledger(
        self, clock: Clock, worker: str = "w1", busy_seconds: float = 5.0
    ) -> AsyncIterator[SqliteLedger]:
        """Open a ledger for the length of a block."""
        ledger = await SqliteLedger.open(self.path, worker, clock, LEASE, busy_seconds=busy_seconds)
        try:
            yield ledger
        finally:
            await ledger.close()

    def account(self, name: str = "a", ceiling_nano: int | None = 50 * CENT) -> None:
        """Create an account, or change its ceiling, as the broker does."""
        self.query(
            "INSERT INTO account (id, kind, tenant, ceiling_nano, updated_at)"
            " VALUES (?, 'sandbox', 'acme', ?, 0)"
            " ON CONFLICT (id) DO UPDATE SET ceiling_nano = excluded.ceiling_nano",
            name,
            ceiling_nano,
        )

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement of another process and return its rows."""
        with closing(sqlite3.connect(self.path, timeout=5.0, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()

    def row(self, usage_id: str) -> dict[str, Any]:
        """Return one usage row; empty without one."""
        with closing(sqlite3.connect(self.path, timeout=5.0)) as connection:
            connection.row_factory = sqlite3.Row
            found = connection.execute("SELECT * FROM usage WHERE id = ?", (usage_id,)).fetchone()
            return dict(found) if found else {}

    def sums(self, account: str = "a") -> tuple[int, int, int]:
        """Return spent, reserved and overdraft of an account."""
        (found,) = self.query(
            "SELECT spent_nano, reserved_nano, overdraft_nano FROM account WHERE id = ?", account
        )
        return found[0], found[1], found[2]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let another process hold the write lock for the length of a block."""
        with self.worker("lock") as process:
            assert hear(process) == {"locked": True}
            yield

    @contextmanager
    def worker(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run `ledger_worker.py` on this store; it ends when the block does."""
        script = Path(__file__).with_name("ledger_worker.py")
        process = subprocess.Popen(
            [sys.executable, str(script), str(self.path), *arguments],
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
                process.wait(10)

    def assert_right(self) -> None:
        """Fail unless every account is the sum of its rows and the file is whole."""
        assert [str(found) for found in verify(self.path)] == []
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
