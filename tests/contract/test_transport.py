"""What every Transport must do, against a server that decides each byte and each break."""

import asyncio
import gzip
import socket
import traceback
from collections.abc import Iterator

import pytest

from daypass_proxy.transport import (
    Answer,
    Timeouts,
    TransportError,
    UpstreamBroken,
    UpstreamUnreachable,
)
from tests.canary import CANARY
from tests.contract.transports import (
    END,
    HASTY,
    KEY,
    PATIENT,
    STREAM,
    Make,
    chunk,
    length,
    read_all,
    request_to,
)
from tests.servers.stub import Close, Reset, Send, Stall, StubUpstream, Wait, read_request
from tests.servers.wire import head
from tests.support import aeventually


@pytest.fixture
def other() -> Iterator[StubUpstream]:
    """A second server, which nobody should ever reach."""
    with StubUpstream([KEY]) as server:
        yield server


async def until_not_none(answer: Answer) -> bytes:
    """Read in short reads until one has something to say."""
    for _ in range(100):
        if (piece := await answer.read(within=0.1)) is not None:
            return piece
    raise AssertionError("nothing came, and no limit was reached")


async def test_nothing_is_added(stub: StubUpstream, make: Make) -> None:
    """The server sees our headers, host, length and framing, and our body; nothing else."""
    stub.next([length(2), Send(b"ok")])
    answer = await make(PATIENT).send(request_to(stub.url, b"x" * 10))
    assert (answer.status, await read_all(answer)) == (200, b"ok")
    (seen,) = stub.requests
    assert {name.lower(): value for name, value in seen.headers} == {
        "host": f"127.0.0.1:{stub.port}",
        "content-type": "application/json",
        "x-api-key": KEY,
        "content-length": "10",
    }
    assert seen.body == b"x" * 10


@pytest.mark.parametrize("path", ["/v1/messages?beta=true", "/a%2Fb/%2e%2e/c?x=%20+&y", "//v1/x"])
async def test_url_goes_up_as_written(stub: StubUpstream, make: Make, path: str) -> None:
    """Neither path nor query is decoded, joined or normalised."""
    stub.next([length(0)])
    await make(PATIENT).send(request_to(stub.url, path=path))
    assert stub.requests[0].target == path


async def test_large_body(stub: StubUpstream, make: Make) -> None:
    """A body of many writes arrives as it is."""
    stub.next([length(0)])
    body = bytes(range(256)) * 32 * 1024
    request = request_to(stub.url, body)
    await make(PATIENT).send(request)
    assert stub.requests[0].body == body
    assert request.sent


async def test_header_bytes(stub: StubUpstream, make: Make) -> None:
    """Header values that are UTF-8 arrive as the same bytes; names come back in lower case."""
    stub.next([Send(head(200, [("X-Mixed-CASE", "Value"), ("content-length", "0")]))])
    request = request_to(stub.url)
    request.headers = (*request.headers, (b"x-note", "grüße".encode()))
    answer = await make(PATIENT).send(request)
    assert stub.requests[0].header("x-note")[0].encode("latin-1").decode() == "grüße"
    assert (b"x-mixed-case", b"Value") in answer.headers


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_not_followed(
    stub: StubUpstream, other: StubUpstream, make: Make, status: int
) -> None:
    """B03 (b), row 14: a redirect is an answer like any other; its target gets no request."""
    stub.next([length(0, ("location", f"{other.url}/v1/messages"), status=status)])
    answer = await make(PATIENT).send(request_to(stub.url))
    assert answer.status == status
    assert other.connections == 0


async def test_cookies_are_not_kept(stub: StubUpstream, make: Make) -> None:
    """A cookie of one answer does not come with the next request."""
    transport = make(PATIENT)
    for _ in range(2):
        stub.next([length(0, ("set-cookie", "a=b; Path=/"), ("connection", "close"))])
        await read_all(await transport.send(request_to(stub.url)))
    assert [seen.header("cookie") for seen in stub.requests] == [[], []]


