"""How a connection ends whose client does not read, does not agree, or is gone already."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from uvicorn.server import ServerState

from daypass_proxy.exchange import DIRECT_EXTENSION
from daypass_proxy.gate import Gate
from daypass_proxy.guard import Limits
from daypass_proxy.guard_connection import GuardedConnection
from tests.fakes.connection import Connection
from tests.fakes.guarded import GET, EchoApp, Server, answer, serving
from tests.fakes.hand_loop import HandLoop
from tests.servers.ca import Authority
from tests.support import aeventually

POST = b"POST /v1/messages HTTP/1.1\r\nHost: proxy.test\r\nContent-Length: 2\r\n\r\nhi"
LARGE = bytes(range(256)) * 32 * 1024
SECONDS = 10.0
"""Many times what any of these takes."""


async def at_once(scope: Any, receive: Any, send: Any) -> None:
    """Answer without reading."""
    await answer(send, b"ok")


def last_request(connection: Connection) -> None:
    """A request after whose answer the connection ends."""
    connection.feed([GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")])


def nonsense(connection: Connection) -> None:
    """What is refused."""
    connection.feed([b"BAD\r\n\r\n"])


def half_close(connection: Connection) -> None:
    """The client sends nothing more."""
    connection.protocol.eof_received()


def end_of_service(connection: Connection) -> None:
    """The service ends while the connection rests."""
    connection.protocol.shutdown()


@pytest.mark.parametrize(
    ("end", "seconds"),
    [
        (last_request, 31.0),
        (nonsense, 3.0),
        (half_close, 31.0),
        (end_of_service, 31.0),
        (lambda _connection: None, 122.0),
    ],
    ids=["last request", "nonsense", "half-close", "end of service", "rest"],
)
async def test_row_18_what_is_owed_is_not_kept_for_ever(
    end: Callable[[Connection], None], seconds: float
) -> None:
    """Row 18: however a connection ends, a client that does not read the rest is cut in the end.

    A transport that is closed waits for that without end, and too little waits to make it pause.
    """
    loop = HandLoop()
    connection = Connection(EchoApp(reply=at_once), loop=loop)
    connection.feed([GET])
    await connection.settle()
    connection.transport.unsent = 10_000
    end(connection)
    await connection.settle()
    assert not connection.transport.lost
    loop.advance(seconds)
    assert connection.transport.aborted
    await connection.hang_up()


async def test_who_reads_on_after_the_end_gets_all_of_it() -> None:
    """The last answer of a connection may be read as slowly as any other."""
    loop = HandLoop()
    connection = Connection(EchoApp(reply=at_once), loop=loop)
    connection.transport.unsent = 1_000_000
    last_request(connection)
    await connection.settle()
    for _ in range(9):
        loop.advance(29.0)
        connection.transport.unsent -= 100_000
    assert not connection.transport.aborted
    await connection.hang_up()


async def test_row_5_who_is_gone_before_he_is_seen_is_nobody() -> None:
    """Row 5: a TCP client without an address does not pass for one of the Unix socket."""
    app = EchoApp()
    connection = Connection(app, peer=None)
    assert connection.transport.aborted
    connection.feed([POST])
    await connection.settle()
    assert app.started == []


async def test_a_connection_beside_the_limit_has_no_time_for_a_body() -> None:
    """Row 18: who is let in to be a probe does not keep probes out by sending a body slowly."""
    loop = HandLoop()
    gate = Gate(most_connections=0)
    connection = Connection(EchoApp(), loop=loop, gate=gate, is_call=lambda _method, _path: False)
    connection.feed([POST[:-1]])
    loop.advance(1.2)
    assert connection.statuses == [408]
    await connection.hang_up()


async def test_a_crowd_is_not_looked_through_for_each_newcomer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Row 18: where no connection rests, to come is not made dear by how many are there."""
    looks = 0
    real = GuardedConnection.is_resting

    def counted(self: GuardedConnection) -> bool:
        nonlocal looks
        looks += 1
        return real(self)

    monkeypatch.setattr(GuardedConnection, "is_resting", counted)
    loop, gate = HandLoop(), Gate(most_connections=10)
    state = ServerState()

    def come(count: int) -> list[Connection]:
        return [Connection(EchoApp(), loop=loop, gate=gate, state=state) for _ in range(count)]

    crowd = come(40)
    assert looks <= 11
    loop.advance(0.2)
    crowd += come(1)
    assert looks > 11
    for connection in crowd:
        await connection.hang_up()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Who signs the certificate of the servers below."""
    return Authority(tmp_path)


async def careless(server: Server, authority: Authority) -> ssl.SSLSocket:
    """A TLS client that does nothing by itself: it reads when told to, and never agrees to ends."""
    trusted = ssl.create_default_context(cafile=str(authority.file))

    def connect() -> ssl.SSLSocket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(SECONDS)
        sock.connect(("127.0.0.1", server.port))
        return trusted.wrap_socket(sock, server_hostname="localhost")

    return await asyncio.to_thread(connect)


async def asked(client: ssl.SSLSocket) -> bytes:
    """The first bytes of the answer to one request."""

    def ask() -> bytes:
        client.sendall(GET)
        return client.recv(4096)

    return await asyncio.to_thread(ask)


async def poured(scope: Any, receive: Any, send: Any) -> None:
    """Answer with a large body, the way of the proxy first."""
    direct = scope["extensions"][DIRECT_EXTENSION]
    if not direct.answer(200, [], LARGE):
        headers = [(b"content-length", b"%d" % len(LARGE))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": LARGE})


async def test_row_18_over_tls_a_client_that_does_not_read_is_cut(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Row 18: a large answer over TLS does not wait where nobody sees that it is not read."""
    caplog.set_level("INFO")
    limits = Limits(write_stall_seconds=0.2)
    app = EchoApp(reply=poured)
    async with serving(app, limits, tls=authority.server("localhost")) as server:
        client = await careless(server, authority)
        await asyncio.to_thread(client.sendall, GET)
        await aeventually(lambda: app.started)
        await aeventually(lambda: server.connections == 0, SECONDS)
        client.close()
    assert "client_stalled" in caplog.messages


