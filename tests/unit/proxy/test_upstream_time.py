"""What a second of one's own server costs: held whole, cut there, booked to the millisecond."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypass_proxy.estimate import quote
from daypass_proxy.ledger import Hold, Limit, LimitState, Outcome, Usage
from daypass_proxy.meter import StreamMeter
from daypass_proxy.price import PARTS, PriceError, PriceTable, Tariff
from daypass_proxy.streams import CallCut, CutReason, LiveCall
from daypass_proxy.transport import UpstreamUnreachable
from daypass_proxy.upstream_time import UpstreamTime
from tests.fakes.call import PRICE, make_attempt
from tests.fakes.clock import FakeClock
from tests.fakes.ledger import FakeLedger
from tests.fakes.openai import CHAT, detail, read
from tests.fakes.prices import CASE, NOW, overlay
from tests.fakes.transport import JSON, FakeAnswer
from tests.fakes.upstream import Upstream, error
from tests.servers.wire import MESSAGE_STOP, message_delta, message_start

OWN: dict[str, Any] = {
    "model": "own",
    "context_window": 8192,
    "input": "0",
    "output": "0",
    "thinks_unasked": False,
    "per_second": "0.0004",
    "max_seconds": 600,
}
SECOND = 400_000
"""Nano-dollars."""
TIMED = Tariff(replace(PRICE, second=SECOND * PARTS, max_seconds=600))


def own(**changes: Any) -> PriceTable:
    """A table with one model of a server of one's own."""
    return PriceTable.load(own={"own": [OWN | changes]})


def test_all_of_the_time_is_held() -> None:
    """Whatever else a call holds, it holds the price of the longest it may take."""
    call = read(CHAT, {"model": "own"}, detail(provider="own", models=("own",)), provider="own")
    held = quote(call, own(), NOW)
    assert held.base.nano == 600 * SECOND
    assert quote(call, own(per_second="0"), NOW).base.nano == 0
    priced = own(input="1")
    assert quote(call, priced, NOW).base.nano > 600 * SECOND


@given(
    rate=st.integers(0, 10**9).map(lambda nano: f"{nano // 10**9}.{nano % 10**9:09}"),
    most=st.integers(1, 3600),
    taken=st.floats(0, 10_000),
    tokens=st.integers(0, 8192),
)
def test_the_bill_is_within_the_hold(rate: str, most: int, taken: float, tokens: int) -> None:
    """However long it takes, a call costs no more than is held for its time and its tokens."""
    table = own(per_second=rate, max_seconds=most, input="1", output="1")
    call = read(
        CHAT,
        {"model": "own", "max_tokens": 10},
        detail(provider="own", models=("own",)),
        provider="own",
    )
    held = quote(call, table, NOW)
    clock = FakeClock()
    time = UpstreamTime(clock, make_attempt(FakeLedger()).live, most)
    time._began = clock.mono
    clock.advance(taken)
    usage = Usage(input_tokens=min(tokens, len(call.body)), output_tokens=min(tokens, 10))
    cost = held.tariff.cost(usage).nano + held.tariff.time(time.milliseconds)
    assert cost <= held.base.nano + 10 * held.output_nano
    exact = min(taken, most) * 10**9 * float(rate)
    assert held.tariff.time(time.milliseconds) >= int(exact) - 1


async def test_time_runs_from_the_first_byte_to_the_last() -> None:
    """It is rounded up to the millisecond, ends once, and is never more than was held."""
    clock, live = FakeClock(), make_attempt(FakeLedger()).live
    time = UpstreamTime(clock, live, 600)
    clock.advance(5)
    assert time.milliseconds == 0
    time.begin()
    clock.advance(1.2301)
    assert time.milliseconds == 1231
    time.over()
    clock.advance(9)
    time.over()
    assert time.milliseconds == 1231
    time.begin()
    clock.advance(700)
    assert time.milliseconds == 600_000
    time.over()


