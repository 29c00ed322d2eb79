"""The guard's clocks: slow heads, slow bodies, slow readers, and how much time is fair."""

import asyncio
import json
from typing import Any

from daypass_proxy.guard import Limits
from tests.fakes.guarded import CHUNKED, GET, EchoApp, answer, serving
from tests.support import aeventually


async def test_stray_line_ends_between_requests() -> None:
    """An empty line after an answer never earns an answer of its own; the connection is closed."""
    async with serving(EchoApp(), Limits(header_seconds=0.1)) as server:
        client = await server.connect()
        await client.send(GET)
        assert (await client.response())[0] == 200
        await client.send(b"\r\n")
        assert await client.ended() == b""
        client.close()


async def test_slow_headers() -> None:
    """A head that drips past its deadline is answered 408 and closed (attack row 18)."""
    async with serving(EchoApp(), Limits(header_seconds=0.2)) as server:
        client = await server.connect()
        await client.send(b"GET /v1/self HTTP/1.1\r\nHost: ")
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
        client = await server.connect()
        await client.send(GET)
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


async def test_body_deadline_grows_with_the_body() -> None:
    """A large announced body gets the time that it needs at the least rate."""
    limits = Limits(body_seconds=0.05, body_bytes_per_second=10)
    async with serving(EchoApp(), limits) as server:
        client = await server.connect()
        await client.send(b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 200\r\n\r\n")
        await aeventually(lambda: server.app.started)
        await asyncio.sleep(0.1)  # the deadline itself is what is tested
        await client.send(b"x" * 200)
        assert (await client.response())[0] == 200
        client.close()


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
