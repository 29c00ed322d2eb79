"""Pruning usage leaves the books right to the nano-dollar, in every account, at every moment."""

import asyncio
import gzip
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from daypass_broker import db
from daypass_broker.retention import RetentionError, usage, usage_sqlite
from daypass_broker.retention.months import Month, kept_from
from daypass_proxy.ledger.verify import verify
from daypass_proxy.reconcile import Unreadable, booked
from daypass_proxy.reconcile.booked import Range, read
from daypass_proxy.reconcile.booked_postgres import snapshot
from tests.contract.ledgers import CENT, Backend, bill, reservation
from tests.contract.ledgers_postgres import PostgresBackend
from tests.contract.pruning import (
    LATER,
    at,
    everything,
    fill,
    months,
    problems,
    prune,
)
from tests.servers.next_release import NEXT


@pytest.fixture
async def filled(store: Backend) -> Backend:
    """A store with calls from January to April of 2027."""
    await fill(store)
    assert verify(store.address) == []
    return store


async def test_old_months_go_and_every_sum_stays(filled: Backend, tmp_path: Path) -> None:
    """Two months are gone, no account has changed, and all of them can still be recomputed."""
    before, rows = everything(filled), months(filled)
    assert rows == {"2027-01": 7, "2027-02": 6, "2027-03": 5, "2027-04": 5}
    done = prune(filled, tmp_path)
    assert [(one.month.name, one.calls, one.kept) for one in done.usage] == [
        ("2027-01", 7, None),
        ("2027-02", 6, None),
    ]
    assert months(filled) == {"2027-03": 5, "2027-04": 5}
    assert everything(filled) == before
    assert verify(filled.address) == []
    assert prune(filled, tmp_path).usage == []


async def test_what_is_carried_is_part_of_what_is_verified(filled: Backend, tmp_path: Path) -> None:
    """A carried sum that is one too high is found, in the account that it is of; so is a window's.

    The idle account stands in its old month and day still; what is carried of a window that an
    account has left means nothing.
    """
    prune(filled, tmp_path)
    for column, sums in (
        ("spent_nano", ["spent_nano"]),
        ("overdraft_nano", ["overdraft_nano"]),
        ("tokens_spent", ["tokens_spent"]),
        ("month_spent_nano", ["month_spent_nano"]),
        ("day_spent_nano", ["day_spent_nano"]),
    ):
        change = f"UPDATE usage_carried SET {column} = {column} + ? WHERE account = 'idle'"
        filled.query(change, 1)
        assert [(one.account, one.column) for one in verify(filled.address)] == [
            ("idle", name) for name in sums
        ]
        filled.query(change, -1)
    other_month = "month_from = month_from - 1, month_spent_nano = 99"
    filled.query(f"UPDATE usage_carried SET {other_month} WHERE account = 'a'")
    assert verify(filled.address) == []


async def test_calls_go_on_afterwards(filled: Backend, tmp_path: Path) -> None:
    """New bills, new windows and another prune in a later month add up as if nothing was pruned."""
    prune(filled, tmp_path)
    clock = at(2027, 7, 2)
    async with filled.ledger(clock) as ledger:
        for name in ("a", "idle"):
            await ledger.reserve(reservation(f"req_july_{name}", CENT, account=name))
            await ledger.settle(bill(f"req_july_{name}", 13))
    assert verify(filled.address) == []
    done = prune(filled, tmp_path, now_ms=int(clock.now() * 1000))
    assert [one.month.name for one in done.usage] == ["2027-03", "2027-04"]
    assert months(filled) == {"2027-07": 2}
    assert verify(filled.address) == []
    assert problems(filled, tmp_path) == []
    spent = [filled.column("spent_nano", name) for name in ("a", "idle", "t")]
    assert spent[2] == spent[0] + spent[1] > 0


