"""The ledger's face on a store in memory: what it tells, and what it does while nothing works."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from daypass_proxy.ledger import Hold, LedgerRefused, LedgerUnavailable, Reserved
from daypass_proxy.ledger.face import BatchedLedger
from tests.accounts import account
from tests.desk import bill, wanted
from tests.fakes.clock import FakeClock
from tests.fakes.ledger_store import MemoryStore
from tests.support import aeventually


class Told:
    """Reports that remember what they were told."""

    def __init__(self) -> None:
        self.answered: list[float] = []
        self.committed: list[int] = []

    def admission_answered(self, seconds: float) -> None:
        """See `Reports`."""
        self.answered.append(seconds)

    def batch_committed(self, operations: int, seconds: float) -> None:
        """See `Reports`."""
        self.committed.append(operations)


@pytest.fixture
def store() -> MemoryStore:
    """A store with one account, `a`, of 100 nano-dollars."""
    return MemoryStore(account(ceiling_nano=100))


@pytest.fixture
async def told() -> Told:
    """What the ledger reports to."""
    return Told()


@pytest.fixture
async def ledger(store: MemoryStore, told: Told) -> AsyncIterator[BatchedLedger]:
    """A ledger on the store."""
    opened = await BatchedLedger.open(lambda: store, "w1", FakeClock(), 60.0, reports=told)
    yield opened
    await opened.close()


async def test_admissions_and_commits_are_reported(ledger: BatchedLedger, told: Told) -> None:
    """Each answer of the store once, a remembered one not: it took no time."""
    assert isinstance(await ledger.reserve(wanted("req_1", 60)), Reserved)
    for _ in range(3):
        assert isinstance(await ledger.reserve(wanted("req_2", 101)), LedgerRefused)
    assert told.answered == [0.0, 0.0]
    # After those that looked after leases; the writer tells when the answer is on its way.
    await aeventually(lambda: len(told.committed) >= 3 and told.committed[-2:] == [1, 1])


async def test_while_the_store_is_gone_only_bills_are_taken(
    ledger: BatchedLedger, store: MemoryStore
) -> None:
    """A release is forgotten, as the settlement frees everything; a bill comes through later."""
    await ledger.reserve(wanted("req_1", 60))
    store.gone("gone")
    with pytest.raises(LedgerUnavailable, match="gone"):
        await ledger.extend("req_1", Hold(1))
    store.gone("gone again")
    ledger.release("req_1", Hold(1))
    await ledger.settle(bill("req_1", 5))
    await aeventually(lambda: store.usage["req_1"]["state"] == "settled")
    assert store.usage["req_1"]["reserved_nano"] == 60


async def test_a_call_that_goes_while_the_ledger_closes_is_left_to_its_lease(
    ledger: BatchedLedger, store: MemoryStore
) -> None:
    """Its hold cannot be given back any more, and closing is not kept up by it."""
    commit = store.commit
    call = asyncio.ensure_future(ledger.reserve(wanted("req_1", 60)))
    loop = asyncio.get_running_loop()

    def closing(changes: object) -> None:
        commit(changes)  # type: ignore[arg-type]
        ledger._queue.close()
        loop.call_soon_threadsafe(call.cancel)

    store.commit = closing  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await call
    await ledger.close()
    assert store.usage["req_1"]["state"] == "open"


async def test_answers_for_a_loop_that_is_gone_are_dropped(ledger: BatchedLedger) -> None:
    """A process that ends does not end in an error of the writer's thread."""
    loop = asyncio.new_event_loop()
    loop.close()
    ledger._loop, mine = loop, ledger._loop
    ledger._deliver_soon([])
    ledger._loop = mine
