"""What the SQLite ledger does with its file: the right file only, few commits, doubt resolved."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import pytest

import daypass_migrations
from daypass_core.clock import SystemClock
from daypass_proxy.ledger import LedgerUnavailable, Reserved, Usage, sqlite
from daypass_proxy.ledger.operations import INCIDENT_ROWS, Extend, Lane, Queue, Reserve, Settle
from daypass_proxy.ledger.sqlite import SqliteLedger
from daypass_proxy.ledger.store import SCHEMA, connect
from daypass_proxy.ledger.verify import main, verify
from tests.contract.ledgers import CENT, LEASE, SqliteStore, bill, reservation
from tests.fakes.clock import FakeClock
from tests.support import aeventually


class Faulty:
    """A connection that fails as told: `fail` maps the start of a statement to what happens."""

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
        for start, faults in self._fail.items():
            if statement.strip().startswith(start) and faults:
                fault = faults.pop(0)
                if fault == "after":
                    self._connection.execute(statement, *values)
                if fault != "fine":
                    raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *values)


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


async def open_ledger(path: Path) -> SqliteLedger:
    """Open a ledger that is expected to refuse the file."""
    return await SqliteLedger.open(path, "w1", SystemClock(), LEASE)


def test_the_ledger_is_written_for_the_head_of_the_migrations() -> None:
    """A new migration must be looked at here before the proxy accepts its schema."""
    assert SCHEMA == daypass_migrations.HEAD


async def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    """A wrong path is reported as such and leaves no empty database behind."""
    with pytest.raises(LedgerUnavailable, match=r"no database at .*none\.db; start the broker"):
        await open_ledger(tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


async def test_another_schema_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    """A database of another version, or none of ours, is refused with what to do."""
    store.query("UPDATE alembic_version SET version_num = '0007'")
    with pytest.raises(LedgerUnavailable, match=r"has schema 0007, this proxy needs 0001; run"):
        await open_ledger(store.path)
    (tmp_path / "empty.db").touch()
    with pytest.raises(LedgerUnavailable, match="has schema none"):
        await open_ledger(tmp_path / "empty.db")
    (tmp_path / "text.db").write_text("this is no database, and long enough to be sure" * 9)
    with pytest.raises(LedgerUnavailable, match="not a database"):
        await open_ledger(tmp_path / "text.db")


def test_every_connection_is_durable_and_waits_for_locks(store: SqliteStore) -> None:
    """B59: WAL, FULL, foreign keys and the busy timeout are set on the writer's connection."""
    connection = connect(store.path, 5.0)
    found = [
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    ]
    connection.close()
    assert found == ["wal", 2, 1, 5000]


