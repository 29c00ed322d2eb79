"""The allowance of a stream: grown ahead of its text, waited for, given up, shrunk at the start."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from daypass_proxy.allowance import NEVER, Allowance, Unpaid, is_worth
from daypass_proxy.attempt import Attempt
from daypass_proxy.ledger import (
    Hold,
    Limit,
    LimitState,
    Policy,
    Terms,
)
from daypass_proxy.meter import StreamMeter
from daypass_proxy.providers import Call
from tests.fakes.call import OUTPUT_NANO, TARIFF, make_attempt, make_call
from tests.fakes.ledger import FakeLedger
from tests.servers.wire import MESSAGE_STOP, message_delta, message_start, text_delta

ACCOUNT = "sandbox:sbx_1"
START = message_start("m", {"input_tokens": 1000, "output_tokens": 1})


class Stalled(FakeLedger):
    """A ledger whose extensions are answered when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Hold] = []
        self.answers: list[asyncio.Future[bool]] = []

    async def extend(self, usage_id: str, more: Hold) -> bool:
        """Wait for the test."""
        self.asked.append(more)
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]


class Stream:
    """A stream of text, its meter and its allowance."""

    def __init__(
        self,
        ledger: FakeLedger | None = None,
        *,
        held: int = 1024,
        most: int = 64_000,
        call: Call | None = None,
        **more: Any,
    ) -> None:
        self.ledger = ledger or FakeLedger()
        self.attempt: Attempt = make_attempt(
            self.ledger, call or make_call(max_output_tokens=most), output_tokens=held, **more
        )
        row = self.attempt.held.reservation
        self.ledger._open[row.usage_id] = row
        self.ledger.held[row.usage_id] = row.hold(held)
        self.meter = StreamMeter()
        self.allowance: Allowance = self.attempt.allow()
        self.heeded = 0

    async def say(self, size: int, *, start: bytes = b"") -> None:
        """Let a text of so many bytes pass, as the relay does."""
        self.meter.feed(start + (text_delta("x" * size) if size else b""))
        if self.meter.output_bound >= self.allowance.heed_at:
            self.heeded += 1
            await self.allowance.heed(self.meter, TARIFF)

    @property
    def sizes(self) -> list[int]:
        """The slices that were granted."""
        return [more.tokens for _, more in self.ledger.extensions]


