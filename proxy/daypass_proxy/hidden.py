"""Keeps the last figures of a chat stream from a client that did not ask for them.

Place in the flow: `relay` writes through it where `providers.openai` has put `include_usage` into
the body. The provider then sends one chunk more, without choices, before `[DONE]`; all other bytes
pass as they came. What cannot be told yet waits: the event that is arriving, which no client could
use before its end. An event that is larger than that chunk ever is passes on as it arrives.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

import msgspec

LARGEST = 16 * 1024
"""Bytes of an event from which on it cannot be the chunk of figures."""
_END = re.compile(rb"\r?\n\r?\n|\r\r")
_LINE_ENDS = b"\r\n"
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')


class Sink(Protocol):
    """Where an answer goes: of an `Exchange` what is needed here."""

    def write(self, chunk: bytes) -> bool:
        """Write at once; False, and it is not, when `send` has to wait."""
        ...

    async def send(self, chunk: bytes) -> None:
        """Send; waits while the client reads slowly."""
        ...

    async def finish(self) -> None:
        """End the body tidily."""
        ...


class _Chunk(msgspec.Struct):
    choices: list[Any] | None = None
    usage: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class HidesUsage:
    """A sink that drops the chunk of figures."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held = b""  # the beginning of the event that is arriving
        self._passing = False  # it is too large: what comes of it passes

    def write(self, chunk: bytes) -> bool:
        """Write what may pass; False, and nothing was done, when that has to wait."""
        before = self._held, self._passing
        passed = self._pass(chunk)
        if not passed or self._sink.write(passed):
            return True
        self._held, self._passing = before
        return False

    async def send(self, chunk: bytes) -> None:
        """Send what may pass."""
        if passed := self._pass(chunk):
            await self._sink.send(passed)

    async def say(self, words: bytes) -> None:
        """Send words of ours, in the place of an event that did not come whole."""
        self._held = b""
        await self._sink.send(words)

    async def finish(self) -> None:
        """End the body; a last event without its end is of use to some clients."""
        if self._held and not _is_figures(self._held):
            await self._sink.send(self._held)
        await self._sink.finish()

    def _pass(self, chunk: bytes) -> bytes:
        """Return what of all that is here may pass; hold the rest."""
        whole = chunk.endswith(b"\n\n") and not (self._held or self._passing)
        if whole and _NO_CHOICES.search(chunk) is None:
            return chunk
        data, start = self._held + chunk, 0
        passed: list[bytes] = []
        for found in _END.finditer(data):
            event = data[start : found.end()]
            if self._passing or not _is_figures(event):
                passed.append(event)
            self._passing = False
            start = found.end()
        rest = data[start:]
        if self._passing or len(rest) > LARGEST:
            # A line end may be the first half of the event's end.
            kept = len(rest) - len(rest.rstrip(_LINE_ENDS))
            passed.append(rest[: len(rest) - kept])
            rest, self._passing = rest[len(rest) - kept :], True
        self._held = rest
        return b"".join(passed)


def _is_figures(event: bytes) -> bool:
    """Say whether an event is the chunk without choices that tells the usage."""
    if len(event) > LARGEST or _NO_CHOICES.search(event) is None:
        return False
    lines = event.replace(b"\r", b"\n").split(b"\n")
    data = b"\n".join([line[5:] for line in lines if line.startswith(b"data:")])
    try:
        chunk = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return chunk.choices == [] and chunk.usage is not None
