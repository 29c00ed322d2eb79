"""Which connections are used again, and which calls are sent again: none that may have arrived."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from daypass_proxy.transport import Timeouts, UpstreamBroken, UpstreamUnreachable, connection, pool
from daypass_proxy.transport.pool import Pool
from tests.contract.transports import OK, PATIENT, Make, idle, read_all, request_to, whole
from tests.servers.raw import RawServer, answering
from tests.servers.stub import read_request
from tests.support import aeventually

KEPT = whole(b"ok")


async def call(transport: Pool, server: RawServer) -> bytes:
    """One whole call."""
    return await read_all(await transport.send(request_to(server.url)))


@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        (KEPT, 1),
        (OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 1),
        (whole(b"ok", ("keep-alive", "timeout=60, max=100")), 1),
        (b"HTTP/1.1 100 C\r\n\r\n" + KEPT, 1),
        (whole(b"ok", ("connection", "close")), 2),
        (whole(b"ok", ("connection", "x, Close")), 2),
        (whole(b"ok", ("keep-alive", "timeout=1")), 2),
        (whole(b"ok", ("keep-alive", "timeout=soon")), 2),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", 2),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok", 2),
        (KEPT + b"x", 2),
        (KEPT + KEPT, 2),
        (OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 2", 2),
    ],
)  # fmt: skip
async def test_which_connections_are_kept(make: Make, answer: bytes, connections: int) -> None:
    """Row 7: kept is what ended cleanly and may be kept; more than was asked for is not clean."""
    transport = make(PATIENT)
    async with RawServer(answering(answer, answer, stall=True)) as server:
        assert await call(transport, server) == b"ok"
        assert await call(transport, server) == b"ok"
        assert server.connections == connections


@pytest.mark.parametrize("body", [b"", b"ok", b"x" * 300_000])
async def test_the_rest_is_had_once_and_whole(make: Make, body: bytes) -> None:
    """A body is had without waiting when it is here to its end, not before, and no second time.

    Its connection is free then as after reading.
    """
    transport = make(PATIENT)
    async with RawServer(answering(whole(body), whole(body), stall=True)) as server:
        for _ in range(2):
            answer = await transport.send(request_to(server.url))
            pieces = []
            while (rest := answer.rest()) is None:
                pieces.append(await answer.read() or b"")
                if answer.complete and not answer.unread:
                    rest = b""  # read to its end before it could be had
                    break
            assert b"".join([*pieces, rest]) == body
            assert answer.rest() is None
            assert await answer.read() == b""
        assert server.connections == 1


async def test_no_rest_of_what_is_not_whole(make: Make) -> None:
    """Of an answer that goes on, or broke off, there is no rest to be had."""
    async with RawServer(answering(OK + b"content-length: 5\r\n\r\nhal")) as server:
        answer = await make(PATIENT).send(request_to(server.url))
        assert answer.rest() is None
        assert await answer.read() == b"hal"
        with pytest.raises(UpstreamBroken):
            await answer.read()
        assert answer.rest() is None


async def test_answer_left_unread_is_kept_when_it_is_whole(make: Make) -> None:
    """An answer without a body leaves its connection for the next call, read or not."""
    transport = make(PATIENT)
    async with RawServer(answering(whole(b""), whole(b""), stall=True)) as server:
        for _ in range(2):
            answer = await transport.send(request_to(server.url))
            answer.close()
        assert server.connections == 1


async def test_answer_let_go_of_is_not_kept(make: Make) -> None:
    """A connection with the rest of an answer under way serves nobody else."""
    transport = make(PATIENT)
    half = OK + b"content-length: 4\r\n\r\nok"
    async with RawServer(answering(half, stall=True)) as server:
        for _ in range(2):
            answer = await transport.send(request_to(server.url))
            assert await answer.read() == b"ok"
            answer.close()
            assert answer.buffered() == b""
            with pytest.raises(UpstreamBroken):
                await answer.read()
        assert server.connections == 2


async def test_one_answer_at_a_time(make: Make) -> None:
    """An answer that is over cannot touch the connection that serves the next one."""
    transport = make(PATIENT)
    async with RawServer(answering(KEPT, KEPT, stall=True)) as server:
        first = await transport.send(request_to(server.url))
        assert await read_all(first) == b"ok"
        second = await transport.send(request_to(server.url))
        first.close()
        assert await first.read() == b""
        assert first.buffered() == b""
        assert await read_all(second) == b"ok"
        assert server.connections == 1


async def test_youngest_first(make: Make) -> None:
    """The connection used last is used next, so that those not needed grow old."""
    used: list[int] = []
    together = asyncio.Barrier(2)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = server.connections
        first = True
        while await read_request(reader):
            used.append(number)
            if first:
                await together.wait()
            first = False
            writer.write(KEPT)

    transport = make(PATIENT)
    async with RawServer(serve) as server:
        answers = [transport.send(request_to(server.url)) for _ in range(2)]
        for answer in await asyncio.gather(*answers):
            await read_all(answer)
        youngest = used[-1]
        for _ in range(3):
            await call(transport, server)
    assert used[2:] == [used[2]] * 3
    assert youngest in used


Spoil = Callable[[asyncio.StreamWriter], None]


def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


def _half_close(writer: asyncio.StreamWriter) -> None:
    writer.write_eof()


def _speak(writer: asyncio.StreamWriter) -> None:
    writer.write(whole(b"nobody asked for this"))


@pytest.mark.parametrize("spoil", [_close, _reset, _half_close, _speak])
async def test_spoilt_while_idle(make: Make, spoil: Spoil) -> None:
    """B44: an idle connection that ends, or speaks unasked, is dropped as soon as it does."""
    go = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(KEPT)
        await go.wait()
        spoil(writer)
        await reader.read()

    transport = make(PATIENT)
    async with RawServer(serve) as server:
        assert await call(transport, server) == b"ok"
        assert idle(transport) == 1
        go.set()
        await aeventually(lambda: idle(transport) == 0)
        await aeventually(lambda: not transport._open)
        assert await call(transport, server) == b"ok"
        assert server.connections == 2


def nothing_came(peer: socket.socket) -> bool:
    """Wait for the end of a connection, and say whether that was all that came."""
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("rest", [b"", whole(b"nobody asked for this")], ids=["closed", "spoke"])
async def test_spoilt_and_not_yet_noticed(make: Make, rest: bytes) -> None:
    """B44, B45: what lies unread in the socket at checkout costs a connection and no call."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)
    transport = make(PATIENT)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def answered() -> tuple[bytes, socket.socket]:
        task = asyncio.create_task(transport.send(request_to(url)))
        peer, _ = await asyncio.to_thread(listener.accept)
        await asyncio.to_thread(peer.recv, 65536)
        peer.sendall(KEPT)
        return await read_all(await task), peer

    with listener:
        got, first = await answered()
        assert (got, idle(transport)) == (b"ok", 1)
        # From here to the checkout the loop does not run, so the pool cannot have been told.
        if rest:
            first.sendall(rest)
        else:
            first.close()
        got, second = await answered()
        assert got == b"ok"
        assert rest == b"" or nothing_came(first)
        first.close()
        second.close()