async def test_an_export_has_every_call_with_all_its_columns(
    filled: Backend, tmp_path: Path
) -> None:
    """The file has what the table had, oldest first; its manifest its digest and its sums."""
    wanted = [filled.row(f"req_1_{number}") for number in range(5)]
    prune(filled, tmp_path)
    lines = gzip.decompress((tmp_path / "usage-2027-01.ndjson.gz").read_bytes()).splitlines()
    found = [json.loads(line) for line in lines]
    assert [row["started_at"] for row in found] == sorted(row["started_at"] for row in found)
    assert [row for row in found if row["id"].startswith("req_1_")] == wanted
    manifest = json.loads((tmp_path / "usage-2027-01.manifest.json").read_text())
    assert (manifest["rows"], manifest["month"]) == (7, "2027-01")
    assert manifest["cost_nano"] == sum(row["cost_nano"] for row in found)
    assert (tmp_path / "usage-2027-01.ndjson.gz").stat().st_mode & 0o077 == 0
    assert problems(filled, tmp_path) == []


async def test_an_export_that_was_changed_or_lost_is_named(filled: Backend, tmp_path: Path) -> None:
    """A byte more is another digest; a file that went, with its manifest too, is missed."""
    prune(filled, tmp_path)
    january, february = tmp_path / "usage-2027-01.ndjson.gz", tmp_path / "usage-2027-02.ndjson.gz"
    january.write_bytes(january.read_bytes() + b"\0")
    february.unlink()
    (tmp_path / "usage-2027-02.manifest.json").unlink()
    assert problems(filled, tmp_path) == [
        "usage-2027-01.ndjson.gz: has another SHA-256 than its manifest says",
        "usage-2027-02.ndjson.gz: is not here that the database names",
    ]


async def test_a_dry_run_writes_nothing(filled: Backend, tmp_path: Path) -> None:
    """It names what would go, with its sums, and touches neither files nor rows."""
    before = months(filled)
    done = prune(filled, tmp_path / "nowhere", dry_run=True)
    assert [(one.month.name, one.calls) for one in done.usage] == [("2027-01", 7), ("2027-02", 6)]
    assert done.usage[0].cost_nano == 3 + CENT + 7 + 1 + 2 + 3 + 4 + 11
    assert months(filled) == before
    assert filled.query("SELECT COUNT(*) FROM usage_pruned") == [(0,)]


async def test_a_month_with_an_open_call_stays_whole(store: Backend, tmp_path: Path) -> None:
    """Its rows are neither exported nor dropped until the call is settled and the bill is old."""
    async with store.ledger(at(2027, 1, 15)) as ledger:
        await ledger.reserve(reservation("req_1", 5))
        await ledger.settle(bill("req_1", 4))
        await ledger.reserve(reservation("req_open", 5))
        (one,) = prune(store, tmp_path).usage
        assert "1 calls are open" in (one.kept or "")
        assert list(tmp_path.glob("usage-*")) == []
        assert months(store) == {"2027-01": 2}
    clock = at(2027, 4, 14)
    async with store.ledger(clock, "w2"):
        assert store.row("req_open")["state"] == "settled"
    (one,) = prune(store, tmp_path).usage
    assert "came late" in (one.kept or "")
    assert verify(store.address) == []
    (one,) = prune(store, tmp_path, now_ms=int(at(2027, 6, 1).now() * 1000)).usage
    assert (one.kept, one.calls) == (None, 2)
    assert verify(store.address) == []


