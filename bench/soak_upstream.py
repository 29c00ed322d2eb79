"""The provider of the soak: an asyncio server that answers as a word in the request body says.

`bench:stream:COUNT:GAP_MS` streams so many deltas at that pace, `bench:broken:COUNT:GAP_MS` breaks
off in the middle of them, `bench:short`, `bench:busy` (429 with retry-after) and `bench:overloaded`
(529) answer at once. It demands the real key, so every 200 proves that the proxy put it in.
"""

import asyncio
import json
import re

from bench.bodies import MODEL
from tests.servers.wire import (
    BLOCK_START,
    MESSAGE_STOP,
    head,
    message_delta,
    message_json,
    message_start,
    text_delta,
)

WORD = re.compile(rb"bench:([a-z]+)(?::(\d+):(\d+))?")
SSE = head(
    200,
    [
        ("content-type", "text/event-stream; charset=utf-8"),
        ("transfer-encoding", "chunked"),
        ("request-id", "req_soak"),
    ],
)
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def answer(status: int, body: object, *headers: tuple[str, str]) -> bytes:
    """A JSON answer that keeps the connection."""
    data = json.dumps(body).encode()
    length = ("content-length", str(len(data)))
    kind = ("content-type", "application/json")
    return head(status, [kind, length, ("request-id", "req_soak"), *headers]) + data


def error(kind: str) -> dict[str, object]:
    """An error in the provider's shape."""
    return {"type": "error", "error": {"type": kind, "message": "as asked for"}}


ANSWERS = {
    b"short": answer(200, message_json(MODEL)),
    b"busy": answer(429, error("rate_limit_error"), ("retry-after", "1")),
    b"overloaded": answer(529, error("overloaded_error")),
}
NO_KEY = answer(401, error("authentication_error"))


class Provider:
    """Serves on `port` of the loopback address once started."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**22)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection stays."""
        asked = await reader.readuntil(b"\r\n\r\n")
        found = LENGTH.search(asked)
        body = await reader.readexactly(int(found[1])) if found else b""
        if self._key not in asked:
            writer.write(NO_KEY)
            return True
        word = WORD.search(body)
        assert word is not None, body[:200]
        if word[1] in ANSWERS:
            writer.write(ANSWERS[word[1]])
            return True
        count = int(word[2])
        whole = word[1] == b"stream"
        await self._stream(writer, count if whole else count // 2, int(word[3]) / 1000)
        if whole:
            last = message_delta({"output_tokens": count}) + MESSAGE_STOP
            writer.write(chunk(last) + b"0\r\n\r\n")
        return whole

    async def _stream(self, writer: asyncio.StreamWriter, count: int, gap: float) -> None:
        first = message_start(MODEL, {"input_tokens": 25, "output_tokens": 1}) + BLOCK_START
        writer.write(SSE + chunk(first))
        for _ in range(count):
            await asyncio.sleep(gap)
            writer.write(chunk(text_delta("and so on ")))
            await writer.drain()
