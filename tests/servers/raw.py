"""A server that is nothing but a function over a connection, in the test's own event loop."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType

from tests.servers.stub import read_request

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Serves each connection with `serve` and closes it after; use as a context manager."""

    def __init__(self, serve: Serve, *, tls: ssl.SSLContext | None = None) -> None:
        self._serve = serve
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = False
        self.connections = 0
        self.failures: list[BaseException] = []
        self.port = 0

    @property
    def url(self) -> str:
        """Origin of the server."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> "RawServer":
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", 0, ssl=self._tls, limit=64 * 1024
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        # Whom a server accepted a moment before it is closed, nobody ever closes.
        for _ in range(4):
            await asyncio.sleep(0)
        self._server.close()
        self._ended = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert kind is not None or not self.failures, self.failures

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin to serve; a task that is cancelled before it began would close nothing itself."""
        if self._ended:
            writer.transport.abort()
            return
        self.connections += 1
        task = asyncio.ensure_future(self._talk(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass
        except (ConnectionError, ssl.SSLError):
            pass
        except BaseException as error:
            self.failures.append(error)
        finally:
            writer.close()
            with suppress(ConnectionError, ssl.SSLError, asyncio.CancelledError):
                await writer.wait_closed()


def answering(*answers: bytes, stall: bool = False) -> Serve:
    """Return what answers the requests of a connection with these bytes, then closes or stalls."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            if await read_request(reader) is None:
                return
            writer.write(answer)
            await writer.drain()
        if stall:
            await reader.read()

    return serve
