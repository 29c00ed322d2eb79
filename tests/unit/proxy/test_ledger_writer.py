"""The writer on a store in memory: what becomes of a batch when a part of it, or all, fails."""

from collections.abc import Collection
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from daypass_proxy.ledger import Hold, LedgerUnavailable, Reserved
from daypass_proxy.ledger import writer as writer_module
from daypass_proxy.ledger.account import Account
from daypass_proxy.ledger.book import Book
from daypass_proxy.ledger.operations import Extend, LookAfter, Operation, Read, Reserve, Settle
from daypass_proxy.ledger.queue import Batch, Queue
from daypass_proxy.ledger.reaper import Leases
from daypass_proxy.ledger.store import BatchFailed, StoreFailed
from daypass_proxy.ledger.writer import Answer, Writer
from tests.accounts import account
from tests.desk import bill, wanted
from tests.fakes.clock import FakeClock
from tests.fakes.ledger_store import MemoryStore


class Desk:
    """A writer whose thread never starts: the test takes its steps."""

    def __init__(self) -> None:
        self.store = MemoryStore(
            account("a", parent="t", ceiling_nano=100), account("b", parent="t"), account("t")
        )
        self.queue = Queue()
        self.clock = FakeClock()
        self.leases = Leases(self.clock, 60.0)
        self.writer = Writer(
            self.queue,
            self.leases,
            open_store=lambda: self.store,
            deliver=self.deliver,
            clock=FakeClock(),
            worker="w1",
        )

    def deliver(self, answers: list[Answer]) -> None:
        """Do what the event loop does."""
        for future, result in answers:
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

    def write(self, *operations: Operation, incidents: dict[Any, int] | None = None) -> list[Any]:
        """Write a batch and return its answers; an exception is one, and so is none at all."""
        for operation in operations:
            operation.future = Future()  # type: ignore[assignment]
        futures: list[Any] = [operation.future for operation in operations]
        self.writer._write(Batch(list(operations), incidents or {}))
        return [None if not one.done() else one.exception() or one.result() for one in futures]


@pytest.fixture
def desk() -> Desk:
    """A desk with two leaves, `a` (ceiling 100) and `b`, below the tenant `t`."""
    return Desk()


def reserve(usage_id: str, name: str = "b", nano: int = 10) -> Reserve:
    """Return the reservation of a call."""
    return Reserve(wanted(usage_id, nano, name=name))


def test_a_batch_is_one_transaction(desk: Desk) -> None:
    """Whatever is in it, a batch is begun, loaded and written once."""
    answers = desk.write(
        reserve("req_1"), reserve("req_2", "a"), Read("a"), incidents={("s", "k", 1): 2}
    )
    assert [type(answer).__name__ for answer in answers] == ["Reserved", "Reserved", "Balance"]
    assert len(desk.store.batches) == len(desk.store.patience) == 1
    assert desk.store.incidents == {("s", "k", 1): 2}


def test_what_nobody_waits_for_any_more_is_not_done(desk: Desk) -> None:
    """A call whose caller has gone is not admitted; a bill is booked all the same."""
    desk.write(reserve("req_1"))
    gone, owed = reserve("req_2"), Settle(bill("req_1", 5))
    for operation in (gone, owed):
        future: Any = Future()
        future.cancel()
        operation.future = future
    desk.writer._deliver = lambda answers: None
    desk.writer._write(Batch([gone, owed]))
    assert set(desk.store.usage) == {"req_1"}
    assert desk.store.usage["req_1"]["state"] == "settled"


def test_one_wrong_operation_harms_no_other(desk: Desk) -> None:
    """A batch that the store refuses is split until what is at fault stands alone."""
    desk.write(reserve("req_twice"))
    operations = [reserve(f"req_{n}") for n in range(9)]
    operations[5] = reserve("req_twice")
    answers = desk.write(*operations, incidents={("s", "k", 1): 1})
    assert isinstance(answers.pop(5), ValueError)
    assert all(isinstance(answer, Reserved) for answer in answers)
    assert desk.store.accounts_kept["t"].open_calls == 9
    assert desk.store.incidents == {("s", "k", 1): 1}
    assert desk.writer.unavailable is None


