"""How answers end: for whom, with which framing, and what a torn one looks like."""

import asyncio
from typing import Any

import pytest

from daypass_core.server import KEEP_ALIVE_SECONDS
from daypass_proxy.exchange import DIRECT_EXTENSION
from daypass_proxy.guard import Limits
from tests.fakes.connection import Connection
from tests.fakes.guarded import GET, EchoApp, answer, serving
from tests.fakes.hand_loop import HandLoop
from tests.support import aeventually

HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: h\r\n"
GET_1_0 = b"GET /v1/self HTTP/1.0\r\nHost: h\r\n\r\n"


def says(status: int, *pieces: bytes, headers: Any = (), tears: bool = False) -> EchoApp:
    """An application that streams these pieces without a length, then ends or tears the answer."""

    async def reply(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if tears:
            await asyncio.sleep(0.01)  # lets the loop write what it has
            scope["extensions"]["daypass.abort"]()
        else:
            await send({"type": "http.response.body"})

    return EchoApp(reply=reply)


async def early(scope: Any, receive: Any, send: Any) -> None:
    """Answer without reading the body."""
    await answer(send, b"early")


async def test_http_1_1_gets_chunks() -> None:
    """An answer of unknown length is chunked, and the connection goes on (RFC 9112 §7.1)."""
    connection = Connection(says(200, b"one", b"three"))
    connection.feed([GET])
    await connection.settle()
    head, _, body = connection.written.partition(b"\r\n\r\n")
    assert head == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked"
    assert body == b"3\r\none\r\n5\r\nthree\r\n0\r\n\r\n"
    assert not connection.transport.closing
    await connection.hang_up()


async def test_http_1_0_gets_no_chunks() -> None:
    """An answer of unknown length ends with the connection for HTTP/1.0 (RFC 9112 §6.1)."""
    connection = Connection(says(200, b"one", b"three"))
    connection.feed([GET_1_0])
    await connection.settle()
    assert connection.written == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nonethree"
    assert connection.transport.closing
    await connection.hang_up()


async def test_torn_answer_to_http_1_0_is_a_reset() -> None:
    """Where only the end of the connection ends an answer, a torn one is reset, not closed."""
    async with serving(says(200, b"half of it", tears=True)) as server:
        client = await server.connect()
        await client.send(GET_1_0)
        with pytest.raises(ConnectionResetError):
            await client.ended()
        client.close()


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body(status: int) -> None:
    """204 and 304 have neither a length nor chunks, and the connection goes on."""
    connection = Connection(says(status))
    connection.feed([GET])
    await connection.settle()
    assert connection.written.endswith(b"\r\n\r\n")
    assert b"transfer-encoding" not in connection.written
    assert not connection.transport.closing
    await connection.hang_up()


@pytest.mark.parametrize(
    "header",
    [
        (b"x-a", b"b\r\nset-cookie: c"),
        (b"x-a", b"b\nc"),
        (b"x-a", b"b\x00c"),
        (b"x-a", b"b\r"),
        (b"x-a: b\r\nx-b", b"set"),
        (b"x a", b"b"),
        (b"", b"b"),
        (b"X-A", b"b"),
        (b"transfer-encoding", b"gzip"),
    ],
)
async def test_no_header_splits_an_answer(header: tuple[bytes, bytes]) -> None:
    """A response header that could begin another, or change the framing, is never written."""
    connection = Connection(says(200, b"body", headers=[header]))
    connection.feed([GET])
    await connection.settle()
    assert connection.statuses == [500]
    assert b"x-" not in connection.written
    assert connection.transport.closing
    await connection.hang_up()


@pytest.mark.parametrize("length", [b"3", b"5"])
async def test_a_length_that_does_not_hold_is_torn(length: bytes) -> None:
    """An answer longer or shorter than its Content-Length never ends as if it were whole."""
    connection = Connection(says(200, b"four", headers=[(b"content-length", length)]))
    connection.feed([GET])
    await connection.settle()
    assert connection.transport.closing
    assert connection.statuses in ([], [200])
    assert length == b"5" or b"four" not in connection.written
    await connection.hang_up()


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n", b"Expect: 100-continue\r\n"])
async def test_b42_early_answer_outruns_forty_megabytes(more: bytes) -> None:
    """B42: whoever sends a large body can read the early answer, however it is announced."""
    async with serving(EchoApp(reply=early)) as server:
        client = await server.connect()
        await client.send(HEAD + more + b"Content-Length: 40000000\r\n\r\n")
        for _ in range(400):
            await client.send(b"x" * 100_000)
        assert (await client.response())[2] == b"early"
        if more:
            assert await client.ended() == b""
        else:
            await client.send(GET)
            assert (await client.response())[2] == b"early"
        client.close()


async def test_b42_nothing_follows_an_early_answer_that_closes() -> None:
    """B42: behind the body that an early answer did not ask for, no request is read (row 7)."""
    connection = Connection(app := EchoApp(reply=early))
    connection.feed([HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"])
    await connection.settle()
    connection.feed([b"{}" + GET])
    assert connection.transport.closing
    await connection.hang_up()
    assert len(app.started) == 1


async def test_b42_draining_is_bounded_in_bytes() -> None:
    """B42: after an early answer a bounded number of bytes is read, then the connection closed."""
    connection = Connection(EchoApp(reply=early), Limits(drain_bytes=1_000_000))
    connection.feed([HEAD + b"Content-Length: 90000000\r\n\r\n"])
    await connection.settle()
    for _ in range(10):
        connection.feed([b"x" * 100_000])
    assert not connection.transport.closing
    connection.feed([b"x"])
    assert connection.transport.closing
    assert connection.statuses == [200]
    await connection.hang_up()


@pytest.mark.parametrize("known", [False, True])
async def test_empty_lines_behind_a_drained_body(known: bool) -> None:
    """What follows a body that was answered early is no freer than between any two requests."""
    data = HEAD + b"Content-Length: 20\r\n\r\n" + b"x" * 20
    for behind, statuses in ((b"\r\n", [200]), (b"\n", [200, 400]), (b"\r\r\n", [200, 400])):
        connection = Connection(EchoApp(reply=early))
        for _ in range(2 if known else 0):
            connection.feed([data])
            await connection.settle()
        done = connection.statuses
        connection.feed([data[:-5]])
        await connection.settle()
        connection.feed([data[-5:] + behind])
        assert connection.statuses == [*done, *statuses]
        await connection.hang_up()


async def test_a_head_behind_a_drained_body_is_bounded_too() -> None:
    """Row 17: a head that arrives with the end of another body has the same limit."""
    connection = Connection(EchoApp(reply=early))
    connection.feed([HEAD + b"Content-Length: 40000\r\n\r\n"])
    await connection.settle()
    long = b"GET /v1/self HTTP/1.1\r\nHost: h\r\nX-A: %b\r\n\r\n" % (b"a" * 33_000)
    connection.feed([b"x" * 40_000 + long])
    await connection.settle()
    assert connection.statuses == [200, 431]
    await connection.hang_up()


async def test_what_follows_a_refusal_is_bounded() -> None:
    """Row 18: bytes poured in after a refusal are thrown away up to a bound, then the line cut."""
    connection = Connection(EchoApp(), Limits(discard_bytes=1_000))
    connection.feed([b"\x00", b"x" * 1_000])
    assert not connection.transport.aborted
    connection.feed([b"x"])
    assert connection.transport.aborted
    await connection.hang_up()


async def test_refused_expectation_does_not_wait_for_the_body() -> None:
    """RFC 9110 §10.1.1: the next bytes after a refusal instead of 100 are no request."""
    connection = Connection(EchoApp(reply=early))
    connection.feed([HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"])
    await connection.settle()
    assert b"connection: close" in connection.written
    connection.feed([GET, GET])
    await connection.settle()
    assert connection.statuses == [200]
    assert connection.transport.closing
    await connection.hang_up()


async def test_a_fault_of_ours_is_no_fault_of_the_request(caplog: pytest.LogCaptureFixture) -> None:
    """An error inside a callback is 500 and logged, not "invalid request"."""
    connection = Connection(EchoApp())
    del connection.protocol.asgi_version
    connection.feed([GET])
    assert connection.statuses == [500]
    assert "request_failed" in caplog.text


async def test_the_app_hears_of_a_client_that_left_once() -> None:
    """The extension tells at once when the client goes, and never after a whole answer."""
    told: list[str] = []

    async def reply(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        scope["extensions"]["daypass.gone"](lambda: told.append("gone"))
        if gate.is_set():
            await answer(send, b"whole")
        else:
            await receive()

    gate = asyncio.Event()
    connection = Connection(EchoApp(reply=reply))
    connection.feed([GET])
    await asyncio.sleep(0)
    connection.transport.close()
    await connection.hang_up()
    assert told == ["gone"]
    gate.set()
    connection = Connection(EchoApp(reply=reply))
    connection.feed([GET])
    await connection.settle()
    await connection.hang_up()
    assert told == ["gone"]


async def test_b44_an_idle_connection_is_kept_longer_than_clients_keep_it() -> None:
    """B44: between requests a connection lives as long as the server says, two minutes or so."""
    assert KEEP_ALIVE_SECONDS >= 120
    loop = HandLoop()
    connection = Connection(EchoApp(), keep_alive=KEEP_ALIVE_SECONDS, loop=loop)
    connection.feed([GET])
    await connection.settle()
    loop.advance(KEEP_ALIVE_SECONDS - 0.1)
    assert not connection.transport.closing
    loop.advance(0.2)
    assert connection.transport.closing
    await connection.hang_up()


async def test_idle_connections_and_drips_keep_nobody_out() -> None:
    """Row 18: 500 idle connections and 200 dripping ones end by their deadlines; others go on."""
    async with serving(EchoApp(), Limits(header_seconds=1.0, body_seconds=1.0)) as server:
        idle = [await server.connect() for _ in range(500)]
        begun = [HEAD, HEAD + b"Content-Length: 9\r\n\r\nx"] * 100
        dripping = [await server.connect(drip) for drip in begun]
        good = await server.connect(GET)
        assert (await good.response())[0] == 200
        while server.connections > 1:
            await good.send(GET)
            assert (await good.response())[0] == 200
            await asyncio.sleep(0.01)
        for client in dripping:
            assert (await client.response())[0] == 408
        for client in idle:
            assert await client.ended() == b""
        for client in [*idle, *dripping, good]:
            client.close()
        await aeventually(lambda: server.connections == 0)


async def test_written_at_once_is_written_the_same() -> None:
    """Answers and pieces written without a message have the bytes of those sent by messages."""
    length = (b"content-length", b"5")

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        assert scope["extensions"][DIRECT_EXTENSION].answer(200, [], b"whole")

    async def messages(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": b"whole"})

    async def pieces(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"one", b"three"):
            assert scope["extensions"][DIRECT_EXTENSION].write(piece)
        await send({"type": "http.response.body"})

    for reply, same in ((whole, EchoApp(reply=messages)), (pieces, says(200, b"one", b"three"))):
        mine, other = Connection(EchoApp(reply=reply)), Connection(same)
        for connection in (mine, other):
            connection.feed([GET])
            await connection.settle()
        assert mine.written == other.written
        assert not mine.transport.closing
        await mine.hang_up()
        await other.hang_up()


async def test_nothing_is_written_at_once_to_a_slow_client() -> None:
    """While the client does not read, whoever writes is told to wait; then all is in order."""

    async def reply(scope: Any, receive: Any, send: Any) -> None:
        direct = scope["extensions"][DIRECT_EXTENSION]
        connection.protocol.pause_writing()
        assert not direct.answer(200, [], b"not yet")
        await asyncio.gather(
            send({"type": "http.response.start", "status": 200, "headers": []}), resume()
        )
        connection.protocol.pause_writing()
        assert not direct.write(b"not yet")
        await asyncio.gather(
            send({"type": "http.response.body", "body": b"x", "more_body": True}), resume()
        )
        await send({"type": "http.response.body"})

    async def resume() -> None:
        written = connection.written
        await asyncio.sleep(0)
        assert connection.written == written
        connection.protocol.resume_writing()

    connection = Connection(EchoApp(reply=reply))
    connection.feed([GET])
    await connection.settle()
    assert connection.statuses == [200]
    assert connection.written.endswith(b"\r\n\r\n1\r\nx\r\n0\r\n\r\n")
    await connection.hang_up()


async def test_an_earlier_request_cannot_write_into_a_later_answer() -> None:
    """What writes at once belongs to one request: after its answer it writes nothing, anywhere."""
    connection = Connection(app := EchoApp(gate=asyncio.Event()))
    assert app.gate is not None
    app.gate.set()
    connection.feed([GET])
    await connection.settle()
    app.gate.clear()
    connection.feed([GET])
    await asyncio.sleep(0)
    first, second = (scope["extensions"][DIRECT_EXTENSION] for scope in app.started)
    written = connection.written
    with pytest.raises(RuntimeError, match="begun already"):
        first.answer(200, [], b"again")
    with pytest.raises(RuntimeError, match="no answer"):
        first.write(b"again")
    with pytest.raises(RuntimeError, match="no answer"):
        second.write(b"too early")
    assert connection.written == written
    app.gate.set()
    await connection.settle()
    assert connection.statuses == [200, 200]
    await connection.hang_up()


async def test_nothing_is_written_to_a_client_that_is_gone() -> None:
    """To a client that is gone an answer is over before it began; nobody waits for it."""
    connection = Connection(app := EchoApp(gate=asyncio.Event()))
    connection.feed([GET])
    await asyncio.sleep(0)
    connection.transport.close()
    await asyncio.sleep(0)
    direct = app.started[0]["extensions"][DIRECT_EXTENSION]
    assert direct.answer(200, [], b"x")
    assert direct.write(b"x")
    assert connection.written == b""
    assert app.gate is not None
    app.gate.set()
    await connection.hang_up()
