"""Limits: several accounts and several limits decide about a call, and each says what is left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from daypass_proxy.ledger import (
    Hold,
    Ledger,
    LedgerRefused,
    Limit,
    LimitState,
    Policy,
    Reserved,
    Terms,
    Usage,
)
from tests.contract.ledgers import CENT, FORGOTTEN, Backend, bill, left, refused, reservation
from tests.fakes.clock import FakeClock

TOKYO_MIDNIGHT = 1_799_938_800.0  # 2027-01-15 00:00 there
NOTHING = Usage()


async def test_a_call_is_held_in_its_tenants_account_too(store: Backend) -> None:
    """Two sandboxes with room of their own share what their tenant has left, and no more."""
    store.account("tenant:acme", 15 * CENT)
    for name in ("b", "c"):
        store.account(name, 50 * CENT, parent="tenant:acme")
    async with store.ledger(FakeClock()) as ledger:
        answer = await ledger.reserve(reservation("req_1", 10 * CENT, account="b"))
        assert left(answer, account="b") == 40 * CENT
        assert left(answer, account="tenant:acme") == 5 * CENT
        answer = await ledger.reserve(reservation("req_2", 6 * CENT, account="c"))
        state = LimitState(Limit.BUDGET, "tenant:acme", 15 * CENT, 0, 10 * CENT)
        assert answer == LedgerRefused("held", state, 6 * CENT)
        assert store.sums("c") == (0, 0, 0)
        await ledger.settle(bill("req_1", 12 * CENT))
        balance = await ledger.balance("c")
        assert balance is not None
        assert [state.account for state in balance.limits] == ["c", "tenant:acme"]
    assert store.row("req_1")["accounts"] == "b tenant:acme"
    assert store.sums("b") == store.sums("tenant:acme") == (12 * CENT, 0, 2 * CENT)


async def test_terms_are_the_accounts_own_or_its_parents(store: Backend) -> None:
    """An admitted call says by which policy it was held, and how long its answer is drained."""
    store.account("tenant:acme", None, policy="clamp", drain_ms=250)
    store.account("b", 100, parent="tenant:acme", drain_tokens=7)
    async with store.ledger(FakeClock()) as ledger:
        answer = await ledger.reserve(reservation("req_1", 10, account="b", output=(5, 60, 2)))
        assert isinstance(answer, Reserved)
        assert (answer.terms, answer.output_tokens) == (Terms(Policy.CLAMP, 250, 7), 45)
        answer = await ledger.reserve(reservation("req_2", 10))
        assert isinstance(answer, Reserved)
        assert answer.terms == Terms()


async def test_a_budget_of_tokens_counts_what_was_used(store: Backend) -> None:
    """Tokens are held, settled at what the provider counted, and run out like money."""
    store.account("a", None, token_ceiling=100)
    async with store.ledger(FakeClock()) as ledger:
        answer = await ledger.reserve(reservation("req_1", 1, tokens=60))
        assert left(answer, Limit.TOKENS) == 40
        held = await ledger.reserve(reservation("req_2", 1, tokens=41))
        assert isinstance(held, LedgerRefused)
        assert held.reason == "held"
        await ledger.settle(bill("req_1", 1, usage=Usage(input_tokens=30, output_tokens=29)))
        answer = await ledger.reserve(reservation("req_2", 1, tokens=41))
        assert left(answer, Limit.TOKENS) == 0
        spent = await ledger.reserve(reservation("req_3", 1, tokens=42))
        state = LimitState(Limit.TOKENS, "a", 100, 59, 41)
        assert spent == LedgerRefused("exhausted", state, 42)


async def test_calls_at_a_time_are_limited(store: Backend) -> None:
    """With as many calls open as may be, the next waits; it passes when one is settled."""
    store.account("a", concurrency_limit=2)
    async with store.ledger(FakeClock()) as ledger:
        for number in range(2):
            await ledger.reserve(reservation(f"req_{number}", 1))
        answer = await ledger.reserve(reservation("req_2", 1))
        state = LimitState(Limit.CONCURRENCY, "a", 2, 0, 2)
        assert answer == LedgerRefused("held", state, 1)
        assert await ledger.extend("req_0", Hold(1))
        await ledger.settle(bill("req_0", 1))
        assert isinstance(await ledger.reserve(reservation("req_2", 1)), Reserved)


@pytest.fixture
async def three(store: Backend) -> AsyncIterator[tuple[FakeClock, list[Ledger]]]:
    """A clock and three ledgers on one database, as three proxies have them."""
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        yield (
            clock,
            [await stack.enter_async_context(store.ledger(clock, f"w{n}")) for n in range(3)],
        )


async def test_b36_ten_a_minute_over_three_ledgers(
    store: Backend, three: tuple[FakeClock, list[Ledger]]
) -> None:
    """B36: of 60 calls round robin 10 are admitted; after 60 s again 10, and not later."""
    store.account("a", None, rpm_limit=10)
    clock, ledgers = three
    for minute in range(3):
        answers = []
        for number in range(60):
            call = reservation(f"req_{minute}_{number}", 1)
            answers.append(await ledgers[number % 3].reserve(call))
        admitted = [answer for answer in answers if isinstance(answer, Reserved)]
        assert len(admitted) == 10
        for answer in answers:
            if isinstance(answer, LedgerRefused):
                assert (answer.reason, answer.retry_ms) == ("rate", 60_000)
        for answer in admitted:
            await ledgers[0].settle(bill(answer.usage_id, 0))
        clock.advance(59.999)
        for ledger in ledgers:
            answer = await ledger.reserve(reservation("req_early", 1))
            assert isinstance(answer, LedgerRefused)
            assert answer.retry_ms == 1
        clock.advance(0.001)
        for ledger in ledgers:
            ledger._refusals.forget("a")  # type: ignore[attr-defined]  # a ms is not the 250


async def test_b60_requests_and_tokens_have_minutes_of_their_own(store: Backend) -> None:
    """B60: with both limits set, neither takes anything from the other's."""
    store.account("a", None, rpm_limit=3, tpm_limit=100)
    clock = FakeClock()
    async with store.ledger(clock) as ledger:
        answer = await ledger.reserve(reservation("req_1", 1, tokens=90))
        assert (left(answer, Limit.RPM), left(answer, Limit.TPM)) == (2, 10)
        await ledger.settle(bill("req_1", 1, usage=Usage(input_tokens=95)))
        clock.advance(30)
        answer = await ledger.reserve(reservation("req_2", 1, tokens=6))
        assert isinstance(answer, LedgerRefused)
        assert answer.state is not None
        assert (answer.state.limit, answer.retry_ms) == (Limit.TPM, 30_000)
        for number in (2, 3):
            await ledger.reserve(reservation(f"req_{number}", 1, tokens=2))
        clock.advance(30 - 0.001)
        answer = await ledger.reserve(reservation("req_4", 1))
        assert isinstance(answer, LedgerRefused)
        assert answer.state is not None
        assert (answer.state.limit, answer.retry_ms) == (Limit.RPM, 1)
        clock.advance(FORGOTTEN)
        answer = await ledger.reserve(reservation("req_4", 1, tokens=96))
        assert (left(answer, Limit.RPM), left(answer, Limit.TPM)) == (0, 0)