def test_a_mistake_of_ours_harms_one_call(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that raises what nobody expected fails its caller and no other."""
    extend = Book.extend

    def failing(book: Book, usage_id: str, more: Hold) -> bool:
        if usage_id == "req_bad":
            raise ZeroDivisionError
        return extend(book, usage_id, more)

    monkeypatch.setattr(Book, "extend", failing)
    desk.write(reserve("req_1"))
    answers = desk.write(Extend("req_1", Hold(1)), Extend("req_bad", Hold(1)))
    assert answers[0] is True
    assert isinstance(answers[1], ValueError)
    assert desk.store.accounts_kept["b"].reserved_nano == 11


def test_a_locked_account_holds_up_its_own_calls_alone(desk: Desk) -> None:
    """Who does not need the row that another process holds passes; its bills are kept for later.

    Only the whole batch waits for the lock, its parts hardly do.
    """
    desk.write(reserve("req_1", "a"), reserve("req_2"))
    desk.store.accounts_kept["b"].parent = None  # not below what is locked
    desk.store.accounts_kept["c"] = account("c")
    desk.store.locked = {"a"}
    desk.store.patience.clear()
    answers = desk.write(
        Settle(bill("req_1", 5)),
        reserve("req_3", "a"),
        reserve("req_4", "c"),
        Extend("req_1", Hold(1)),
    )
    assert answers[0] is None
    assert isinstance(answers[1], LedgerUnavailable)
    assert isinstance(answers[2], Reserved)
    assert isinstance(answers[3], LedgerUnavailable)
    assert desk.writer.unavailable is None
    assert desk.store.patience[0] is None
    assert set(desk.store.patience[1:]) == {writer_module.PART_LOCK_SECONDS}
    assert desk.store.usage["req_1"]["state"] == "open"
    desk.store.locked.clear()
    desk.queue.close()  # so that it is not waited for
    batch = desk.writer._next_batch()
    assert batch is not None
    desk.writer._write(batch)
    assert desk.store.usage["req_1"]["cost_nano"] == 5


def test_bills_wait_for_a_store_that_is_gone(desk: Desk) -> None:
    """Bills are kept and answered, all else is refused, and the next success opens again."""
    desk.write(reserve("req_1"))
    desk.store.gone("no space left")
    answers = desk.write(Settle(bill("req_1", 5)), reserve("req_2"))
    assert answers[0] is None
    assert isinstance(answers[1], LedgerUnavailable)
    assert desk.writer.unavailable == "no space left"
    assert desk.store.closed == 1
    batch = desk.queue.take(9, 0.0)
    assert batch is not None
    desk.writer._write(batch)
    assert desk.writer.unavailable is None
    assert desk.store.usage["req_1"]["cost_nano"] == 5


def test_who_waits_behind_a_store_that_is_gone_is_refused_with_it(desk: Desk) -> None:
    """All but bills: a call, an extension, a question for a balance are not kept for later."""
    waiting: list[Operation] = [reserve("req_1"), Extend("req_0", Hold(1)), Read("a")]
    for operation in waiting:
        operation.future = Future()  # type: ignore[assignment]
        desk.queue.put(operation)
    futures: list[Any] = [operation.future for operation in waiting]
    desk.store.gone()
    desk.write(reserve("req_2"))
    assert [type(one.exception(0)) for one in futures] == [LedgerUnavailable] * 3
    assert desk.queue.size == 0


def test_a_doubtful_commit_is_undone(desk: Desk) -> None:
    """Calls that were refused because nobody knows are settled at nothing, if they are there."""
    desk.store.gone(doubtful=True)
    answers = desk.write(reserve("req_1"))
    assert isinstance(answers[0], LedgerUnavailable)
    batch = desk.queue.take(9, 0.0)
    assert batch is not None
    (undo,) = batch.operations
    assert isinstance(undo, Settle)
    assert (undo.settlement.cost_nano, undo.doubtful) == (0, True)


def test_the_undoing_of_a_doubtful_call_waits_for_who_may_still_write_it(desk: Desk) -> None:
    """A row that is committed while its account's lock is waited for is found and settled."""
    desk.store.gone(doubtful=True)
    desk.write(reserve("req_1"))
    accounts = desk.store.accounts

    def committing(account_ids: Collection[str]) -> list[Account]:
        desk.store.accounts = accounts  # type: ignore[method-assign]
        writing.write(reserve("req_1"))
        return accounts(account_ids)

    writing = Desk()
    writing.store = desk.store
    desk.store.accounts = committing  # type: ignore[method-assign]
    batch = desk.queue.take(9, 0.0)
    assert batch is not None
    desk.writer._write(batch)
    assert desk.store.usage["req_1"]["state"] == "settled"
    assert desk.store.accounts_kept["t"].reserved_nano == 0


def test_the_parts_of_a_batch_are_kept_when_the_store_goes_meanwhile(desk: Desk) -> None:
    """While a batch is split the store fails: what was not tried yet is not lost either."""
    desk.write(reserve("req_1"), reserve("req_2"))
    desk.store.fails = [BatchFailed("wrong", locked=False), StoreFailed("gone")]
    answers = desk.write(Settle(bill("req_1", 1)), Settle(bill("req_2", 2)), reserve("req_3"))
    assert answers[:2] == [None, None]
    assert isinstance(answers[2], LedgerUnavailable)
    assert desk.queue.size == 2


def test_leases_that_cannot_be_looked_after_are_tried_again_later(desk: Desk) -> None:
    """A round that fails by itself stops no other operation; one that only renews follows, then a
    pause."""
    assert desk.leases.due()
    desk.store.fails = [BatchFailed("wrong", locked=False)] * 2
    answers = desk.write(LookAfter(), reserve("req_1"))
    assert isinstance(answers[0], ValueError)
    assert isinstance(answers[1], Reserved)
    assert desk.leases.due()
    desk.store.fails = [BatchFailed("wrong", locked=False)]
    assert isinstance(desk.write(LookAfter())[0], ValueError)
    assert not desk.leases.due()


def test_a_row_that_cannot_be_reaped_ends_no_lease_of_ours(desk: Desk) -> None:
    """Our own rows are renewed though the account of an expired one is locked, in each round."""
    desk.write(reserve("req_gone", "a"), reserve("req_1"))
    desk.leases.closed("req_gone")
    desk.store.accounts_kept["b"].parent = None
    desk.store.locked = {"a"}
    for lease_until in (1, 2):
        desk.store.usage["req_gone"]["lease_until"] = 0
        desk.store.usage["req_1"]["lease_until"] = lease_until
        desk.write(LookAfter())
        desk.write(LookAfter())
        assert desk.store.usage["req_1"]["lease_until"] > 2
        assert desk.store.usage["req_gone"]["state"] == "open"
        assert not desk.leases.due()
    desk.store.locked.clear()
    desk.write(LookAfter())
    assert desk.store.usage["req_gone"]["outcome"] == "crashed"


def test_a_pause_is_a_part_of_the_time_a_batch_took(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The busier the store, the longer the others get it; an idle ledger is hardly slowed."""
    slept: list[float] = []
    still = SimpleNamespace(sleep=slept.append, monotonic=lambda: 10.0)
    monkeypatch.setattr(writer_module, "time", still)  # not that of other threads
    desk.write(reserve("req_0"))
    desk.writer._pause(9.9)
    desk.queue.put(reserve("req_1"))
    desk.writer._pause(9.9)
    desk.writer._pause(9.992)
    assert slept == [
        writer_module.IDLE_PAUSE,
        writer_module.LONGEST_PAUSE,
        pytest.approx(0.008 * writer_module.PAUSE_SHARE),
    ]


def test_no_pause_where_others_can_write_beside(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that locks rows alone needs none: its next batch begins at once."""
    awake = SimpleNamespace(sleep=lambda _seconds: pytest.fail("slept"), monotonic=lambda: 10.0)
    monkeypatch.setattr(writer_module, "time", awake)
    desk.store.one_lock = False
    desk.write(reserve("req_1"))
    desk.writer._pause(0.0)


def test_a_store_that_comes_back_is_no_moment_to_reap(desk: Desk) -> None:
    """Who comes first after an outage leaves the open calls of all others alone for a lease."""
    desk.write(reserve("req_other"))
    desk.store.usage["req_other"]["lease_until"] = 0
    desk.leases.closed("req_other")  # another worker's
    desk.store.fails = [StoreFailed("gone")]
    desk.write(reserve("req_2"))
    desk.write(LookAfter())
    assert desk.store.usage["req_other"]["state"] == "open"
    desk.clock.advance(60)
    desk.write(LookAfter())
    assert desk.store.usage["req_other"]["outcome"] == "crashed"
