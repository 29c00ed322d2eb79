"""The queue, and what is remembered beside it: turns, refusals, the parents of accounts."""

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from daypass_proxy.ledger import (
    Hold,
    LedgerRefused,
    LedgerUnavailable,
    Limit,
    LimitState,
    Reservation,
)
from daypass_proxy.ledger import parents as parents_module
from daypass_proxy.ledger import refusals as refusals_module
from daypass_proxy.ledger.operations import Extend, Lane, Operation, Read, Release, Reserve, Settle
from daypass_proxy.ledger.parents import Parents
from daypass_proxy.ledger.queue import INCIDENT_ROWS, Queue
from daypass_proxy.ledger.refusals import REMEMBERED_SECONDS, Refusals
from tests.accounts import account
from tests.desk import bill, wanted
from tests.fakes.ledger_store import MemoryStore

EXHAUSTED = LedgerRefused("exhausted", LimitState(Limit.BUDGET, "a", 1, 1, 0), 1)


def of(tenant: str, usage_id: str) -> Reserve:
    """Return the reservation of a tenant's call."""
    words = ("sbx_1", "grt_1", "tok_1", "anthropic", "messages", "m", True, Hold())
    return Reserve(Reservation(usage_id, 1, "a", tenant, *words))


def taken(queue: Queue, limit: int) -> list[Operation]:
    """Return the operations of the next batch."""
    batch = queue.take(limit, 0.0)
    assert batch is not None
    return batch.operations


def test_what_frees_money_comes_first_in_a_batch() -> None:
    """Settlements, then extensions and releases, reservations, and reads, each in their order."""
    queue = Queue()
    put = [
        Reserve(wanted("req_1", 1)),
        Extend("req_0", Hold(1)),
        Settle(bill("req_2", 1)),
        Reserve(wanted("req_3", 1)),
        Release("req_0", Hold(1)),
        Settle(bill("req_4", 1)),
        Read("a"),
    ]
    for operation in put:
        queue.put(operation)
    back = Settle(bill("req_5", 1))
    queue.put_back([back])
    assert queue.size == 8
    assert taken(queue, 6) == [back, put[2], put[5], put[1], put[4], put[0]]
    assert queue.size == 2
    assert queue.clear(*Lane) == [put[3], put[6]]
    assert queue.size == 0


def test_tenants_take_turns_within_and_across_batches() -> None:
    """A tenant with a thousand calls delays another by one call, wherever a batch ends."""
    queue = Queue()
    noisy = [of("noisy", f"req_n{n}") for n in range(1_000)]
    for operation in noisy:
        queue.put(operation)
    quiet = [of("quiet", f"req_q{n}") for n in range(3)]
    third = of("third", "req_t")
    for operation in (*quiet, third):
        queue.put(operation)
    assert taken(queue, 3) == [noisy[0], quiet[0], third]
    assert taken(queue, 3) == [noisy[1], quiet[1], noisy[2]]
    assert taken(queue, 3) == [quiet[2], noisy[3], noisy[4]]


def test_who_only_asks_delays_no_call() -> None:
    """B33: with a thousand questions for balances before it, a call is in the next batch."""
    queue = Queue()
    reads = [Read("a") for _ in range(1_000)]
    for read in reads:
        queue.put(read)
    call = of("acme", "req_1")
    queue.put(call)
    assert taken(queue, 3) == [call, *reads[:2]]
    assert queue.clear(Lane.READ) == reads[2:]


def test_a_closed_queue_takes_nothing_new_and_gives_what_it_has() -> None:
    """After `close` only bills are put back; the end is None."""
    queue = Queue()
    queue.put(of("acme", "req_1"))
    queue.close()
    assert queue.closed
    with pytest.raises(LedgerUnavailable, match="closed"):
        queue.put(of("acme", "req_2"))
    bills = [Settle(bill("req_0", 1))]
    queue.put_back(bills)
    assert taken(queue, 1) == bills
    assert len(taken(queue, 9)) == 1
    assert queue.take(9, 0.0) is None


