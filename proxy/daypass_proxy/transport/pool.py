"""The transport: connections that are kept, one answer on each at a time.

A connection is taken from the top of its origin's shelf, the most recent first, so the others grow
old and go. One that the server has closed meanwhile is found by asking the system before a byte is
written, and another one is taken; that is the whole of "retrying": once a byte may have left, a
call may be billed and is never sent a second time (cases B44, B45). Redirects are not followed
(attacks row 14, B03), cookies not kept, bodies not decoded (row 16), headers not added, and no
proxy is taken from the environment.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

from daypass_proxy.transport import Timeouts, UpstreamRequest, UpstreamUnreachable
from daypass_proxy.transport.answer import PoolAnswer
from daypass_proxy.transport.connection import Connection
from daypass_proxy.transport.dial import Dialer, trust
from daypass_proxy.transport.egress import Egress
from daypass_proxy.transport.origin import Origin, split_url, write_head

MAX_IDLE = 1024
"""Idle connections kept for one origin; calls in flight are bounded elsewhere."""
_URLS_MAX = 64  # constants of ours, far fewer
CLOSE_SECONDS = 2.0
"""How long `close` waits to hear that connections are gone; they were ended before."""


class Pool:
    """The `Transport` over HTTP/1.1; made inside a running event loop."""

    def __init__(
        self,
        timeouts: Timeouts,
        *,
        tls: ssl.SSLContext | None = None,
        egress: Egress | None = None,
        inside: bool = False,
    ) -> None:
        """`tls` replaces the system's trust; `inside` allows names that lead inside our network."""
        self._timeouts = timeouts
        self._egress = egress
        self._loop = asyncio.get_running_loop()
        self._dialer = Dialer(timeouts.connect, tls=tls or trust(), egress=egress, inside=inside)
        self._origins: dict[str, Origin] = {}
        self._urls: dict[str, tuple[Origin, str]] = {}
        self._shelves: dict[str, list[Connection]] = {}
        self._open: set[Connection] = set()
        self._closed = False
        self._empty = asyncio.Event()

    async def send(self, request: UpstreamRequest) -> PoolAnswer:
        """Send and return when the headers are here; raises as `Transport.send` says."""
        origin, target = self._urls.get(request.url) or self._split(request.url)
        head = self._head(request, origin, target)
        connection = self._idle(origin)
        if connection is None:
            connection = await self._fresh(origin)
        if request.before_send is not None:
            try:
                request.before_send()
            except BaseException:
                connection.abort()
                raise
        timeouts = self._timeouts
        answer = PoolAnswer(connection, self._loop, timeouts.idle)
        request.sent = True
        connection.begin(answer, head, request.body)
        await answer.begun(timeouts.first_byte)
        return answer

    async def close(self) -> None:
        """Close every connection; answers that are still read break off."""
        self._closed = True
        for connection in tuple(self._open):
            connection.abort()
        if self._open:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), CLOSE_SECONDS)

    # What connections tell their owner.

    def keep(self, connection: Connection) -> bool:
        """Put it on top of its shelf, if there is room."""
        shelf = connection.shelf
        if self._closed or len(shelf) >= MAX_IDLE:
            return False
        shelf.append(connection)
        return True

    def gone(self, connection: Connection) -> None:
        """Take it off its shelf, and forget it when nothing of it is left."""
        if connection in connection.shelf:
            connection.shelf.remove(connection)
        if connection.lost:
            self._open.discard(connection)
            if not self._open:
                self._empty.set()

    def _split(self, url: str) -> tuple[Origin, str]:
        if len(self._urls) >= _URLS_MAX:
            self._urls.clear()
        found = self._urls[url] = split_url(url, self._origins)
        return found

    def _head(self, request: UpstreamRequest, origin: Origin, target: str) -> bytes:
        egress = self._egress
        if egress is None or origin.secure:
            return write_head(request, origin, target)
        return write_head(request, origin, target, through=egress.header)

    def _idle(self, origin: Origin) -> Connection | None:
        """Return the youngest idle connection that is still good, ending those that are not."""
        shelf = self._shelves.get(origin.written)
        while shelf:
            connection = shelf.pop()
            if connection.usable():
                return connection
            connection.abort()
        return None

    async def _fresh(self, origin: Origin) -> Connection:
        if self._closed:
            raise UpstreamUnreachable("transport is closed")
        shelf = self._shelves.setdefault(origin.written, [])
        connection = await self._dialer.connect(origin, lambda: Connection(self, shelf, self._loop))
        if self._closed:
            connection.abort()
        if connection.closing:
            raise UpstreamUnreachable("connection ended before it was used")
        # Known from here on, until it is lost: of a connection whose making is given up the loop
        # may never say that it is.
        self._open.add(connection)
        self._empty.clear()
        return connection
