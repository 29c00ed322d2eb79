"""The one line to the broker: a Unix socket or a URL from the settings, nothing a client can steer.

`token` passes its requests through it, `jwks_cache` fetches the key set. One short connection per
request, answers bounded in size and time; every failure is BrokerUnreachable.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from daypass_core.claims import MAX_ACCESS_LIFE
from daypass_core.clock import TIME_HEADER, StoreClock
from daypass_proxy.transport.dial import trust
from daypass_proxy.transport.response import NotHttp, Response

# The broker may wait 2 s for a cut-off to pass and 5 s for a lock before it says 503 by itself.
ATTEMPT_SECONDS = 8.0
JWKS_PATH = "/.well-known/jwks.json"
_MAX_JWKS_BYTES = 64 * 1024
_TIME = re.compile(r"[0-9]{1,11}\.[0-9]{3}")
_READ_BYTES = 16 * 1024


class BrokerUnreachable(Exception):
    """No usable answer came; the message names the kind of failure only.

    `sent` says that a byte of the request may have left: then the broker may have done what was
    asked, and only its answer was lost.
    """

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """What the broker said; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Broker(Protocol):
    """What the rest of the proxy needs of the broker."""

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, limit: int
    ) -> BrokerAnswer:
        """Send one request; raises BrokerUnreachable, also for a body larger than `limit`."""
        ...


async def fetch_jwks(broker: Broker, clock: StoreClock) -> bytes:
    """Return the broker's key set; raises BrokerUnreachable.

    `clock` is moved ahead to the broker's: its tokens must not seem to be of the future here, when
    the store's clock has gone back between its start and ours.
    """
    answer = await broker.request("GET", JWKS_PATH, {}, b"", limit=_MAX_JWKS_BYTES)
    if answer.status != 200:
        raise BrokerUnreachable(f"key set answered with status {answer.status}", sent=True)
    _follow(clock, answer.headers.get(TIME_HEADER, ""))
    return answer.body


def _follow(clock: StoreClock, told: str) -> None:
    """Move a clock ahead, by no more than a token lives: beyond that something else is wrong."""
    if not _TIME.fullmatch(told):
        return
    ahead = float(told) - clock.now()
    if 0.0 < ahead <= MAX_ACCESS_LIFE:
        clock.set(float(told))


class BrokerLink:
    """The Broker over HTTP/1.1."""

    def __init__(self, url: str, *, seconds: float = ATTEMPT_SECONDS) -> None:
        """`url` is `unix:/path` or an http(s) URL; one request takes at most `seconds`."""
        self._seconds = seconds
        self._socket = url.removeprefix("unix:") if url.startswith("unix:") else None
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = trust() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._authority = "broker" if self._socket else parts.netloc
        self._prefix = "" if self._socket else parts.path

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, limit: int
    ) -> BrokerAnswer:
        """Send one request; raises BrokerUnreachable. Redirects are not followed."""
        lines = [
            f"{method} {self._prefix}{path} HTTP/1.1",
            f"host: {self._authority}",
            "connection: close",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        message = "\r\n".join([*lines, "", ""]).encode("ascii") + body
        sent = False
        try:
            async with asyncio.timeout(self._seconds):
                reader, writer = await self._connect()
                try:
                    sent = True
                    writer.write(message)
                    await writer.drain()
                    return await _read_answer(reader, limit)
                finally:
                    writer.close()
        except (OSError, TimeoutError, NotHttp, _Torn) as error:
            reason = str(error) if isinstance(error, _Torn) else type(error).__name__
            raise BrokerUnreachable(reason, sent=sent) from None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._socket is not None:
            return await asyncio.open_unix_connection(self._socket)
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls)


async def _read_answer(reader: asyncio.StreamReader, limit: int) -> BrokerAnswer:
    """Return a whole answer; raises NotHttp and _Torn."""
    answer = Response()
    try:
        while not answer.complete:
            data = await reader.read(_READ_BYTES)
            if not data:
                raise _Torn("connection ended early")
            answer.feed(data)
            if answer.unread > limit:
                raise _Torn("answer is too large")
    finally:
        answer.forget()
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
    return BrokerAnswer(answer.status, headers, b"".join(answer.pieces))


class _Torn(Exception):
    """An answer that cannot be used."""
