"""Whoever keeps a connection waiting loses it; whoever is in time does not."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from daypass_core.punctual import PunctualProtocol
from daypass_core.server import Listener
from daypass_core.settings import Listen
from tests.fakes.connection import MemoryTransport
from tests.fakes.hand_loop import HandLoop
from tests.support import aeventually

REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok"


class Hasty(PunctualProtocol):
    """The protocol with a deadline a test can wait for."""

    seconds = 0.05


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer after the whole body, later than the deadline when asked at /slow."""
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/slow":
        await asyncio.sleep(0.2)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server that speaks the protocol."""
    config = Config(app, lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Hasty(config, state, {}), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def opened(port: int, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose first bytes are there before the server begins to wait for them."""
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(sent)
    return await asyncio.open_connection(sock=client)


@pytest.mark.parametrize(
    "sent", [b"", b"POST / HTTP", REQUEST[:-10], REQUEST[:-1]], ids=["none", "line", "head", "body"]
)
async def test_row_18_an_unfinished_request_ends(port: int, sent: bytes) -> None:
    """Row 18: however far a request got, the connection is closed at the deadline."""
    reader, writer = await opened(port, sent)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_row_18_an_idle_connection_ends_after_its_answer(port: int) -> None:
    """Row 18: a kept-alive connection that asks nothing more is closed too."""
    reader, writer = await opened(port, REQUEST)
    assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_serving_is_not_waiting(port: int) -> None:
    """The time that the service takes for its answer is its own."""
    reader, writer = await opened(port, REQUEST.replace(b"/ ", b"/slow ", 1))
    assert b"done" in await asyncio.wait_for(reader.read(), 5)
    writer.close()


async def answered(sent: bytes, loop: HandLoop) -> MemoryTransport:
    """A connection without a socket, after it was sent something and answered it."""
    config = Config(app, lifespan="off", log_config=None)
    config.load()
    transport = MemoryTransport()
    transport.protocol = protocol = PunctualProtocol(config, ServerState(), {}, cast(Any, loop))
    protocol.connection_made(transport)
    transport.unsent = 10_000
    protocol.data_received(sent)
    await aeventually(lambda: b"done" in transport.written)
    return transport


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_row_18_a_rest_of_an_answer_is_not_kept_for_ever(version: bytes) -> None:
    """Row 18: a closed transport waits without end for what is not read; its client does not."""
    loop = HandLoop()
    transport = await answered(REQUEST.replace(b"1.1", version), loop)
    loop.advance(9.0)
    assert not transport.aborted
    loop.advance(3.0)
    assert transport.aborted
    await aeventually(lambda: not loop.timers)


async def test_row_18_who_does_not_read_a_large_answer_is_cut() -> None:
    """Row 18: who reads on gets all the time that it takes, who has stopped is cut."""
    loop = HandLoop()
    transport = await answered(REQUEST, loop)
    transport.unsent = 1_000_000
    transport.protocol.pause_writing()
    for _ in range(5):
        loop.advance(9.0)
        transport.unsent -= 100_000
    assert not transport.aborted
    loop.advance(21.0)
    assert transport.aborted
    await aeventually(lambda: not loop.timers)


def test_listeners_are_punctual_unless_told_otherwise() -> None:
    """A listener without a protocol of its own has the deadline."""
    assert Listener(app, Listen("127.0.0.1", 1)).http is PunctualProtocol