async def test_a_bill_that_comes_after_its_month_was_frozen_changes_nothing(
    filled: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The correction of a crashed call is refused from the freeze on: file and books agree."""
    write = usage.exported

    def exported(directory: Path, month: Month, *others: Any) -> None:
        if month.name == "2027-02":
            correct_the_lost(filled)
        write(directory, month, *others)

    monkeypatch.setattr(usage, "exported", exported)
    prune(filled, tmp_path)
    assert verify(filled.address) == []
    lines = gzip.decompress((tmp_path / "usage-2027-02.ndjson.gz").read_bytes()).splitlines()
    (lost,) = [row for row in map(json.loads, lines) if row["id"] == "req_lost"]
    assert (lost["outcome"], lost["cost_nano"]) == ("crashed", CENT)


def correct_the_lost(store: Backend) -> None:
    """Try what a proxy does that comes back: correct the bill of the call that was reaped."""
    correct = (
        "UPDATE usage SET outcome = 'complete', estimated = 0, cost_nano = 1 WHERE id = 'req_lost'"
    )
    with pytest.raises(Exception, match=r"frozen|being pruned"):
        store.query(correct)


def test_this_month_and_the_one_before_are_never_pruned(store: Backend, tmp_path: Path) -> None:
    """Zero months beside this one cannot be asked for, and no wish at all is refused."""
    with pytest.raises(ValueError, match="at least 1 month"):
        prune(store, tmp_path, usage_months=0)
    with pytest.raises(RetentionError, match="say what may go"):
        prune(store, tmp_path, usage_months=None)
    with pytest.raises(RetentionError, match="--export must name a directory"):
        prune(store, tmp_path / "missing")


def test_months_begin_at_midnight_of_utc() -> None:
    """Months follow one another without a gap, over the end of a year and a leap day."""
    december = Month.of(int(at(2027, 12, 31, 23, 59, 59).now() * 1000))
    january = Month.of(december.until)
    assert (december.name, january.name) == ("2027-12", "2028-01")
    assert january.earlier(-1).until - january.earlier(-1).start == 29 * 86_400_000
    assert january.earlier(13).name == "2026-12"
    assert kept_from(LATER, 1) == int(at(2027, 3, 1).now() * 1000)


class Killed(BaseException):
    """Ends a prune where a kill would."""


@contextmanager
def killed_after(commits: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End whatever runs before commit number `commits`, counted from 0, or right after it."""
    left = [commits]
    begin = db.begin

    @contextmanager
    def counted(engine: sa.Engine) -> Iterator[sa.Connection]:
        with begin(engine) as conn:
            yield conn
            if left[0] == 0:
                raise Killed
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(db, "begin", counted)
        yield


async def test_killed_anywhere_it_goes_on_where_it_was(
    filled: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended before or after each of its commits, the books are right; the next run finishes."""
    before, kills = everything(filled), 0
    while True:
        try:
            with killed_after(kills, monkeypatch):
                prune(filled, tmp_path)
            break
        except Killed:
            kills += 1
        assert verify(filled.address) == []
        assert everything(filled) == before
        assert kills < 60
    prune(filled, tmp_path)
    assert kills >= 4
    assert months(filled) == {"2027-03": 5, "2027-04": 5}
    assert verify(filled.address) == []
    assert problems(filled, tmp_path) == []
    carried = "SELECT calls FROM usage_carried WHERE account = 't'"
    assert filled.query(carried) == [(13,)]


async def test_an_export_that_went_elsewhere_is_asked_for(
    filled: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite: half deleted, a month goes on only beside the file that has its other half."""
    if "://" in filled.address:
        return  # PostgreSQL drops a month at once, and writes the file again
    for commits in (2, 1):
        with pytest.raises(Killed), killed_after(commits, monkeypatch):
            prune(filled, tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(RetentionError, match="name the one it is in"):
        prune(filled, other)
    assert prune(filled, tmp_path).usage[0].calls == 7


async def test_a_file_that_is_vacuumed_meanwhile_is_pruned_as_ever(
    filled: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite: with a VACUUM after each batch every row of a month goes once, none of another."""
    if "://" in filled.address:
        return  # PostgreSQL deletes no rows

    def vacuum(size: int, took: float) -> int:
        with closing(sqlite3.connect(filled.address, isolation_level=None)) as other:
            other.execute("VACUUM")
        return 2

    monkeypatch.setattr(usage_sqlite, "_FIRST", 2)
    monkeypatch.setattr(usage_sqlite, "paced", vacuum)
    assert [one.calls for one in prune(filled, tmp_path).usage] == [7, 6]
    assert months(filled) == {"2027-03": 5, "2027-04": 5}
    assert verify(filled.address) == []
    assert problems(filled, tmp_path) == []
    assert filled.query("SELECT calls FROM usage_pruned ORDER BY month_at") == [(7,), (6,)]


async def test_a_call_is_settled_over_the_end_of_its_month(store: Backend) -> None:
    """A call of the old month is extended and settled once, beside one of the new month.

    The second bill finds nobody who knows when the call began, and is refused as any second one.
    """
    clock = at(2027, 1, 31, 23, 59, 59)
    async with store.ledger(clock) as ledger:
        await ledger.reserve(reservation("req_1", 50))
        clock.advance(7)
        await ledger.reserve(reservation("req_2", 50))
        assert await ledger.extend("req_1", reservation("x", 5).base)
        await asyncio.gather(ledger.settle(bill("req_1", 5)), ledger.settle(bill("req_2", 3)))
        await ledger.settle(bill("req_1", 9))
        await ledger.look_after_leases()
    assert [store.row(name)["cost_nano"] for name in ("req_1", "req_2")] == [5, 3]
    assert store.sums() == (8, 0, 0)


async def test_a_reconciliation_of_pruned_days_is_refused(filled: Backend, tmp_path: Path) -> None:
    """It says from when on it can compare, instead of finding that nothing was booked."""
    prune(filled, tmp_path)
    address = filled.address if "://" in filled.address else f"sqlite:///{filled.address}"
    for since, until in ((1, 2), (2, 3), (2, 4)):
        days = Range(date(2027, since, 1), date(2027, until, 1))
        with pytest.raises(Unreadable, match=r"were pruned.*ask from 2027-03-01 on"):
            read(address, days, str)
    assert read(address, Range(date(2027, 3, 1), date(2027, 4, 1)), str).crashed_calls == 0


@pytest.mark.postgres
async def test_a_month_that_is_compared_does_not_go(
    postgres_store: PostgresBackend, tmp_path: Path
) -> None:
    """What a reconciliation has begun to read stays until it has: a month that is dropped in
    between would pass for one in which nothing was booked."""
    await fill(postgres_store)
    january, address = Range(date(2027, 1, 1), date(2027, 2, 1)), postgres_store.address
    before, waits = read(address, january, str), threading.Event()

    def say(line: str) -> None:
        if line.startswith("waiting"):
            waits.set()

    with snapshot(address, 60_000) as query:
        pruning = asyncio.create_task(asyncio.to_thread(prune, postgres_store, tmp_path, say=say))
        waiting = asyncio.create_task(asyncio.to_thread(waits.wait, 20))
        await asyncio.wait({pruning, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert booked._read(query, january, str) == before
    assert [one.kept for one in (await pruning).usage] == [None, None]
    await waiting


async def test_a_release_does_not_prune_a_newer_schema(filled: Backend, tmp_path: Path) -> None:
    """It may run on one, but would not export the columns that it does not know: it refuses, also
    to say what would go, and touches nothing."""
    filled.query("UPDATE alembic_version SET version_num = ?", NEXT)
    for dry_run in (False, True):
        with pytest.raises(RetentionError, match=f"at schema {NEXT}.*made for"):
            prune(filled, tmp_path, dry_run=dry_run)
    assert list(tmp_path.glob("usage-*")) == []
    assert filled.query("SELECT COUNT(*) FROM usage_pruned") == [(0,)]


async def test_what_killed_runs_left_unfinished_goes(filled: Backend, tmp_path: Path) -> None:
    """Runs that are killed night by night do not fill the directory: what they were writing is gone
    after an hour. What is written to now stays, and so does what is none of ours."""
    left = [".usage-2027-01.0123456789abcdef", ".usage-2027-01.2.manifest.json.0123456789abcdef"]
    kept = [".audit-1-9.0123456789abcdef", ".usage-2027-01", "usage-2026-01.ndjson.gz"]
    for name in (*left, *kept):
        (tmp_path / name).touch()
    for name in (*left, *kept[1:]):
        os.utime(tmp_path / name, (0, 0))
    prune(filled, tmp_path)
    there = {path.name for path in tmp_path.iterdir()}
    assert there >= set(kept)
    assert there.isdisjoint(left)
