"""The meter of the Responses API: of a stream, and of a whole answer.

A stream says its usage in its last event, which holds the whole response and is the one that is
parsed. All others are told by their names: of those that end in `.delta` the text is counted.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from daypass_proxy.ledger import Usage
from daypass_proxy.meter.base import BLOCK_TOKENS
from daypass_proxy.meter.events import EventMeter
from daypass_proxy.meter.openai_usage import Figures, FiguresMeter, Said

_ENDS = frozenset({b"response.completed", b"response.incomplete", b"response.failed"})
_ITEM_BEGINS = b"response.output_item.added"
_SEARCHED = b"response.web_search_call.completed"
_SEARCH = "web_search_call"
_TYPE = re.compile(rb'\{"type":\s?"([a-z_.]+)"')
_DELTA = re.compile(rb'"delta":\s?"((?:[^"\\]++|\\.)*+)"', re.DOTALL)


class Item(msgspec.Struct):
    """An item of the output."""

    type: Any = None


class Response(msgspec.Struct):
    """A whole response: what is of interest of it."""

    usage: Said | None = None
    service_tier: Any = None
    error: Any = None
    output: list[Item] | None = None

    @property
    def searches(self) -> int | None:
        """How many searches it took; None where it had no output."""
        if self.output is None:
            return None
        return sum(1 for item in self.output if item.type == _SEARCH)


class Event(msgspec.Struct):
    """The last event of a stream."""

    type: str = ""
    response: Response | None = None


_events = msgspec.json.Decoder(Event)
_responses = msgspec.json.Decoder(Response)


class ResponsesMeter(EventMeter):
    """Reads the stream of a response."""

    def __init__(self, coding: str = "") -> None:
        super().__init__(coding)
        self._figures = Figures()
        self._searches = 0

    @property
    def usage(self) -> Usage:
        """What the provider has said so far, and the searches that passed."""
        said = self._figures.usage
        if self._searches > (said.web_search_requests or 0):
            return msgspec.structs.replace(said, web_search_requests=self._searches)
        return said

    @property
    def output_bound(self) -> int:
        """The most output tokens that can have passed, or as many as the provider has said."""
        passed = self.text_bytes + self.blocks * BLOCK_TOKENS
        return max(passed, self._figures.output_tokens)

    def _take(self, name: bytes, data: bytes) -> None:
        if not name:
            found = _TYPE.match(data)
            name = found[1] if found else self._type(data)
        if name.endswith(b".delta"):
            text = _DELTA.search(data)
            self.deltas += 1
            self.text_bytes += len(data) if text is None else len(text[1])
        elif name in _ENDS:
            self._end_of_response(name, data)
        elif name == _ITEM_BEGINS:
            self.blocks += 1
        elif name == _SEARCHED:
            self._searches += 1
        elif name == b"error":
            self.failed = True

    def _type(self, data: bytes) -> bytes:
        """Return the name of an event that its own data tells."""
        try:
            return _events.decode(data).type.encode()
        except (msgspec.DecodeError, RecursionError):
            self.unreadable |= data.strip() != b"[DONE]"
            return b""

    def _end_of_response(self, name: bytes, data: bytes) -> None:
        self.finished = True
        self.failed |= name == b"response.failed"
        try:
            response = _events.decode(data).response
        except (msgspec.DecodeError, RecursionError):
            self.unreadable = True
            return
        if response is not None:
            self._figures.take(response.usage, response.service_tier, response.searches)
            self.final |= response.usage is not None


class ResponseMeter(FiguresMeter):
    """Reads a whole response."""

    def _read(self, body: bytes) -> None:
        try:
            response = _responses.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"not an answer of the provider: {error}") from error
        self.finished = True
        self.failed = response.error is not None
        self.final = response.usage is not None
        self._figures.take(response.usage, response.service_tier, response.searches)
