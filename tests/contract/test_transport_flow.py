"""Back-pressure both ways, answers before the request is over, and limits, with and without TLS."""

import asyncio
import hashlib
from collections.abc import Callable

import pytest

from daypass_proxy.transport import Timeouts, UpstreamBroken, UpstreamUnreachable
from daypass_proxy.transport.answer import BUFFERED_MAX
from daypass_proxy.transport.connection import UNREAD_MAX
from tests.contract.transports import OK, Serving, read_all, request_to, whole
from tests.servers.stub import read_request
from tests.support import aeventually

BIG = 24 * 1024 * 1024
# What one event of a loop may bring on top of the limit at which reading stops.
ONE_EVENT = 512 * 1024


async def read_head(reader: asyncio.StreamReader) -> None:
    """Read a request's head and leave its body."""
    await reader.readuntil(b"\r\n\r\n")


async def test_upstream_is_held_back(serving: Serving) -> None:
    """Row 18: while nobody reads, little is taken; read then, every byte is there, in order."""
    piece = bytes(range(256)) * 256
    written = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(OK + b"content-length: %d\r\n\r\n" % BIG)
        while written < BIG:
            writer.write(piece)
            await writer.drain()
            written += len(piece)
        await reader.read()

    async with serving(serve) as (server, transport):
        answer = await transport.send(request_to(server.url))
        await aeventually(lambda: answer.unread > UNREAD_MAX)
        stopped = await standing_still(lambda: answer.unread)
        assert stopped <= UNREAD_MAX + ONE_EVENT
        assert written < BIG
        digest, size = hashlib.sha256(), 0
        while data := await answer.read():
            digest.update(data)
            size += len(data)
        assert size == BIG
        assert digest.digest() == hashlib.sha256(piece * (BIG // len(piece))).digest()
        assert sum(len(shelf) for shelf in transport._shelves.values()) == 1


@pytest.mark.parametrize("read", [True, False])
async def test_held_back_is_not_kept(serving: Serving, read: bool) -> None:
    """Row 7: an answer that is whole while the upstream is held back leaves no connection: what
    came behind it, nobody has seen."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await read_request(reader):
            writer.write(whole(b"ok"))

    async with serving(serve) as (server, transport):
        for _ in range(2):
            answer = await transport.send(request_to(server.url))
            assert answer.complete
            (connection,) = transport._open
            connection._read_paused = True
            connection._transport.pause_reading()
            if read:
                assert await read_all(answer) == b"ok"
            answer.close()
            await aeventually(lambda: not transport._open)
        assert server.connections == 2


async def test_limit_begins_anew_with_each_byte(serving: Serving) -> None:
    """B51: the limit between bytes counts from the last one that was read."""
    go = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK + b"content-length: 3\r\n\r\n")
        await go.wait()
        writer.write(b"a")
        await reader.read()

    async with serving(serve) as (server, transport):
        answer = await transport.send(request_to(server.url))
        assert await answer.read(within=0.01) is None
        first = answer._limit
        assert await answer.read(within=0.01) is None
        assert answer._limit == first > 0
        go.set()
        assert await answer.read() == b"a"
        assert await answer.read(within=0.01) is None
        assert answer._limit > first


async def standing_still(value: Callable[[], int]) -> int:
    """Return a value once it has not changed for a while."""
    seen = [-1, value()]

    async def still() -> bool:
        await asyncio.sleep(0.05)
        seen.append(value())
        return seen[-1] == seen[-2] == seen[-3]

    await aeventually(still)
    return seen[-1]


async def test_body_is_held_back(serving: Serving) -> None:
    """A body goes up as fast as it is taken, and waits where it is, not in a copy."""
    go = asyncio.Event()
    body = bytes(range(256)) * (BIG // 256)
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await go.wait()
        got.append(await readexactly(reader, BIG))
        writer.write(whole(b"ok"))
        await reader.read()

    async with serving(serve) as (server, transport):
        task = asyncio.create_task(transport.send(request_to(server.url, body)))
        await aeventually(lambda: bool(transport._open))
        (connection,) = transport._open
        await aeventually(lambda: connection._write_paused)
        assert connection._transport.get_write_buffer_size() <= UNREAD_MAX + ONE_EVENT
        assert connection._body is not None
        assert connection._body.obj is body
        go.set()
        assert await read_all(await task) == b"ok"
    assert got == [body]


async def readexactly(reader: asyncio.StreamReader, size: int) -> bytes:
    """Read so many bytes, more than the reader's own limit."""
    pieces = []
    while size:
        pieces.append(await reader.read(size))
        size -= len(pieces[-1])
        if not pieces[-1]:
            raise ConnectionError
    return b"".join(pieces)


@pytest.mark.parametrize("status", [401, 413, 307])
async def test_refused_before_it_was_read(serving: Serving, status: int) -> None:
    """B50: an answer that comes while the body still goes up ends the body, and is the answer."""
    came = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(whole(b"no", status=status))
        await came.wait()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await readexactly(reader, BIG)

    async with serving(serve) as (server, transport):
        request = request_to(server.url, bytes(BIG))
        answer = await transport.send(request)
        assert answer.status == status
        assert request.sent
        (connection,) = transport._open
        assert connection._body is None
        assert await read_all(answer) == b"no"
        came.set()
        await aeventually(lambda: not transport._open)


async def test_answered_while_the_body_goes_up(serving: Serving) -> None:
    """A success that begins before the body is over does not keep the rest of it back."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(OK + b"content-length: 2\r\n\r\no")
        await readexactly(reader, BIG)
        writer.write(b"k")
        await reader.read()

    async with serving(serve) as (server, transport):
        answer = await transport.send(request_to(server.url, bytes(BIG)))
        assert await read_all(answer) == b"ok"


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 16 * 1024 + 1, 64 * 1024, 1_000_001])
async def test_sizes_of_bodies(serving: Serving, size: int) -> None:
    """A body of any size arrives as it is, and a second one after it on the same connection."""
    body = bytes(range(251)) * (size // 251 + 1)
    got = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await read_head(reader)
            got.append(await readexactly(reader, size))
            writer.write(whole(b"ok"))
        await reader.read()

    async with serving(serve) as (server, transport):
        for _ in range(2):
            answer = await transport.send(request_to(server.url, body[:size]))
            assert await read_all(answer) == b"ok"
        assert server.connections == 1
    assert got == [body[:size]] * 2


async def test_buffered_is_bounded(serving: Serving) -> None:
    """B05: what lies unread can be had at once, 64 KiB of it, and is gone then."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK + b"content-length: 1000000\r\n\r\n" + b"a" * 70_000 + b"b" * 30_000)
        await reader.read()

    async with serving(serve) as (server, transport):
        answer = await transport.send(request_to(server.url))
        await aeventually(lambda: answer.unread == 100_000)
        assert answer.buffered() == b"a" * BUFFERED_MAX
        assert await answer.read() == b"a" * (70_000 - BUFFERED_MAX) + b"b" * 30_000
        assert answer.buffered() == b""


async def test_buffered_after_a_break(serving: Serving) -> None:
    """B25 (a): what came before a connection broke is there to be counted."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK + b"content-length: 10\r\n\r\nabc")

    async with serving(serve) as (server, transport):
        answer = await transport.send(request_to(server.url))
        await aeventually(lambda: not transport._open)
        assert answer.buffered() == b"abc"
        with pytest.raises(UpstreamBroken):
            await answer.read()


async def test_drip_in_the_head(serving: Serving) -> None:
    """Row 18: a head that comes a byte at a time has one limit for all of it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await drip(writer, OK + b"x-a: ", b"a")

    async with serving(serve, Timeouts(10, 0.3, 10)) as (server, transport):
        with pytest.raises(UpstreamUnreachable, match="no answer in time"):
            await transport.send(request_to(server.url))


async def test_drip_that_says_nothing(serving: Serving) -> None:
    """Row 19: what frames no byte of the body does not keep an answer alive."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await drip(writer, OK + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n1;", b"a")

    async with serving(serve, Timeouts(10, 10, 0.3)) as (server, transport):
        answer = await transport.send(request_to(server.url))
        assert await answer.read() == b"x"
        with pytest.raises(UpstreamBroken) as caught:
            await answer.read()
        assert caught.value.stalled


async def drip(writer: asyncio.StreamWriter, first: bytes, then: bytes) -> None:
    """Write byte by byte until the peer is gone."""
    writer.write(first)
    while True:
        writer.write(then)
        await writer.drain()
        await asyncio.sleep(0.01)


async def test_cancelled_while_the_body_goes_up(serving: Serving) -> None:
    """B30 (b): a call that is cut drops its connection, whatever was still to be sent."""
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        try:
            await readexactly(reader, BIG)
        except ConnectionError:
            gone.set()

    async with serving(serve) as (server, transport):
        task = asyncio.create_task(transport.send(request_to(server.url, bytes(BIG) * 4)))
        await aeventually(lambda: bool(transport._open))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await aeventually(lambda: not transport._open)
        await asyncio.wait_for(gone.wait(), 10)
