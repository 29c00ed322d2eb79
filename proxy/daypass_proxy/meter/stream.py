"""The meter of a stream of server-sent events.

Works line by line on bytes: the line that arrives is held until its end, and of lines nobody will
parse only the beginning. An event is named by its `event:` line, else by the `type` in its data.
"""

from __future__ import annotations

import re

from daypass_proxy.meter.base import Meter
from daypass_proxy.meter.tally import Event, read_event

_CR = 13
_HEAD = 256  # what is kept of a line nobody parses
_EVENT_MAX = 1024 * 1024
_DELTA = b"content_block_delta"
_PARSED = frozenset({b"", b"message_start", b"message_delta", b"message_stop", b"error"})
_CARRY_USAGE = frozenset({b"message_start", b"message_delta"})
# Where the text of a delta begins; signatures and citations are no output tokens.
_DELTA_TEXT = re.compile(
    rb'"delta"\s*:\s*\{\s*"type"\s*:\s*"(?:text|thinking|input_json)_delta"\s*,'
    rb'\s*"[a-z_]+"\s*:\s*"'
)
_DELTA_TAIL = len(b'"}}')


class StreamMeter(Meter):
    """Reads a stream of server-sent events, whatever the chunks."""

    def __init__(self, coding: str = "") -> None:
        super().__init__(coding)
        self._held = bytearray()  # of the line that is arriving: its beginning, all if parsed
        self._room = _EVENT_MAX
        self._length = 0
        self._last = 0
        self._event = b""
        self._data: list[tuple[bytes, bool]] = []  # data lines, and whether they are complete
        self._open = False  # the event that is arriving has data
        self._ended = False

    def end(self) -> None:
        """Take the usage of an event that lacks its end; it does not finish the stream."""
        self._ended = True
        if self._length:
            self._finish_line()
        if self._open:
            self._dispatch()

    def _scan(self, data: bytes) -> None:
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            if self._length:
                self._hold(data, start, end)
                self._finish_line()
            else:
                line_end = end - 1 if end > start and data[end - 1] == _CR else end
                self._line(data[start : min(line_end, start + self._room)], line_end - start)
            start = end + 1
        if start < len(data):
            self._hold(data, start, len(data))

    def _hold(self, data: bytes, start: int, end: int) -> None:
        """Keep what a line in several chunks needs kept."""
        room = self._room - len(self._held)
        if room > 0:
            self._held += data[start : min(end, start + room)]
        if end > start:
            self._length += end - start
            self._last = data[end - 1]

    def _finish_line(self) -> None:
        length = self._length - (self._last == _CR)
        line = bytes(self._held[:length])
        self._held.clear()
        self._length = 0
        self._line(line, length)

    def _line(self, line: bytes, length: int) -> None:
        """Take a line without its end (LF or CRLF): its beginning, and its whole length."""
        if length == 0:
            self._dispatch()
        elif line.startswith(b"data:"):
            self._open = True
            if self._event == _DELTA:
                self.text_bytes += _text_length(line[:_HEAD], length)
            elif self._event in _PARSED:
                self._data.append((line, len(line) == length))
                self._room = max(self._room - len(line), _HEAD)
        elif line.startswith(b"event:"):
            self._event = line[6:].strip()
            self._room = _EVENT_MAX if self._event in _PARSED else _HEAD

    def _dispatch(self) -> None:
        event, lines, has_data = self._event, self._data, self._open
        self._event, self._data, self._open, self._room = b"", [], False, _EVENT_MAX
        if not has_data:
            return
        if event == _DELTA:
            self.deltas += 1
        elif event in _PARSED:
            self._parse(event, lines)

    def _parse(self, event: bytes, lines: list[tuple[bytes, bool]]) -> None:
        try:
            if not all(complete for _, complete in lines):
                raise ValueError("event is too large")
            read = read_event(b"\n".join(line[5:] for line, _ in lines))
        except ValueError:
            self.unreadable |= event in _CARRY_USAGE
            read = Event()
        # The event line names the event; a stream without such lines is known by its data.
        kind = event.decode() or read.type
        if kind == "message_start" and read.message is not None:
            self._tally.take(read.message.usage)
        elif kind == "message_delta":
            self._tally.take(read.usage)
            self.final |= read.delta is not None and read.delta.stop_reason is not None
        elif kind == "message_stop":
            self.finished |= not self._ended
            self.final |= self.finished
        elif kind == "error":
            self.failed = True
        elif kind == "content_block_delta":
            self.deltas += 1
            self.text_bytes += sum(_text_length(line[:_HEAD], len(line)) for line, _ in lines)


def _text_length(head: bytes, length: int) -> int:
    """Return how many bytes of generated text a delta's data line of this length carries."""
    found = _DELTA_TEXT.search(head)
    return max(length - found.end() - _DELTA_TAIL, 0) if found else 0