async def test_calls_that_wait_share_a_commit(
    store: SqliteStore, faults: dict[str, list[str]]
) -> None:
    """64 calls at once need a few commits, not 64; a call alone is committed at once."""
    async with store.ledger(FakeClock()) as ledger:
        (connection,) = Faulty.made
        before = connection.commits
        await ledger.reserve(reservation("req_alone", 1))
        assert connection.commits == before + 1
        with store.locked():
            calls = [
                asyncio.ensure_future(ledger.reserve(reservation(f"req_{n}", 1))) for n in range(64)
            ]
            await asyncio.wait(calls, timeout=0)
        await asyncio.gather(*calls)
        assert connection.commits <= before + 3


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_commit_that_fails_in_doubt_leaves_no_hold(
    store: SqliteStore, faults: dict[str, list[str]], fault: str
) -> None:
    """When nobody knows whether a commit reached the disk, the refused call holds nothing."""
    async with store.ledger(FakeClock()) as ledger:
        await ledger.reserve(reservation("req_1", CENT))
        faults["COMMIT"] = [fault]
        answers = await asyncio.gather(
            ledger.reserve(reservation("req_2", 10 * CENT)),
            ledger.settle(bill("req_1", 3)),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [LedgerUnavailable, type(None)]
        await aeventually(lambda: store.sums() == (3, 0, 0))
    assert store.row("req_2").get("outcome") == (None if fault == "before" else "client_gone")


@pytest.mark.parametrize(
    "statement", ["BEGIN", "UPDATE account SET reserved", "INSERT INTO usage", "ROLLBACK"]
)
async def test_a_store_that_fails_in_mid_batch_admits_nothing_and_comes_back(
    store: SqliteStore, faults: dict[str, list[str]], statement: str
) -> None:
    """Both statements of an admission are written or neither; the next calls find a new try."""
    async with store.ledger(FakeClock()) as ledger:
        faults["INSERT INTO usage"] = ["before"]
        faults[statement] = ["before"]
        with pytest.raises(LedgerUnavailable, match="disk I/O error"):
            await ledger.reserve(reservation("req_1", 50 * CENT))
        assert store.sums() == (0, 0, 0)
        faults.clear()
        with pytest.raises(LedgerUnavailable):
            await ledger.reserve(reservation("req_1", 50 * CENT))

        async def admitted() -> bool:
            try:
                return isinstance(await ledger.reserve(reservation("req_2", 50 * CENT)), Reserved)
            except LedgerUnavailable:
                return False

        await aeventually(admitted)


async def test_a_bill_that_no_row_can_hold_harms_no_other(store: SqliteStore) -> None:
    """A figure beyond a database integer fails its own caller; the other bills are booked."""
    clock = FakeClock()
    async with store.ledger(clock) as ledger:
        for usage_id in ("req_1", "req_2"):
            await ledger.reserve(reservation(usage_id, CENT))
        absurd = bill("req_1", 1, usage=Usage(input_tokens=2**64))
        ledger.count("sbx_1", "kind")
        answers = await asyncio.gather(
            ledger.settle(absurd), ledger.settle(bill("req_2", 2)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [ValueError, type(None)]
        assert store.sums() == (2, CENT, 0)
        clock.advance(LEASE)
        await ledger.look_after_leases()
    assert store.sums() == (2 + CENT, 0, 0)
    assert store.query("SELECT count FROM incident") == [(1,)]


def test_what_frees_money_comes_first_in_a_batch() -> None:
    """Settlements go before extensions, extensions before reservations, each in their order."""
    queue = Queue()
    put = [
        Reserve(reservation=reservation("req_1", 1)),
        Extend(usage_id="req_0", amount_nano=1),
        Settle(settlement=bill("req_2", 1)),
        Reserve(reservation=reservation("req_3", 1)),
        Settle(settlement=bill("req_4", 1)),
    ]
    for operation in put:
        queue.put(operation)
    back = Settle(settlement=bill("req_5", 1))
    queue.put_back([back])
    batch = queue.take(5, 0.0)
    assert batch is not None
    assert batch.operations == [back, put[2], put[4], put[1], put[0]]
    assert queue.clear(*Lane) == [put[3]]


def test_incidents_kept_in_memory_are_bounded() -> None:
    """Beyond the bound new incident rows are dropped; those known already count on."""
    queue = Queue()
    for n in range(INCIDENT_ROWS + 5):
        queue.count({(f"sbx_{n}", "kind", 1): 1})
    queue.count({("sbx_0", "kind", 1): 1})
    batch = queue.take(1, 0.0)
    assert batch is not None
    assert len(batch.incidents) == INCIDENT_ROWS
    assert batch.incidents["sbx_0", "kind", 1] == 2


async def test_verify_finds_every_kind_of_drift(
    store: SqliteStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong sum in each column and rows without an account are named to the nano-dollar."""
    async with store.ledger(FakeClock()) as ledger:
        await ledger.reserve(reservation("req_1", CENT))
        await ledger.settle(bill("req_1", CENT + 5))
        await ledger.reserve(reservation("req_2", 7))
    assert main([str(store.path)]) == 0
    right = "SET spent_nano = 10000005, reserved_nano = 7, overdraft_nano = 5"
    store.query("UPDATE account SET spent_nano = 1, reserved_nano = 8, overdraft_nano = 0")
    assert [str(found) for found in verify(store.path)] == [
        "a: spent_nano: 1 recorded, 10000005 by its usage rows",
        "a: reserved_nano: 8 recorded, 7 by its usage rows",
        "a: overdraft_nano: 0 recorded, 5 by its usage rows",
    ]
    store.query("UPDATE account SET id = 'b'")
    assert [found.recorded for found in verify(store.path)] == [None, None, None, 1, 8]
    assert main([str(store.path)]) == 1
    assert "a: spent_nano: no account, 10000005" in capsys.readouterr().out
    store.query(f"UPDATE account {right}, id = 'a'")
    assert main([str(store.path / "none")]) == 2
    assert main([]) == 2
