"""Streams pass as they are, and a broken one never looks finished."""

import gzip
import json
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers.client import RawStream
from tests.servers.stack import Stack
from tests.servers.stub import Close, Reset, Send, Stall, Step, StubUpstream, Wait, chunk
from tests.servers.wire import (
    MESSAGE_STOP,
    event,
    message_delta,
    message_start,
    message_stream,
    sse_answer,
    text_delta,
)
from tests.support import eventually

MODEL = "claude-sonnet-4-5"
BODY: dict[str, object] = {
    "model": MODEL,
    "max_tokens": 64,
    "stream": True,
    "messages": [{"role": "user", "content": "x"}],
}
START = message_start(MODEL, {"input_tokens": 25, "output_tokens": 1})
END = b"0\r\n\r\n"


@pytest.fixture
def sandbox(stack: Stack) -> dict[str, object]:
    """A fresh sandbox."""
    return stack.sandbox()


def open_stream(stack: Stack, sandbox: dict[str, object], **fields: object) -> RawStream:
    """Start one streamed call."""
    return RawStream.post(stack.proxy_url, stack.access_token(sandbox), BODY | fields)


BREAKS: dict[str, list[Step]] = {
    "reset": [Reset()],
    "clean end without message_stop": [Send(END)],
    "closed inside a chunk": [Send(b"ff\r\nevent: content_block"), Close()],
    "raw JSON tail": [
        chunk(b'{"type":"error","error":{"type":"overloaded_error","message":"x"}}'),
        Send(END),
    ],
}


@pytest.mark.parametrize("kind", BREAKS)
def test_b25_a_broken_stream_never_ends_tidily(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, object], kind: str
) -> None:
    """B25: the client gets an SSE error or a broken connection; the row says incomplete."""
    begin = [Send(sse_answer()), chunk(START), chunk(text_delta("a")), chunk(text_delta("b"))]
    upstream.next([*begin, *BREAKS[kind]])
    stream = open_stream(stack, sandbox)
    stream.rest()
    assert b"event: error" in stream.body or not stream.complete
    assert b"event: message_stop" not in stream.body
    (row,) = stack.settled(sandbox)
    assert row["outcome"] == "upstream_broken"
    assert row["estimated"] == 1
    assert row["input_tokens"] == 25
    assert row["cost_nano"] != 0


def test_b25_a_stalled_stream_is_ended(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """B25c: silence beyond the limit between bytes ends the call with an SSE error."""
    stack = make_stack(proxy_settings={"DAYPASS_IDLE_SECONDS": "1"})
    sandbox = stack.sandbox()
    upstream.next([Send(sse_answer()), chunk(START), Stall()])
    stream = open_stream(stack, sandbox)
    stream.rest()
    assert b"event: error" in stream.body
    (row,) = stack.settled(sandbox)
    assert row["outcome"] == "upstream_broken"


def test_b26_compressed_streams_are_relayed_and_metered(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, object]
) -> None:
    """B26: identity is asked for; a stream that is gzipped all the same passes and is metered."""
    packer = zlib.compressobj(wbits=31)
    pieces = [
        packer.compress(e) + packer.flush(zlib.Z_SYNC_FLUSH)
        for e in message_stream(MODEL, final_usage={"output_tokens": 22})
    ]
    pieces.append(packer.flush())
    upstream.next(
        [Send(sse_answer([("content-encoding", "gzip")])), *map(chunk, pieces), Send(END)]
    )
    stream = open_stream(stack, sandbox)
    stream.rest()
    assert upstream.requests[0].header("accept-encoding") == ["identity"]
    body = stream.body
    if b"content-encoding: gzip" in stream.head.lower():
        body = gzip.decompress(body)
    assert b"event: message_stop" in body
    (row,) = stack.settled(sandbox)
    assert (row["outcome"], row["output_tokens"]) == ("complete", 22)


def cuts(data: bytes, size: int) -> list[bytes]:
    """The data in pieces of one size."""
    return [data[i : i + size] for i in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_b27_any_cut_of_the_bytes_passes_unchanged(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, object], size: int
) -> None:
    """B27: many-byte characters and big deltas pass byte for byte, however they are cut."""
    texts = ["안녕 😀 é", "x" * (300 if size == 1 else 100_000)]
    data = b"".join(message_stream(MODEL, texts, final_usage={"output_tokens": 22}))
    upstream.next([Send(sse_answer()), *(chunk(piece) for piece in cuts(data, size)), Send(END)])
    stream = open_stream(stack, sandbox)
    stream.rest()
    assert stream.body == data
    (row,) = stack.settled(sandbox)
    assert (row["input_tokens"], row["output_tokens"]) == (25, 22)