async def settle_down() -> None:
    """Let tasks that wait for nothing run to their end."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_short_answer_costs_nothing() -> None:
    """An answer within what was held at first asks the ledger for nothing, and never comes here."""
    stream = Stream()
    for _ in range(7):
        await stream.say(100)
    await settle_down()
    assert stream.heeded == 0
    assert stream.sizes == []


async def test_grows_in_slices_ahead_of_the_text() -> None:
    """More is held before what is held runs out: slices double to the largest, to the end."""
    stream = Stream(most=40_000)
    for _ in range(400):
        await stream.say(100)
        await settle_down()
        used, held = stream.meter.output_bound, stream.ledger.held["req_test"]
        assert used <= held.tokens
    assert stream.sizes == [2048, 4096, 8192, 8192, 8192, 8192, 40_000 - 1024 - 38_912]
    assert stream.heeded == len(stream.sizes)
    assert stream.allowance.granted == len(stream.sizes)
    assert stream.ledger.held["req_test"] == Hold(40_000 * OUTPUT_NANO, 40_000)
    assert stream.allowance.heed_at == NEVER


async def test_goes_on_while_it_asks() -> None:
    """The relay is not held up by a question as long as something is left."""
    ledger = Stalled()
    stream = Stream(ledger)
    await stream.say(800)
    await settle_down()
    assert [hold.tokens for hold in ledger.asked] == [2048]
    await stream.say(200)
    await settle_down()
    assert len(ledger.asked) == 1, "it asks once at a time"


async def test_waits_where_nothing_is_left() -> None:
    """What is not held yet is not passed on: the piece waits for the answer."""
    ledger = Stalled()
    stream = Stream(ledger)
    await stream.say(800)
    waiting = asyncio.ensure_future(stream.say(800))
    await settle_down()
    assert not waiting.done()
    ledger.answers[0].set_result(True)
    await waiting
    assert stream.meter.output_bound <= 1024 + 2048


async def test_cut_when_it_cannot_grow() -> None:
    """A refused slice is asked for in parts; the answer goes to the end of what it has, then stops.

    At the end it is asked for once more, since calls in flight may have given something back.
    """
    stream = Stream()
    stream.ledger.grants = 0
    await stream.say(800)
    await settle_down()
    assert stream.allowance.refused == 3, "2048, 512, 256"
    await stream.say(100)
    await settle_down()
    assert stream.allowance.refused == 3, "not asked again while something is left"
    with pytest.raises(Unpaid) as caught:
        await stream.say(200)
    assert not caught.value.unknown
    assert stream.allowance.refused == 6
    assert stream.ledger.held["req_test"].tokens == 1024


async def test_what_others_gave_back_is_used() -> None:
    """A stream that was refused ahead goes on when there is room at the moment of need."""
    stream = Stream()
    stream.ledger.grants = 0
    await stream.say(800)
    await settle_down()
    stream.ledger.grants = None
    await stream.say(300)
    assert stream.sizes == [2048]


async def test_last_part_of_a_budget_is_used() -> None:
    """What is left of a budget is used down to the smallest slice, then the answer is cut."""
    ledger = FakeLedger(**{ACCOUNT: 0})
    stream = Stream(ledger)
    account = stream.attempt.held.reservation.account
    ledger.ceilings = {account: (1024 + 600) * OUTPUT_NANO}
    for _ in range((1024 + 512) // 50):
        await stream.say(50)
        await settle_down()
    assert sum(stream.sizes) == 512
    with pytest.raises(Unpaid):
        await stream.say(50)


async def test_store_is_gone() -> None:
    """Without the store nothing more is held: the answer ends where its hold does, and says why."""
    stream = Stream()
    stream.ledger.unavailable = True
    await stream.say(800)
    await settle_down()
    with pytest.raises(Unpaid) as caught:
        await stream.say(300)
    assert caught.value.unknown
    stream.ledger.unavailable = False
    await stream.allowance.heed(stream.meter, TARIFF)
    assert stream.sizes == [2048]


async def test_one_huge_piece() -> None:
    """A piece larger than any slice is asked for whole."""
    stream = Stream()
    await stream.say(30_000)
    assert stream.ledger.held["req_test"].tokens >= stream.meter.output_bound >= 30_000


async def test_last_figures_end_it() -> None:
    """Once the provider has said its last figures nothing more is asked for."""
    stream = Stream()
    stream.ledger.grants = 0
    stream.meter.feed(START + text_delta("x" * 2000) + message_delta({"output_tokens": 500}))
    await stream.allowance.heed(stream.meter, TARIFF)
    assert stream.allowance.heed_at == NEVER
    stream.meter.feed(MESSAGE_STOP)


@pytest.mark.parametrize(
    ("policy", "whole"),
    [(Policy.CLAMP, False), (Policy.REJECT, False), (Policy.CUTOFF, True)],
)
async def test_what_is_lowered_does_not_grow(policy: Policy, whole: bool) -> None:
    """What was lowered, or held whole, has no more coming, and is not cut for want of it."""
    stream = Stream(terms=Terms(policy), whole=whole)
    await stream.say(50_000)
    assert stream.heeded == 0


async def test_thinking_is_paid_in_advance() -> None:
    """Thinking that is not seen is held apart: text may not use what is held for it."""
    call = replace(make_call(max_output_tokens=64_000), thinking_tokens=10_000)
    stream = Stream(held=1024 + 10_000, call=call)
    await stream.say(900)
    await settle_down()
    assert stream.sizes == [2048]


async def test_stopped_asks_no_more() -> None:
    """A stream whose client has gone brings every piece here, and asks for nothing."""
    ledger = Stalled()
    stream = Stream(ledger)
    await stream.say(800)
    await settle_down()
    stream.allowance.stop()
    await settle_down()
    assert ledger.answers[0].cancelled()
    assert stream.allowance.heed_at == 0
    await stream.say(2000)
    assert len(ledger.asked) == 1
    assert stream.allowance.heed_at == 0
    assert not stream.allowance.covers(stream.meter)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_question_that_is_cut_leaves_no_task() -> None:
    """A relay that is cut while it waits leaves its question to be stopped at the settlement."""
    ledger = Stalled()
    stream = Stream(ledger)
    waiting = asyncio.ensure_future(stream.say(2000))
    await settle_down()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await stream.attempt.settle()
    await settle_down()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_bug_in_the_ledger_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error nobody expects is told to the loop and counts as no."""

    async def broken(*_: object) -> bool:
        raise ZeroDivisionError

    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    stream = Stream()
    monkeypatch.setattr(stream.ledger, "extend", broken)
    with pytest.raises(Unpaid):
        await stream.say(2000)
    assert isinstance(told[0]["exception"], ZeroDivisionError)


