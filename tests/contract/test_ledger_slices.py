"""Slices in a real store: bought, used, given back and late, beside other processes' writes."""

import asyncio
import random

from daypass_proxy.ledger import Hold, LedgerRefused, Reserved
from daypass_proxy.ledger.face import BatchedLedger
from tests.contract.ledgers import LEASE, Backend, bill, reservation
from tests.fakes.clock import FakeClock


async def test_a_slice_bought_while_the_ledger_runs_is_there_at_once(store: Backend) -> None:
    """What is remembered of accounts, their parents, holds for an account that was bought, too."""
    store.account("a", 100)
    async with store.ledger(FakeClock()) as ledger:
        unknown = await ledger.reserve(reservation("req_1", 1, account="c"))
        assert unknown == LedgerRefused("unknown_account")
        assert isinstance(await ledger.reserve(reservation("req_1", 10)), Reserved)
        assert store.buy("a", "c", 60)
        refused = await ledger.reserve(reservation("req_2", 31))
        assert isinstance(refused, LedgerRefused)
        assert refused.state is not None
        assert (refused.reason, refused.state.held, refused.state.set_aside) == ("held", 70, 60)
        assert isinstance(await ledger.reserve(reservation("req_3", 60, account="c")), Reserved)
        store.give_back("c")
        assert not await ledger.extend("req_1", Hold(31))
        await ledger.settle(bill("req_3", 20))
        assert await ledger.extend("req_1", Hold(70))
        store.buy("a", "d", 1)
    assert store.row("req_3")["accounts"] == "c a"
    assert store.sums("a") == (20, 80, 0)
    assert [store.column(name) for name in ("lent_nano", "lent_used_nano")] == [60, 60]


async def test_a_late_bill_of_a_slice_that_was_given_back(store: Backend) -> None:
    """The guess for a crashed call is corrected, down and up, in the account that sold a slice."""
    store.account("a", 100)
    store.buy("a", "c", 60)
    clock = FakeClock()
    async with store.ledger(clock) as ledger:
        for usage_id in ("req_1", "req_2"):
            await ledger.reserve(reservation(usage_id, 25, account="c"))
    clock.advance(LEASE)
    async with store.ledger(clock, "w2") as ledger:
        assert store.sums("c") == (50, 0, 0)
        store.give_back("c")
        for usage_id, cost, left in (("req_1", 5, 70), ("req_2", 45, 50)):
            await ledger.settle(bill(usage_id, cost))
            balance = await ledger.balance("a")
            assert balance is not None
            assert balance.limits[0].left == left
            store.assert_right()


async def test_b06_a_broker_that_buys_and_gives_back_beside_two_ledgers(store: Backend) -> None:
    """B06: slices come and go while calls are admitted: every answer fits, and the sums are right.

    Half a dozen of accounts, on two connections; each slice is used up to the end of it.
    """
    store.account("a", 1_000)
    rng = random.Random(5)
    leaves = ["a"]

    async def calls(ledger: BatchedLedger, worker: str) -> int:
        billed = 0
        for number in range(40):
            name, nano = rng.choice(tuple(leaves)), rng.randrange(40)
            call = reservation(f"{worker}_{number}", nano, account=name, sandbox=worker)
            if isinstance(await ledger.reserve(call), Reserved):
                billed += nano
                await ledger.settle(bill(call.usage_id, nano))
        return billed

    def trade(turn: int) -> None:
        if store.buy(rng.choice(leaves), f"c{turn}", rng.randrange(100)):
            leaves.append(f"c{turn}")
        if len(leaves) > 5:
            store.give_back(leaves.pop(rng.randrange(1, len(leaves))))

    async def broker() -> None:
        for turn in range(20):
            await asyncio.to_thread(trade, turn)

    clock = FakeClock()
    async with store.ledger(clock) as one, store.ledger(clock, "w2") as two:
        first, second, _ = await asyncio.gather(calls(one, "w1"), calls(two, "w2"), broker())
        store.assert_right()
    for name in leaves[1:]:
        store.give_back(name)
    assert store.sums("a") == (first + second, 0, 0)
    assert first + second <= 1_000
    assert store.column("lent_nano") == store.column("lent_used_nano")
