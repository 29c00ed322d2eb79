"""The relay's ends: no torn answer looks whole, and whoever cuts a call, it is told and booked."""

import asyncio
import contextlib
import zlib

import pytest

from daypass_core.problem import Code, Refusal
from daypass_proxy import relay as relay_module
from daypass_proxy.ledger import Outcome, Usage
from daypass_proxy.streams import CallCut, CutReason
from daypass_proxy.transport import UpstreamBroken
from tests.fakes.relayed import START, WHOLE, Run, check_torn, torn
from tests.fakes.transport import JSON, STREAM, Step
from tests.servers.wire import (
    message_delta,
    text_delta,
)


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ((UpstreamBroken("ClientPayloadError"),), "api_error"),  # (a) reset
        ((), "api_error"),  # (b) closed as if it were the end
        ((UpstreamBroken("silent", stalled=True),), "overloaded_error"),  # (c) stalled
        ((b'{"type":"error","error":{"type":"api_error"}}',), "api_error"),  # (d) raw tail
        ((text_delta("cut in")[:-20],), "api_error"),
        ((message_delta({"output_tokens": 3}),), "api_error"),
    ],
)
async def test_interrupted_stream(steps: tuple[Step, ...], kind: str) -> None:
    """B25: an interrupted stream ends with an error event of its own, never tidily."""
    run = await torn(*steps).relay()
    assert run.said["type"] == kind
    assert run.client.finished
    assert run.answer.closed
    assert run.attempt.outcome is Outcome.UPSTREAM_BROKEN
    sent = b"".join(
        step for step in (START, text_delta("Hello"), *steps) if isinstance(step, bytes)
    )
    assert run.client.body.startswith(sent)


async def test_provider_says_error() -> None:
    """An error event of the provider is the end it gives; nothing is added, nothing complete."""
    event = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'
    run = await torn(event).relay()
    assert run.client.body == START + text_delta("Hello") + event
    check_torn(run)


async def test_broken_after_the_last_word() -> None:
    """A connection that breaks after message_stop takes nothing away from a whole answer."""
    run = await Run(*WHOLE, UpstreamBroken("reset")).relay()
    assert run.client.body == b"".join(WHOLE)
    assert run.client.finished
    assert run.attempt.outcome is Outcome.COMPLETE


@pytest.mark.parametrize(
    ("reason", "kind", "outcome"),
    [
        (CutReason.REVOKED, "authentication_error", Outcome.CUT_REVOKED),
        (CutReason.TOKEN_ENDED, "authentication_error", Outcome.CUT_REVOKED),
        (CutReason.STALE, "api_error", Outcome.CUT_STALE),
        (CutReason.TOO_LONG, "api_error", Outcome.CUT_TOO_LONG),
        (CutReason.SHUTDOWN, "overloaded_error", Outcome.SHUTDOWN),
    ],
)
async def test_cut_stream(reason: CutReason, kind: str, outcome: Outcome) -> None:
    """A cut stream ends with an error event; the upstream is let go of, the usage booked."""
    run = torn(asyncio.Event(), in_buffer=text_delta("x" * 400))
    task = run.start()
    await run.answer.waiting.wait()
    run.attempt.live.cut(reason)
    await task
    assert run.said["type"] == kind
    check_torn(run)
    assert run.attempt.outcome is outcome
    assert run.attempt.bill().usage.output_tokens == 102  # what lay in the buffer counts


async def test_cut_before_the_first_byte() -> None:
    """A call cut before anything was answered is left for a plain answer."""
    run = torn()
    run.attempt.live.cut(CutReason.REVOKED)
    with pytest.raises(CallCut):
        await run.relay()
    assert not run.client.exchange.started_response
    assert run.answer.closed


async def test_cut_with_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read cannot keep its cut call: the connection is dropped."""
    monkeypatch.setattr(relay_module, "LAST_WORDS_SECONDS", 0.01)
    run = Run(*WHOLE)
    run.client.reads.clear()
    task = run.start()
    await run.client.got_chunk.wait()
    run.attempt.live.cut(CutReason.REVOKED)
    await task
    assert run.client.aborted
    assert run.answer.closed


async def test_last_word_that_was_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that never got the last chunk does not get a tidy end when its call is cut."""
    monkeypatch.setattr(relay_module, "LAST_WORDS_SECONDS", 0.01)
    run = Run(b"".join(WHOLE))
    run.client.reads.clear()
    task = run.start()
    await run.client.got_chunk.wait()
    run.attempt.live.cut(CutReason.REVOKED)
    await task
    assert run.client.aborted
    assert run.attempt.outcome is Outcome.CUT_REVOKED
    assert not run.attempt.bill().estimated


