"""What the SQLite ledger does with its file: the right file only, few commits, doubt resolved."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import pytest

import daypass_migrations
from daypass_core.clock import SystemClock
from daypass_proxy.ledger import LedgerUnavailable, Reserved, Usage, sqlite
from daypass_proxy.ledger.face import BatchedLedger
from daypass_proxy.ledger.sqlite import SqliteStore, connect
from daypass_proxy.ledger.store import SCHEMA
from tests.contract.ledgers import CENT, LEASE, SqliteBackend, bill, reservation
from tests.fakes.clock import FakeClock
from tests.support import aeventually


class Faulty:
    """A connection that fails as told: `fail` maps the start of a statement to what happens.

    It happens `before` the statement or `after` it was done, one by one; to some `nothing` does.
    """

    made: ClassVar[list["Faulty"]] = []

    def __init__(self, connection: sqlite3.Connection, fail: dict[str, list[str]]) -> None:
        self._connection = connection
        self._fail = fail
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *values: Any) -> Any:
        """Run a statement, or fail before it, or fail after it was done."""
        self.commits += statement == "COMMIT"
        return self._run(self._connection.execute, statement, *values)

    def executemany(self, statement: str, rows: Any) -> Any:
        """Do the same with a statement that runs once per row."""
        return self._run(self._connection.executemany, statement, rows)

    def _run(self, execute: Any, statement: str, *values: Any) -> Any:
        for start, faults in self._fail.items():
            if not (statement.strip().startswith(start) and faults):
                continue
            fault = faults.pop(0)
            if fault == "after":
                execute(statement, *values)
            if fault != "nothing":
                raise sqlite3.OperationalError("disk I/O error")
        return execute(statement, *values)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The faults of every connection that a ledger opens in this test."""
    fail: dict[str, list[str]] = {}
    made: list[Faulty] = []

    def connecting(path: Path, busy_seconds: float) -> Faulty:
        made.append(Faulty(connect(path, busy_seconds), fail))
        return made[-1]

    monkeypatch.setattr(sqlite, "connect", connecting)
    monkeypatch.setattr(Faulty, "made", made)
    return fail


async def open_ledger(path: Path) -> BatchedLedger:
    """Open a ledger that is expected to refuse the file."""
    return await BatchedLedger.open(lambda: SqliteStore(path), "w1", SystemClock(), LEASE)


def test_the_ledger_is_written_for_the_head_of_the_migrations() -> None:
    """A new migration must be looked at here before the proxy accepts its schema."""
    assert SCHEMA == daypass_migrations.HEAD


