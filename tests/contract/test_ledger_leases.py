"""Leases: what a worker that dies leaves behind is booked, once, and a living one is left alone."""

import asyncio

import pytest

from daypass_proxy.ledger import Hold, Outcome
from tests.contract.ledgers import CENT, LEASE, Backend, Wall, bill, hear, money, reservation
from tests.fakes.clock import FakeClock
from tests.support import aeventually


async def test_an_expired_lease_is_settled_at_its_hold(store: Backend) -> None:
    """The row of a worker that is gone is booked at its reservation, marked as a crash's guess."""
    clock = FakeClock()
    async with store.ledger(clock, "gone") as ledger:
        await ledger.reserve(reservation("req_1", 10 * CENT, tokens=100))
        await ledger.extend("req_1", Hold(5 * CENT, 11))
    clock.advance(LEASE - 1)
    async with store.ledger(clock, "w2") as second:
        assert store.row("req_1")["state"] == "open"
        clock.advance(1)
        await second.look_after_leases()
        assert money(await second.balance("a")) == (15 * CENT, 0, 0)
    row = store.row("req_1")
    assert (row["outcome"], row["estimated"], row["cost_nano"]) == ("crashed", 1, 15 * CENT)
    assert row["tokens"] == store.column("tokens_spent") == 111
    assert (row["input_tokens"], row["settled_at"]) == (None, int(clock.now() * 1000))


@pytest.mark.parametrize(("cost", "overdraft"), [(2 * CENT, 0), (0, 0), (14 * CENT, 4 * CENT)])
async def test_a_late_bill_corrects_the_guess_once(
    store: Backend, cost: int, overdraft: int
) -> None:
    """The real bill of a reaped call replaces the guess exactly once, above or below the hold."""
    clock = FakeClock()
    # The slow worker's own time stands still, so it does not renew the lease meanwhile.
    async with store.ledger(FakeClock(), "slow") as slow:
        await slow.reserve(reservation("req_1", 10 * CENT, tokens=1_000))
        clock.advance(LEASE)
        async with store.ledger(clock, "w2"):
            assert store.row("req_1")["outcome"] == "crashed"
        late = bill("req_1", cost, outcome=Outcome.CLIENT_GONE, estimated=True)
        await asyncio.gather(*(slow.settle(late) for _ in range(5)))
        await slow.settle(bill("req_1", 40 * CENT))
        assert money(await slow.balance("a")) == (cost, 0, overdraft)
    row = store.row("req_1")
    assert (row["outcome"], row["estimated"], row["output_tokens"]) == ("client_gone", 1, 20)
    assert row["tokens"] == store.column("tokens_spent") == 30


async def test_a_living_worker_keeps_its_calls(store: Backend) -> None:
    """A call longer than the lease is not reaped while its worker looks after it."""
    # A clock each, so that the second does not wake by itself before the first has its turn.
    mine, theirs = FakeClock(), FakeClock()
    async with store.ledger(mine) as ledger, store.ledger(theirs, "w2") as second:
        await ledger.reserve(reservation("req_1", CENT))
        # At last the whole machine was asleep for longer than the lease.
        for seconds in (LEASE / 3, LEASE / 3, LEASE / 3, LEASE / 2, LEASE * 2):
            mine.advance(seconds)
            await ledger.look_after_leases()
            theirs.advance(seconds)
            await second.look_after_leases()
            assert store.row("req_1")["state"] == "open"
        await ledger.settle(bill("req_1", 1))


async def test_the_writer_looks_after_leases_by_itself(store: Backend) -> None:
    """A third of the lease later the row's lease moves with no call asking for it."""
    clock = FakeClock()
    async with store.ledger(clock) as ledger:
        await ledger.reserve(reservation("req_1", CENT))
        before = store.row("req_1")["lease_until"]
        clock.advance(LEASE / 3)
        await aeventually(lambda: store.row("req_1")["lease_until"] == before + LEASE / 3 * 1000)


async def test_many_crashed_rows_are_reaped_in_turns(store: Backend) -> None:
    """More rows than one transaction takes are all settled, and their holds are spent."""
    store.account("b", None)
    clock = FakeClock()
    async with store.ledger(clock, "gone") as ledger:
        for start in range(0, 450, 50):
            await asyncio.gather(
                *(
                    ledger.reserve(reservation(f"req_{start + n}", 7, account="b"))
                    for n in range(50)
                )
            )
    clock.advance(LEASE)
    async with store.ledger(clock, "w2"):
        await aeventually(lambda: store.sums("b") == (450 * 7, 0, 0))


async def test_b35_killed_workers_lose_and_double_nothing(store: Backend) -> None:
    """B35: kill -9 in mid-run keeps every answered row; the lease frees the rest, once."""
    store.account("a", None)
    clock = Wall()
    durable: dict[str, int | None] = {}
    for round_ in range(3):
        with store.worker("endless", f"gone{round_}") as process:
            heard = [hear(process) for _ in range(60 + 37 * round_)]
            process.kill()
            process.wait(60)
            while said := hear(process):
                heard.append(said)
        for said in heard:
            durable[said.get("reserved") or said["settled"]] = said.get("cost")
    clock.ahead = LEASE + 1
    async with store.ledger(clock, "w2") as ledger:

        async def nothing_is_held() -> bool:
            # What the server still does for a worker that was killed is passed over.
            await ledger.look_after_leases()
            return store.sums()[1] == 0

        await aeventually(nothing_is_held)
        for usage_id, cost in durable.items():
            row = store.row(usage_id)
            assert row["state"] == "settled"
            if cost is not None:
                assert (row["outcome"], row["cost_nano"]) == ("complete", cost)
        assert store.row("gone0_kept")["outcome"] == "crashed"
        await ledger.settle(bill("gone0_kept", 123))
        await ledger.settle(bill("gone0_kept", 456))
        assert store.row("gone0_kept")["cost_nano"] == 123
