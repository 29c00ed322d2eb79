"""The meter of a stream of server-sent events.

Two readers take turns. Events as the provider writes them (`event:` line, one `data:` line, blank
line, all in one chunk) are taken whole: deltas, nearly all of a stream, are counted in runs without
being looked into. Everything else (events cut by a chunk, CRLF, comments, several data lines) is
read line by line. Both say the same of the same event, so the chunks make no difference (B27).
An event is named by its `event:` line, else by the `type` in its data.
"""

from __future__ import annotations

import re

from daypass_proxy.ledger import Usage
from daypass_proxy.meter.base import Meter
from daypass_proxy.meter.tally import Event, read_again, read_event

_CR = 13
_MARK = b"\xef\xbb\xbf"  # may stand before the first line; elsewhere it would mean nothing
_HEAD = 256  # what is kept of a line nobody parses
_EVENT_MAX = 1024 * 1024
_DELTA = b"content_block_delta"
_CARRY_USAGE = frozenset({b"message_start", b"message_delta"})
_TOLD_BY_NAME = frozenset({b"message_stop", b"error", b"content_block_start"})
_HELD = _CARRY_USAGE | {b""}
# Where the text of a delta begins; signatures and citations are no output tokens.
_DELTA_TEXT = re.compile(
    rb'"delta"\s*:\s*\{\s*"type"\s*:\s*"(?:text|thinking|input_json)_delta"\s*,'
    rb'\s*"[a-z_]+"\s*:\s*"'
)
_DELTA_TAIL = len(b'"}}')
# The kind of a block that begins.
_BLOCK_KIND = re.compile(rb'"content_block"\s*:\s*\{\s*"type"\s*:\s*"([a-z_]+)"')
_SEARCHED = b"web_search_tool_result"
# An event as the provider writes it; possessive, so that a torn one is given up in one pass.
_EVENT = re.compile(rb"event: ([a-z_]++)\n(data:([^\n]*+))\n\n")
# The part that deltas of one block share, up to their text.
_PREFIX = re.compile(
    rb'event: content_block_delta\ndata: \{"type":"content_block_delta","index":[0-9]+,'
    rb'"delta":\{"type":"(?:text|thinking|input_json)_delta","[a-z_]+":"'
)
_FIRST_PREFIX = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"'
)
_BLOCK_STOP = b"\n\nevent: content_block_stop\n"


