"""A stream of server-sent events, cut into whole events whatever the chunks (case B27).

The base of the meters of OpenAI's dialects, which say what an event means. An event is looked at
once, when its end is here, so how the bytes are cut makes no difference. Line ends are LF, CRLF or
CR; comments and fields other than `event` and `data` say nothing.
"""

from __future__ import annotations

import re

from daypass_proxy.meter.base import Meter

EVENT_MAX = 64 * 1024 * 1024
"""Largest event that is kept; the last one of a response repeats all of its request."""
_MARK = b"\xef\xbb\xbf"
_LINE = re.compile(rb"(event|data): ?([^\n]*+)")
_DONE = b"data: [DONE]"


class EventMeter(Meter):
    """Reads a stream of server-sent events."""

    def __init__(self, coding: str = "") -> None:
        super().__init__(coding)
        self.between_events = True
        self._part = bytearray()  # of the event that is arriving
        self._looked = 0  # how much of it holds no end
        self._over = False  # it is too large to be kept
        self._half = b""  # a carriage return that may be half a line end
        self._began = False

    def _scan(self, data: bytes) -> None:
        if self._half or b"\r" in data:
            data = self._with_plain_lines(data)
        if not self._began and data:
            self._began = True
            data = data.removeprefix(_MARK)
        start = 0
        if self._part or self._over:
            start = self._finish_part(data)
            if start < 0:
                return
        while (end := data.find(b"\n\n", start)) >= 0:
            if end > start:
                self._event(data[start:end].lstrip(b"\n"))
            start = end + 2
        self._keep(data[start:])

    def end(self) -> None:
        """Take the usage of an event that lacks its end; it does not finish the stream."""
        if self._part:
            finished = self.finished
            self._event(bytes(self._part).strip(b"\n"))
            self.finished = finished
            self._part.clear()

    def _with_plain_lines(self, data: bytes) -> bytes:
        data = self._half + data
        self._half = b"\r" if data.endswith(b"\r") else b""
        whole = data[: len(data) - len(self._half)]
        return whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _finish_part(self, data: bytes) -> int:
        """Look for the end of the event that is arriving; return what comes after it, or -1."""
        part = self._part
        before = len(part)
        part += data
        end = part.find(b"\n\n", self._looked)
        if end < 0:
            self._looked = max(len(part) - 1, 0)
            self._check_part()
            return -1
        whole = bytes(part[:end])
        part.clear()
        self._looked = 0
        if self._over:
            self._over = False
            self._too_large()
        else:
            self._event(whole.lstrip(b"\n"))
        self.between_events = True
        return end + 2 - before

    def _keep(self, rest: bytes) -> None:
        rest = rest.lstrip(b"\n") if not self._part else rest
        self.between_events = not rest
        if rest:
            self._part += rest
            self._looked = len(rest) - 1
            self._check_part()

    def _check_part(self) -> None:
        """Bound what is kept; some servers end with the last word and no empty line behind it."""
        part = self._part
        if len(part) > EVENT_MAX:
            self._over = True
            del part[:-1]  # it may be half of the end
            self._looked = 0
        elif len(part) <= len(_DONE) + 1 and bytes(part).rstrip(b"\n") == _DONE:
            self.finished = True

    def _too_large(self) -> None:
        """Take note of an event that was too large to be kept."""
        self.unreadable = True

    def _event(self, event: bytes) -> None:
        """Take one event without its end; it may hold nothing."""
        name, data = b"", event[6:]
        if not event.startswith(b"data: ") or b"\n" in event:
            lines = _LINE.findall(event)
            name = next((text for field, text in reversed(lines) if field == b"event"), b"")
            texts = [text for field, text in lines if field == b"data"]
            if not texts:
                return
            data = b"\n".join(texts)
        self._take(name, data)

    def _take(self, name: bytes, data: bytes) -> None:
        """Take what one event says."""
