"""Attempts: what is booked for every way a call can end, once, whatever cancels whom."""

import asyncio

import pytest

from daypass_proxy.attempt import Attempt, cut_problem
from daypass_proxy.estimate import likely_input
from daypass_proxy.ledger import Outcome, Usage
from daypass_proxy.meter import StreamMeter
from daypass_proxy.streams import CutReason
from daypass_proxy.transport import UpstreamRequest
from tests.fakes.call import TARIFF, make_attempt, make_call, make_held
from tests.fakes.ledger import FakeLedger
from tests.servers.wire import MESSAGE_STOP, message_delta, message_start, text_delta

START = message_start("m", {"input_tokens": 1000, "output_tokens": 1})
INPUT = likely_input(make_call(), TARIFF)


def sent_attempt(*parts: bytes, status: int | None = 200) -> Attempt:
    """Return an attempt whose request has left and whose answer had these parts."""
    attempt = make_attempt(FakeLedger())
    attempt.request = UpstreamRequest("POST", "http://up", (), b"{}", sent=True)
    attempt.http_status = status
    if parts:
        attempt.meter = StreamMeter()
        for part in parts:
            attempt.meter.feed(part)
        attempt.meter.end()
    return attempt


def booked(attempt: Attempt) -> tuple[Usage, bool]:
    """Return the usage that would be booked, and whether it is an estimate."""
    bill = attempt.bill()
    assert bill.cost_nano == TARIFF.cost(bill.usage).nano
    return bill.usage, bill.estimated


def test_whole_answer() -> None:
    """A whole answer is booked as the provider said, not estimated."""
    attempt = sent_attempt(START, message_delta({"output_tokens": 400}), MESSAGE_STOP)
    assert booked(attempt) == (Usage(1000, 400), False)


def test_last_figures_are_final() -> None:
    """Once the stop reason was said the figures are the provider's, message_stop or not."""
    attempt = sent_attempt(START, message_delta({"output_tokens": 400}))
    assert booked(attempt) == (Usage(1000, 400), False)


def test_torn_answer() -> None:
    """B05 (a): a torn answer costs its input and at least the output that passed."""
    attempt = sent_attempt(START, *[text_delta("x")] * 200)
    assert booked(attempt) == (Usage(1000, 200), True)


def test_torn_answer_with_long_deltas() -> None:
    """B05: long deltas count by four bytes a token."""
    assert booked(sent_attempt(START, text_delta("x" * 4000))) == (Usage(1000, 1000), True)


def test_figures_said_beat_a_lower_estimate() -> None:
    """A cumulative figure above what passed is kept."""
    torn = message_delta({"output_tokens": 50}).replace(b'"end_turn"', b"null")
    assert booked(sent_attempt(START, text_delta("x"), torn)) == (Usage(1000, 50), True)


@pytest.mark.parametrize("status", [None, 200])
def test_no_figures_at_all(status: int | None) -> None:
    """B05 (b): a call that left and was never answered costs its likely input, no output."""
    assert booked(sent_attempt(status=status)) == (Usage(INPUT, None), True)


def test_nothing_was_sent() -> None:
    """B35: a call that never left costs nothing, and that is no estimate."""
    attempt = make_attempt(FakeLedger())
    assert booked(attempt) == (Usage(), False)
    assert attempt.bill().outcome is Outcome.UNREACHABLE


@pytest.mark.parametrize("status", [301, 400, 401, 429, 500, 529])
def test_refused_by_the_provider(status: int) -> None:
    """B35: an answer that is no success costs nothing, even when the client left meanwhile."""
    attempt = sent_attempt(status=status)
    attempt.note_cut(CutReason.CLIENT_GONE)
    assert booked(attempt) == (Usage(), False)


def test_unreadable_figures_are_estimated() -> None:
    """Figures that could not be read are not taken for none."""
    attempt = sent_attempt(
        START, text_delta("x"), b"event: message_delta\ndata: {\n\n", MESSAGE_STOP
    )
    assert booked(attempt) == (Usage(1000, 1), True)


@pytest.mark.parametrize("reason", CutReason)
def test_every_cut_has_an_outcome_and_words(reason: CutReason) -> None:
    """Each reason for a cut is booked under an outcome of its own kind and can be told."""
    attempt = sent_attempt(START)
    attempt.note_cut(reason)
    assert attempt.outcome not in (None, Outcome.COMPLETE, Outcome.UPSTREAM_BROKEN)
    assert cut_problem(reason).title


async def test_settled_once() -> None:
    """A second settlement does nothing."""
    ledger = FakeLedger()
    attempt = make_attempt(ledger)
    await attempt.settle()
    await attempt.settle()
    assert ledger.settlement == attempt.settlement


async def test_settled_though_cancelled() -> None:
    """A task cancelled while it settles is cancelled, and the settlement is booked all the same."""
    ledger = FakeLedger()
    ledger.may_settle.clear()
    task = asyncio.create_task(make_attempt(ledger).settle())
    await ledger.settling.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ledger.may_settle.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ledger.settlement.cost_nano == 0


async def test_unbilled_endpoint_is_booked_at_nothing() -> None:
    """An endpoint without a price leaves a row as well, at no cost and no estimate."""
    ledger = FakeLedger()
    attempt = make_attempt(ledger, make_call(endpoint="count_tokens"))
    attempt.request = UpstreamRequest("POST", "http://up", (), b"{}", sent=True)
    await attempt.settle()
    assert ledger.settlement == attempt.settlement
    assert (ledger.settlement.cost_nano, ledger.settlement.estimated) == (0, False)
    assert ledger.settlement.usage == Usage()


def test_price_that_is_not_known_is_estimated() -> None:
    """Figures said in full, at a price that nobody knows, are an estimate all the same."""
    start = message_start("m", {"input_tokens": 1, "output_tokens": 1, "service_tier": "flex"})
    attempt = sent_attempt(start, message_delta({"output_tokens": 4}), MESSAGE_STOP)
    assert attempt.bill().usage.service_tier == "flex"
    assert attempt.bill().estimated


async def test_second_attempt_is_booked_by_itself() -> None:
    """B51: an attempt begun anew has its own row; what the first one did is not told of it."""
    ledger = FakeLedger()
    attempt = make_attempt(ledger)
    attempt.request = UpstreamRequest("POST", "http://up", (), b"{}", sent=True)
    attempt.http_status, attempt.outcome = 401, Outcome.UPSTREAM_REFUSED
    await attempt.settle()
    attempt.again(make_held(attempt.call, attempt.claims, usage_id="req_test-2"))
    await attempt.settle()
    first, second = ledger.settlements
    assert (first.usage_id, first.outcome) == ("req_test", Outcome.UPSTREAM_REFUSED)
    assert (second.usage_id, second.outcome) == ("req_test-2", Outcome.UNREACHABLE)
    assert second.http_status is None
