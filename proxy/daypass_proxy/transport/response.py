"""One HTTP/1.x answer as it arrives: httptools' callbacks, and our own limits around its parser.

The parser is strict about framing by itself: both Content-Length and Transfer-Encoding, a repeated
or malformed length, folded lines, bare line feeds and odd chunk sizes are errors (attacks row 7).
What it lets through is refused here: other codings, other protocols and versions, framing where
none may be, and sizes without an end (row 17). What is ambiguous is no answer (RFC 9112 §6.3).
`transport.answer` and `broker_link` build on it.
"""

from __future__ import annotations

from itertools import chain

import httptools

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
_MAX_INTERIM = 8
# Chunk extensions, trailers and an unfinished head say nothing to us; so much may come in a row.
_MAX_SILENT_BYTES = 64 * 1024
_FIRST_BYTE = ord("H")  # the parser would also take RTSP and ICE


class NotHttp(Exception):
    """What arrives is not an HTTP answer that can be understood in one way only."""


class Response:
    """An answer being parsed; a new one for each request, so nothing of one reaches the next.

    `status` is 0 until the final answer's head is whole; answers of 1xx are passed over.
    `complete` turns true with the last byte of the body, except for a body that only the
    connection's end can end (`until_end`). `reusable` says whether another request may follow.
    """

    __slots__ = (
        "_begun",
        "_coming",
        "_fields",
        "_interim",
        "_parser",
        "_silent_bytes",
        "complete",
        "headers",
        "keep_seconds",
        "pieces",
        "reusable",
        "status",
        "unread",
        "until_end",
    )

    def __init__(self) -> None:
        self.status = 0
        self.complete = False
        self.until_end = False
        self.reusable = False
        self.keep_seconds: int | None = None
        """How long the server keeps an idle connection, when it says so."""
        self.pieces: list[bytes] = []
        self.unread = 0
        """Size of `pieces` in bytes."""
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        """The header fields in the order they came, names in lower case; trailers are dropped."""
        self._fields: list[tuple[bytes, bytes]] = []
        self._begun = False
        self._silent_bytes = 0
        self._coming = 0
        self._interim = 0
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Parse what arrived; raises NotHttp, also for bytes after the end of the answer."""
        parser = self._parser
        unread = self.unread
        if parser is None:
            raise NotHttp
        if not self._begun:
            if data[0] != _FIRST_BYTE:
                raise NotHttp
            self._begun = True
        self._coming = self._silent_bytes + len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserError:
            # The parser's words, and those of our own callbacks, may quote what came.
            raise NotHttp from None
        if self.unread == unread:
            self._silent_bytes = self._coming
            if self._silent_bytes > _MAX_SILENT_BYTES and not self.complete:
                raise NotHttp
        else:
            self._silent_bytes = 0

    def forget(self) -> None:
        """Let go of the parser, which would keep this answer alive until a garbage collection."""
        self._parser = None

    # What follows is called by the parser.

    def on_message_begin(self) -> None:
        """Refuse a second answer: nobody asked for one."""
        if self.complete:
            raise NotHttp

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, or a trailer that nobody will see; `feed` bounds both."""
        self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take the status, and judge how the body will end."""
        parser, fields = self._parser, self._fields
        assert parser is not None
        status, version = parser.get_status_code(), parser.get_http_version()
        if len(fields) > MAX_HEADERS or version not in ("1.1", "1.0"):
            raise NotHttp
        chunked, length = self._framing(fields)
        if status < 200:
            self._pass_over(status, framed=chunked or length is not None)
            return
        bodiless = status in (204, 304)
        if status > 599 or (chunked and (bodiless or version == "1.0")):
            raise NotHttp
        if status == 204 and length not in (None, b"0"):
            raise NotHttp
        self.until_end = not (chunked or length is not None or bodiless)
        # HTTP/1.0 had keep-alive by agreement only; which agreement is not ours to guess.
        self.reusable = version == "1.1" and parser.should_keep_alive()
        self.headers = tuple(fields)
        self.status = status

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self.pieces.append(body)
        self.unread += len(body)

    def on_message_complete(self) -> None:
        """Note the end of the final answer."""
        if self.status:
            self.complete = True

    def _framing(self, fields: list[tuple[bytes, bytes]]) -> tuple[bool, bytes | None]:
        """Return whether the body is chunked, and its length as written."""
        if self._coming > MAX_HEAD_BYTES:  # else it cannot be too large
            size = sum(map(len, chain.from_iterable(fields)))
            if size > MAX_HEAD_BYTES:
                raise NotHttp
        named = dict(fields)
        coding, length = named.get(b"transfer-encoding"), named.get(b"content-length")
        if coding is not None:
            # "gzip, chunked" would have to be undone here, and "chunked" twice means nothing.
            twice = sum(name == b"transfer-encoding" for name, _ in fields) > 1
            if twice or coding.strip().lower() != b"chunked":
                raise NotHttp
        kept = named.get(b"keep-alive")
        if kept is not None:
            self.keep_seconds = _timeout(kept)
        return coding is not None, None if length is None else length.strip()

    def _pass_over(self, status: int, *, framed: bool) -> None:
        """Drop an interim answer; 101 would switch to a protocol that nobody asked for."""
        self._interim += 1
        if status < 100 or status == 101 or framed or self._interim > _MAX_INTERIM:
            raise NotHttp
        self._fields.clear()


def _timeout(value: bytes) -> int | None:
    """Return N of `Keep-Alive: timeout=N`; 0 for one that cannot be read, None without one."""
    for part in value.lower().split(b","):
        name, _, seconds = part.strip().partition(b"=")
        if name.strip() == b"timeout":
            seconds = seconds.strip(b' "')
            return int(seconds) if seconds.isdigit() and len(seconds) < 10 else 0
    return None