async def test_environment_is_ignored(
    stub: StubUpstream, other: StubUpstream, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy named in the environment is not used."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, other.url)
    stub.next([length(0)])
    await make(PATIENT).send(request_to(stub.url))
    assert (len(stub.requests), other.connections) == (1, 0)


async def test_coded_body_stays_coded(stub: StubUpstream, make: Make) -> None:
    """Row 16: a compressed body is handed on as it came, with its header."""
    body = gzip.compress(b"x" * 100_000)
    stub.next([length(len(body), ("content-encoding", "gzip")), Send(body)])
    answer = await make(PATIENT).send(request_to(stub.url))
    assert (b"content-encoding", b"gzip") in answer.headers
    assert await read_all(answer) == body


async def test_interim_answers_are_passed_over(stub: StubUpstream, make: Make) -> None:
    """Answers of 1xx come before the answer and are not it."""
    early = head(103, [("link", "</x>")])
    stub.next([Send(head(100, []) + early), length(2, status=201), Send(b"ok")])
    answer = await make(PATIENT).send(request_to(stub.url))
    assert (answer.status, await read_all(answer)) == (201, b"ok")


async def test_switched_protocol(stub: StubUpstream, make: Make) -> None:
    """A switch to a protocol nobody asked for is a broken answer."""
    stub.next([Send(head(101, [("upgrade", "h2c"), ("connection", "upgrade")])), Stall()])
    with pytest.raises(UpstreamBroken):
        await make(PATIENT).send(request_to(stub.url))


async def test_chunks_as_they_come(stub: StubUpstream, make: Make) -> None:
    """B28: what has been sent can be read before more is sent, however little it is."""
    frames = [b"a", b": ping\n\n", "é".encode()[:1], b"d" * 70_000]
    script = [STREAM]
    for number, frame in enumerate(frames):
        script += [chunk(frame), Wait(f"after-{number}")]  # type: ignore[list-item]
    stub.next([*script, END])
    answer = await make(PATIENT).send(request_to(stub.url))
    for number, frame in enumerate(frames):
        got = b""
        while len(got) < len(frame):
            got += await answer.read() or b""
        assert got == frame
        stub.release(f"after-{number}")
    assert await answer.read() == b""
    assert await answer.read() == b""


@pytest.mark.parametrize(
    "script",
    [
        (STREAM, chunk(b"x"), Wait("go"), Reset()),
        (STREAM, chunk(b"x"), Wait("go"), Close()),
        (length(5), Send(b"x"), Wait("go"), Reset()),
        (length(5), Send(b"x"), Wait("go"), Close()),
        (STREAM, chunk(b"x"), Wait("go"), Send(b"not a chunk\r\n"), Stall()),
    ],
    ids=["chunked reset", "chunked close", "length reset", "length close", "bad chunk"],
)
async def test_broken_body(
    stub: StubUpstream,
    make: Make,
    script: tuple[Send | Reset | Close | Wait | Stall, ...],
) -> None:
    """B25 (a): a body that breaks off is UpstreamBroken after what came of it, not an end."""
    stub.next(script)
    answer = await make(PATIENT).send(request_to(stub.url))
    assert await answer.read() == b"x"
    stub.release("go")
    with pytest.raises(UpstreamBroken) as caught:
        await read_all(answer)
    assert not caught.value.stalled


async def test_body_until_the_connection_ends(stub: StubUpstream, make: Make) -> None:
    """A body without length or chunks ends with its connection."""
    stub.next([Send(head(200, [("connection", "close")])), Send(b"all of it"), Close()])
    answer = await make(PATIENT).send(request_to(stub.url))
    assert await read_all(answer) == b"all of it"


async def test_silent_body(stub: StubUpstream, make: Make) -> None:
    """B25 (c): a body that falls silent is broken off, and told apart from a reset."""
    stub.next([Send(STREAM.data + chunk(b"x").data), Stall()])
    answer = await make(Timeouts(10, 10, 0.1)).send(request_to(stub.url))
    assert await answer.read() == b"x"
    with pytest.raises(UpstreamBroken) as caught:
        await answer.read()
    assert caught.value.stalled
    await asyncio.to_thread(stub.requests[0].peer_gone.wait, 5)


async def test_read_within(stub: StubUpstream, make: Make) -> None:
    """A read that may wait only so long gives None when nothing came, and takes nothing away."""
    stub.next([STREAM, chunk(b"x"), Wait("go"), chunk(b"y"), END])
    answer = await make(PATIENT).send(request_to(stub.url))
    assert await answer.read(within=10) == b"x"
    assert await answer.read(within=0.01) is None
    assert await answer.read(within=0.01) is None
    stub.release("go")
    assert await answer.read(within=10) == b"y"
    assert await answer.read(within=10) == b""


async def test_short_reads_do_not_extend_the_limit(stub: StubUpstream, make: Make) -> None:
    """B25 (c): the limit between bytes runs on across reads that gave None."""
    stub.next([Send(STREAM.data + chunk(b"x").data), Stall()])
    answer = await make(Timeouts(10, 10, 0.3)).send(request_to(stub.url))
    assert await answer.read(within=0.1) == b"x"
    with pytest.raises(UpstreamBroken) as caught:
        await until_not_none(answer)
    assert caught.value.stalled


@pytest.mark.parametrize("script", [(Reset(),), (Close(),), (Send(b"HTTP/1.1 2"), Close())])
async def test_no_answer(
    stub: StubUpstream, make: Make, script: tuple[Send | Reset | Close, ...]
) -> None:
    """A connection that ends before the headers is unreachable, and the request had left."""
    stub.next(script)
    request = request_to(stub.url)
    with pytest.raises(UpstreamUnreachable):
        await make(PATIENT).send(request)
    assert request.sent
    assert len(stub.requests) == 1, "a POST that may have arrived is not sent twice"


async def test_slow_headers(stub: StubUpstream, make: Make) -> None:
    """A provider that says nothing in time is unreachable; the request had left."""
    stub.next([Stall()])
    request = request_to(stub.url)
    with pytest.raises(UpstreamUnreachable):
        await make(Timeouts(10, 0.1, 10)).send(request)
    assert request.sent
    (seen,) = await asyncio.to_thread(stub.wait_for, 1)
    await asyncio.to_thread(seen.peer_gone.wait, 5)


async def test_refused_connection(make: Make) -> None:
    """Where nobody listens nothing is sent."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        request = request_to(f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(UpstreamUnreachable):
            await make(PATIENT).send(request)
    assert not request.sent


async def test_slow_connection(make: Make) -> None:
    """A connection that is not ready in time (here: no TLS handshake) sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        request = request_to(f"https://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(UpstreamUnreachable):
            await make(Timeouts(0.1, 10, 10)).send(request)
    assert not request.sent


async def test_untrusted_server(stub: StubUpstream, make: Make) -> None:
    """A server that does not speak TLS where it should gets no byte of the request."""
    request = request_to(stub.url.replace("http:", "https:"))
    with pytest.raises(UpstreamUnreachable):
        await make(HASTY).send(request)
    assert not request.sent


@pytest.mark.parametrize(
    "garbage", [b"SSH-2.0-x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"<html>\r\n\r\n"]
)
async def test_not_http(stub: StubUpstream, make: Make, garbage: bytes) -> None:
    """An answer that is not HTTP is an error of ours, whichever."""
    stub.next([Send(garbage), Close()])
    with pytest.raises(TransportError):
        await make(PATIENT).send(request_to(stub.url))


async def test_close_drops_the_connection(stub: StubUpstream, make: Make) -> None:
    """B30: an answer that is let go of in the middle closes its connection at once."""
    stub.next([STREAM, chunk(b"x"), Stall()])
    answer = await make(PATIENT).send(request_to(stub.url))
    assert await answer.read() == b"x"
    answer.close()
    answer.close()
    assert await asyncio.to_thread(stub.requests[0].peer_gone.wait, 20)


async def test_cancelled_while_waiting(stub: StubUpstream, make: Make) -> None:
    """B30 (b): a cancelled request closes its connection before there is any answer."""
    stub.next([Stall()])
    task = asyncio.create_task(make(PATIENT).send(request_to(stub.url)))
    await asyncio.to_thread(stub.wait_for, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(stub.requests[0].peer_gone.wait, 20)


async def test_buffered(stub: StubUpstream, make: Make) -> None:
    """B05: what has arrived unread can be had without waiting, also after a cancelled read."""
    stub.next([STREAM, chunk(b"first"), Wait("go"), chunk(b"second"), Stall()])
    answer = await make(PATIENT).send(request_to(stub.url))
    assert await answer.read() == b"first"
    assert answer.buffered() == b""
    task = asyncio.create_task(answer.read())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stub.release("go")
    assert await aeventually(answer.buffered) == b"second"
    answer.close()


async def test_connection_is_kept(make: Make) -> None:
    """An answer read to its end leaves its connection for the next request."""
    requests: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(0)
        while await read_request(reader):
            requests[-1] += 1
            writer.write(length(2).data + b"ok")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    transport = make(PATIENT)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for _ in range(3):
        answer = await transport.send(request_to(url))
        assert await read_all(answer) == b"ok"
        answer.close()
    assert requests == [3]
    await transport.close()
    server.close()
    await server.wait_closed()


async def test_many_at_once(stub: StubUpstream, make: Make) -> None:
    """No call waits for another one's connection."""
    stub.always([STREAM, chunk(b"x"), Wait("go"), END])
    transport = make(PATIENT)
    sends = [transport.send(request_to(stub.url)) for _ in range(150)]
    answers = await asyncio.gather(*sends)
    assert [await answer.read() for answer in answers] == [b"x"] * 150
    stub.release("go")
    for answer in answers:
        assert await read_all(answer) == b""


@pytest.mark.parametrize("script", [(Reset(),), (Send(b"HTTP/9 what\r\n\r\n"), Close())])
async def test_errors_hold_no_key(
    stub: StubUpstream, make: Make, script: tuple[Send | Reset | Close, ...]
) -> None:
    """B58: whatever fails, the key is in no message, no repr and no traceback."""
    stub.next(script)
    request = request_to(stub.url)
    with pytest.raises(TransportError) as caught:
        await make(PATIENT).send(request)
    text = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(request)
    assert CANARY not in text
    assert str(stub.port) not in str(caught.value)