async def test_lost_after_it_was_sent(make: Make) -> None:
    """B45: a call that may have arrived is not sent again, on a kept connection either."""
    requests = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await read_request(reader))
        writer.write(KEPT)
        requests.append(await read_request(reader))

    transport = make(PATIENT)
    async with RawServer(serve) as server:
        assert await call(transport, server) == b"ok"
        request = request_to(server.url)
        with pytest.raises(UpstreamUnreachable):
            await transport.send(request)
        assert request.sent
        assert (len(requests), server.connections) == (2, 1)


async def test_idle_connections_grow_old(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """B44: an idle connection is let go of in time, and so is its alarm."""
    monkeypatch.setattr(connection, "KEEP_ALIVE_SECONDS", 0.05)
    transport = make(PATIENT)
    async with RawServer(answering(KEPT, stall=True)) as server:
        assert await call(transport, server) == b"ok"
        await aeventually(lambda: not transport._open)
        assert idle(transport) == 0
        assert await call(transport, server) == b"ok"
        assert server.connections == 2


async def test_too_old_at_checkout(make: Make) -> None:
    """A connection past its time is not used, should its alarm be late."""
    transport = make(PATIENT)
    async with RawServer(answering(KEPT, KEPT, stall=True)) as server:
        assert await call(transport, server) == b"ok"
        (kept,) = transport._open
        kept._due = 0.0
        assert await call(transport, server) == b"ok"
        assert server.connections == 2


async def test_idle_connections_are_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many calls at once leave so many connections, and no more than that."""
    monkeypatch.setattr(pool, "MAX_IDLE", 3)
    together = asyncio.Barrier(8)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await together.wait()
        writer.write(KEPT)
        await reader.read()

    transport = make(PATIENT)
    async with RawServer(serve) as server:
        await asyncio.gather(*[call(transport, server) for _ in range(8)])
        assert idle(transport) == 3
        await aeventually(lambda: len(transport._open) == 3)


async def test_origins_do_not_share(make: Make) -> None:
    """A connection to one server never carries a call to another."""
    transport = make(PATIENT)
    serve = answering(KEPT, KEPT, stall=True)
    async with RawServer(serve) as one, RawServer(serve) as other:
        for server in (one, other, one, other):
            assert await call(transport, server) == b"ok"
        assert (one.connections, other.connections) == (1, 1)


async def test_close_ends_everything(make: Make) -> None:
    """Closing leaves no connection, idle or busy, and the closed transport sends nothing."""
    transport = make(PATIENT)
    half = OK + b"content-length: 4\r\n\r\nok"
    async with RawServer(answering(KEPT, half, stall=True)) as server:
        first = await transport.send(request_to(server.url))
        second = await transport.send(request_to(server.url))
        assert await read_all(first) == b"ok"
        waiting = asyncio.create_task(read_all(second))
        await asyncio.sleep(0)
        third = await transport.send(request_to(server.url))
        assert await third.read() == b"ok"
        await transport.close()
        assert not transport._open
        with pytest.raises(UpstreamBroken):
            await read_all(third)
        request = request_to(server.url)
        with pytest.raises(UpstreamUnreachable):
            await transport.send(request)
        assert not request.sent
        assert await waiting == b"ok"


async def test_first_byte_is_not_the_next_ones_limit(make: Make) -> None:
    """Each wait has its own limit, whatever limit an earlier one on the connection had."""
    transport = make(Timeouts(connect=10, first_byte=2, idle=10))
    slow = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK + b"content-length: 4\r\n\r\nok")
        await slow.wait()
        writer.write(b"ok")
        await read_request(reader)
        await reader.read()

    async with RawServer(serve) as server:
        answer = await transport.send(request_to(server.url))
        assert await answer.read() == b"ok"
        assert await answer.read(within=2.1) is None
        slow.set()
        assert await read_all(answer) == b"ok"
        with pytest.raises(UpstreamUnreachable):
            await transport.send(request_to(server.url))
        assert server.connections == 1
