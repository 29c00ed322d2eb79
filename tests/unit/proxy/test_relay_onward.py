"""The relay's short way: what comes while the pump sleeps goes straight to the client."""

import asyncio

import pytest

from daypass_proxy.exchange import Headers
from daypass_proxy.ledger import Outcome, Usage
from daypass_proxy.streams import CallCut, CutReason
from tests.fakes.exchange import FakeClient
from tests.fakes.ledger import FakeLedger
from tests.fakes.relayed import WHOLE, Run, torn
from tests.fakes.transport import Step
from tests.servers.wire import MESSAGE_STOP, message_delta, text_delta


class Direct:
    """Writes at once to a client that reads; counts the pieces that went this way."""

    def __init__(self, client: FakeClient) -> None:
        self.client = client
        self.written = 0

    def whole_body(self, most: int) -> bytes | None:
        """Leave it to `receive`."""
        return None

    def gather(self, most: int) -> None:
        """Leave it to `receive`."""

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Leave it to `send`."""
        return False

    def write(self, chunk: bytes) -> bool:
        """Write, unless the client is slow."""
        if not self.client.reads.is_set():
            return False
        self.client.chunks.append(chunk)
        self.written += 1
        return True


def direct(run: Run) -> Direct:
    """Give the run's client the short way."""
    way = run.client.exchange._direct = Direct(run.client)
    return way


def opened() -> asyncio.Event:
    """An event that has happened: its step is waited for, and what follows it is offered."""
    event = asyncio.Event()
    event.set()
    return event


async def test_stream_goes_the_short_way() -> None:
    """B27: pieces that are waited for are passed on as they came, metered and booked."""
    steps: list[Step] = [step for piece in WHOLE for step in (opened(), piece)]
    run = Run(*steps)
    way = direct(run)
    await run.relay()
    assert run.client.chunks == WHOLE
    assert run.client.finished
    assert way.written == len(WHOLE)
    assert run.attempt.meter is not None
    assert run.attempt.meter.fed == len(b"".join(WHOLE))
    bill = run.attempt.bill()
    assert (bill.usage, bill.outcome) == (Usage(25, 15), Outcome.COMPLETE)
    assert not bill.estimated


async def test_first_byte_is_timed() -> None:
    """The first byte of an answer that is waited for is timed, too."""
    run = Run(opened(), *WHOLE)
    direct(run)
    run.clock.mono = 7.0
    await run.relay()
    assert run.attempt.first_byte_at == 7.0


async def test_marked_call_sends_nothing_more() -> None:
    """Row 25: a call that is marked passes nothing on, though its pump still sleeps."""
    gate = asyncio.Event()
    run = torn(gate, text_delta("secret"), MESSAGE_STOP)
    direct(run)
    task = run.start()
    await run.answer.waiting.wait()
    run.attempt.live.reason = CutReason.REVOKED
    gate.set()
    await task
    assert b"secret" not in run.client.body
    assert run.said["type"] == "authentication_error"
    assert run.attempt.meter is not None
    assert run.attempt.meter.deltas == 2, "what came was received all the same"


async def test_slow_client_is_waited_for() -> None:
    """Row 18: what a slow client does not take waits in front of it, and is metered once."""
    gate = asyncio.Event()
    run = Run(*WHOLE[:2], gate, *WHOLE[2:])
    way = direct(run)
    task = run.start()
    await run.answer.waiting.wait()
    written = way.written
    run.client.reads.clear()
    run.client.got_chunk.clear()
    gate.set()
    await run.client.got_chunk.wait()
    assert way.written == written
    run.client.reads.set()
    await task
    assert run.client.chunks == WHOLE
    assert run.attempt.meter is not None
    assert run.attempt.meter.fed == len(b"".join(WHOLE))


async def test_comment_stands_between_events() -> None:
    """B29: after a piece that went the short way, a comment waits for the event's end."""
    delta = text_delta("Hello")
    run = torn(opened(), delta[:20], None, opened(), delta[20:], None, MESSAGE_STOP)
    direct(run)
    await run.relay()
    assert delta in run.client.body
    assert run.client.body.count(b": keep-alive\n\n") == 1


@pytest.mark.parametrize("whole", [True, False])
async def test_end_is_told_as_ever(whole: bool) -> None:
    """B25: whether the last piece ends the stream is seen on the short way, too."""
    run = torn(opened(), MESSAGE_STOP if whole else text_delta("more"))
    direct(run)
    await run.relay()
    assert (b"event: error" in run.client.body) is not whole
    assert run.client.finished


async def test_nothing_is_written_to_nobody() -> None:
    """B05: once the client has gone, pieces are read and metered, and go neither way."""
    gate = asyncio.Event()
    run = torn(gate, text_delta("secret"), message_delta({"output_tokens": 7}), MESSAGE_STOP)
    way = direct(run)
    task = run.start()
    await run.answer.waiting.wait()
    written = way.written
    run.attempt.client_gone()
    gate.set()
    with pytest.raises(CallCut):
        await task
    assert way.written == written
    assert b"secret" not in run.client.body
    bill = run.attempt.bill()
    assert (bill.outcome, bill.usage.output_tokens) == (Outcome.CLIENT_GONE, 7)
    assert not bill.estimated
    await run.attempt.settle()


async def test_short_way_ends_with_the_hold() -> None:
    """B06: a piece beyond what is held does not go the short way; the pump sees to the hold."""
    texts = [text_delta("x" * 400) for _ in range(5)]
    steps: list[Step] = [step for piece in (*WHOLE[:2], *texts) for step in (opened(), piece)]
    run = Run(*steps, opened(), MESSAGE_STOP, max_output_tokens=64_000, output_tokens=1024)
    way = direct(run)
    ledger = run.attempt.ledger
    assert isinstance(ledger, FakeLedger)
    ledger.grants = 0
    await run.relay()
    assert run.said["type"] == "billing_error"
    assert run.client.body.count(texts[0]) == 2, "800 of 1024, and 64 for the block"
    assert run.attempt.outcome is Outcome.CUT_BUDGET
    assert way.written >= 3