async def test_the_call_is_cut_when_its_time_is_over() -> None:
    """Where what is held ends, the call ends, as one that ran longer than allowed."""
    live = make_attempt(FakeLedger()).live
    time = UpstreamTime(FakeClock(), live, 0.01)
    time.begin()
    with pytest.raises(CallCut) as cut, live.interruptible():
        await asyncio.wait_for(asyncio.Event().wait(), 3)
    assert cut.value.reason is CutReason.TOO_LONG
    with pytest.raises(CallCut):
        time.begin()


async def test_a_call_that_is_over_is_not_cut() -> None:
    """The timer ends with the time."""
    live: LiveCall = make_attempt(FakeLedger()).live
    time = UpstreamTime(FakeClock(), live, 0.001)
    time.begin()
    time.begin()
    time.over()
    loop = asyncio.get_running_loop()
    later = loop.create_future()
    loop.call_later(0.01, later.set_result, None)
    await later
    assert live.reason is None


async def test_the_time_is_booked() -> None:
    """The time of an answer is booked at its price, beside its tokens; that of an error as well."""
    for answer, outcome in (
        (FakeAnswer([b"{}"], headers=JSON), None),
        (error(500, "api_error", "it broke"), Outcome.UPSTREAM_REFUSED),
    ):
        up = Upstream(answer)
        up.attempt.held = make_attempt(FakeLedger(), tariff=TIMED).held
        up.transport.gate.clear()
        sending = asyncio.ensure_future(up.send())
        await up.transport.arrived.wait()
        up.clock.advance(2.5)
        up.transport.gate.set()
        await sending
        assert up.attempt.outcome is outcome
        up.attempt.answered()
        up.clock.advance(60)
        await up.attempt.settle()
        assert up.attempt.settlement is not None
        tokens = TIMED.cost(up.attempt.settlement.usage).nano
        assert up.attempt.settlement.cost_nano == tokens + 2.5 * SECOND


async def test_what_never_left_took_no_time() -> None:
    """Without a connection there is nothing to pay for; without a price there is no measuring."""
    up = Upstream(UpstreamUnreachable("refused"))
    up.attempt.held = make_attempt(FakeLedger(), tariff=TIMED).held
    up.transport.connects = False
    await up.refused()
    up.clock.advance(9)
    assert up.attempt.bill().cost_nano == 0
    up = Upstream(FakeAnswer([b"{}"], headers=JSON))
    await up.send()
    assert up.attempt.time is None


async def test_the_hold_does_not_shrink() -> None:
    """What is held for time stays when the provider has said the input."""
    ledger = FakeLedger()
    left = (LimitState(Limit.BUDGET, "sandbox:sbx_1", 1_000, 0, 0),)
    for tariff, released in ((TIMED, False), (Tariff(PRICE), True)):
        attempt = make_attempt(ledger, tariff=tariff, base=Hold(10**9, 10**6), limits=left)
        if tariff.max_seconds:
            attempt.time = UpstreamTime(FakeClock(), attempt.live, tariff.max_seconds)
        allowance = attempt.allow()
        meter = StreamMeter()
        meter.feed(message_start("m", {"input_tokens": 1000, "output_tokens": 1}))
        meter.feed(message_delta({"output_tokens": 4}) + MESSAGE_STOP)
        ledger.releases.clear()
        await allowance.heed(meter, tariff)
        assert bool(ledger.releases) is released


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_seconds": None}, "per_second: needs max_seconds"),
        ({"per_second": None}, "per_second: needs max_seconds"),
        ({"max_seconds": 0}, "max_seconds"),
        ({"max_seconds": 3601}, "max_seconds"),
        ({"per_second": 0.0004}, "per_second"),
        ({"per_second": "-1"}, "per_second"),
    ],
)
def test_what_is_no_price_per_second_is_named(changes: dict[str, Any], words: str) -> None:
    """A price per second without its bound would hold nothing that means anything."""
    with pytest.raises(PriceError, match=words):
        own(**changes)


def test_only_servers_of_ones_own_cost_by_the_second(tmp_path: Path) -> None:
    """No provider that is built in bills so."""
    with pytest.raises(PriceError, match="is for servers of your own"):
        PriceTable.load(overlay(tmp_path, CASE | {"per_second": "1", "max_seconds": 9}))
