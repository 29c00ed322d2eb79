"""A store that is locked, slow or shared: no bill is lost, and no call waits for long."""

import asyncio
import sqlite3
import time
from contextlib import ExitStack
from typing import Any

import pytest

from daypass_proxy.ledger import Hold, Ledger, LedgerUnavailable, Reserved, writer
from daypass_proxy.ledger.face import LONGEST_WAIT
from daypass_proxy.ledger.writer import Answer
from tests.contract.ledgers import (
    CENT,
    LEASE,
    Backend,
    SqliteBackend,
    bill,
    hear,
    money,
    reservation,
    tell,
)
from tests.fakes.clock import FakeClock
from tests.support import aeventually


async def test_b59_a_locked_store_is_no_error_to_who_settles(sqlite_store: SqliteBackend) -> None:
    """B59: while another process holds the lock, bills are kept, new calls are refused at once."""
    async with sqlite_store.ledger(FakeClock(), busy_seconds=0.5) as ledger:
        await ledger.reserve(reservation("req_1", 10 * CENT))
        await ledger.reserve(reservation("req_2", 10 * CENT))
        assert ledger.ready
        with sqlite_store.locked():
            ledger.count("sbx_1", "store_unavailable")
            await ledger.settle(bill("req_1", CENT))
            began = time.monotonic()
            with pytest.raises(LedgerUnavailable, match="locked"):
                await ledger.reserve(reservation("req_3", CENT))
            with pytest.raises(LedgerUnavailable):
                await ledger.extend("req_2", Hold(CENT))
            await ledger.settle(bill("req_2", 2 * CENT))
            assert time.monotonic() - began < 0.5
            assert sqlite_store.row("req_1")["state"] == "open"
            assert not ledger.ready
        await aeventually(lambda: sqlite_store.sums() == (3 * CENT, 0, 0))
        await aeventually(lambda: ledger.ready)
        await aeventually(lambda: ledger.balance("a"))
        assert isinstance(await ledger.reserve(reservation("req_3", CENT)), Reserved)
    assert sqlite_store.query("SELECT count FROM incident") == [(1,)]


async def test_who_waits_behind_a_failure_is_refused_with_it(sqlite_store: SqliteBackend) -> None:
    """A call that queued while the failing batch ran is not kept for the next try."""
    async with sqlite_store.ledger(FakeClock(), busy_seconds=0.3) as ledger:
        with sqlite_store.locked():
            first = asyncio.ensure_future(ledger.reserve(reservation("req_1", CENT)))
            await asyncio.wait([first], timeout=0)
            await aeventually(lambda: not ledger.waiting)
            behind = asyncio.ensure_future(ledger.reserve(reservation("req_2", CENT)))
            await asyncio.wait([first])
            await asyncio.wait([behind], timeout=0)
            assert behind.done()
        for call in (first, behind):
            with pytest.raises(LedgerUnavailable, match="locked"):
                await call


async def test_b59_a_short_lock_is_waited_for(store: Backend) -> None:
    """B59: a lock that ends within the busy time is an error to nobody."""
    async with store.ledger(FakeClock()) as ledger:
        with store.locked():
            calls = [
                asyncio.ensure_future(ledger.reserve(reservation(f"req_{n}", CENT)))
                for n in range(30)
            ]
            await asyncio.wait(calls, timeout=0)
            assert not any(call.done() for call in calls)
        assert all(isinstance(answer, Reserved) for answer in await asyncio.gather(*calls))


