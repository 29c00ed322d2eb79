"""The transport on aiohttp's client: one shared session, and nothing of what it does unasked.

The only file that speaks to upstreams. Redirects are not followed (attacks row 14, B03),
cookies not kept, environment proxies ignored, bodies not decoded (row 16), headers not added.
aiohttp's exceptions can carry the whole request, provider key included, so they end here.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.payload import Payload
from yarl import URL

from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.transport import (
    Timeouts,
    UpstreamBroken,
    UpstreamRequest,
    UpstreamUnreachable,
)

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

_BUFFER = 32 * 1024  # aiohttp stops reading the socket at twice this
_BUFFERED_MAX = 64 * 1024
_WRITE = 64 * 1024
# An idle connection kept longer than the provider keeps it is one POST lost, and a POST that may
# have arrived is never sent twice. Providers keep theirs for minutes.
_KEEP_ALIVE_SECONDS = 30
# aiohttp forgets to wake a reader when it drops a connection over a malformed chunk.
LIVENESS_SECONDS = 5.0
_NOT_OURS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class AioTransport:
    """Transport over HTTP/1.1; made inside a running event loop."""

    def __init__(self, timeouts: Timeouts, *, tls: ssl.SSLContext | None = None) -> None:
        """`tls` replaces the system's trust in certificates, for an upstream with its own CA."""
        self._timeouts = timeouts
        # aiohttp's own read timer knows one limit for first byte and later bytes; we have two.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS, ssl=tls or True
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            skip_auto_headers=_NOT_OURS,
            read_bufsize=_BUFFER,
            timeout=aiohttp.ClientTimeout(
                total=None, connect=timeouts.connect, sock_connect=None, sock_read=None
            ),
        )

    async def send(self, request: UpstreamRequest) -> AioAnswer:
        """Send and return when the headers are here; raises as `Transport.send` says."""
        try:
            async with asyncio.timeout(self._timeouts.first_byte):
                response = await self._session.request(
                    request.method,
                    URL(request.url, encoded=True),
                    headers=[(_text(name), _text(value)) for name, value in request.headers],
                    data=_Body(request),
                    allow_redirects=False,
                )
        except aiohttp.ClientResponseError as error:
            raise UpstreamBroken(f"answer is not HTTP ({type(error).__name__})") from None
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamUnreachable(_kind(error)) from None
        if response.status < 200:
            # 100, 102 and 103 were passed over; 101 switches to a protocol nobody asked for.
            response.close()
            raise UpstreamBroken("upstream switched protocols")
        return AioAnswer(response, self._timeouts.idle)

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()


class AioAnswer:
    """An answer over aiohttp."""

    def __init__(self, response: aiohttp.ClientResponse, idle: float) -> None:
        self._response = response
        self._idle = idle
        self.status = response.status
        self.headers: HeaderPairs = tuple(
            (name.lower(), value) for name, value in response.raw_headers
        )

    async def read(self) -> bytes:
        """Return the next bytes, b"" at the end; raises UpstreamBroken and closes."""
        left = self._idle
        while True:
            wait = min(left, LIVENESS_SECONDS)
            try:
                async with asyncio.timeout(wait):
                    return await self._response.content.readany()
            except TimeoutError:
                left -= wait
                if left > 0 and self._connected():
                    continue
                self.close()
                raise UpstreamBroken("upstream fell silent", stalled=left <= 0) from None
            except (aiohttp.ClientError, OSError) as error:
                self.close()
                raise UpstreamBroken(_kind(error)) from None

    def buffered(self) -> bytes:
        """Return what has arrived and was not read yet, at most 64 KiB."""
        if self._response.content.exception() is not None:
            return b""
        return self._response.content.read_nowait(_BUFFERED_MAX)

    def _connected(self) -> bool:
        connection = self._response.connection
        transport = None if connection is None else connection.transport
        return transport is not None and not transport.is_closing()

    def close(self) -> None:
        """Drop the connection unless the answer was read to its end."""
        self._response.close()


class _Body(Payload):
    """A request body that notes when it begins to leave, and leaves in pieces.

    aiohttp holds the headers back for the first piece, so nothing was sent before `sent` is true.
    """

    _autoclose = True  # there is nothing to close

    def __init__(self, request: UpstreamRequest) -> None:
        super().__init__(request.body)
        self._request = request
        self._size = len(request.body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as text; asked for by nobody, abstract in aiohttp."""
        return self._request.body.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write piece by piece: one write of 32 MiB would hold the event loop."""
        body = self._request.body
        self._request.sent = True
        if len(body) <= _WRITE:
            await writer.write(body)
            return
        view = memoryview(body)
        for start in range(0, len(body), _WRITE):
            await writer.write(view[start : start + _WRITE])


def _text(raw: bytes) -> str:
    """Return header bytes as the text that aiohttp will encode back to the same bytes."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _kind(error: BaseException) -> str:
    """Name a foreign failure without its text, which may hold addresses or headers."""
    return type(error).__name__
