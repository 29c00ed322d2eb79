"""The provider of the fleet test: streams in Anthropic's format, and a bill for each.

It lives in the event loop of the load and keeps what it billed by itself: what a proxy, a database
or a client did with it later is compared with that.
"""

import asyncio
import itertools
import json
import re
import time
from dataclasses import dataclass, field

from tests.servers import wire
from tests.servers.stub import chunk

MODEL = "claude-sonnet-4-5"
INPUT_TOKENS = 25
NANO_IN, NANO_OUT = 3_000, 15_000
PIECES = 6
"""Texts of a stream."""
SHORT, LONG = 16, 400
"""Bytes of one text; a stream of long ones outgrows the first slice of its hold."""
_MARKER = re.compile(rb"fleet (\S+) (\S+) (short|long)")


@dataclass
class Billed:
    """One request that reached the provider, and what it cost there so far, in nano-dollars."""

    sandbox: str
    marker: str
    answer: str
    """The `request-id` of the answer."""
    at: float = field(default_factory=time.monotonic)
    tokens: int = 0
    whole: bool = False

    @property
    def nano(self) -> int:
        """The bill."""
        return INPUT_TOKENS * NANO_IN + self.tokens * NANO_OUT


def _tokens(size: int) -> int:
    return size // 4


class Provider:
    """Serves on a loopback port; streams last `seconds`."""

    def __init__(self, key: str, seconds: float) -> None:
        self.bills: list[Billed] = []
        self.refused = 0
        """Requests without the key."""
        self.port = 0
        self._key = key.encode()
        self._seconds = seconds
        self._numbers = itertools.count()
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()

    @property
    def fastest(self) -> float:
        """What the dearest stream costs in a second, in nano-dollars."""
        return PIECES * _tokens(LONG) * NANO_OUT / self._seconds

    @property
    def url(self) -> str:
        """Origin of the provider."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", 0, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and everything that is still answered."""
        if self._server is not None:
            self._server.close()
        for task in list(self._answering):
            task.cancel()

    def answer(self, head: bytes, body: bytes, connection: "_Connection") -> None:
        """Begin the answer to one request."""
        found = _MARKER.search(body)
        if self._key not in head or found is None:
            self.refused += 1
            error = {"type": "authentication_error", "message": "invalid x-api-key"}
            connection.write(wire.json_answer(401, {"type": "error", "error": error}))
            connection.close()
            return
        sandbox, marker, size = (part.decode() for part in found.groups())
        bill = Billed(sandbox, marker, f"req_fleet_{next(self._numbers)}")
        self.bills.append(bill)
        size_of = LONG if size == "long" else SHORT
        task = asyncio.ensure_future(self._stream(bill, size_of, connection))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _stream(self, bill: Billed, size: int, connection: "_Connection") -> None:
        pause = self._seconds / (PIECES + 1)
        usage = {"input_tokens": INPUT_TOKENS, "output_tokens": 0}
        head = [
            ("content-type", "text/event-stream; charset=utf-8"),
            ("transfer-encoding", "chunked"),
            ("request-id", bill.answer),
        ]
        begin = wire.head(200, head) + chunk(wire.message_start(MODEL, usage)).data
        connection.write(begin + chunk(wire.BLOCK_START).data)
        for _ in range(PIECES):
            await asyncio.sleep(pause)
            if connection.gone:
                return
            bill.tokens += _tokens(size)
            connection.write(chunk(wire.text_delta("word" * (size // 4))).data)
        await asyncio.sleep(pause)
        if connection.gone:
            return
        bill.whole = True
        ending = [wire.BLOCK_STOP, wire.message_delta({"output_tokens": bill.tokens})]
        last = [*ending, wire.MESSAGE_STOP]
        connection.write(b"".join(chunk(event).data for event in last) + b"0\r\n\r\n")
        connection.answered()


class _Connection(asyncio.Protocol):
    """One connection of a proxy: one request after the other, each with Content-Length."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._busy = False
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def write(self, data: bytes) -> None:
        """Send, unless the other side has gone."""
        if self._transport is not None and not self.gone:
            self._transport.write(data)

    def close(self) -> None:
        """Close once everything is sent."""
        if self._transport is not None:
            self._transport.close()

    def answered(self) -> None:
        """Look for the next request."""
        self._busy = False
        self._next()

    def _next(self) -> None:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if self._busy or not end:
            return
        length = re.search(rb"(?i)content-length: *([0-9]+)", head)
        size = int(length[1]) if length else 0
        if len(rest) < size:
            return
        self._busy, self._buffer = True, rest[size:]
        self._provider.answer(head, rest[:size], self)


def body(sandbox: str, marker: str, *, long: bool) -> bytes:
    """The body of a call that the provider knows again."""
    size = "long" if long else "short"
    message = {"role": "user", "content": f"fleet {sandbox} {marker} {size}"}
    most = 8_000 if long else 64
    fields = {"model": MODEL, "max_tokens": most, "stream": True, "messages": [message]}
    return json.dumps(fields).encode()