async def test_a_ledger_closed_while_locked_leaves_the_hold(
    sqlite_store: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bill that cannot be booked before the process ends is booked by the reaper, as the hold."""
    monkeypatch.setattr(writer, "CLOSING_SECONDS", 0.2)
    clock = FakeClock()
    with ExitStack() as lock:
        async with sqlite_store.ledger(clock, busy_seconds=0.05) as ledger:
            await ledger.reserve(reservation("req_1", 10 * CENT))
            lock.enter_context(sqlite_store.locked())
            await ledger.settle(bill("req_1", CENT))
    clock.advance(LEASE)
    async with sqlite_store.ledger(clock, "w2") as second:
        assert money(await second.balance("a")) == (10 * CENT, 0, 0)


async def test_b06_two_processes_share_one_ceiling(store: Backend) -> None:
    """B06, B59: 2 x 20 calls of 0.10 USD in two processes: 5 admitted, no error, sums exact."""
    with (
        store.worker("hammer", "w1", "20", str(10 * CENT)) as one,
        store.worker("hammer", "w2", "20", str(10 * CENT)) as two,
    ):
        for step in ("ready", "admitted"):
            counts = [hear(process)[step] for process in (one, two)]
            tell(one)
            tell(two)
        assert sum(counts) == 5
        assert (one.wait(60), two.wait(60)) == (0, 0)
    assert store.sums() == (5 * (10 * CENT - 1), 0, 0)


async def test_b59_a_broker_gets_its_writes_through(sqlite_store: SqliteBackend) -> None:
    """B59: 50 calls, a reader and another writer on one file: every row is there, no error."""
    sqlite_store.account("a", None)
    turns = 20
    stop = asyncio.Event()

    async def calls(ledger: Ledger, n: int) -> int:
        done = 0
        while not stop.is_set():
            usage_id = f"req_{n}_{done}"
            assert isinstance(await ledger.reserve(reservation(usage_id, 100)), Reserved)
            await ledger.settle(bill(usage_id, 3))
            done += 1
        return done

    def broker() -> list[float]:
        waited = []
        connection = sqlite3.connect(sqlite_store.path, timeout=5.0, isolation_level=None)
        for turn in range(turns):
            began = time.monotonic()
            connection.execute("BEGIN IMMEDIATE")
            waited.append(time.monotonic() - began)
            connection.execute(
                "INSERT INTO audit (at, tag, actor, detail) VALUES (?, 'test', 'test', '{}')",
                (turn,),
            )
            connection.execute("COMMIT")
            connection.execute("SELECT count(*), sum(cost_nano) FROM usage").fetchone()
        connection.close()
        return waited

    async with sqlite_store.ledger(FakeClock()) as ledger:
        running = [asyncio.ensure_future(calls(ledger, n)) for n in range(50)]
        waited = await asyncio.to_thread(broker)
        stop.set()
        done = sum(await asyncio.gather(*running))
    assert done >= 50
    assert sqlite_store.query("SELECT count(*) FROM audit") == [(turns,)]
    assert sqlite_store.sums() == (3 * done, 0, 0)
    # The longest of them may be the machine's.
    assert sorted(waited)[-3] < 2.0


async def test_an_answer_that_nobody_waits_for_is_given_back(
    store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller cancelled at any moment of its admission leaves no hold behind."""
    async with store.ledger(FakeClock()) as ledger:
        deliver = ledger._deliver

        # While the operation waits for the lock.
        with store.locked():
            task = asyncio.ensure_future(ledger.reserve(reservation("req_1", 10 * CENT)))
            await asyncio.wait([task], timeout=0)
            task.cancel()
            await asyncio.wait([task])

        # After the commit, before the answer is delivered; and after that, before it is seen.
        for usage_id, before in (("req_2", True), ("req_3", False)):
            task = asyncio.ensure_future(ledger.reserve(reservation(usage_id, 10 * CENT)))

            def cancelling(
                answers: list[Answer], task: asyncio.Task[Any] = task, before: bool = before
            ) -> None:
                if before:
                    task.cancel()
                deliver(answers)
                task.cancel()

            with monkeypatch.context() as patch:
                patch.setattr(ledger, "_deliver", cancelling)
                await asyncio.wait([task])
            assert task.cancelled()
            assert store.row(usage_id)["reserved_nano"] == 10 * CENT
        await aeventually(lambda: store.sums() == (0, 0, 0))
        assert isinstance(await ledger.reserve(reservation("req_4", 50 * CENT)), Reserved)


async def test_a_store_that_hangs_does_not_hold_a_call(store: Backend) -> None:
    """A call is refused when no answer comes in time, each at its own; what it held is freed."""
    loop, refused = asyncio.get_running_loop(), list[tuple[str, float]]()
    async with store.ledger(FakeClock(), longest_wait=0.3) as ledger:
        with store.locked():
            first = asyncio.ensure_future(ledger.reserve(reservation("req_1", 50 * CENT)))
            await asyncio.sleep(0.1)  # so that the second is due later than the first
            second = asyncio.ensure_future(ledger.extend("req_0", Hold(1)))
            began = loop.time()
            for name, call in (("first", first), ("second", second)):
                call.add_done_callback(lambda _, name=name: refused.append((name, loop.time())))  # type: ignore[misc]
            for call in (first, second):
                with pytest.raises(LedgerUnavailable, match="in time"):
                    await call
            assert [name for name, _ in refused] == ["first", "second"]
            assert refused[1][1] - began > 0.29
        ledger._longest_wait = LONGEST_WAIT  # from here on it answers
        assert isinstance(await ledger.reserve(reservation("req_2", 50 * CENT)), Reserved)