class StreamMeter(Meter):
    """Reads a stream of server-sent events, whatever the chunks."""

    def __init__(self, coding: str = "") -> None:
        super().__init__(coding)
        self.between_events = True
        self._held = bytearray()  # of the line that is arriving: its beginning, all if parsed
        self._room = _EVENT_MAX
        self._length = 0
        self._last = 0
        self._event = b""
        self._data: list[tuple[bytes, bool]] = []  # data lines, and whether they are complete
        self._open = False  # the event that is arriving has data
        self._ended = False
        self._head = b""  # the beginning of the data of an event that is told by its name
        self._found = False  # the last block that began is what a tool at the provider found
        self._counted = False  # the output was said after the start, where it is provisional
        self._readings = 0  # how often that made the model read everything again
        self._searches = 0
        self._runs = True  # cleared for the rest of a chunk whose deltas are not alike
        self._expect(_FIRST_PREFIX)

    def end(self) -> None:
        """Take the usage of an event that lacks its end; it does not finish the stream."""
        self._ended = True
        if self._length:
            self._finish_line()
        if self._open:
            self._dispatch()

    @property
    def usage(self) -> Usage:
        """What the provider has said so far, in figures and, until the last ones, in blocks.

        Nothing is said of the further readings of a call with tools of the provider until its end,
        so a client that left in their midst would have had them for nothing.
        """
        said = self._tally.usage
        if self.final or not self._readings:
            return said
        return read_again(said, self._readings, self._searches)

    def _scan(self, data: bytes) -> None:
        size, start = len(data), 0
        if self.between_events:
            if (
                data.startswith(self._prefix)
                and data.find(b"\n", self._text_at) == size - 2
                and data.endswith(b"}\n\n")
            ):
                # One delta like the last one: what a chunk of a paced stream is.
                self.deltas += 1
                self.text_bytes += size - self._around
                return
        else:
            start = self._lines(data, 0)
        self._runs = True
        plain = start < size and b"\r" not in data
        while start < size:
            if plain and self.between_events and data.find(b"\n\n", start) > 0:
                start = self._whole_events(data, start)
            start = self._lines(data, start)

    # -- events in one piece --

    def _whole_events(self, data: bytes, start: int) -> int:
        """Take the events that are here whole and plain; return where the first other begins."""
        while True:
            if self._runs and data.startswith(self._prefix, start):
                start = self._run(data, start)
            found = _EVENT.match(data, start)
            if found is None or found.end() - start > _EVENT_MAX:
                return start
            name = found[1]
            if name == _DELTA:
                prefix = self._runs and _PREFIX.match(data, start)
                if prefix and prefix[0] != self._prefix:
                    self._expect(prefix[0])
                    continue
                line, end = found.span(2)
                self.deltas += 1
                self.text_bytes += _text_length(data[line : min(end, line + _HEAD)], end - line)
            elif name in _CARRY_USAGE:
                self._parse(name, found[3])
            elif name in _TOLD_BY_NAME:
                self._told(name, found[2][:_HEAD])
            start = found.end()

    def _expect(self, prefix: bytes) -> None:
        """Take deltas that begin like this for the usual ones."""
        self._prefix = prefix
        self._joint = b"\n\n" + prefix
        self._text_at = len(prefix)
        self._around = len(prefix) + _DELTA_TAIL + 2

    def _run(self, data: bytes, start: int) -> int:
        """Take the run of usual deltas that begins at `start`; return where it ends.

        Nothing but counting: n deltas have n - 1 joints and 3 n line ends, and what has as many
        can be nothing else. One failed attempt ends them for this chunk, so that the cost stays
        linear.
        """
        end = data.rfind(b"\n\n", start) + 2
        last = data.rfind(b"\n\nevent: ", start, end)
        if last >= 0 and not data.startswith(self._joint, last):
            # Something else comes last, so this run ends with its block, if anywhere here.
            end = data.find(_BLOCK_STOP, start) + 2
        count = 1 + data.count(self._joint, start, end)
        if end < start + self._text_at or data.count(b"\n", start, end) != 3 * count:
            self._runs = False
            return start
        self.deltas += count
        self.text_bytes += end - start - count * self._around
        return end

    # -- line by line --

    def _lines(self, data: bytes, start: int) -> int:
        """Read lines to the end of an event, or of the data; return where that is."""
        while (end := data.find(b"\n", start)) >= 0:
            if self._length:
                self._hold(data, start, end)
                self._finish_line()
            else:
                line_end = end - 1 if end > start and data[end - 1] == _CR else end
                self._line(data[start : min(line_end, start + self._room)], line_end - start)
            start = end + 1
            if self.between_events:
                return start
        if start < len(data):
            self._hold(data, start, len(data))
        return len(data)

    def _hold(self, data: bytes, start: int, end: int) -> None:
        """Keep what a line in several chunks needs kept."""
        room = self._room - len(self._held)
        if room > 0:
            self._held += data[start : min(end, start + room)]
        if end > start:
            self.between_events = False
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
        if line.startswith(_MARK):
            line, length = line[3:], length - 3
        if length == 0:
            self._dispatch()
            return
        self.between_events = False
        if line.startswith(b"data:"):
            self._open = True
            if self._event == _DELTA:
                self.text_bytes += _text_length(line[:_HEAD], length)
            elif self._event in _HELD:
                self._data.append((line, len(line) == length))
                self._room = max(self._room - len(line), _HEAD)
            elif not self._head:
                self._head = line[:_HEAD]
        elif line.startswith(b"event:"):
            self._event = line[6:].strip()
            self._room = _EVENT_MAX if self._event in _HELD else _HEAD

    def _dispatch(self) -> None:
        event, lines, has_data, head = self._event, self._data, self._open, self._head
        self._event, self._data, self._open, self._room = b"", [], False, _EVENT_MAX
        self._head = b""
        self.between_events = True
        if not has_data:
            return
        if event == _DELTA:
            self.deltas += 1
        elif event in _TOLD_BY_NAME:
            self._told(event, head)
        elif event in _HELD:
            whole = all(complete for _, complete in lines)
            self._parse(event, b"\n".join(line[5:] for line, _ in lines) if whole else None)

    # -- what an event says --

    def _parse(self, name: bytes, data: bytes | None) -> None:
        """Read an event that may carry usage; None is one that was too large to keep."""
        try:
            if data is None:
                raise ValueError("event is too large")
            read = read_event(data)
        except ValueError:
            self.unreadable |= name in _CARRY_USAGE
            read = Event()
        # The event line names the event; a stream without such lines is known by its data.
        kind = name or read.type.encode()
        if kind == b"message_start" and read.message is not None:
            self._tally.take(read.message.usage)
        elif kind == b"message_delta":
            self._tally.take(read.usage)
            self._counted |= read.usage is not None and read.usage.output_tokens is not None
            ends = read.delta is not None and read.delta.stop_reason is not None
            self.final |= ends and self._counted
        elif kind == _DELTA and data is not None:
            self.deltas += 1
            self.text_bytes += sum(
                _text_length(line[:_HEAD], len(line)) for line in data.split(b"\n")
            )
        else:
            self._told(kind, (data or b"")[:_HEAD])

    def _told(self, kind: bytes, head: bytes) -> None:
        """Take note of an event that says all by its name and the `head` of its data."""
        if kind == b"message_stop":
            self.finished |= not self._ended
            self.final |= self.finished and self._counted
        elif kind == b"error":
            self.failed = True
        elif kind == b"content_block_start":
            self.blocks += 1
            began = _BLOCK_KIND.search(head)
            found = began is not None and began[1].endswith(b"_tool_result")
            self._readings += found and not self._found
            self._searches += began is not None and began[1] == _SEARCHED
            self._found = found


def _text_length(head: bytes, length: int) -> int:
    """Return how many bytes of generated text a delta's data line of this length carries."""
    found = _DELTA_TEXT.search(head)
    return length - found.end() - _DELTA_TAIL if found else 0
