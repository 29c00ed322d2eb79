"""What is an answer and what is not: framing is read in one way, or it is no answer at all."""

import asyncio

import pytest

from daypass_proxy.transport import UpstreamBroken, UpstreamUnreachable
from tests.contract.transports import (
    OK,
    PATIENT,
    Make,
    read_all,
    request_to,
    whole,
)
from tests.servers.raw import RawServer, answering
from tests.servers.stub import read_request

CHUNKED = b"transfer-encoding: chunked\r\n\r\n"

NOT_AN_ANSWER = {
    "length and chunks": OK + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": OK + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "list of lengths": OK + b"content-length: 2, 2\r\n\r\nab",
    "length with sign": OK + b"content-length: +2\r\n\r\nab",
    "length in hex": OK + b"content-length: 0x2\r\n\r\nab",
    "length too long": OK + b"content-length: 99999999999999999999\r\n\r\nab",
    "empty length": OK + b"content-length: \r\n\r\n",
    "unknown coding": OK + b"transfer-encoding: gzip\r\n\r\nab",
    "two codings": OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked not last": OK + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunked twice": OK + b"transfer-encoding: chunked\r\n" + CHUNKED + b"0\r\n\r\n",
    "empty coding": OK + b"transfer-encoding: \r\n\r\n",
    "chunks in HTTP/1.0": b"HTTP/1.0 200 OK\r\n" + CHUNKED + b"0\r\n\r\n",
    "folded line": OK + b"x-a: b\r\n c\r\ncontent-length: 0\r\n\r\n",
    "bare line feed": b"HTTP/1.1 200 OK\ncontent-length: 0\n\n",
    "bare line feed in head": OK + b"x-a: b\ncontent-length: 0\r\n\r\n",
    "blank in a name": OK + b"content-length : 0\r\n\r\n",
    "no name": OK + b": b\r\ncontent-length: 0\r\n\r\n",
    "control character": OK + b"x-a: \x01\r\ncontent-length: 0\r\n\r\n",
    "empty line first": b"\r\n" + OK + b"content-length: 0\r\n\r\n",
    "version 2": b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n",
    "version 0.9": b"HTTP/0.9 200 OK\r\ncontent-length: 0\r\n\r\n",
    "other protocol": b"RTSP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
    "radio": b"ICE/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
    "status 099": b"HTTP/1.1 099 OK\r\ncontent-length: 0\r\n\r\n",
    "status 600": b"HTTP/1.1 600 OK\r\ncontent-length: 0\r\n\r\n",
    "status 1000": b"HTTP/1.1 1000 OK\r\ncontent-length: 0\r\n\r\n",
    "switch": b"HTTP/1.1 101 Switching\r\n\r\n",
    "interim with body": b"HTTP/1.1 103 Early\r\ncontent-length: 2\r\n\r\nab" + whole(b""),
    "interim with length": b"HTTP/1.1 103 Early\r\ncontent-length: 2\r\n\r\n" + whole(b""),
    "interim without end": b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" * 9 + whole(b""),
    "204 with body": b"HTTP/1.1 204 None\r\ncontent-length: 2\r\n\r\nab",
    "204 in chunks": b"HTTP/1.1 204 None\r\n" + CHUNKED + b"0\r\n\r\n",
    "head too large": OK + b"x-a: %b\r\n\r\n" % (b"a" * 70_000),
    "head without end": OK + b"x-a: " + b"a" * 200_000,
    "status line without end": b"HTTP/1.1 200 " + b"a" * 200_000,
    "too many headers": OK + b"a: b\r\n" * 257 + b"content-length: 0\r\n\r\n",
}

BROKEN_BODY = {
    "size is a word": b"zz\r\n",
    "size is negative": b"-1\r\n",
    "size too long": b"fffffffffffffffff\r\n",
    "size ends in a blank": b"1 \r\nx\r\n",
    "size ends in a bare line feed": b"1\nx\r\n",
    "chunk longer than it says": b"1\r\nxx\r\n",
    "extension without end": b"1;a=" + b"b" * 200_000,
    "trailers without end": b"0\r\n" + b"x-a: b\r\n" * 30_000,
    "one trailer without end": b"0\r\nx-a: " + b"b" * 200_000,
}


@pytest.mark.parametrize("answer", NOT_AN_ANSWER.values(), ids=NOT_AN_ANSWER.keys())
async def test_not_an_answer(make: Make, answer: bytes) -> None:
    """Row 7, row 17: what can be read in two ways, or has no end, is UpstreamBroken, at once."""
    async with RawServer(answering(answer, stall=True)) as server:
        request = request_to(server.url)
        with pytest.raises(UpstreamBroken, match="answer is not HTTP") as caught:
            await make(PATIENT).send(request)
    assert not caught.value.stalled
    assert request.sent
    assert server.connections == 1