async def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    """A wrong path is reported as such and leaves no empty database behind."""
    with pytest.raises(LedgerUnavailable, match=r"no database at .*none\.db; start the broker"):
        await open_ledger(tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


async def test_another_schema_is_refused(sqlite_store: SqliteBackend, tmp_path: Path) -> None:
    """A database of a schema that does not suit, or none of ours, is refused with what to do."""
    sqlite_store.query("UPDATE alembic_version SET version_num = '0003'")
    with pytest.raises(
        LedgerUnavailable, match=f"at schema 0003, this release needs {SCHEMA}: run"
    ):
        await open_ledger(sqlite_store.path)
    sqlite_store.query("UPDATE alembic_version SET version_num = '0099'")
    sqlite_store.query("UPDATE schema_compat SET readable_from = '0098'")
    with pytest.raises(LedgerUnavailable, match="made for schema 0098 or newer; this one was made"):
        await open_ledger(sqlite_store.path)
    # A newer one that suits this release still is none of the others.
    sqlite_store.query("UPDATE schema_compat SET readable_from = ?", SCHEMA)
    await (await open_ledger(sqlite_store.path)).close()
    (tmp_path / "empty.db").touch()
    with pytest.raises(LedgerUnavailable, match="has no schema yet"):
        await open_ledger(tmp_path / "empty.db")
    (tmp_path / "text.db").write_text("this is no database, and long enough to be sure" * 9)
    with pytest.raises(LedgerUnavailable, match="not a database"):
        await open_ledger(tmp_path / "text.db")


def test_every_connection_is_durable_and_waits_for_locks(sqlite_store: SqliteBackend) -> None:
    """B59: WAL, FULL, foreign keys and the busy timeout are set on the writer's connection."""
    connection = connect(sqlite_store.path, 5.0)
    found = [
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    ]
    connection.close()
    assert found == ["wal", 2, 1, 5000]


async def test_calls_that_wait_share_a_commit(
    sqlite_store: SqliteBackend, faults: dict[str, list[str]]
) -> None:
    """64 calls at once need a few commits, not 64; a call alone is committed at once."""
    async with sqlite_store.ledger(FakeClock()) as ledger:
        (connection,) = Faulty.made
        before = connection.commits
        await ledger.reserve(reservation("req_alone", 1))
        assert connection.commits == before + 1
        with sqlite_store.locked():
            calls = [
                asyncio.ensure_future(ledger.reserve(reservation(f"req_{n}", 1))) for n in range(64)
            ]
            await asyncio.wait(calls, timeout=0)
        await asyncio.gather(*calls)
        assert connection.commits <= before + 3


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_commit_that_fails_in_doubt_leaves_no_hold(
    sqlite_store: SqliteBackend, faults: dict[str, list[str]], fault: str
) -> None:
    """When nobody knows whether a commit reached the disk, the refused call holds nothing."""
    async with sqlite_store.ledger(FakeClock()) as ledger:
        await ledger.reserve(reservation("req_1", CENT))
        faults["COMMIT"] = [fault]
        answers = await asyncio.gather(
            ledger.reserve(reservation("req_2", 10 * CENT)),
            ledger.settle(bill("req_1", 3)),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [LedgerUnavailable, type(None)]
        await aeventually(lambda: sqlite_store.sums() == (3, 0, 0))
    assert sqlite_store.row("req_2").get("outcome") == (
        None if fault == "before" else "client_gone"
    )


@pytest.mark.parametrize("statement", ["BEGIN", "UPDATE account", "INSERT INTO usage", "ROLLBACK"])
async def test_a_store_that_fails_in_mid_batch_admits_nothing_and_comes_back(
    sqlite_store: SqliteBackend, faults: dict[str, list[str]], statement: str
) -> None:
    """Both statements of an admission are written or neither; the next calls find a new try."""
    async with sqlite_store.ledger(FakeClock()) as ledger:
        faults["INSERT INTO usage"] = ["before"]
        faults[statement] = ["before"]
        # Nor does the store come back before the second call was refused.
        faults["BEGIN"] = ["before" if statement == "BEGIN" else "nothing", *["before"] * 100]
        with pytest.raises(LedgerUnavailable, match="disk I/O error"):
            await ledger.reserve(reservation("req_1", 50 * CENT))
        assert sqlite_store.sums() == (0, 0, 0)
        with pytest.raises(LedgerUnavailable):
            await ledger.reserve(reservation("req_1", 50 * CENT))
        faults.clear()

        async def admitted() -> bool:
            try:
                return isinstance(await ledger.reserve(reservation("req_2", 50 * CENT)), Reserved)
            except LedgerUnavailable:
                return False

        await aeventually(admitted)


async def test_a_bill_that_no_row_can_hold_harms_no_other(sqlite_store: SqliteBackend) -> None:
    """A figure beyond a database integer fails its own caller; the other bills are booked."""
    clock = FakeClock()
    async with sqlite_store.ledger(clock) as ledger:
        for usage_id in ("req_1", "req_2"):
            await ledger.reserve(reservation(usage_id, CENT))
        absurd = bill("req_1", 1, usage=Usage(input_tokens=2**64))
        ledger.count("sbx_1", "kind")
        answers = await asyncio.gather(
            ledger.settle(absurd), ledger.settle(bill("req_2", 2)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [ValueError, type(None)]
        assert sqlite_store.sums() == (2, CENT, 0)
        clock.advance(LEASE)
        await ledger.look_after_leases()
    assert sqlite_store.sums() == (2 + CENT, 0, 0)
    assert sqlite_store.query("SELECT count FROM incident") == [(1,)]
