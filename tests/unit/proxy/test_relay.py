"""The relay: every byte as it came and when it came, to a client fast or slow."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable

import pytest

from daypass_core.problem import Refusal
from daypass_proxy import relay as relay_module
from daypass_proxy.attempt import Reply
from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.ledger import Outcome, Usage
from daypass_proxy.providers.anthropic import Anthropic
from daypass_proxy.relay import relay
from daypass_proxy.streams import CallCut, CutReason
from tests.fakes.call import MODEL
from tests.fakes.relayed import PROVIDER, START, WHOLE, Run, torn
from tests.fakes.transport import JSON, STREAM
from tests.servers.wire import (
    MESSAGE_STOP,
    PING,
    message_json,
    message_stream,
    text_delta,
)


async def test_stream_is_relayed() -> None:
    """B27: the bytes at the client are the bytes of the provider, and the usage is booked."""
    run = await Run(*WHOLE).relay()
    assert run.client.body == b"".join(WHOLE)
    assert run.client.chunks == WHOLE
    assert run.client.finished
    assert not run.client.aborted
    bill = run.attempt.bill()
    assert (bill.usage, bill.outcome) == (Usage(25, 15), Outcome.COMPLETE)
    assert not bill.estimated


async def test_stream_headers() -> None:
    """B28: a stream carries what keeps proxies from buffering it, and no framing of its own."""
    limits = ((b"anthropic-ratelimit-requests-remaining", b"9"), (b"content-length", b"7"))
    run = await Run(*WHOLE, headers=(*STREAM, *limits, (b"set-cookie", b"a=b"))).relay()
    assert run.client.headers == {
        b"content-type": b"text/event-stream; charset=utf-8",
        b"request-id": b"req_upstream",
        b"cache-control": b"no-cache",
        b"x-accel-buffering": b"no",
    }


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
async def test_one_byte_chunks(newline: bytes) -> None:
    """B27: cut into single bytes, also inside line ends and characters, nothing changes."""
    stream = b"".join(message_stream(MODEL, ["안녕", "😀"])).replace(b"\n", newline)
    run = await Run(*(bytes([byte]) for byte in stream)).relay()
    assert run.client.body == stream
    assert run.attempt.bill().usage == Usage(25, 15)


async def test_unbuffered() -> None:
    """B28: each chunk is at the client before the next one is waited for; pings too."""
    gates = [asyncio.Event() for _ in range(3)]
    run = Run(START, gates[0], PING, gates[1], text_delta("x"), gates[2], MESSAGE_STOP)
    task = run.start()
    for expected, gate in zip(([START], [START, PING], None), gates, strict=True):
        await run.answer.waiting.wait()
        if expected:
            assert run.client.chunks == expected
        run.answer.waiting.clear()
        gate.set()
        await asyncio.sleep(0)
    await task
    assert run.client.finished


@pytest.mark.parametrize("streamed", [True, False])
async def test_marked_call_sends_nothing_more(streamed: bool) -> None:
    """A call cut together with thousands is silent at once, though not yet woken."""
    gate = asyncio.Event()
    if streamed:
        run = torn(gate, text_delta("secret"), MESSAGE_STOP)
    else:
        run = Run(gate, json.dumps(message_json(MODEL)).encode(), headers=JSON)
    task = run.start()
    await run.answer.waiting.wait()
    run.attempt.live.reason = CutReason.REVOKED  # what the mass cut does first
    gate.set()
    if streamed:
        await task
        assert b"secret" not in run.client.body
        assert run.said["type"] == "authentication_error"
    else:
        with pytest.raises(CallCut):
            await task
        assert run.client.status is None


async def test_first_byte_is_timed() -> None:
    """The time of the first byte is when it came, not when the last did."""
    gate = asyncio.Event()
    run = torn(gate, MESSAGE_STOP)
    run.clock.mono = 7.0
    task = run.start()
    await run.answer.waiting.wait()
    run.clock.mono = 9.0
    gate.set()
    await task
    assert run.attempt.first_byte_at == 7.0


async def test_slow_client_holds_the_upstream_back() -> None:
    """A client that does not read stops the reading upstream."""
    run = Run(*WHOLE)
    run.client.reads.clear()
    task = run.start()
    await run.client.got_chunk.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(run.answer._steps) == len(WHOLE) - 1
    run.client.reads.set()
    await task
    assert run.client.body == b"".join(WHOLE)


async def test_coded_stream() -> None:
    """B26: a stream that comes compressed is relayed as it came, header too, and metered."""
    packer = zlib.compressobj(wbits=31)
    chunks = [packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH) for part in WHOLE]
    headers = (*STREAM, (b"content-encoding", b"gzip"))
    run = await Run(*chunks, packer.flush(), headers=headers).relay()
    assert gzip.decompress(run.client.body) == b"".join(WHOLE)
    assert run.client.headers[b"content-encoding"] == b"gzip"
    assert run.attempt.bill().usage == Usage(25, 15)


@pytest.mark.parametrize(
    "headers",
    [
        (*STREAM, (b"content-encoding", b"br")),
        (*JSON, (b"content-encoding", b"zstd")),
        (*STREAM, (b"content-encoding", b"gzip"), (b"content-encoding", b"gzip")),
        ((b"content-type", b"text/html"),),
        (),
    ],
)
async def test_form_that_cannot_be_metered(headers: HeaderPairs) -> None:
    """Row 29: what we cannot look into is not relayed: 502 before the first byte."""
    run = Run(b"<html>", headers=headers)
    with pytest.raises(Refusal) as caught:
        await run.relay()
    assert caught.value.problem.status == 502
    assert run.client.status is None
    assert run.answer.closed
    assert run.attempt.bill().estimated, "it may have been billed"


async def test_whole_answer() -> None:
    """A JSON answer arrives with its bytes, its length and its usage booked."""
    body = json.dumps(message_json(MODEL)).encode()
    run = await Run(body[:50], body[50:], headers=(*JSON, (b"content-length", b"1"))).relay()
    assert run.client.body == body
    assert run.client.headers[b"content-length"] == str(len(body)).encode()
    assert b"cache-control" not in run.client.headers
    assert run.attempt.bill().usage == Usage(25, 15)
    assert not run.attempt.bill().estimated
    assert run.attempt.outcome is Outcome.COMPLETE


async def test_whole_answer_coded() -> None:
    """B26: a JSON answer that comes compressed stays compressed."""
    body = gzip.compress(json.dumps(message_json(MODEL)).encode())
    run = await Run(body, headers=(*JSON, (b"content-encoding", b"gzip"))).relay()
    assert run.client.body == body
    assert run.client.headers[b"content-encoding"] == b"gzip"
    assert run.attempt.bill().usage == Usage(25, 15)


async def test_whole_answer_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer larger than any message is not collected."""
    monkeypatch.setattr(relay_module, "WHOLE_MAX", 100)
    with pytest.raises(Refusal):
        await Run(b"x" * 101, headers=JSON).relay()


