"""What one call leaves behind: nothing that the next one could read, or have to wait behind."""

import asyncio
import gc
import socket
import ssl
import threading
from contextlib import ExitStack
from typing import Any, cast

import pytest

from daypass_proxy.streams import CUT_AT_ONCE, CallCut, CutReason, LiveCalls
from daypass_proxy.transport import UpstreamRequest, dial, pool
from daypass_proxy.transport.addresses import Address
from daypass_proxy.transport.answer import PoolAnswer
from daypass_proxy.transport.connection import UNREAD_MAX, Connection
from daypass_proxy.transport.dial import trust
from tests.contract.transports import PATIENT, Make, Serving, idle, read_all, request_to, whole
from tests.servers.ca import Authority
from tests.servers.raw import RawServer, answering
from tests.servers.stub import read_request
from tests.support import aeventually, make_claims

LARGE = b"a" * (UNREAD_MAX + 16 * 1024)
# More than the systems hold between them, and little enough for the loop's transport to take it.
UNTAKEN = 90_000


async def turns(count: int) -> None:
    """Let the loop look at its sockets so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def complete(answer: PoolAnswer) -> None:
    """Wait until all of an answer is here."""
    await aeventually(lambda: answer.complete)


async def test_answer_behind_a_large_one(serving: Serving) -> None:
    """Row 7: an answer that nobody asked for, sent behind one that its reader takes slowly, is not
    the answer of the next call, though that comes in the same turn of the loop."""
    read, behind = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = server.connections == 1
        while await read_request(reader):
            writer.write(whole(LARGE if first else b"ok"))
            await writer.drain()
            if first:
                await read.wait()
                writer.write(whole(b"of somebody else"))
                await writer.drain()
                behind.set()

    async with serving(serve) as (server, transport):
        answer = await transport.send(request_to(server.url))
        await complete(answer)
        read.set()
        await behind.wait()
        await turns(10)
        assert await read_all(answer) == LARGE
        assert await read_all(await transport.send(request_to(server.url))) == b"ok"
        assert server.connections == 2


async def test_large_answer_is_kept(serving: Serving) -> None:
    """A large answer with nothing behind it leaves its connection, however slowly it is read."""
    async with serving(answering(whole(LARGE), whole(LARGE), stall=True)) as (server, transport):
        for _ in range(2):
            answer = await transport.send(request_to(server.url))
            await complete(answer)
            await turns(10)
            assert await read_all(answer) == LARGE
        assert server.connections == 1


def answer_heads(
    listener: socket.socket, tls: ssl.SSLContext | None, answer: bytes, done: threading.Event
) -> None:
    """Answer the head of the first request on each of two connections, and read no more of it."""
    with ExitStack() as connections:
        for _ in range(2):
            peer, _ = listener.accept()
            connections.enter_context(peer)
            if tls is not None:
                peer = connections.enter_context(tls.wrap_socket(peer, server_side=True))
            seen = b""
            while b"\r\n\r\n" not in seen:
                seen += peer.recv(1024)
            peer.sendall(answer)
        done.wait(60)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("status", [200, 429])
async def test_answered_by_the_head_alone(
    make: Make, authority: Authority, monkeypatch: pytest.MonkeyPatch, status: int, secure: bool
) -> None:
    """B50: no call has to wait behind a body that its server does not take."""
    real = dial._open

    async def distant(address: Address) -> socket.socket:
        sock = await real(address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        return sock

    monkeypatch.setattr(dial, "_open", distant)
    transport = make(PATIENT, tls=trust(authority.file))
    done = threading.Event()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(10)
        tls = authority.server("127.0.0.1") if secure else None
        served = asyncio.create_task(
            asyncio.to_thread(answer_heads, listener, tls, whole(b"ok", status=status), done)
        )
        url = f"http{'s' if secure else ''}://127.0.0.1:{listener.getsockname()[1]}"
        answer = await transport.send(request_to(url, bytes(UNTAKEN)))
        (connection,) = transport._open
        assert connection._body is None, "all of it was handed over"
        assert await read_all(answer) == b"ok"
        assert idle(transport) == 0
        assert await read_all(await transport.send(request_to(url))) == b"ok"
        done.set()
        await served


# asyncio itself loses a transport that is given up in the turn before its TLS begins.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_given_up_while_connecting(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """B30 (b): a call that is given up, however far its connection had come, leaves nothing that
    the closing of the transport would wait for."""
    monkeypatch.setattr(pool, "CLOSE_SECONDS", 600)

    async def call() -> None:
        (await transport.send(request_to(server.url))).close()

    async with serving(answering(whole(b""), stall=True)) as (server, transport):
        for count in range(16):
            tasks = [asyncio.create_task(call()) for _ in range(4)]
            await turns(count)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await aeventually(lambda: len(transport._open) == idle(transport))
        await asyncio.wait_for(transport.close(), 20)
    gc.collect()  # warnings come here, where they are expected


async def test_close_does_not_wait_for_ever(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that the loop does not report lost does not keep the process from stopping."""

    class Stuck:
        def abort(self) -> None:
            """End, and tell nobody."""

    monkeypatch.setattr(pool, "CLOSE_SECONDS", 0.01)
    transport = make(PATIENT)
    transport._open.add(cast(Connection, Stuck()))
    await asyncio.wait_for(transport.close(), 20)
    transport._open.clear()


class Stopped(Exception):
    """The last word before a request is sent."""


@pytest.mark.parametrize("kept", [False, True], ids=["new connection", "kept connection"])
async def test_stopped_before_it_is_sent(make: Make, kept: bool) -> None:
    """B08: what speaks against a call when its connection is ready keeps every byte of it back."""
    seen = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await read_request(reader):
            seen.append(request)
            writer.write(whole(b"ok"))

    def stop() -> None:
        assert server.connections == 1
        raise Stopped

    transport = make(PATIENT)
    async with RawServer(serve) as server:
        if kept:
            await read_all(await transport.send(request_to(server.url)))
        request = request_to(server.url)
        request.before_send = stop
        with pytest.raises(Stopped):
            await transport.send(request)
        assert not request.sent
        await aeventually(lambda: not transport._open)
        assert await read_all(await transport.send(request_to(server.url))) == b"ok"
    assert len(seen) == 1 + kept


async def test_many_are_revoked_while_they_connect(make: Make) -> None:
    """B08: of calls that are cut together none is sent, though most are woken only later, when
    their connections are ready."""
    calls, ready, sent = LiveCalls(), asyncio.Event(), []
    count = CUT_AT_ONCE + 20
    transport = make(PATIENT)
    real = transport._dialer.connect
    waiting = 0

    async def connect(*what: Any) -> Connection:
        nonlocal waiting
        connection = await real(*what)
        waiting += 1
        try:
            await ready.wait()
        except asyncio.CancelledError:
            connection.abort()
            raise
        return connection

    async def one(number: int, request: UpstreamRequest) -> None:
        call = calls.enter(f"call-{number}", make_claims())
        request.before_send = call.check
        with pytest.raises(CallCut), call.interruptible():
            await transport.send(request)
        sent.append(request.sent)

    transport._dialer.connect = connect  # type: ignore[method-assign, assignment]
    async with RawServer(answering(whole(b"ok"), stall=True)) as server:
        tasks = [asyncio.create_task(one(n, request_to(server.url))) for n in range(count)]
        await aeventually(lambda: waiting == count, timeout=20)
        assert calls.cut_all(CutReason.REVOKED) == count
        ready.set()
        await asyncio.gather(*tasks)
    assert sent == [False] * count