def test_who_waits_is_woken_by_each_first_operation() -> None:
    """No operation waits until the writer's patience ends, however the two threads meet."""
    queue, taken = Queue(), threading.Semaphore(0)

    def writer() -> None:
        while (batch := queue.take(2, 60.0)) is not None:
            for _ in batch.operations:
                taken.release()

    thread = threading.Thread(target=writer, daemon=True)
    thread.start()
    for turn in range(500):
        for _ in range(turn % 4):
            queue.put(Read("a"))
        assert all(taken.acquire(timeout=10.0) for _ in range(turn % 4)), f"not woken in {turn}"
    queue.close()
    thread.join(10.0)
    assert not thread.is_alive()


def test_nobody_is_woken_for_what_was_taken() -> None:
    """After a batch the writer waits, also when more than one operation had called for it."""
    queue = Queue()
    queue.put(Read("a"))
    queue.put(Read("a"))
    assert len(taken(queue, 10)) == 2
    began = time.monotonic()
    batch = queue.take(10, 0.05)
    assert batch is not None
    assert not batch
    assert time.monotonic() - began >= 0.05


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


def test_a_refusal_is_given_again_to_whoever_wants_as_much() -> None:
    """Of the same account and for a quarter of a second; a smaller call is asked for anew."""
    refusals = Refusals()
    call = wanted("req_1", 10, 5, output=(2, 4, 1))
    assert refusals.find(call, 0.0) is None
    refusals.remember(call, EXHAUSTED, 100.0)
    assert refusals.find(call, 100.0) is EXHAUSTED
    assert refusals.find(wanted("req_2", 11, 9, output=(3, 9, 1)), 100.2) is EXHAUSTED
    for less in (
        wanted("req_2", 9, 5, output=(2, 4, 1)),
        wanted("req_2", 10, 4, output=(2, 4, 1)),
        wanted("req_2", 10, 5, output=(1, 4, 1)),
        wanted("req_2", 10, 5, output=(2, 3, 1)),
        wanted("req_2", 10, 5, "b", output=(2, 4, 1)),
    ):
        assert refusals.find(less, 100.2) is None
    assert refusals.find(call, 100.0 + REMEMBERED_SECONDS) is None
    assert refusals.find(call, 100.0) is None  # forgotten for good


def test_only_refusals_that_last_are_remembered() -> None:
    """A hold of another may be given back at any moment, and the queue be shorter again."""
    refusals = Refusals()
    call = wanted("req_1", 10)
    reasons: list[Any] = ["held", "overloaded", "unknown_account"]
    for reason in reasons:
        refusals.remember(call, replace(EXHAUSTED, reason=reason), 0.0)
        assert refusals.find(call, 0.0) is None
    refusals.remember(call, replace(EXHAUSTED, reason="rate"), 0.0)
    assert refusals.find(call, 0.0) is not None
    refusals.forget("a")
    refusals.forget("a")
    assert refusals.find(call, 0.0) is None


def test_a_refusal_is_not_remembered_past_its_own_end() -> None:
    """B36: room that comes back in 100 ms is there after 100 ms."""
    refusals = Refusals()
    call = wanted("req_1", 10)
    rated = LedgerRefused("rate", LimitState(Limit.RPM, "a", 1, 1, 0), 1, retry_ms=100)
    refusals.remember(call, rated, 50.0)
    assert refusals.find(call, 50.099) is rated
    assert refusals.find(call, 50.1) is None
    refusals.remember(call, replace(rated, retry_ms=60_000), 50.0)
    assert refusals.find(call, 50.0 + REMEMBERED_SECONDS) is None


def test_remembered_refusals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many accounts are exhausted, memory is not."""
    monkeypatch.setattr(refusals_module, "MOST_REMEMBERED", 3)
    refusals = Refusals()
    for name in "abcd":
        refusals.remember(wanted("req_1", 10, name=name), EXHAUSTED, 0.0)
    assert [refusals.find(wanted("req_1", 10, name=name), 0.0) for name in "abcd"] == [
        None,
        None,
        None,
        EXHAUSTED,
    ]


def test_parents_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaf's chain is asked for at its first call; one that does not exist, at each."""
    store = MemoryStore(account(parent="t"), account("t"), account("b"))
    parents = Parents()
    assert parents.find(store, ["a", "none"])["a"] == ("a", "t")
    assert "none" not in parents.find(store, ["a", "b", "none"])
    assert store.asked == ["a", "none", "b", "none"]
    monkeypatch.setattr(parents_module, "REMEMBERED", 1)
    assert parents.find(store, ["a"])["a"] == ("a", "t")
    assert store.asked[-1] == "a"