async def test_error_answer() -> None:
    """An error of the provider passes with its headers and bytes."""
    run = Run()
    headers = ((b"content-type", b"application/json"), (b"retry-after", b"7"))
    await relay(
        Reply(429, headers, None, b'{"type":"error"}'),
        run.attempt,
        run.client.exchange,
        PROVIDER,
        run.clock,
    )
    assert (run.client.status, run.client.body) == (429, b'{"type":"error"}')
    assert run.client.headers[b"retry-after"] == b"7"
    assert run.client.headers[b"request-id"] == b"req_test"


async def test_unbilled_endpoint() -> None:
    """The answer of count_tokens passes as it is."""
    run = await Run(b'{"input_tokens":7}', headers=JSON, endpoint="count_tokens").relay()
    assert run.client.body == b'{"input_tokens":7}'
    assert run.attempt.outcome is Outcome.COMPLETE


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize("change", [bytes, lambda s: s.replace(b"data: ", b"data:")])
async def test_two_frames_in_a_write(size: int, change: Callable[[bytes], bytes]) -> None:
    """B27: frames glued together and cut anywhere arrive and count as they are."""
    stream = change(b"".join(message_stream(MODEL, ["Hel", "lo"])))
    chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
    run = await Run(*chunks).relay()
    assert run.client.body == stream
    assert run.attempt.bill().usage == Usage(25, 15)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b'{"type": "message", "usage": {"input_tok', b'{"type":"message"}{}'],
)
@pytest.mark.parametrize("endpoint", ["messages", "count_tokens"])
async def test_whole_answer_that_is_no_json(body: bytes, endpoint: str) -> None:
    """B25: an answer whose end is the end of the connection is not whole unless it is JSON."""
    run = Run(body, headers=JSON, endpoint=endpoint)
    with pytest.raises(Refusal) as caught:
        await run.relay()
    assert caught.value.problem.status == 502
    assert run.client.status is None
    assert run.attempt.outcome is Outcome.UPSTREAM_BROKEN
    assert run.attempt.bill().estimated is (endpoint == "messages")