async def test_a_large_answer_over_tls_comes_whole(authority: Authority) -> None:
    """Written in pieces, it is the same to the last byte."""
    async with serving(EchoApp(reply=poured), tls=authority.server("localhost")) as server:
        client = await careless(server, authority)

        def read() -> bytes:
            client.sendall(GET)
            found = b""
            while len(found.partition(b"\r\n\r\n")[2]) < len(LARGE):
                found += client.recv(1 << 20)
            return found.partition(b"\r\n\r\n")[2]

        assert await asyncio.to_thread(read) == LARGE
        client.close()


async def test_over_tls_an_end_needs_nobodys_consent(authority: Authority) -> None:
    """B53: clients that rest and do not look hold up the end of the service for a moment only."""
    limits = Limits(drain_seconds=0.1)
    async with serving(EchoApp(), limits, tls=authority.server("localhost")) as server:
        client = await careless(server, authority)
        assert (await asked(client)).startswith(b"HTTP/1.1 200")
        (connection,) = server.uvicorn.server_state.connections
        connection.shutdown()
        await aeventually(lambda: server.connections == 0, SECONDS)
        client.close()


async def test_row_18_over_tls_what_rests_makes_room_at_once(authority: Authority) -> None:
    """Row 18: a connection that was ended to make room takes none, whatever its client does."""
    gate = Gate(most_connections=2)
    async with serving(EchoApp(), gate=gate, tls=authority.server("localhost")) as server:
        clients = []
        for _ in range(8):
            clients.append(await careless(server, authority))
            assert (await asked(clients[-1])).startswith(b"HTTP/1.1 200")
        for client in clients:
            client.close()
