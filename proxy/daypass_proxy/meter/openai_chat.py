"""The meter of chat completions: of a stream, and of a whole answer.

Of a stream nearly all events are deltas that differ in one text alone. The first one of a kind is
parsed; of those that follow, what comes before and behind the text is compared, and the text is
counted without being looked into. Its length is what was generated, as JSON writes it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from daypass_proxy.ledger import Usage
from daypass_proxy.meter.base import BLOCK_TOKENS
from daypass_proxy.meter.events import EventMeter
from daypass_proxy.meter.openai_usage import Figures, FiguresMeter, Said

_DONE = b"[DONE]"
_TEXT = re.compile(rb'"(?:content|reasoning_content|reasoning|refusal|arguments|input)":\s?"')
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
# Random letters that hide how long a text is; they stand behind everything else.
_PADDING = b'"obfuscation":"'
_PADDING_END = re.compile(rb'[A-Za-z0-9]*+"\}(?:\n\n)?')
_FRAME, _END = b"data: ", b"\n\n"
_USAGE = b'"usage":{'


class Function(msgspec.Struct):
    """A call of a function, or of a custom tool."""

    name: str | None = None
    arguments: str | None = None
    input: str | None = None


class ToolCall(msgspec.Struct):
    """A part of a call of a tool."""

    id: str | None = None
    function: Function | None = None
    custom: Function | None = None


class Delta(msgspec.Struct):
    """What was written."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None

    def texts(self) -> list[str]:
        """Return every text that the model wrote."""
        written = [self.content, self.reasoning_content, self.reasoning, self.refusal]
        calls = [call.function or call.custom for call in self.tool_calls or ()]
        for each in (*calls, self.function_call):
            if each is not None:
                written += [each.arguments, each.input]
        return [text for text in written if text]


class Choice(msgspec.Struct):
    """A part of one of the answers."""

    delta: Delta | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """A chunk of a stream, or a whole completion: of either, what is of interest."""

    choices: list[Choice] | None = None
    usage: Said | None = None
    error: Any = None
    service_tier: Any = None


_decoder = msgspec.json.Decoder(Chunk)


class ChatMeter(EventMeter):
    """Reads the stream of a chat completion."""

    def __init__(self, coding: str = "") -> None:
        super().__init__(coding)
        self._figures = Figures()
        self._before = self._framed = b"\n"  # nothing begins so
        self._behind = b""
        self._padded = False
        self._stopped = False

    @property
    def usage(self) -> Usage:
        """What the provider has said so far."""
        return self._figures.usage

    @property
    def output_bound(self) -> int:
        """The most output tokens that can have passed, or as many as the provider has said."""
        passed = self.text_bytes + self.blocks * BLOCK_TOKENS
        return max(passed, self._figures.output_tokens)

    def _scan(self, data: bytes) -> None:
        # One delta like the last one: what a chunk of a paced stream is.
        if not (self.between_events and self._is_usual(data, self._framed, _END)):
            super()._scan(data)

    def _take(self, name: bytes, data: bytes) -> None:
        if self._is_usual(data, self._before, b""):
            return
        if data.strip() == _DONE:
            self.finished = True
            return
        try:
            chunk = _decoder.decode(data)
        except (msgspec.DecodeError, RecursionError):
            self.unreadable = True
            self.text_bytes += len(data)
            return
        self._chunk(chunk, data)

    def _is_usual(self, data: bytes, before: bytes, end: bytes) -> bool:
        """Count a delta that has nothing but the usual around its text, and ends with `end`."""
        if not data.startswith(before):
            return False
        text = len(before)
        found = _STRING.match(data, text)
        at = text if found is None else found.end()
        if self._padded:
            behind = at + len(self._behind)
            usual = data.startswith(self._behind, at) and data.endswith(end)
            usual = usual and _PADDING_END.fullmatch(data, behind) is not None
        else:
            usual = data[at:] == self._behind + end
        if usual:
            self.deltas += 1
            self.text_bytes += at - text
        return usual

    def _chunk(self, chunk: Chunk, data: bytes) -> None:
        self.failed |= chunk.error is not None
        texts: list[str] = []
        for choice in chunk.choices or ():
            self._stopped |= choice.finish_reason is not None
            if choice.delta is not None:
                texts += choice.delta.texts()
                for call in choice.delta.tool_calls or ():
                    self.blocks += call.id is not None
        if texts:
            self.deltas += 1
            self.text_bytes += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        if len(texts) == 1 and len(chunk.choices or ()) == 1 and _USAGE not in data:
            self._expect(data, texts[0])
        self._figures.take(chunk.usage, chunk.service_tier)
        if chunk.usage is not None:
            usage = self._figures.usage
            whole = usage.input_tokens is not None and usage.output_tokens is not None
            self.final |= whole and (self._stopped or not chunk.choices)

    def _expect(self, data: bytes, text: str) -> None:
        """Take deltas that are like this one but for their text for the usual ones."""
        for found in _TEXT.finditer(data, max(data.find(b'"delta"'), 0)):
            string = _STRING.match(data, found.end())
            if string is None:
                return
            try:
                said = msgspec.json.decode(b'"' + string[0] + b'"')
            except msgspec.DecodeError:
                return
            if said == text:
                self._before, self._behind = data[: found.end()], data[string.end() :]
                self._framed = _FRAME + self._before
                padding = self._behind.find(_PADDING)
                self._padded = padding >= 0
                if self._padded:
                    self._behind = self._behind[: padding + len(_PADDING)]
                return


class WholeMeter(FiguresMeter):
    """Reads a whole answer: a chat completion, or with `writes` false embeddings."""

    writes = True

    def _read(self, body: bytes) -> None:
        try:
            chunk = _decoder.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"not an answer of the provider: {error}") from error
        self.finished = True
        self.failed = chunk.error is not None
        self.final = chunk.usage is not None
        self._figures.take(chunk.usage, chunk.service_tier)
        if not self.writes:
            self._figures.nothing_written()


class EmbeddingsMeter(WholeMeter):
    """Reads embeddings, which nobody says the output of: there is none."""

    writes = False

    @property
    def output_seen(self) -> int:
        """No output at all, however large the answer."""
        return 0
