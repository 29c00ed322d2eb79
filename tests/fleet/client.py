"""A client as the official SDKs are, for a great many calls: keep-alive, two retries, no mercy.

Retries are those of the SDKs: connection errors before an answer, 408, 409, 429 and 5xx, twice, by
`retry-after` or an exponential pause; `x-should-retry` overrides. A stream that breaks is not tried
again: its agent has seen the beginning.
"""

import asyncio
import json
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_RETRIES = 2
IDLE_SECONDS = 5.0
"""How long a connection is kept for the next call."""
ANSWER_SECONDS = 120.0
"""How long a client waits for the next bytes; the SDKs' own limit is ten minutes."""
CONNECT_SECONDS = 5.0

Pick = Callable[[], tuple[str, int] | None]
"""The address of a proxy that takes calls, as a Service has it; None without one."""


@dataclass
class Raw:
    """How one request ended: `kind` is `ok`, a status, `refused`, `reset`, `torn` and the like."""

    kind: str
    at: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    where: str = ""

    @property
    def ok(self) -> bool:
        """Whether the answer came whole, with 200."""
        return self.kind == "ok"


@dataclass
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    where: tuple[str, int]
    idle_since: float = 0.0

    @property
    def usable(self) -> bool:
        idle = time.monotonic() - self.idle_since
        return idle < IDLE_SECONDS and not self.reader.at_eof() and not self.writer.is_closing()


class Torn(Exception):
    """The connection ended before the answer did."""


class Client:
    """One sandbox's client. `address` is the loopback address that it calls from."""

    def __init__(self, pick: Pick, address: str, tls: ssl.SSLContext | None, name: str) -> None:
        self._pick = pick
        self._address = address
        self._tls = tls
        self._name = name
        self._idle: list[_Connection] = []

    async def call(
        self, path: str, body: bytes, headers: dict[str, str], raws: list[Raw], retries: int
    ) -> Raw:
        """Send a request, again where an SDK would; all that came of it is added to `raws`."""
        for attempt in range(retries + 1):
            raw = await self.once(path, body, headers)
            raws.append(raw)
            if raw.ok or attempt == retries or not _may_retry(raw):
                return raw
            await asyncio.sleep(_pause(raw, attempt))
        raise AssertionError("unreachable")

    async def once(self, path: str, body: bytes, headers: dict[str, str]) -> Raw:
        """Send one request; raises nothing."""
        where = ""
        connection: _Connection | None = None
        sent = kept = False
        try:
            connection = await self._connection()
            if connection is None:
                return Raw("nobody ready", time.monotonic())
            where = f"{connection.where[0]}:{connection.where[1]}"
            connection.writer.write(self._request(path, body, headers))
            sent = True
            async with asyncio.timeout(ANSWER_SECONDS):
                raw = await _answer(connection.reader)
            raw.where = where
            kept = self._keep(connection, raw)
            return raw
        except Torn:
            kind = "torn"
        except TimeoutError:
            kind = "timeout" if sent else "connect timeout"
        except ConnectionRefusedError:
            kind = "refused"
        except (OSError, asyncio.IncompleteReadError, ssl.SSLError):
            kind = "reset"
        finally:
            # Also when whoever waits for the answer is cancelled in the end of a round.
            if connection is not None and not kept:
                connection.writer.close()
        return Raw(kind, time.monotonic(), where=where)

    def close(self) -> None:
        """Hang up everywhere."""
        for connection in self._idle:
            connection.writer.close()

    async def _connection(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.writer.close()
        where = self._pick()
        if where is None:
            return None
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                *where,
                ssl=self._tls,
                server_hostname=self._name if self._tls else None,
                local_addr=(self._address, 0),
            )
        return _Connection(reader, writer, where)

    def _keep(self, connection: _Connection, raw: Raw) -> bool:
        if raw.headers.get("connection", "").lower() == "close":
            return False
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        return True

    def _request(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: {self._name}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body


async def _answer(reader: asyncio.StreamReader) -> Raw:
    """Read a whole answer; raises Torn once its head was there, else IncompleteReadError."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    headers = {key.lower(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    status = int(first.split(" ")[1])
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = await _chunks(reader)
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (OSError, asyncio.IncompleteReadError):
        raise Torn from None
    return Raw(_kind(status, headers, body), time.monotonic(), status, headers, body)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readuntil(b"\r\n")
    return b"".join(parts)


def _kind(status: int, headers: dict[str, str], body: bytes) -> str:
    if status != 200:
        return str(status)
    if "event-stream" not in headers.get("content-type", ""):
        return "ok"
    if b"event: message_stop\n" in body:
        return "ok"
    said = body.rpartition(b"event: error\ndata: ")[2]
    try:
        return f"cut: {json.loads(said)['error']['type']}"
    except (ValueError, KeyError):
        return "ends early"


def _may_retry(raw: Raw) -> bool:
    said = raw.headers.get("x-should-retry")
    if said is not None:
        return said == "true"
    if raw.status:
        return raw.status in (408, 409, 429) or raw.status >= 500
    return raw.kind != "torn"


def _pause(raw: Raw, attempt: int) -> float:
    try:
        return float(raw.headers["retry-after"])
    except (KeyError, ValueError):
        return min(0.5 * 2.0**attempt, 8.0) * (1 - 0.25 * random.random())
