"""What arrives while a reader waits: offered to a function at once, so that no task is woken."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from daypass_proxy.transport import Timeouts, UpstreamBroken
from daypass_proxy.transport.answer import PoolAnswer
from tests.contract.transports import OK, PATIENT, Make, request_to
from tests.servers.raw import RawServer
from tests.servers.stub import read_request
from tests.support import aeventually


class Feed:
    """An answer whose pieces the test sends when it likes."""

    def __init__(self, answer: PoolAnswer, writer: asyncio.StreamWriter) -> None:
        self.answer = answer
        self.writer = writer
        self.taken: list[bytes] = []
        self.takes = True

    def onward(self, piece: bytes) -> bool:
        """Take the piece, or leave it."""
        if self.takes:
            self.taken.append(piece)
        return self.takes

    def say(self, data: bytes) -> None:
        """Send one chunk."""
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def reading(self, within: float | None = None) -> "asyncio.Task[bytes | None]":
        """Read in a task of its own, which has just begun to wait."""
        task = asyncio.create_task(self.answer.read(within, self.onward))
        await asyncio.sleep(0)
        assert self.answer._onward is not None
        return task

    def arrive(self, data: bytes) -> None:
        """Let one chunk arrive in this turn of the loop: no limit can be over before it."""
        (connection,) = self.answer._line._owner._open  # type: ignore[union-attr]
        connection.data_received(b"%x\r\n%b\r\n" % (len(data), data))

    async def said(self, *pieces: bytes) -> None:
        """Send pieces one after the other; each is taken before the next."""
        for piece in pieces:
            before = b"".join(self.taken)
            self.say(piece)
            await aeventually(lambda: b"".join(self.taken) == before + piece)  # noqa: B023


@asynccontextmanager
async def feed(make: Make, timeouts: Timeouts = PATIENT) -> AsyncIterator[Feed]:
    """Serve one answer of which the head is sent."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writers.append(writer)
        writer.write(OK + b"transfer-encoding: chunked\r\n\r\n")
        await reader.read()

    async with RawServer(serve) as server:
        answer = await make(timeouts).send(request_to(server.url))
        yield Feed(answer, writers[0])
        answer.close()


async def test_taken_in_order(make: Make) -> None:
    """Pieces are taken as they come while the reader sleeps; it wakes for the end."""
    async with feed(make) as fed:
        task = await fed.reading()
        await fed.said(b"a", b"b" * 5000, b"c")
        assert not task.done()
        fed.writer.write(b"0\r\n\r\n")
        assert await task == b""
        assert fed.answer.complete


async def test_what_is_left_is_read(make: Make) -> None:
    """A piece that is not taken is read, before anything that comes later."""
    async with feed(make) as fed:
        task = await fed.reading()
        await fed.said(b"a")
        fed.takes = False
        fed.say(b"b")
        assert await task == b"b"
        fed.takes = True
        fed.say(b"c")
        await aeventually(lambda: fed.answer.unread == 1)
        assert fed.taken == [b"a"], "nobody waited"
        assert await fed.answer.read(None, fed.onward) == b"c"


async def test_end_that_comes_with_the_last_piece(make: Make) -> None:
    """The last piece is read, when the end came with it."""
    async with feed(make) as fed:
        task = await fed.reading()
        await fed.said(b"a")
        fed.writer.write(b"1\r\nb\r\n0\r\n\r\n")
        assert await task == b"b"
        assert await fed.answer.read() == b""
        assert fed.taken == [b"a"]


async def test_error_of_the_taker(make: Make) -> None:
    """What the function raises comes out of the read, and the answer is let go of."""

    def fails(_piece: bytes) -> bool:
        raise LookupError("mine")

    async with feed(make) as fed:
        task = asyncio.create_task(fed.answer.read(None, fails))
        await aeventually(lambda: fed.answer._onward is not None)
        fed.say(b"a")
        with pytest.raises(LookupError, match="mine"):
            await task
        assert fed.answer.unread == 0
        with pytest.raises(UpstreamBroken):
            await fed.answer.read()


async def test_break_after_pieces(make: Make) -> None:
    """B25: an answer that breaks off after pieces that were taken is broken."""
    async with feed(make) as fed:
        task = await fed.reading()
        await fed.said(b"a")
        fed.writer.transport.abort()
        with pytest.raises(UpstreamBroken):
            await task


async def test_times_begin_anew(make: Make) -> None:
    """B29, B51: a piece that was taken is a piece that came: both limits count from it."""
    async with feed(make) as fed:
        loop = asyncio.get_running_loop()
        task = await fed.reading(within=0.2)
        limit = fed.answer._limit
        before = loop.time()
        while loop.time() <= before:
            pass  # it ticks
        fed.arrive(b"a")
        assert fed.taken == [b"a"]
        assert await task is None
        assert loop.time() - before >= 0.198
        assert fed.answer._limit > limit


async def test_silence_after_pieces(make: Make) -> None:
    """B25 (c): an answer that falls silent after pieces that were taken is broken off."""
    async with feed(make, Timeouts(10, 10, 0.3)) as fed:
        task = await fed.reading()
        fed.arrive(b"a")
        assert fed.taken == [b"a"]
        with pytest.raises(UpstreamBroken) as caught:
            await task
        assert caught.value.stalled


async def test_held_back_reading_goes_on(make: Make) -> None:
    """Row 18: what is taken while reading was held back lets the reading go on."""
    async with feed(make) as fed:
        task = await fed.reading()
        (connection,) = fed.answer._line._owner._open  # type: ignore[union-attr]
        connection._transport.pause_reading()
        connection._read_paused = True
        fed.arrive(b"a")
        assert fed.taken == [b"a"]
        await fed.said(b"b")
        task.cancel()
