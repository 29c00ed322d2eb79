"""What every ledger promises: admission below the ceiling, and each bill booked exactly once."""

import asyncio

import msgspec
import pytest

from daypass_proxy.ledger import (
    MAX_NANO,
    MAX_TOKENS,
    Balance,
    Hold,
    LedgerRefused,
    LedgerUnavailable,
    Outcome,
    Pass,
    Reserved,
    Settlement,
    Usage,
)
from tests.contract.ledgers import (
    CENT,
    FORGOTTEN,
    LEASE,
    Backend,
    bill,
    left,
    money,
    refused,
    reservation,
)
from tests.fakes.clock import FakeClock


async def test_a_call_is_held_then_booked(store: Backend) -> None:
    """The open row exists before the call and carries the whole bill after it."""
    async with store.ledger(FakeClock()) as ledger:
        answer = await ledger.reserve(reservation("req_1", 10 * CENT, tokens=70))
        assert left(answer) == 40 * CENT
        row = store.row("req_1")
        assert (row["state"], row["reserved_nano"], row["cost_nano"]) == ("open", 10 * CENT, None)
        assert (row["account"], row["accounts"], row["reserved_tokens"]) == ("a", "a", 70)
        assert row["lease_until"] == row["started_at"] + LEASE * 1000
        balance = await ledger.balance("a")
        assert balance is not None
        assert (balance.tokens_reserved, balance.open_calls) == (70, 1)
        usage = Usage(5, 6, 7, 3, 8, 2, 1, "standard", "fast", "eu", (Pass("compaction", "m", 9),))
        await ledger.settle(bill("req_1", 4 * CENT, usage=usage))
        balance = await ledger.balance("a")
        assert money(balance) == (4 * CENT, 0, 0)
        assert balance is not None
        assert (balance.tokens_spent, balance.tokens_reserved, balance.open_calls) == (35, 0, 0)
    row = store.row("req_1")
    assert (row["state"], row["cost_nano"], row["outcome"]) == ("settled", 4 * CENT, "complete")
    assert (row["input_tokens"], row["output_tokens"], row["cache_read_input_tokens"]) == (5, 6, 8)
    assert row["cache_creation_input_tokens"] == 7
    assert row["cache_creation_1h_input_tokens"] == 3
    assert (row["thinking_tokens"], row["web_search_requests"], row["tokens"]) == (2, 1, 35)
    assert (row["service_tier"], row["speed"], row["inference_geo"]) == ("standard", "fast", "eu")
    assert msgspec.json.decode(row["passes"], type=tuple[Pass, ...]) == usage.passes
    assert (row["http_status"], row["upstream_request_id"]) == (200, "req_upstream")
    assert (row["estimated"], row["stream"], row["worker"]) == (0, 1, "w1")