def test_b28_each_event_arrives_when_it_was_sent(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, object]
) -> None:
    """B28: event k is at the client before event k+1 has left the provider; nothing is batched."""
    script: list[Send | Wait] = [Send(sse_answer()), chunk(START)]
    for k in range(10):
        script += [Wait(f"go{k}"), chunk(text_delta(f"word{k} "))]
    script += [chunk(message_delta({"output_tokens": 10})), chunk(MESSAGE_STOP), Send(END)]
    upstream.next(script)
    stream = open_stream(stack, sandbox)
    stream.until(START)
    delays = []
    for k in range(10):
        sent = time.monotonic()
        upstream.release(f"go{k}")
        stream.until(f"word{k} ".encode())
        delays.append(time.monotonic() - sent)
    stream.rest()
    lower = stream.head.lower()
    assert b"content-type: text/event-stream" in lower
    assert b"cache-control: no-cache" in lower
    assert b"x-accel-buffering: no" in lower
    assert sorted(delays)[5] < 0.1


def closing(stack: Stack, sandbox: dict[str, Any]) -> dict[str, Any] | None:
    """The line that the log has of the end of a sandbox's one call; None before."""
    lines = [json.loads(line) for line in stack.log("proxy").splitlines()]
    of_it = [line for line in lines if line.get("sandbox") == sandbox["id"]]
    return next((line for line in of_it if line["event"] == "call_closed"), None)


@pytest.mark.parametrize("drain", [0, 1])
@pytest.mark.parametrize("moment", ["mid-stream", "before headers", "non-streaming"])
def test_b30_client_gone_ends_the_upstream_call(
    stack: Stack, upstream: StubUpstream, moment: str, drain: int
) -> None:
    """B30: a client hangs up: the upstream connection is closed, drained or not, and settled."""
    sandbox = stack.sandbox(drain_seconds=str(drain))
    before: list[Send | Stall] = [Stall()]
    if moment == "mid-stream":
        before = [Send(sse_answer()), chunk(START), chunk(text_delta("hello")), Stall()]
    upstream.next(before)
    stream = open_stream(stack, sandbox, stream=moment != "non-streaming")
    (seen,) = upstream.wait_for(1)
    if moment == "mid-stream":
        stream.until(b"hello")
    stream.close()
    assert seen.peer_gone.wait(20)
    (row,) = stack.settled(sandbox)
    assert row["outcome"] == "client_gone"
    assert row["estimated"] == 1
    assert row["cost_nano"] != 0
    told = eventually(lambda: closing(stack, sandbox)) or {}
    assert ("drained_tokens" in told) == bool(drain), "at once, or after the drain"
    assert told["ms"] > drain * 990


def test_b17_expiry_does_not_cut_a_stream(stack: Stack, upstream: StubUpstream) -> None:
    """B17: a stream outlives its token; the next call with that token is 401."""
    sandbox = stack.sandbox(token_ttl_seconds=5)
    token = stack.access_token(sandbox)
    rest = [chunk(message_delta({"output_tokens": 3})), chunk(MESSAGE_STOP), Send(END)]
    upstream.next([Send(sse_answer()), chunk(START), Wait("expired"), *rest])
    stream = RawStream.post(stack.proxy_url, token, BODY)
    stream.until(START)
    eventually(lambda: stack.message(token).status == 401, timeout=30)
    upstream.release("expired")
    stream.rest()
    assert stream.complete
    assert b"event: message_stop" in stream.body


def test_error_events_of_the_provider_pass(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, object]
) -> None:
    """A provider's SSE error reaches the client as it is, once; the row is not complete."""
    error = event("error", {"type": "error", "error": {"type": "overloaded_error", "message": "b"}})
    upstream.next([Send(sse_answer()), chunk(START), chunk(error), Send(END)])
    stream = open_stream(stack, sandbox)
    stream.rest()
    assert stream.body.count(b"event: error") == 1
    assert json.loads(stream.body.split(b"data: ")[-1])["error"]["type"] == "overloaded_error"
    (row,) = stack.settled(sandbox)
    assert row["outcome"] == "upstream_broken"