async def test_b60_a_day_in_tokyo(store: Backend) -> None:
    """B60: at 23:59:50 in Tokyo the day is spent, at 00:00:10 there is a new one, and no sooner.

    What was in flight over midnight is spent in the new day.
    """
    store.account("a", None, day_ceiling_nano=100, time_zone="Asia/Tokyo")
    clock = FakeClock(TOKYO_MIDNIGHT - 10)
    async with store.ledger(clock) as ledger:
        for usage_id, nano in (("req_1", 70), ("req_2", 30)):
            answer = await ledger.reserve(reservation(usage_id, nano))
            assert isinstance(answer, Reserved)
        await ledger.settle(bill("req_1", 75))
        answer = await ledger.reserve(reservation("req_3", 40))
        assert isinstance(answer, LedgerRefused)
        assert (answer.reason, answer.retry_ms) == ("exhausted", 10_000)
        assert answer.state == LimitState(Limit.DAY, "a", 100, 75, 30, round(TOKYO_MIDNIGHT * 1000))
        clock.advance(20)
        await ledger.settle(bill("req_2", 30))
        answer = await ledger.reserve(reservation("req_3", 70))
        assert left(answer, Limit.DAY) == 0
        answer = await ledger.reserve(reservation("req_4", 71))
        assert isinstance(answer, LedgerRefused)
        assert answer.retry_ms == (86_400 - 10) * 1000