async def test_client_gone() -> None:
    """B05, B30 (a): when the client leaves, the upstream is dropped and what it sent is booked."""
    run = torn(
        asyncio.Event(), in_buffer=text_delta("more") + message_delta({"output_tokens": 400})
    )
    task = run.start()
    await run.answer.waiting.wait()
    before = len(run.client.chunks)
    run.attempt.live.cut(CutReason.CLIENT_GONE)
    with pytest.raises(CallCut):
        await task
    assert run.answer.closed
    assert len(run.client.chunks) == before
    bill = run.attempt.bill()
    assert (bill.outcome, bill.usage) == (Outcome.CLIENT_GONE, Usage(1000, 400))
    assert not bill.estimated, "the provider's last word lay in the buffer"


@pytest.mark.parametrize("reason", [CutReason.CLIENT_GONE, CutReason.REVOKED])
async def test_cut_after_the_last_word(reason: CutReason) -> None:
    """A call cut after message_stop was complete, whoever did not wait for the connection's end."""
    run = Run(*WHOLE, asyncio.Event())
    task = run.start()
    await run.answer.waiting.wait()
    run.attempt.live.cut(reason)
    with contextlib.suppress(CallCut):
        await task
    assert run.client.body == b"".join(WHOLE)
    assert run.attempt.outcome is Outcome.COMPLETE
    assert not run.attempt.bill().estimated


async def test_client_gone_before_the_usage() -> None:
    """B05 (a): a client that hangs up after the last text pays for the text it read."""
    run = Run(START, *[text_delta("four")] * 200, asyncio.Event())
    task = run.start()
    await run.answer.waiting.wait()
    run.attempt.live.cut(CutReason.CLIENT_GONE)
    with pytest.raises(CallCut):
        await task
    bill = run.attempt.bill()
    assert (bill.usage, bill.estimated) == (Usage(1000, 200), True)


async def test_server_stops() -> None:
    """A cancelled relay lets go of the upstream and stays cancelled."""
    run = torn(asyncio.Event())
    task = run.start()
    await run.answer.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.answer.closed


async def test_coded_stream_that_breaks() -> None:
    """B25, B26: no plain words fit into a compressed stream, so the connection is cut."""
    packer = zlib.compressobj(wbits=31)
    chunk = packer.compress(START + text_delta("x")) + packer.flush(zlib.Z_SYNC_FLUSH)
    headers = (*STREAM, (b"content-encoding", b"gzip"))
    run = await Run(chunk, UpstreamBroken("reset"), headers=headers).relay()
    assert run.client.body == chunk
    assert run.client.aborted
    assert not run.client.finished
    check_torn(run)


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (UpstreamBroken("reset"), Code.UPSTREAM_BROKEN),
        (UpstreamBroken("silent", stalled=True), Code.UPSTREAM_UNREACHABLE),
    ],
)
async def test_whole_answer_that_breaks(broken: UpstreamBroken, code: Code) -> None:
    """B25: a JSON answer that breaks off becomes a plain error, since nothing was sent yet."""
    run = Run(b'{"type": "mess', broken, headers=JSON)
    with pytest.raises(Refusal) as caught:
        await run.relay()
    assert caught.value.problem.code is code
    assert run.client.status is None
    assert run.attempt.outcome is Outcome.UPSTREAM_BROKEN
    assert run.attempt.bill().estimated


async def test_cut_whole_answer() -> None:
    """B30 (c): a cut ends a call that does not stream as well, with nothing half sent."""
    run = Run(b'{"type":', asyncio.Event(), headers=JSON)
    task = run.start()
    await run.answer.waiting.wait()
    run.attempt.live.cut(CutReason.REVOKED)
    with pytest.raises(CallCut):
        await task
    assert run.client.status is None
    assert run.answer.closed