async def test_coded_answer_that_is_torn() -> None:
    """B25, B47: a compressed answer that lacks its end, or is not compressed, is not relayed."""
    coded = (*JSON, (b"content-encoding", b"gzip"))
    body = json.dumps(message_json(MODEL)).encode()
    for torn_body in (gzip.compress(body)[:-30], body):
        with pytest.raises(Refusal):
            await Run(torn_body, headers=coded).relay()


async def test_figures_that_are_none() -> None:
    """A whole answer whose usage cannot be read is relayed all the same, and estimated."""
    body = b'{"type":"message","usage":{"input_tokens":-1}}'
    run = await Run(body, headers=JSON).relay()
    assert run.client.body == body
    assert run.attempt.outcome is Outcome.COMPLETE
    assert run.attempt.bill().estimated


async def test_error_under_200() -> None:
    """B25: an error that comes with status 200 passes as it came, and completes nothing."""
    body = b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}'
    run = await Run(body, headers=JSON).relay()
    assert (run.client.status, run.client.body) == (200, body)
    assert run.attempt.outcome is Outcome.UPSTREAM_BROKEN
    assert run.attempt.bill().estimated


async def test_buffered_events_leave_together() -> None:
    """Events that wait together are one write, so a burst costs what one event costs."""
    burst = b"".join(WHOLE)
    run = await Run(burst).relay()
    assert run.client.chunks == [burst]


async def test_client_that_does_not_take_a_whole_answer() -> None:
    """A whole answer that nobody reads is cut like a stream, and booked as the provider said."""
    run = Run(json.dumps(message_json(MODEL)).encode(), headers=JSON)
    run.client.reads.clear()
    task = run.start()
    await run.client.got_chunk.wait()
    run.attempt.live.cut(CutReason.TOO_LONG)
    with pytest.raises(CallCut):
        await task
    bill = run.attempt.bill()
    assert (bill.usage, bill.outcome, bill.estimated) == (Usage(25, 15), Outcome.COMPLETE, False)


async def test_client_that_does_not_take_an_error() -> None:
    """An error answer that nobody reads is cut as well."""
    run = Run()
    run.client.reads.clear()
    reply = Reply(429, JSON, None, b"{}")
    relaying = relay(reply, run.attempt, run.client.exchange, PROVIDER, run.clock)
    task = asyncio.create_task(relaying)
    await run.client.got_chunk.wait()
    run.attempt.live.cut(CutReason.TOO_LONG)
    with pytest.raises(CallCut):
        await task


async def test_framing_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """B47: even a provider module that lets all headers through lets no framing through."""
    monkeypatch.setattr(Anthropic, "response_headers", lambda _, headers: tuple(headers))
    framing = ((b"content-length", b"7"), (b"transfer-encoding", b"chunked"))
    run = await Run(b'{"input_tokens":7}', headers=(*JSON, *framing)).relay()
    assert run.client.headers[b"content-length"] == b"18"
    assert b"transfer-encoding" not in run.client.headers