async def test_a_month_is_counted_beside_the_day(store: Backend) -> None:
    """A new day gives the day's money back and not the month's."""
    store.account("a", None, day_ceiling_nano=100, month_ceiling_nano=150)
    clock = FakeClock()
    async with store.ledger(clock) as ledger:
        for day in range(2):
            answer = await ledger.reserve(reservation(f"req_{day}", 50))
            assert (left(answer, Limit.DAY), left(answer, Limit.MONTH)) == (50, 100 - 50 * day)
            await ledger.settle(bill(f"req_{day}", 50))
            clock.advance(86_400)
        answer = await ledger.reserve(reservation("req_2", 51))
        assert isinstance(answer, LedgerRefused)
        assert answer.state is not None
        assert (answer.reason, answer.state.limit) == ("exhausted", Limit.MONTH)


async def test_a_refusal_is_remembered_for_a_moment(store: Backend) -> None:
    """The next call that wants as much gets the same answer without the store being asked."""
    store.account("a", 10)
    clock = FakeClock()
    async with store.ledger(clock) as ledger:
        answer = await ledger.reserve(reservation("req_1", 11))
        assert answer == refused("exhausted", 11, 10, 0, 0)
        store.account("a", 20)
        assert await ledger.reserve(reservation("req_2", 11)) is answer
        assert await ledger.reserve(reservation("req_3", 12)) is answer
        assert isinstance(await ledger.reserve(reservation("req_4", 4)), Reserved)
        clock.advance(FORGOTTEN)
        assert isinstance(await ledger.reserve(reservation("req_5", 11)), Reserved)


@pytest.mark.parametrize("act", ["settle", "release"])
async def test_what_is_given_back_ends_the_memory_of_a_refusal(store: Backend, act: str) -> None:
    """A settlement or a release of the same account makes the next call ask anew."""
    store.account("a", None, tpm_limit=100)
    async with store.ledger(FakeClock()) as ledger:
        await ledger.reserve(reservation("req_1", 1, tokens=60))
        answer = await ledger.reserve(reservation("req_2", 1, tokens=60))
        assert isinstance(answer, LedgerRefused)
        assert (answer.reason, answer.retry_ms) == ("rate", None)
        if act == "settle":
            await ledger.settle(bill("req_1", 0, usage=NOTHING))
        else:
            ledger.release("req_1", Hold(0, 60))
        assert isinstance(await ledger.reserve(reservation("req_2", 1, tokens=60)), Reserved)


async def test_a_tenant_that_hammers_does_not_keep_another_waiting(store: Backend) -> None:
    """Two tenants of one ledger: 600 calls of one are no reason for the other's to come last."""
    store.account("a", None)
    store.account("b", None)
    done: list[str] = []
    async with store.ledger(FakeClock()) as ledger:

        async def call(name: str, tenant: str, sandbox: str) -> None:
            wanted = reservation(
                f"{name}_{sandbox}", 1, account=name, sandbox=sandbox, tenant=tenant
            )
            assert isinstance(await ledger.reserve(wanted), Reserved)
            done.append(name)

        noisy = [call("a", "noisy", f"sbx_{n}") for n in range(600)]
        with store.locked():  # until all of them wait
            calls = asyncio.gather(*noisy, call("b", "quiet", "sbx_q"))
            await asyncio.sleep(0)
        await calls
    assert done.index("b") < 300