@given(
    sizes=st.lists(st.integers(1, 12_000), max_size=40),
    left=st.integers(0, 80_000),
    most=st.integers(1_024, 64_000),
    thinking=st.integers(0, 900),
)
def test_no_piece_gets_ahead(sizes: list[int], left: int, most: int, thinking: int) -> None:
    """Bound B: whatever the pieces and the budget, what passes is held, or the answer is cut."""

    async def play() -> None:
        call = replace(make_call(max_output_tokens=most), thinking_tokens=thinking)
        ledger = FakeLedger()
        stream = Stream(ledger, held=1_024, call=call)
        ledger.ceilings = {stream.attempt.held.reservation.account: (1_024 + left) * OUTPUT_NANO}
        for number, size in enumerate(sizes):
            try:
                await stream.say(size)
            except Unpaid:
                assert ledger.held["req_test"].tokens < most
                break
            held = ledger.held["req_test"].tokens
            assert held == most or stream.meter.output_bound + thinking <= held <= 1_024 + left
            assert held <= most
            if number % 3:
                await settle_down()
        await stream.attempt.settle()

    asyncio.run(play())


# -- shrinking

BASE = Hold(nano=30_000_000, tokens=10_000)


def limited(left: int, limit: Limit = Limit.BUDGET) -> tuple[LimitState, ...]:
    """A limit with so much left."""
    return (LimitState(limit, ACCOUNT, left, 0, 0),)


@pytest.mark.parametrize("most", [1024, 64_000])
async def test_shrinks_when_the_input_is_known(most: int) -> None:
    """What was held for more input than there was is given back at the first event of the answer.

    So it is for a stream that is held whole as well.
    """
    stream = Stream(most=most, base=BASE, limits=limited(1_000_000_000))
    await stream.say(10, start=START)
    assert stream.ledger.releases == [("req_test", Hold(30_000_000 - 1000 * 3000, 9_000))]
    await stream.say(10)
    assert len(stream.ledger.releases) == 1
    assert stream.heeded == 1


async def test_cache_is_input() -> None:
    """What was written to and read from the cache was used at its own rate."""
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 1000,
        "cache_read_input_tokens": 2000,
        "output_tokens": 1,
    }
    stream = Stream(base=BASE, limits=limited(1_000_000_000))
    await stream.say(10, start=message_start("m", usage))
    used = 10 * 3000 + 1000 * 3750 + 2000 * 300
    assert stream.ledger.releases == [("req_test", Hold(30_000_000 - used, 10_000 - 3010))]


async def test_not_worth_it() -> None:
    """A hold that is small beside what is left is not looked at, and where no limit is, none is."""
    for limits in ((), limited(30_000_000 * 100 + 1), limited(5, Limit.CONCURRENCY)):
        stream = Stream(base=BASE, limits=limits)
        await stream.say(10, start=START)
        assert stream.heeded == 0
        assert stream.ledger.releases == []


async def test_part_that_is_not_worth_it() -> None:
    """A hold that was right from the start is kept."""
    stream = Stream(base=Hold(3_010_000, 1_010), limits=limited(300_000_000))
    await stream.say(10, start=START)
    assert (stream.heeded, stream.ledger.releases) == (1, [])


async def test_start_in_pieces() -> None:
    """A start that comes in pieces is waited for; an answer without figures is let be."""
    stream = Stream(base=BASE, limits=limited(1))
    stream.meter.feed(START[:50])
    await stream.allowance.heed(stream.meter, TARIFF)
    assert stream.allowance.heed_at == 0
    await stream.say(10, start=START[50:])
    assert len(stream.ledger.releases) == 1
    silent = Stream(base=BASE, limits=limited(1))
    await silent.say(10)
    assert silent.allowance.heed_at == 768
    await silent.say(10, start=START)
    assert silent.ledger.releases == []


@pytest.mark.parametrize("change", [{"searches": 1}, {"loops": True}, {"models": ("a", "b")}])
async def test_input_that_may_be_read_again_stays_held(change: dict[str, Any]) -> None:
    """Where tools of the provider or other models may read the input again, all of it stays."""
    stream = Stream(call=replace(make_call(), **change), base=BASE, limits=limited(1))
    await stream.say(10, start=START)
    assert stream.ledger.releases == []


@pytest.mark.parametrize(
    ("limit", "part", "worth"),
    [
        (Limit.BUDGET, Hold(10, 0), True),
        (Limit.MONTH, Hold(9, 1000), False),
        (Limit.TPM, Hold(0, 10), True),
        (Limit.TOKENS, Hold(1000, 9), False),
        (Limit.RPM, Hold(1000, 1000), False),
    ],
)
def test_worth(limit: Limit, part: Hold, worth: bool) -> None:
    """A hundredth of what is left, in the unit of the limit, is worth giving back."""
    assert is_worth(part, limited(1000, limit)) is worth
    assert not is_worth(Hold(), limited(0, limit))
