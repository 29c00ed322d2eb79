"""The relay on real sockets, looked at from inside: silence, slow readers, long streams."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from daypass_proxy import relay
from daypass_proxy.ledger import Outcome, Terms
from tests.fakes.guarded import Client
from tests.servers.inside import MODEL, Inside, inside
from tests.servers.stub import Close, Send, StubUpstream, Wait, chunk
from tests.servers.wire import (
    BLOCK_START,
    MESSAGE_STOP,
    message_delta,
    message_json,
    message_start,
    message_stream,
    sse_answer,
    text_delta,
)
from tests.servers.wire import head as head_of
from tests.support import SANDBOX, aeventually

COMMENT = b": keep-alive\n\n"
START = message_start(MODEL, {"input_tokens": 25, "output_tokens": 1})
END = Send(b"0\r\n\r\n")
KIB = 1024


@pytest.fixture
async def proxy(stub: StubUpstream) -> AsyncIterator[Inside]:
    """A proxy in front of the stub."""
    async with inside(stub.url) as running:
        yield running


async def body_until(client: Client, wanted: bytes, body: bytes = b"") -> bytes:
    """Read chunks of a chunked body until it holds what is wanted."""
    while wanted not in body:
        body += await next_chunk(client)
    return body


async def next_chunk(client: Client) -> bytes:
    """Read one chunk of a chunked body; empty is the last."""
    size = int(await client.reader.readline(), 16)
    return (await client.reader.readexactly(size + 2))[:-2]


async def head(client: Client) -> bytes:
    """Read status line and headers."""
    return await client.reader.readuntil(b"\r\n\r\n")


async def test_b29_silence_is_filled(
    proxy: Inside, stub: StubUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B29: a model that thinks before its first event, and later, does not look dead."""
    monkeypatch.setattr(relay, "KEEP_ALIVE_SECONDS", 0.02)
    events = message_stream(MODEL)
    stub.next([Send(sse_answer()), Wait("think"), *map(chunk, events[:-1]), Wait("on"),
               chunk(events[-1]), END])  # fmt: skip
    client = await proxy.ask(proxy.request(stream=True))
    assert b" 200 " in await head(client)
    body = await body_until(client, COMMENT * 2)
    assert body == COMMENT * 2
    stub.release("think")
    body = await body_until(client, b"message_delta", body)
    later = await body_until(client, COMMENT)
    stub.release("on")
    body = await body_until(client, MESSAGE_STOP, body + later)
    assert body.replace(COMMENT, b"") == b"".join(events)
    assert await body_until(client, b"") == b""
    await aeventually(lambda: proxy.proxy.ledger.settlements)
    assert proxy.proxy.ledger.settlement.outcome is Outcome.COMPLETE


