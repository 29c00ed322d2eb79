"""A uvicorn server with the guard on a loopback port, an app behind it, and a raw client."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from daypass_proxy.gate import Gate
from daypass_proxy.guard import GuardedProtocol, Limits, guarded
from tests.fakes.anthropic import anthropic_render
from tests.support import aeventually

GET = b"GET /v1/self HTTP/1.1\r\nHost: proxy.test\r\n\r\n"
CHUNKED = b"POST /v1/messages HTTP/1.1\r\nHost: proxy.test\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class EchoApp:
    """Reads every body and answers with what it saw; keeps both."""

    started: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    gone: int = 0
    gate: asyncio.Event | None = None
    reply: Callable[[dict[str, Any], Any, Any], Any] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.started.append(scope)
        if self.reply is not None:
            await self.reply(scope, receive, send)
            return
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone += 1
                return
            body += message["body"]
            more = message["more_body"]
        self.bodies.append(body)
        if self.gate is not None:
            await self.gate.wait()
        await answer(send, b"ok")


async def answer(send: Any, body: bytes) -> None:
    """Send a complete 200."""
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@dataclass
class Server:
    """Where to reach it, and what is inside."""

    app: EchoApp
    port: int
    uvicorn: uvicorn.Server
    clients: "list[Client]" = field(default_factory=list)

    async def connect(self, first: bytes = b"") -> "Client":
        """Open a connection; whoever does not close it has it closed in the end.

        `first` is there to be read before the server takes the connection: so none of its time for
        that passes, however late the loop of both is.
        """
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.sendall(first)
        client = Client(*await asyncio.open_connection(sock=sock))
        self.clients.append(client)
        return client

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self.uvicorn.server_state.connections)


@dataclass
class Client:
    """One connection, spoken to in bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Write bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        """Read a status line."""
        line = await self.reader.readline()
        return int(line.split()[1])

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """Read an answer with a content-length: status, headers, body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(head[0].split()[1]), headers, body

    async def ended(self) -> bytes:
        """Return what comes until the server closes."""
        return await asyncio.wait_for(self.reader.read(), 5)

    def close(self) -> None:
        """Hang up."""
        self.writer.close()


@dataclass
class Kept:
    """The connections that the server has taken: how many, and those of which something is left.

    It forgets some before: those that it ended to make room, while TLS says goodbye.
    """

    taken: int = 0
    left: set[GuardedProtocol] = field(default_factory=set)

    def of(self, kind: type[GuardedProtocol]) -> type[GuardedProtocol]:
        """Return the same protocol, whose connections are counted here."""

        def connection_made(protocol: GuardedProtocol, transport: asyncio.Transport) -> None:
            self.taken += 1
            self.left.add(protocol)
            kind.connection_made(protocol, transport)

        def connection_lost(protocol: GuardedProtocol, exc: Exception | None) -> None:
            kind.connection_lost(protocol, exc)
            self.left.discard(protocol)

        both = {"connection_made": connection_made, "connection_lost": connection_lost}
        return type(kind.__name__, (kind,), both)


@asynccontextmanager
async def serving(
    app: EchoApp,
    limits: Limits | None = None,
    gate: Gate | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Server]:
    """Run a server with our guard on a loopback port."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections = Kept()
    protocol: type[GuardedProtocol] = guarded(
        limits or Limits(), render=anthropic_render, gate=gate
    )
    config = uvicorn.Config(
        app,
        http=connections.of(protocol),
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    config.load()
    config.ssl = tls
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    made = Server(app, listener.getsockname()[1], server)
    try:
        yield made
    finally:
        await aeventually(lambda: connections.taken >= len(made.clients))
        for client in made.clients:
            client.writer.transport.abort()
        for connection in list(connections.left):
            connection.transport.abort()
        for one in server.servers:
            one.close()
        for task in list(server.server_state.tasks):
            task.cancel()
        await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
        await aeventually(lambda: not connections.left)
        listener.close()
