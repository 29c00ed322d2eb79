"""What is too long or too much is ended: each test is bounded itself, so a lost limit shows."""

import asyncio
from typing import Any

from daypass_proxy.guard import Limits
from daypass_proxy.streams import CutReason, LiveCalls
from tests.fakes.guarded import CHUNKED, EchoApp, serving
from tests.support import aeventually, make_claims

SECONDS = 8.0
"""Many times what any of these takes, also on a machine that stops for a while."""
POST = b"POST /v1/messages HTTP/1.1\r\nHost: proxy.test\r\nContent-Length: 10\r\n\r\n"


async def test_a_head_that_does_not_end() -> None:
    """Row 18: a head that stops half-way is answered 408."""
    async with serving(EchoApp(), Limits(header_seconds=0.05)) as server, asyncio.timeout(SECONDS):
        client = await server.connect(b"GET / HTTP/1.1\r\nHost:")
        assert await client.status() == 408
        client.close()


async def test_a_body_that_does_not_end() -> None:
    """Row 18: a body that stops half-way is answered 408."""
    async with serving(EchoApp(), Limits(body_seconds=0.05)) as server, asyncio.timeout(SECONDS):
        client = await server.connect()
        await client.send(POST + b"12345")
        assert await client.status() == 408
        client.close()


async def test_a_client_that_does_not_read() -> None:
    """Row 18: an answer that nobody reads is given up."""

    async def pour(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": bytes(1024**2), "more_body": True})

    async with serving(EchoApp(reply=pour), Limits(write_stall_seconds=0.05)) as server:
        client = await server.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: proxy.test\r\n\r\n")
        await aeventually(lambda: server.app.started)
        await aeventually(lambda: server.connections == 0, SECONDS)
        client.close()


async def test_a_client_that_talks_on() -> None:
    """Row 18: what comes after a refusal is thrown away up to a bound, then it is cut."""
    limits = Limits(discard_bytes=1000, linger_seconds=60.0)
    async with serving(EchoApp(), limits) as server:
        client = await server.connect()
        await client.send(b"BAD\r\n\r\n")
        await aeventually(lambda: server.connections == 1)
        assert await client.status() == 400
        await client.send(bytes(900))
        assert server.connections == 1
        await client.send(bytes(900))
        await aeventually(lambda: server.connections == 0, SECONDS)
        client.close()


async def answer_to(*pieces: bytes) -> int:
    """Return the status with which a request is answered that goes on for ever."""
    async with serving(EchoApp()) as server, asyncio.timeout(SECONDS):
        client = await server.connect()
        for piece in pieces:
            client.writer.write(piece)
        try:
            return await client.status()
        finally:
            client.close()


async def test_too_many_headers() -> None:
    """Row 17: 64 headers are taken, one more is 431."""
    lines = b"".join(b"x-h%d: 1\r\n" % number for number in range(63))
    head = b"GET /v1/self HTTP/1.1\r\nHost: proxy.test\r\n" + lines
    assert await answer_to(head + b"\r\n") == 200
    assert await answer_to(head + b"x-more: 1\r\n\r\n") == 431


async def test_a_head_without_end() -> None:
    """Row 17: 32 KiB of head are read and no more, whether or not an end is in sight."""
    assert await answer_to(b"GET / HTTP/1.1\r\nHost: proxy.test\r\nx: ", bytes(40_000)) in (
        400,
        431,
    )
    assert await answer_to(b"GET / HTTP/1.1\r\nHost: proxy.test\r\nx: ", b"a" * 40_000) == 431


async def test_chunks_that_carry_nothing() -> None:
    """Row 17: a body of one-byte chunks with long extensions is refused."""
    chunk = b"1;" + b"x" * 100 + b"\r\na\r\n"
    assert await answer_to(CHUNKED, chunk * 2000) == 400


async def test_a_call_that_does_not_end() -> None:
    """Row 19: a call has a longest time."""
    calls = LiveCalls(longest=0.01)
    call = calls.enter("req_one", make_claims())
    await aeventually(lambda: call.reason is CutReason.TOO_LONG, SECONDS)
    calls.leave(call)
    calls.close()