async def test_b29_nothing_before_the_status(
    proxy: Inside, stub: StubUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B29: before the provider's status is known nothing is sent, so a 429 is still a 429."""
    monkeypatch.setattr(relay, "KEEP_ALIVE_SECONDS", 0.001)
    error = b'{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}'
    said = [("content-type", "application/json"), ("content-length", str(len(error)))]
    stub.next([Wait("on"), Send(head_of(429, [*said, ("retry-after", "7")]) + error)])
    client = await proxy.ask(proxy.request(stream=True))
    await asyncio.to_thread(stub.wait_for, 1)
    stub.release("on")
    status, headers, body = await client.response()
    assert (status, headers["retry-after"], body) == (429, "7", error)


async def stalled(proxy: Inside, stub: StubUpstream, size: int) -> tuple[Client, int]:
    """Stream to a client that reads the headers only; return it and what lies in the process."""
    delta = chunk(text_delta("x" * size))
    many = [delta] * (32 * KIB * KIB // len(delta.data))
    stub.next(
        [Send(sse_answer()), chunk(START), chunk(BLOCK_START), *many, chunk(MESSAGE_STOP), END]
    )
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    client = await proxy.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send(proxy.request(stream=True))
    (connection,) = await aeventually(lambda: list(proxy.server.uvicorn.server_state.connections))
    transport = connection.transport
    last = -1

    async def still() -> bool:
        """All is still: bytes wait, and no more of them than a moment ago."""
        nonlocal last
        waiting = transport.get_write_buffer_size()
        before, last = last, waiting
        return waiting > 0 and waiting == before

    await aeventually(still, 10)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert transport.get_write_buffer_size() <= 320 * KIB
    return client, held


@pytest.mark.parametrize("size", [100, 50_000])
async def test_a_reader_that_stops_holds_little(
    proxy: Inside, stub: StubUpstream, size: int
) -> None:
    """Back-pressure: behind a client that does not read, little of 32 MiB is taken in."""
    client, held = await stalled(proxy, stub, size)
    # Three reads of at most 256 KiB: what waits in the server, in the relay, in the transport.
    assert held < 1024 * KIB
    client.writer.transport.abort()
    (seen,) = stub.requests
    assert await asyncio.to_thread(seen.peer_gone.wait, 10), "the upstream was let go of"
    await aeventually(lambda: proxy.proxy.ledger.settlements)
    assert proxy.proxy.ledger.settlement.outcome is Outcome.CLIENT_GONE


async def test_a_reader_that_goes_on_misses_nothing(proxy: Inside, stub: StubUpstream) -> None:
    """Back-pressure: a client that pauses and reads on gets every byte."""
    client, _ = await stalled(proxy, stub, 20_000)
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    await head(client)
    size = 0
    while piece := await next_chunk(client):
        size += len(piece)
        tail = piece
    assert tail.endswith(MESSAGE_STOP)
    assert size > 31 * KIB * KIB


async def test_a_long_line(proxy: Inside, stub: StubUpstream) -> None:
    """B27: one event line of 1 MB passes unchanged, and what comes after it is metered."""
    events = message_stream(MODEL, ["x" * 1_000_000], final_usage={"output_tokens": 22})
    stub.next([Send(sse_answer()), *map(chunk, events), END])
    client = await proxy.ask(proxy.request(stream=True))
    await head(client)
    assert await body_until(client, MESSAGE_STOP) == b"".join(events)
    await aeventually(lambda: proxy.proxy.ledger.settlements)
    assert proxy.proxy.ledger.settlement.usage.output_tokens == 22


async def test_fifty_thousand_events(proxy: Inside, stub: StubUpstream) -> None:
    """A stream of 50,000 events passes whole, many of them in one write."""
    deltas = [text_delta(f"w{number}") for number in range(50_000)]
    rest = [message_delta({"output_tokens": 50_000}), MESSAGE_STOP]
    whole = b"".join([START, BLOCK_START, *deltas, *rest])
    pieces = [whole[at : at + 64 * KIB] for at in range(0, len(whole), 64 * KIB)]
    stub.next([Send(sse_answer()), *map(chunk, pieces), END])
    client = await proxy.ask(proxy.request(stream=True))
    await head(client)
    assert await body_until(client, MESSAGE_STOP) == whole
    await aeventually(lambda: proxy.proxy.ledger.settlements)
    assert proxy.proxy.ledger.settlement.usage.output_tokens == 50_000


async def test_whole_answer_to_a_client_that_leaves(proxy: Inside, stub: StubUpstream) -> None:
    """B30 (c): a client that leaves while its whole answer comes in is noticed at once."""
    proxy.proxy.ledger.terms[f"sandbox:{SANDBOX}"] = Terms(drain_ms=0)
    data = b'{"type":"message","content":"'
    stub.next([Send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                    b"content-length: 1000000\r\n\r\n" + data), Wait("never")])  # fmt: skip
    client = await proxy.ask(proxy.request())
    (seen,) = await asyncio.to_thread(stub.wait_for, 1)
    client.close()
    assert await asyncio.to_thread(seen.peer_gone.wait, 10)
    await aeventually(lambda: proxy.proxy.ledger.settlements)
    assert proxy.proxy.ledger.settlement.outcome is Outcome.CLIENT_GONE


async def test_whole_answer_without_a_length(proxy: Inside, stub: StubUpstream) -> None:
    """B47: an answer that ends with its connection gets a length from us."""
    data = json.dumps(message_json(MODEL)).encode()
    start = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    stub.next([Send(start + data), Close()])
    client = await proxy.ask(proxy.request())
    status, headers, body = await client.response()
    assert (status, body, headers["content-length"]) == (200, data, str(len(data)))