@pytest.mark.parametrize("rest", BROKEN_BODY.values(), ids=BROKEN_BODY.keys())
async def test_broken_chunks(make: Make, rest: bytes) -> None:
    """B25: chunks that cannot be read break the answer off, after what came before them."""
    go = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK + CHUNKED + b"3\r\nabc\r\n")
        await go.wait()
        writer.write(rest)
        await reader.read()

    async with RawServer(serve) as server:
        answer = await make(PATIENT).send(request_to(server.url))
        assert await answer.read() == b"abc"
        go.set()
        with pytest.raises(UpstreamBroken):
            await read_all(answer)
        with pytest.raises(UpstreamBroken):
            await answer.read()


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (whole(b"hello"), b"hello"),
        (b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nok", b"ok"),
        (
            OK + b"Transfer-Encoding: Chunked\r\n\r\n2\r\nok\r\n3;a=b;c\r\n...\r\n0\r\n\r\n",
            b"ok...",
        ),
        (OK + CHUNKED + b"2\r\nok\r\n0\r\nx-api-key: evil\r\nStatus: 500\r\n\r\n", b"ok"),
        (b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 103 E\r\nlink: x\r\n\r\n" + whole(b"hello"), b"hello"),
        (b"HTTP/1.1 204 None\r\n\r\n", b""),
        (b"HTTP/1.1 304 Same\r\ncontent-length: 100\r\n\r\n", b""),
    ],
    ids=["length", "no reason", "chunks", "trailers", "interim", "204", "304"],
)
async def test_any_segments(make: Make, answer: bytes, body: bytes, step: int) -> None:
    """However an answer is cut into segments, it is the same answer; trailers are dropped."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for start in range(0, len(answer), step):
            writer.write(answer[start : start + step])
            await writer.drain()
        await reader.read()

    async with RawServer(serve) as server:
        got = await make(PATIENT).send(request_to(server.url))
        assert got.status in (200, 204, 304)
        assert await read_all(got) == body
        assert not {b"x-api-key", b"link", b"status"} & {name for name, _ in got.headers}


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\nall of it",
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n\r\nall of it",
        OK + b"\r\nall of it",
        OK + b"connection: close\r\n\r\nall of it",
    ],
)
async def test_ends_with_the_connection(make: Make, answer: bytes) -> None:
    """B25 (b): without length and chunks the connection's end is the body's, and the only one."""
    async with RawServer(answering(answer)) as server:
        got = await make(PATIENT).send(request_to(server.url))
        assert await read_all(got) == b"all of it"


@pytest.mark.parametrize("cut", [1, 5, 20, 37])
async def test_head_is_cut(make: Make, cut: int) -> None:
    """A connection that ends in the head never began to answer."""
    async with RawServer(answering(whole(b"")[:cut])) as server:
        with pytest.raises(UpstreamUnreachable):
            await make(PATIENT).send(request_to(server.url))


@pytest.mark.parametrize("interim", [b"HTTP/1.1 100 C\r\n\r\n", b"HTTP/1.1 103 E\r\na: b\r\n\r\n"])
async def test_interim_alone_is_no_answer(make: Make, interim: bytes) -> None:
    """An answer of 1xx and then the end is no answer."""
    async with RawServer(answering(interim)) as server:
        with pytest.raises(UpstreamUnreachable):
            await make(PATIENT).send(request_to(server.url))


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"content-length: 10\r\n\r\nabc",
        OK + CHUNKED + b"a\r\nabc",
        OK + CHUNKED + b"3\r\nabc\r\n",
        OK + CHUNKED + b"3\r\nabc\r\n0\r\n",
    ],
    ids=["length", "in a chunk", "between chunks", "before the last line"],
)
async def test_body_is_cut(make: Make, answer: bytes) -> None:
    """B25 (a): the end of the connection is never the end of a counted body."""
    async with RawServer(answering(answer)) as server:
        got = await make(PATIENT).send(request_to(server.url))
        assert await got.read() == b"abc"
        with pytest.raises(UpstreamBroken) as caught:
            await got.read()
    assert not caught.value.stalled


async def test_as_many_headers_as_allowed(make: Make) -> None:
    """A large head within the limits arrives whole and in order."""
    lines = [(b"x-%d" % number, b"v" * 200) for number in range(255)]
    raw = b"".join(b"%b: %b\r\n" % line for line in lines)
    async with RawServer(answering(OK + raw + b"content-length: 0\r\n\r\n")) as server:
        got = await make(PATIENT).send(request_to(server.url))
        assert got.headers[:255] == tuple(lines)
