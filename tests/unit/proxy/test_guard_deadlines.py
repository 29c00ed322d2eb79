"""The guard's clocks: slow heads, slow bodies, slow readers, and how much time is fair."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from daypass_proxy.guard import Limits
from tests.fakes.connection import Connection
from tests.fakes.guarded import CHUNKED, GET, EchoApp, answer, serving
from tests.fakes.hand_loop import HandLoop
from tests.support import aeventually


async def test_stray_line_ends_between_requests() -> None:
    """An empty line after an answer never earns an answer of its own; the connection is closed."""
    async with serving(EchoApp(), Limits(header_seconds=0.1)) as server:
        client = await server.connect(GET)
        assert (await client.response())[0] == 200
        await client.send(b"\r\n")
        assert await client.ended() == b""
        client.close()


async def test_slow_headers() -> None:
    """A head that drips past its deadline is answered 408 and closed (attack row 18)."""
    async with serving(EchoApp(), Limits(header_seconds=0.2)) as server:
        client = await server.connect(b"GET /v1/self HTTP/1.1\r\nHost: ")
        status, _, body = await client.response()
        assert status == 408
        assert json.loads(body)["error"]["type"] == "timeout_error"
        assert await client.ended() == b""
        client.close()


async def test_idle_connect() -> None:
    """A connection that never says anything is closed without an answer (attack row 18)."""
    async with serving(EchoApp(), Limits(header_seconds=0.1)) as server:
        client = await server.connect()
        assert await client.ended() == b""
        client.close()


async def test_slow_head_after_keep_alive() -> None:
    """The head deadline counts anew for every request of a connection (attack row 18)."""
    async with serving(EchoApp(), Limits(header_seconds=0.2)) as server:
        client = await server.connect(GET)
        assert (await client.response())[0] == 200
        await client.send(b"GET /v1/self HT")
        assert (await client.response())[0] == 408
        client.close()


async def test_slow_body() -> None:
    """A body slower than its deadline is answered 408, and the app sees a client that left."""
    async with serving(EchoApp(), Limits(body_seconds=0.2)) as server:
        client = await server.connect()
        await client.send(CHUNKED + b"2\r\n{}\r\n")
        assert (await client.response())[0] == 408
        await aeventually(lambda: server.app.gone == 1)
        client.close()


HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"


async def test_body_deadline_grows_with_the_body() -> None:
    """A body gets all the time it needs at the least rate, and no more once it stops."""
    loop = HandLoop()
    connection = Connection(EchoApp(), loop=loop)
    rate = Limits().body_bytes_per_second
    connection.feed([HEAD % (200 * rate)])
    for _ in range(200):
        loop.advance(1.0)
        connection.feed([b"x" * rate])
    await connection.settle()
    assert connection.statuses == [200]
    connection.feed([HEAD % (200 * rate)])
    loop.advance(29.0)
    connection.feed([b"x" * 10 * rate])
    loop.advance(10.9)
    assert connection.statuses == [200]
    loop.advance(0.2)
    assert connection.statuses == [200, 408]
    await connection.hang_up()


async def test_what_is_announced_buys_no_time() -> None:
    """32 MiB announced and not sent hold their room for 30 s, not for nine minutes (row 18)."""
    loop = HandLoop()
    connection = Connection(EchoApp(), loop=loop)
    connection.feed([HEAD % (32 * 1024 * 1024)])
    loop.advance(29.9)
    assert connection.statuses == []
    loop.advance(0.2)
    assert connection.statuses == [408]
    await connection.hang_up()


@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("known", [False, True])
async def test_what_follows_an_early_answer_has_its_deadlines(framing: str, known: bool) -> None:
    """A head or a body that begins in the read that ended a drained body is as late as any."""

    async def early(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/early":
            await answer(send, b"early")
        else:
            while (await receive()).get("more_body"):
                pass

    lines = b"Content-Length: 10" if framing == "length" else b"Transfer-Encoding: chunked"
    head = b"POST /early HTTP/1.1\r\nHost: h\r\n%b\r\n\r\n" % lines
    begun, rest = (b"12345", b"67890") if framing == "length" else (b"5\r\n123", b"45\r\n0\r\n\r\n")
    for tail, seconds in ((HEAD[:30], 10.0), (HEAD % 100_000 + b"{", 30.0)):
        loop = HandLoop()
        connection = Connection(EchoApp(reply=early), loop=loop)
        for _ in range(2 if known else 0):
            connection.feed([head, begun, rest])
            await connection.settle()
        done = [200] * len(connection.statuses)
        connection.feed([head + begun])
        await connection.settle()
        connection.feed([rest + tail])
        await connection.settle()
        loop.advance(seconds - 0.1)
        assert connection.statuses == [*done, 200]
        loop.advance(0.2)
        assert connection.statuses == [*done, 200, 408]
        await connection.hang_up()


@asynccontextmanager
async def being_answered(loop: HandLoop) -> AsyncIterator[Connection]:
    """A connection with a request whose answer takes as long as its client is there."""

    async def reply(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()

    connection = Connection(EchoApp(reply=reply), loop=loop)
    connection.feed([GET])
    await asyncio.sleep(0)
    try:
        yield connection
    finally:
        await connection.hang_up()


async def test_a_slow_reader_is_not_a_stalled_one() -> None:
    """Whoever goes on reading a large answer gets all of it; whoever stops has 30 s (row 18)."""
    loop = HandLoop()
    async with being_answered(loop) as connection:
        connection.transport.unsent = 6_000_000
        connection.protocol.pause_writing()
        for _ in range(20):
            loop.advance(29.0)
            connection.transport.unsent -= 100_000
        assert not connection.transport.closing
        loop.advance(30.0)
        connection.transport.unsent -= 1_000  # a byte now and then does not count as reading
        loop.advance(31.0)
        assert connection.transport.aborted


async def test_reading_on_ends_the_stall() -> None:
    """A reader that has caught up is watched no more, and anew when it falls behind again."""
    loop = HandLoop()
    async with being_answered(loop) as connection:
        for _ in range(3):
            connection.protocol.pause_writing()
            loop.advance(29.0)
            connection.protocol.resume_writing()
            loop.advance(29.0)
        assert not connection.transport.closing


async def test_slow_reader() -> None:
    """A client that stops reading is cut after the write stall (attack row 18)."""

    async def pour(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(10_000):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
            if not server.connections:
                cut.set()
                return

    cut = asyncio.Event()
    async with serving(EchoApp(reply=pour), Limits(write_stall_seconds=0.2)) as server:
        client = await server.connect()
        await client.send(GET)
        await asyncio.wait_for(cut.wait(), 10)
        client.close()


async def test_early_answer_does_not_wait_for_ever() -> None:
    """The rest of a body that was answered early is read for a bounded time only."""

    async def early(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"early")

    async with serving(EchoApp(reply=early), Limits(drain_seconds=0.1)) as server:
        client = await server.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\nx")
        assert (await client.response())[2] == b"early"
        assert await client.ended() == b""
        client.close()