async def test_a_bill_is_booked_whoever_waits_for_it(store: Backend) -> None:
    """A bill is taken over before anything is waited for: a cancelled caller changes nothing."""
    async with store.ledger(FakeClock()) as ledger:
        await ledger.reserve(reservation("req_1", 10 * CENT))
        task = asyncio.create_task(ledger.settle(bill("req_1", 4 * CENT)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert money(await ledger.balance("a")) == (4 * CENT, 0, 0)
    assert store.row("req_1")["state"] == "settled"


async def test_zero_and_missing_usage_stay_apart(store: Backend) -> None:
    """A figure that the provider left out is NULL in the row, a zero is a zero."""
    async with store.ledger(FakeClock()) as ledger:
        await ledger.reserve(reservation("req_1", 1))
        await ledger.settle(bill("req_1", 0, usage=Usage(input_tokens=0)))
    row = store.row("req_1")
    assert (row["input_tokens"], row["output_tokens"]) == (0, None)
    assert (row["passes"], row["service_tier"], row["tokens"]) == (None, None, 0)


async def test_a_refusal_says_whether_waiting_helps(store: Backend) -> None:
    """Held money is `held`, spent money is `exhausted`, and a refusal writes nothing."""
    async with store.ledger(FakeClock()) as ledger:
        await ledger.reserve(reservation("req_1", 45 * CENT))
        held = await ledger.reserve(reservation("req_2", 6 * CENT))
        assert held == refused("held", 6 * CENT, 50 * CENT, 0, 45 * CENT)
        await ledger.settle(bill("req_1", 45 * CENT))
        exhausted = await ledger.reserve(reservation("req_3", 6 * CENT))
        assert exhausted == refused("exhausted", 6 * CENT, 50 * CENT, 45 * CENT, 0)
        assert left(await ledger.reserve(reservation("req_4", 5 * CENT))) == 0
        nowhere = await ledger.reserve(reservation("req_5", 1, account="other"))
        assert nowhere == LedgerRefused("unknown_account")
    assert store.query("SELECT id FROM usage ORDER BY id") == [("req_1",), ("req_4",)]


async def test_without_a_ceiling_all_is_admitted(store: Backend) -> None:
    """An account without a ceiling counts, but refuses nothing."""
    store.account("free", None)
    async with store.ledger(FakeClock()) as ledger:
        answer = await ledger.reserve(reservation("req_1", MAX_NANO, account="free"))
        assert answer == Reserved("req_1", started_at=int(FakeClock().now() * 1000))
        await ledger.settle(bill("req_1", 7))
        assert await ledger.balance("free") == Balance("free", 7, 0, 0, 30, 0, 0)
        assert await ledger.balance("nobody") is None


async def test_b06_parallel_calls_never_pass_the_ceiling(store: Backend) -> None:
    """B06, row 26: of 20 first calls of 0.10 USD at once on 0.50 USD exactly 5 are admitted."""
    async with store.ledger(FakeClock()) as ledger:
        answers = await asyncio.gather(
            *(ledger.reserve(reservation(f"req_{n}", 10 * CENT)) for n in range(20))
        )
        admitted = [answer for answer in answers if isinstance(answer, Reserved)]
        assert len(admitted) == 5
        assert {answer.reason for answer in answers if isinstance(answer, LedgerRefused)} == {
            "held"
        }
        await asyncio.gather(*(ledger.settle(bill(one.usage_id, 10 * CENT)) for one in admitted))
    assert store.sums() == (50 * CENT, 0, 0)


async def test_b06_two_hundred_calls_on_one_budget(store: Backend) -> None:
    """B06: of 200 calls on one account, from four sandboxes, as many pass as fit, twice over."""
    async with store.ledger(FakeClock()) as ledger:
        for turn, fit in ((0, 71), (1, 47)):
            answers = await asyncio.gather(
                *(
                    ledger.reserve(
                        reservation(f"req_{turn}_{n}", 7_000_000, sandbox=f"sbx_{n % 4}")
                    )
                    for n in range(200)
                )
            )
            admitted = [answer for answer in answers if isinstance(answer, Reserved)]
            assert len(admitted) == fit
            spent, reserved, _ = store.sums()
            assert reserved == fit * 7_000_000
            assert 0 <= 50 * CENT - spent - reserved < 7_000_000
            await asyncio.gather(
                *(ledger.settle(bill(one.usage_id, 2_366_197)) for one in admitted)
            )
            assert store.sums()[1] == 0


async def test_b35_calls_that_fail_give_everything_back(store: Backend) -> None:
    """B35: after 50 calls that ended unbilled in every way, the whole budget is there."""
    ends = [
        Outcome.UPSTREAM_REFUSED,
        Outcome.UNREACHABLE,
        Outcome.UPSTREAM_BROKEN,
        Outcome.CLIENT_GONE,
        Outcome.CUT_REVOKED,
    ]
    async with store.ledger(FakeClock()) as ledger:
        for n in range(50):
            await ledger.reserve(reservation(f"req_{n}", 10 * CENT))
            await ledger.settle(bill(f"req_{n}", 0, outcome=ends[n % len(ends)]))
        assert left(await ledger.reserve(reservation("good", 50 * CENT))) == 0
        await ledger.settle(bill("good", CENT))
    assert store.sums() == (CENT, 0, 0)


async def test_a_sandbox_may_have_64_reservations_waiting(store: Backend) -> None:
    """The 65th reservation of a sandbox at once is `overloaded`; another sandbox is not."""
    async with store.ledger(FakeClock()) as ledger:
        mine = [ledger.reserve(reservation(f"req_{n}", 1)) for n in range(200)]
        other = ledger.reserve(reservation("other", 1, sandbox="sbx_2"))
        *answers, passed = await asyncio.gather(*mine, other)
        assert [answer for answer in answers if isinstance(answer, Reserved)] == answers[:64]
        assert set(answers[64:]) == {LedgerRefused("overloaded")}
        assert isinstance(passed, Reserved)
        assert isinstance(await ledger.reserve(reservation("later", 1)), Reserved)


async def test_a_bill_is_booked_once(store: Backend) -> None:
    """Settling again, also at the same time and with other figures, changes nothing."""
    async with store.ledger(FakeClock()) as ledger:
        await ledger.reserve(reservation("req_1", 10 * CENT))
        await asyncio.gather(*(ledger.settle(bill("req_1", 3 * CENT)) for _ in range(10)))
        await ledger.settle(bill("req_1", 9 * CENT, outcome=Outcome.CLIENT_GONE))
        assert money(await ledger.balance("a")) == (3 * CENT, 0, 0)
    assert store.row("req_1")["outcome"] == "complete"


async def test_a_bill_without_a_row_books_nothing(store: Backend) -> None:
    """A settlement of a call that was never admitted leaves every account alone."""
    async with store.ledger(FakeClock()) as ledger:
        await ledger.settle(bill("req_never", 9 * CENT))
    assert store.sums() == (0, 0, 0)


async def test_the_excess_over_a_hold_stops_admissions(store: Backend) -> None:
    """The real bill is booked whole, its excess is overdraft, and beyond the ceiling all stops."""
    clock = FakeClock()
    async with store.ledger(clock) as ledger:
        await ledger.reserve(reservation("req_1", 45 * CENT))
        await ledger.settle(bill("req_1", 52 * CENT))
        assert money(await ledger.balance("a")) == (52 * CENT, 0, 7 * CENT)
        answer = await ledger.reserve(reservation("req_2", 0))
        assert answer == refused("exhausted", 0, 50 * CENT, 52 * CENT, 0)
        store.account("a", 60 * CENT)
        clock.advance(FORGOTTEN)
        assert left(await ledger.reserve(reservation("req_2", 8 * CENT))) == 0


async def test_a_lowered_ceiling_bites_at_the_next_call(store: Backend) -> None:
    """The broker's new ceiling counts for the next reservation and the next extension."""
    async with store.ledger(FakeClock()) as ledger:
        await ledger.reserve(reservation("req_1", 10 * CENT))
        store.account("a", 10 * CENT)
        answer = await ledger.reserve(reservation("req_2", 1))
        assert answer == refused("held", 1, 10 * CENT, 0, 10 * CENT)
        assert not await ledger.extend("req_1", Hold(1))


async def test_a_hold_grows_and_shrinks_within_the_ceiling(store: Backend) -> None:
    """An extension is granted whole or not at all; what is released can be held again."""
    async with store.ledger(FakeClock()) as ledger:
        await ledger.reserve(reservation("req_1", 10 * CENT, tokens=5))
        assert await ledger.extend("req_1", Hold(40 * CENT, 10))
        assert not await ledger.extend("req_1", Hold(1, 0))
        ledger.release("req_1", Hold(20 * CENT, 4))
        assert left(await ledger.reserve(reservation("req_2", 20 * CENT))) == 0
        row = store.row("req_1")
        assert (row["reserved_nano"], row["reserved_tokens"]) == (30 * CENT, 11)
        ledger.release("req_1", Hold(500 * CENT, 500))
        assert money(await ledger.balance("a")) == (0, 20 * CENT, 0)
        assert store.row("req_1")["reserved_nano"] == 0
        await ledger.settle(bill("req_1", 1))
        assert not await ledger.extend("req_1", Hold(1))
        assert not await ledger.extend("req_never", Hold(1))
        ledger.release("req_1", Hold(1))
        ledger.release("req_never", Hold(1))
        assert money(await ledger.balance("a")) == (1, 20 * CENT, 1)


async def test_an_id_is_reserved_once(store: Backend) -> None:
    """A second reservation of one usage id is an error of its caller and of nobody else."""
    async with store.ledger(FakeClock()) as ledger:
        await ledger.reserve(reservation("req_1", CENT))
        one, twice, other = await asyncio.gather(
            ledger.reserve(reservation("req_2", CENT)),
            ledger.reserve(reservation("req_1", CENT)),
            ledger.reserve(reservation("req_3", CENT)),
            return_exceptions=True,
        )
        assert isinstance(one, Reserved)
        assert isinstance(other, Reserved)
        assert isinstance(twice, ValueError)
        assert money(await ledger.balance("a")) == (0, 3 * CENT, 0)


@pytest.mark.parametrize("amount", [-1, MAX_NANO + 1, 1.0, True])
def test_amounts_are_integers_in_range(amount: int) -> None:
    """Rows 39, 40: no negative, oversized, boolean or floating amount becomes money."""
    with pytest.raises(ValueError, match="nano-dollars"):
        reservation("req_1", amount)
    with pytest.raises(ValueError, match="nano-dollars"):
        bill("req_1", amount)


@pytest.mark.parametrize("tokens", [-1, MAX_TOKENS + 1, 1.0, True])
def test_tokens_are_integers_in_range(tokens: int) -> None:
    """Nor does a token come in parts, or in numbers that no sum could hold."""
    with pytest.raises(ValueError, match="tokens"):
        Hold(0, tokens)


@pytest.mark.parametrize("output", [(2, 1, 0), (-1, 1, 0), (0, MAX_TOKENS, MAX_NANO)])
def test_a_reservation_names_at_least_what_it_needs(output: tuple[int, int, int]) -> None:
    """The least output is no more than the most, and all of it can be held."""
    with pytest.raises(ValueError, match=r"output_least|nano"):
        reservation("req_1", 0, output=output)


def test_nobody_but_the_reaper_settles_as_crashed() -> None:
    """A caller cannot book a bill that would be open to correction for ever."""
    with pytest.raises(ValueError, match="crashed"):
        Settlement("req_1", Outcome.CRASHED, Usage(), 0, True, None, None)


async def test_incidents_are_counted_by_the_minute(store: Backend) -> None:
    """Equal refusals of one minute share a row; the row grows over batches and workers."""
    clock = FakeClock(now=1_800_000_000.0)
    async with store.ledger(clock) as ledger, store.ledger(clock, "w2") as second:
        for _ in range(3):
            ledger.count("sbx_1", "budget_exhausted")
        ledger.count("sbx_1", "model_not_allowed")
        await ledger.look_after_leases()
        second.count("sbx_1", "budget_exhausted")
        clock.advance(60)
        ledger.count("sbx_1", "budget_exhausted")
    assert store.query("SELECT subject, kind, minute, count FROM incident ORDER BY 3, 2") == [
        ("sbx_1", "budget_exhausted", 30_000_000, 4),
        ("sbx_1", "model_not_allowed", 30_000_000, 1),
        ("sbx_1", "budget_exhausted", 30_000_001, 1),
    ]


async def test_a_closed_ledger_admits_nothing(store: Backend) -> None:
    """Closing books what waits; afterwards every call says so, and closing again is harmless."""
    async with store.ledger(FakeClock()) as ledger:
        await ledger.reserve(reservation("req_1", CENT))
        last = asyncio.ensure_future(ledger.settle(bill("req_1", 5)))
        await asyncio.wait([last], timeout=0)
        await ledger.close()
        await last
        ledger.release("req_1", Hold(1))
        for asked in (
            ledger.reserve(reservation("req_2", CENT)),
            ledger.extend("req_1", Hold(1)),
            ledger.balance("a"),
            ledger.settle(bill("req_1", 1)),
        ):
            with pytest.raises(LedgerUnavailable):
                await asked
    assert store.sums() == (5, 0, 0)
