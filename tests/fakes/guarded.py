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

    async def connect(self) -> "Client":
        """Open a connection."""
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))

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


@asynccontextmanager
async def serving(
    app: EchoApp,
    limits: Limits | None = None,
    gate: Gate | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Server]:
    """Run a server with our guard on a loopback port."""
    listener = socket.create_server(("127.0.0.1", 0))
    protocol: type[GuardedProtocol] = guarded(
        limits or Limits(), render=anthropic_render, gate=gate
    )
    config = uvicorn.Config(
        app,
        http=protocol,
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
    try:
        yield Server(app, listener.getsockname()[1], server)
    finally:
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        for one in server.servers:
            one.close()
        for task in list(server.server_state.tasks):
            task.cancel()
        await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
        listener.close()
