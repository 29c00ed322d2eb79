"""The last good head of a connection, as bytes: one that repeats it needs no second reading.

A request whose first bytes are those of the last one, but for the digits of its Content-Length, can
only be parsed and judged as that one was. So it is recognised before the parser sees it, and the
parser, which stands between two messages, is given none of it (ADR 17). Only a head is known that
kept its connection and framed its body by a Content-Length or had none; any other is parsed.
"""

import re
from typing import Any

from daypass_proxy.head import Head, HeaderPairs

_LONGEST = 8 * 1024
"""Bytes of a head that is kept for the life of its connection; no stock client needs half."""
_LENGTH_LINE = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
_LENGTH = b"content-length"


class KnownHead:
    """A head that was read and found good."""

    __slots__ = ("_after", "_before", "_digits", "expects", "head", "own_length", "scope", "size")

    def __init__(self, raw: bytes, scope: dict[str, Any], head: Head, expects: bool) -> None:
        """`raw` is the whole head; `scope` and `head` are what was made of it."""
        line = _LENGTH_LINE.search(raw)
        start, end = line.span(1) if line is not None else (len(raw), len(raw))
        self._before, self._digits, self._after = raw[:start], slice(start, end), raw[end:]
        self.own_length = raw[start:end]
        self.size = len(raw)
        # What an extension leads to is of one request, and ends with it.
        self.scope = {key: value for key, value in scope.items() if key != "extensions"}
        self.head = head
        self.expects = expects

    def length(self, data: bytes) -> bytes | None:
        """Return the Content-Length of a request that begins as this one did; None for another.

        Empty when the known head had none. As many digits as before: no limit on the size of a
        head has to be looked at again.
        """
        digits = self._digits
        if not data.startswith(self._before) or not data.startswith(self._after, digits.stop):
            return None
        length = data[digits]
        return length if length.isdigit() or digits.start == digits.stop else None

    def headers(self, length: bytes) -> HeaderPairs:
        """Return all headers of a request with this head and `length`."""
        known: HeaderPairs = self.scope["headers"]
        if length == self.own_length:
            return known
        return tuple((name, length if name == _LENGTH else value) for name, value in known)


def whole_head(data: bytes, payload: int) -> bytes | None:
    """Return the head in what came in one read, of which `payload` bytes were body.

    None when it is not certain where it ended: the parser does not say, so the first empty line has
    to leave exactly the bytes that it took for the body.
    """
    size = data.find(b"\r\n\r\n", 0, _LONGEST) + 4
    if size < 4 or len(data) - size != payload or data[0] in b"\r\n":
        return None
    return data[:size]
