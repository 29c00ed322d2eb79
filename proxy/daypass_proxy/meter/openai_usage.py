"""The figures of usage as OpenAI's API says them, at its end and all at once.

The input figure includes what was read from the cache or written to it, so these are taken off:
in a `Usage` each token stands in one place. What was not said stays unsaid. Some servers leave
reasoning out of the output figure and count it in the total alone, so what the total has beyond
both is output.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from daypass_proxy.ledger import Usage
from daypass_proxy.meter.base import JsonMeter

_TOKENS_MAX = 10**9
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=_TOKENS_MAX)] | None
_ORDINARY = "standard"
_TIERS = {"default": _ORDINARY, "auto": None}
"""The ordinary tier by its name there; `auto` says nothing of how a call was served."""


class InputDetails(msgspec.Struct):
    """What the input tokens were."""

    cached_tokens: _Tokens = None
    cache_write_tokens: _Tokens = None


class OutputDetails(msgspec.Struct):
    """What the output tokens were spent on."""

    reasoning_tokens: _Tokens = None


class Said(msgspec.Struct):
    """A usage object, of chat completions and embeddings or of responses."""

    prompt_tokens: _Tokens = None
    completion_tokens: _Tokens = None
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: OutputDetails | None = None
    input_tokens: _Tokens = None
    output_tokens: _Tokens = None
    total_tokens: _Tokens = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class Figures:
    """Usage as said so far; of each figure the last one counts."""

    def __init__(self) -> None:
        self.usage = Usage()

    @property
    def output_tokens(self) -> int:
        """The output tokens as said last; 0 while nothing was said."""
        return self.usage.output_tokens or 0

    def take(self, said: Said | None, tier: Any, searches: int | None = None) -> None:
        """Take over what was said; `tier` is the service tier of the answer, of any type."""
        before = self.usage
        if said is None:
            said = Said()
        whole = _first(said.prompt_tokens, said.input_tokens)
        inputs = said.prompt_tokens_details or said.input_tokens_details or InputDetails()
        outputs = said.completion_tokens_details or said.output_tokens_details or OutputDetails()
        read, written = inputs.cached_tokens, inputs.cache_write_tokens
        plain = None if whole is None else max(whole - (read or 0) - (written or 0), 0)
        written_out = _first(said.completion_tokens, said.output_tokens)
        if whole is not None and written_out is not None and said.total_tokens is not None:
            written_out = max(written_out, said.total_tokens - whole)
        self.usage = Usage(
            input_tokens=_first(plain, before.input_tokens),
            output_tokens=_first(written_out, before.output_tokens),
            cache_creation_input_tokens=_first(written, before.cache_creation_input_tokens),
            cache_read_input_tokens=_first(read, before.cache_read_input_tokens),
            thinking_tokens=_first(outputs.reasoning_tokens, before.thinking_tokens),
            web_search_requests=_first(searches, before.web_search_requests),
            service_tier=_tier(tier) or before.service_tier,
        )

    def nothing_written(self) -> None:
        """Take note that an answer has no output, which nobody says of embeddings."""
        self.usage = msgspec.structs.replace(self.usage, output_tokens=0)


def _first(new: int | None, old: int | None) -> int | None:
    return old if new is None else new


def _tier(word: Any) -> str | None:
    """Return the service tier by our name; what is no word has no price, but is not silence."""
    if word is None:
        return None
    if type(word) is not str or not word:
        return "unknown"
    return _TIERS.get(word, word[:64])


class FiguresMeter(JsonMeter):
    """Reads a whole answer that says its figures in one object."""

    def __init__(self, coding: str = "") -> None:
        super().__init__(coding)
        self._figures = Figures()

    @property
    def usage(self) -> Usage:
        """What the provider has said."""
        return self._figures.usage

    @property
    def output_bound(self) -> int:
        """The most output tokens that can have passed: a byte of the message each."""
        return max(self._size, self._figures.output_tokens)
