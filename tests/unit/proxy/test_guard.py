"""The guard, by raw bytes over real sockets: what is refused, what reaches the app, and how."""

import asyncio
import gc
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import Any

from daypass_proxy.exchange import ABORT_EXTENSION, GONE_EXTENSION
from daypass_proxy.guard import Limits
from tests.fakes.connection import Connection
from tests.fakes.guarded import CHUNKED, GET, EchoApp, answer, serving
from tests.support import aeventually


async def test_trailers_are_not_in_the_scope() -> None:
    """A trailer never turns up among the headers of the request (attack row 8)."""
    async with serving(EchoApp()) as server:
        client = await server.connect()
        await client.send(CHUNKED + b"2\r\n{}\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
        assert await client.status() == 400
        await aeventually(lambda: server.app.gone == 1)
        assert all(name != b"authorization" for name, _ in server.app.started[0]["headers"])
        client.close()


async def test_keep_alive() -> None:
    """A connection serves one good request after another."""
    async with serving(EchoApp()) as server:
        client = await server.connect()
        for _ in range(3):
            await client.send(GET)
            assert (await client.response())[0] == 200
        client.close()


async def test_refusal_follows_a_good_request() -> None:
    """A bad second request on a kept-alive connection is refused and the connection closed."""
    async with serving(EchoApp()) as server:
        client = await server.connect()
        await client.send(GET)
        assert (await client.response())[0] == 200
        await client.send(b"GET /v1/self HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
        assert (await client.response())[0] == 400
        assert await client.ended() == b""
        client.close()


async def test_pipelined_request_is_not_taken() -> None:
    """A request sent before the first was answered never reaches the app (attack row 7)."""
    app = EchoApp(gate=asyncio.Event())
    async with serving(app) as server:
        client = await server.connect()
        await client.send(GET + GET)
        await aeventually(lambda: len(app.bodies) == 1)
        assert app.gate is not None
        app.gate.set()
        assert (await client.response())[0] == 200
        assert await client.ended() == b""
        assert len(app.started) == 1
        client.close()


async def test_smuggled_second_request() -> None:
    """Bytes after "Connection: close" are not a request (attack row 7)."""
    async with serving(EchoApp()) as server:
        client = await server.connect()
        await client.send(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + GET)
        assert (await client.response())[0] == 200
        assert await client.ended() == b""
        assert len(server.app.started) == 1
        client.close()


async def test_client_that_talks_on_is_cut() -> None:
    """Bytes poured in after a refusal are thrown away up to a bound, then the connection is cut."""
    async with serving(EchoApp(), Limits(linger_seconds=60, discard_bytes=1000)) as server:
        client = await server.connect()
        await client.send(b"\x00" * 10)
        assert await client.status() == 400
        with suppress(ConnectionError):
            while server.connections:
                await client.send(b"x" * 100)
                await asyncio.sleep(0)
        await aeventually(lambda: server.connections == 0)
        client.close()


async def test_early_answer_lets_the_client_finish() -> None:
    """An answer given before the body arrived is readable and the connection goes on."""

    async def early(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"early")

    async with serving(EchoApp(reply=early)) as server:
        client = await server.connect()
        head = b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n"
        await client.send(head)
        await client.send(b"x" * 300_000)
        assert (await client.response())[2] == b"early"
        await client.send(GET)
        assert (await client.response())[0] == 200
        client.close()


async def test_abort_extension() -> None:
    """The scope carries the way to cut the connection without a tidy end."""

    async def torn(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        scope["extensions"]["daypass.abort"]()

    async with serving(EchoApp(reply=torn)) as server:
        client = await server.connect()
        await client.send(GET)
        try:
            seen = await client.ended()
        except ConnectionError:
            seen = b""
        assert not seen.endswith(b"0\r\n\r\n")
        client.close()


async def test_a_request_that_is_over_cuts_nobody() -> None:
    """What is left of a request after its answer can neither cut the next nor hear of its end."""
    told: list[str] = []
    connection = Connection(app := EchoApp())
    connection.feed([GET])
    await connection.settle()
    over = app.started[0]["extensions"]
    app.gate = asyncio.Event()
    connection.feed([GET])
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(app.started) == 2
    over[ABORT_EXTENSION]()
    over[GONE_EXTENSION](lambda: told.append("gone"))
    assert not connection.transport.closing
    app.gate.set()
    await connection.settle()
    assert connection.statuses == [200, 200]
    await connection.hang_up()
    assert told == []


async def test_what_is_refused_here_is_counted() -> None:
    """Every refusal that is answered by the guard is told once, and no other."""
    counted: list[str] = []
    for data, codes in (
        (b"GET / HTTP/1.1\r\n\r\n", ["invalid_request"]),
        (GET.replace(b"Host", b"Upgrade: websocket\r\nHost"), ["upgrade_refused"]),
        (b"GET /" + b"x" * 40_000, ["headers_too_large"]),
        (GET, []),
        (GET + GET, []),  # the first gets its answer, the second none
    ):
        counted.clear()
        connection = Connection(EchoApp(), refused=counted.append)
        connection.feed([data])
        await connection.settle()
        assert counted == codes
        await connection.hang_up()


async def test_a_request_leaves_nothing_to_collect() -> None:
    """A request is freed when the next begins, without a round of the garbage collector."""
    connection = Connection(app := EchoApp())
    gc.disable()
    try:
        for _ in range(3):
            connection.feed([GET])
            await connection.settle()
            cycle = weakref.ref(connection.protocol.cycle)
            app.started.clear()
        connection.feed([GET])
        assert cycle() is None
    finally:
        gc.enable()
    await connection.hang_up()


async def test_disconnect_reaches_the_app() -> None:
    """A client that leaves while its answer is awaited is seen by the app at once."""
    seen = asyncio.Event()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        message = await receive()
        assert message["type"] == "http.disconnect"
        seen.set()

    async with serving(EchoApp(reply=wait)) as server:
        client = await server.connect()
        await client.send(GET)
        await aeventually(lambda: server.app.started)
        client.close()
        await asyncio.wait_for(seen.wait(), 5)


async def test_disconnect_is_seen_behind_a_pipelined_request() -> None:
    """A second request does not hide from the app that the client of the first has left."""
    seen = asyncio.Event()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        message = await receive()
        assert message["type"] == "http.disconnect"
        seen.set()

    async with serving(EchoApp(reply=wait)) as server:
        client = await server.connect()
        await client.send(GET + GET)
        await aeventually(lambda: server.app.started)
        client.close()
        await asyncio.wait_for(seen.wait(), 5)


def test_limits_are_those_of_the_design() -> None:
    """The default limits are the published ones."""
    assert Limits() == replace(
        Limits(),
        header_bytes=32768,
        header_count=64,
        header_seconds=10.0,
        body_seconds=30.0,
        body_bytes_per_second=65536,
        write_stall_seconds=30.0,
    )
