"""How an answer is written: the second half of the request cycle.

Differs from uvicorn's in what it promises: no 100 Continue and no chunks for HTTP/1.0 (RFC 9110
§10.1.1, RFC 9112 §6.1); an answer before the "100 Continue" that the client waits for closes the
connection; and whether it is closed at once is left to `guard`, which knows who is still sending.
"""

import re
import socket
import struct
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from daypass_proxy.cycle import ReadingCycle
from daypass_proxy.exchange import Headers
from daypass_proxy.providers import Rendered

# Lower case only: what is compared below must not be spelled otherwise on the wire.
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
# Names of nearly every answer, to spare them the pattern.
_USUAL = frozenset(
    {
        b"cache-control", b"content-type", b"date", b"request-id", b"retry-after",
        b"www-authenticate", b"x-should-retry",
    }
)  # fmt: skip
# Said by `_frame` alone.
_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding"})
_VALUE_BYTES = bytes([9, *range(0x20, 0x7F), *range(0x80, 0x100)])
_BODILESS = (204, 304)
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_ONE_WRITE = 64 * 1024  # a larger body is not copied to put its head before it


class AnswerCycle(ReadingCycle):
    """One request and its answer. `send` runs once for each piece, thus once for each event.

    `more_body` is true until the request is whole; `on_response` runs after the last byte.
    """

    until_close = False
    """Whether only the end of the connection tells the client that the answer is over."""
    _held_head = b""
    """The head of an answer that comes whole: it leaves in one packet with the body behind it."""

    async def send(self, message: Any) -> None:
        """Write the next ASGI message; waits while the client reads slowly."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._write_head(message["status"], message["headers"])
        elif not self.response_complete:
            body, more = message.get("body", b""), message.get("more_body", False)
            if len(body) > _ONE_WRITE and self.scope["scheme"] == "https":
                body = await self._write_pieces(body)
                if self.disconnected:
                    return
            self._write_body(body, more)
        else:
            raise RuntimeError("the answer is already complete")

    async def _write_pieces(self, body: bytes) -> bytes:
        """Write all of `body` but a last piece, as the client reads it; return that.

        What is given to TLS at once goes on at once, to where nobody sees whether it is read.
        """
        rest = memoryview(body)
        while len(rest) > _ONE_WRITE and not self.disconnected:
            self._write_body(bytes(rest[:_ONE_WRITE]), True)
            rest = rest[_ONE_WRITE:]
            if self.flow.write_paused:
                await self.flow.drain()
        return bytes(rest)

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Write a whole answer at once; False, and nothing is written, when `send` has to wait."""
        if self.disconnected:
            return True
        if self.flow.write_paused:
            return False
        if len(body) > _ONE_WRITE and self.scope["scheme"] == "https":
            return False  # in pieces
        if self.response_started:
            raise RuntimeError("the answer has begun already")
        head = self._head(status, headers, len(body))
        if self.scope["method"] == "HEAD":
            body = b""
        if len(body) > _ONE_WRITE:
            self.transport.write(head)
            head = b""
        self.transport.write(head + body)
        self._complete()
        return True

    def write(self, chunk: bytes) -> bool:
        """Write a piece of the body at once; False, and it is not, when `send` has to wait."""
        if self.disconnected:
            return True
        if self.flow.write_paused:
            return False
        if not self.response_started or self.response_complete:
            raise RuntimeError("no answer is under way")
        self._write_body(chunk, True)
        return True

    def abort(self) -> None:
        """Cut the connection, so that nobody takes the answer so far for a whole one.

        An answer that is complete cannot be taken back: the connection is the next request's.
        """
        if self.response_complete:
            return
        if self.until_close:
            # Such an answer ends with the connection: only a reset tells it from a torn one.
            raw = self.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.disconnected = True
        self.transport.abort()

    def _write_head(self, status: int, headers: Any) -> None:
        length: int | None = None
        others = []
        for pair in headers:
            if pair[0] == b"content-length":
                length = int(pair[1])
            elif pair[0] == b"connection":
                self.keep_alive = False  # uvicorn's own 500; the line is written by `_frame`
            else:
                others.append(pair)
        head = self._head(status, others, length)
        if length:
            self.expected_content_length = length
            self._held_head = head
        else:
            self.transport.write(head)

    def _head(self, status: int, headers: Headers, length: int | None) -> bytes:
        """Begin the answer: return its head, with the framing for a body of `length` bytes."""
        pairs = [*self.default_headers, *headers]
        for name in {name for name, _ in pairs} - _USUAL:
            if name in _FRAMING or not _TOKEN.fullmatch(name):
                raise RuntimeError("invalid name of a response header")
        lines = [STATUS_LINE[status], *[b"%b: %b\r\n" % pair for pair in pairs]]
        lines += [] if length is None else [b"content-length: %d\r\n" % length]
        self._frame(status, length, lines)
        head = b"".join(lines)
        # No value holds a line end or another control character: each line has its own, no more.
        if head.translate(None, _VALUE_BYTES) != b"\r\n" * len(lines):
            raise RuntimeError("invalid value of a response header")
        self.response_started = True
        return head + b"\r\n"

    def _frame(self, status: int, length: int | None, lines: list[bytes]) -> None:
        """Decide how the client learns where the answer ends (RFC 9112 §6.3)."""
        if self.waiting_for_100_continue:
            self.waiting_for_100_continue = False
            if self.more_body:
                # It may come or not, as the client likes: nothing behind it can be a request.
                self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        self.chunked_encoding = False
        if length is not None or status in _BODILESS or self.scope["method"] == "HEAD":
            return
        if self.scope["http_version"] == "1.1":
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            self.until_close = True

    def _write_body(self, body: bytes, more_body: bool) -> None:
        head = self._held_head
        if head:
            self._held_head = b""
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            self.transport.write(head)
        elif self.chunked_encoding:
            if body:
                body = b"%x\r\n%b\r\n" % (len(body), body)
            self.transport.write(body if more_body else body + b"0\r\n\r\n")
        else:
            if not self.until_close:
                self.expected_content_length -= len(body)
                if self.expected_content_length < 0:
                    raise RuntimeError("answer is longer than its content-length")
            if head and len(body) > _ONE_WRITE:
                self.transport.write(head)
                head = b""
            self.transport.write(head + body)
        if more_body:
            return
        if self.expected_content_length:
            raise RuntimeError("answer is shorter than its content-length")
        self._complete()

    def _complete(self) -> None:
        self.response_complete = True
        self.set()
        self.on_response()


def whole_answer(rendered: Rendered, default_headers: Headers) -> bytes:
    """Return a refusal that belongs to no request cycle, as the last bytes of its connection."""
    headers = [
        *default_headers,
        *rendered.headers,
        (b"content-length", str(len(rendered.body)).encode()),
        (b"connection", b"close"),
    ]
    if rendered.status == 426:
        headers.append((b"upgrade", b"HTTP/1.1"))  # RFC 9110 §15.5.22
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    return b"".join([STATUS_LINE[rendered.status], *lines, b"\r\n", rendered.body])
