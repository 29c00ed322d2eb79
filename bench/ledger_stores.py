"""What `bench.ledger` drives: our ledger and check-then-add, on SQLite and on PostgreSQL.

Both ways know the same accounts, write the same rows and are durable alike: SQLite with
synchronous=FULL, PostgreSQL with synchronous_commit and fsync on.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import psycopg

import daypass_migrations
from bench.process import BenchError
from daypass_core.clock import SystemClock
from daypass_proxy.ledger import Hold, LedgerRefused, Outcome, Reservation, Settlement, Usage
from daypass_proxy.ledger.face import BatchedLedger
from daypass_proxy.ledger.postgres import open_store
from daypass_proxy.ledger.sqlite import SqliteStore
from daypass_proxy.ledger.store import OpenStore
from daypass_proxy.ledger.verify import verify
from tests.servers.postgres import PostgresServer

TENANTS = 8
SANDBOXES = 512
PLENTY = 10**18  # nano-dollars: no run can spend it
COST = 12_000_000  # nano-dollars of one call
POOL = 8  # connections of check-then-add on PostgreSQL
USAGE = Usage(input_tokens=2_000, output_tokens=400, cache_read_input_tokens=8_000)


class Way(Protocol):
    """A way to keep a budget. Calls have numbers; a sandbox is one too."""

    async def admit(self, call: str, sandbox: int) -> bool:
        """Ask whether a call may go up."""

    async def settle(self, call: str, sandbox: int) -> None:
        """Book what it cost; return when that is durable."""

    async def close(self) -> None:
        """Let go of the store."""


class Store:
    """A migrated database with accounts; `url` is SQLAlchemy's."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.path = Path(url.removeprefix("sqlite:///")) if name == "sqlite" else None
        daypass_migrations.upgrade(url)
        self._plain = self.connect()
        for tenant in range(TENANTS):
            self._account(f"tenant:t{tenant}", "tenant", tenant, "month_ceiling_nano")
        for sandbox in range(SANDBOXES):
            self._account(leaf(sandbox), "sandbox", sandbox % TENANTS, "ceiling_nano")

    def connect(self) -> Any:
        """A connection of its own, every commit of it durable."""
        if self.path is None:
            return psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True)
        connection = sqlite3.connect(self.path, 30.0, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def execute(self, connection: Any, statement: str, *values: object) -> Any:
        """Run one statement, with `?` for each value."""
        written = statement if self.path is not None else statement.replace("?", "%s")
        return connection.execute(written, values)

    def ceiling(self, sandbox: int, nano: int) -> None:
        """Set a sandbox's budget."""
        self.execute(
            self._plain, "UPDATE account SET ceiling_nano = ? WHERE id = ?", nano, leaf(sandbox)
        )

    def spent(self, sandbox: int) -> int:
        """What a sandbox's account says was spent, in nano-dollars."""
        query = "SELECT spent_nano FROM account WHERE id = ?"
        return int(self.execute(self._plain, query, leaf(sandbox)).fetchone()[0])

    def check(self) -> None:
        """Raise BenchError unless every account is the sum of its rows."""
        wrong = verify(str(self.path) if self.path is not None else self.url)
        if wrong:
            raise BenchError(f"{self.name}: {len(wrong)} sums are wrong: {wrong[0]}")

    def one_commit(self) -> float:
        """Seconds of one durable transaction of one row, made by itself."""
        began = time.perf_counter()
        self.execute(
            self._plain, "UPDATE account SET updated_at = updated_at + 1 WHERE id = ?", leaf(0)
        )
        return time.perf_counter() - began

    def close(self) -> None:
        """Close the connection."""
        self._plain.close()

    def _account(self, account: str, kind: str, tenant: int, limit: str) -> None:
        self.execute(
            self._plain,
            f"INSERT INTO account (id, kind, tenant, parent, {limit}, updated_at)"
            " VALUES (?, ?, ?, ?, ?, 0)",
            account,
            kind,
            f"t{tenant}",
            f"tenant:t{tenant}" if kind == "sandbox" else None,
            PLENTY,
        )


@contextmanager
def stores(folder: Path, names: list[str]) -> Iterator[list[Callable[[], Store]]]:
    """What makes a fresh store of each kind; the PostgreSQL server ends with the block."""
    numbers = iter(range(1_000_000))
    makers: list[Callable[[], Store]] = []
    if "sqlite" in names:
        makers.append(lambda: Store("sqlite", f"sqlite:///{folder}/{next(numbers)}.db"))
    if "postgres" not in names:
        yield makers
        return
    with PostgresServer() as server:
        makers.append(lambda: Store("postgres", server.new_database()))
        _demand_durable(server.new_database())
        yield makers


def _demand_durable(url: str) -> None:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        for setting in ("fsync", "synchronous_commit"):
            if connection.execute(f"SHOW {setting}").fetchone() != ("on",):
                raise BenchError(f"PostgreSQL runs with {setting} off")


def leaf(sandbox: int) -> str:
    """The account of a sandbox."""
    return f"sandbox:sbx_{sandbox}"


class Ours:
    """The ledger as the proxy runs it."""

    def __init__(self, ledger: BatchedLedger) -> None:
        self._ledger = ledger

    @classmethod
    async def open(cls, store: Store) -> "Ours":
        opens: OpenStore = partial(open_store, store.url, 5.0)
        if store.path is not None:
            opens = partial(SqliteStore, store.path)
        return cls(await BatchedLedger.open(opens, "bench", SystemClock(), 60.0))

    async def admit(self, call: str, sandbox: int) -> bool:
        answer = await self._ledger.reserve(
            Reservation(
                usage_id=call,
                attempt=1,
                account=leaf(sandbox),
                tenant=f"t{sandbox % TENANTS}",
                sandbox=f"sbx_{sandbox}",
                grant_id="grt_bench",
                token_id="tok_bench",
                provider="anthropic",
                endpoint="messages",
                model="claude-sonnet-4-5",
                stream=True,
                base=Hold(COST, 10_000),
            )
        )
        if isinstance(answer, LedgerRefused) and answer.reason not in ("exhausted", "held"):
            raise BenchError(f"a call was refused: {answer.reason}")
        return not isinstance(answer, LedgerRefused)

    async def settle(self, call: str, sandbox: int) -> None:
        bill = Settlement(call, Outcome.COMPLETE, USAGE, COST, False, 200, "req_upstream")
        await self._ledger.settle(bill)

    async def close(self) -> None:
        await self._ledger.close()


class CheckThenAdd:
    """What is common elsewhere: look whether something is left, call, then add what it cost.

    Each statement is run as it comes, in a thread for each connection (SQLite: one, since it has
    one writer). The look is cheaper than our hold: nothing is written, so a call leaves no trace
    before it is over, and many calls can see the same money.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(POOL if store.path is None else 1)
        self._own = threading.local()
        self._connections: list[Any] = []

    async def admit(self, call: str, sandbox: int) -> bool:
        return bool(await self._run(self._look, sandbox))

    async def settle(self, call: str, sandbox: int) -> None:
        await self._run(self._add, call, sandbox)

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        for connection in self._connections:
            connection.close()

    async def _run(self, work: Callable[..., Any], *values: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *values)

    def _connection(self) -> Any:
        if not hasattr(self._own, "connection"):
            self._own.connection = self._store.connect()
            self._connections.append(self._own.connection)
        return self._own.connection

    def _look(self, sandbox: int) -> bool:
        query = (
            "SELECT MIN(COALESCE(ceiling_nano, 1000000000000000000) - spent_nano)"
            " FROM account WHERE id IN (?, ?)"
        )
        accounts = (leaf(sandbox), f"tenant:t{sandbox % TENANTS}")
        found = self._store.execute(self._connection(), query, *accounts).fetchone()
        return int(found[0]) > 0

    def _add(self, call: str, sandbox: int) -> None:
        connection, accounts = self._connection(), (leaf(sandbox), f"tenant:t{sandbox % TENANTS}")
        now, tokens = int(time.time() * 1000), USAGE.tokens
        row = {
            "id": call, "attempt": 1, "state": "settled", "account": accounts[0],
            "accounts": " ".join(accounts), "tenant": accounts[1].removeprefix("tenant:"),
            "sandbox": f"sbx_{sandbox}", "grant_id": "grt_bench", "token_id": "tok_bench",
            "provider": "anthropic", "endpoint": "messages", "model": "claude-sonnet-4-5",
            "stream": 1, "reserved_nano": COST, "cost_nano": COST, "tokens": tokens,
            "input_tokens": USAGE.input_tokens, "output_tokens": USAGE.output_tokens,
            "cache_read_input_tokens": USAGE.cache_read_input_tokens, "outcome": "complete",
            "estimated": 0, "http_status": 200, "worker": "bench", "lease_until": now,
            "started_at": now, "settled_at": now,
        }  # fmt: skip
        marks = ", ".join("?" * len(row))
        execute = partial(self._store.execute, connection)
        execute("BEGIN" if self._store.path is None else "BEGIN IMMEDIATE")
        execute(f"INSERT INTO usage ({', '.join(row)}) VALUES ({marks})", *row.values())
        for account in accounts:  # always in this order: in one statement two could deadlock
            execute(
                "UPDATE account SET spent_nano = spent_nano + ?, tokens_spent = tokens_spent + ?,"
                " updated_at = ? WHERE id = ?",
                *(COST, tokens, now, account),
            )
        execute("COMMIT")


WAYS: dict[str, Callable[[Store], Any]] = {"daypass": Ours.open, "check-then-add": CheckThenAdd}


def fdatasync_seconds(folder: Path, times: int = 100) -> list[float]:
    """How long the disk takes to make 4 KiB more of a file durable, each of so many times."""
    found = []
    with (folder / "fdatasync").open("wb", buffering=0) as file:
        for _ in range(times):
            file.write(b"x" * 4096)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            found.append(time.perf_counter() - began)
    return found
