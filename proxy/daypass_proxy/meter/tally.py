"""The figures of usage as the provider says them, kept together while they come in.

Anthropic's usage objects are cumulative: a stream says some figures at its start, some more and
newer ones later. `Tally` holds what was said last and turns it into the ledger's `Usage`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from daypass_proxy.ledger import Pass, Usage

_TOKENS_MAX = 10**9
"""No answer has so many: a larger figure is unreadable. Of these, a ledger holds the sums."""
_PASSES_MAX = 1024
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=_TOKENS_MAX)] | None
_Name = Annotated[str, msgspec.Meta(max_length=256)]


class Split(msgspec.Struct):
    """Cache writes by how long they live."""

    ephemeral_5m_input_tokens: _Tokens = None
    ephemeral_1h_input_tokens: _Tokens = None


class Details(msgspec.Struct):
    """What the output tokens were spent on."""

    thinking_tokens: _Tokens = None


class ServerTools(msgspec.Struct):
    """Uses of the provider's own tools; those that have a fee."""

    web_search_requests: _Tokens = None


class Counts(msgspec.Struct):
    """Token figures; None where the provider was silent."""

    type: _Name = ""
    input_tokens: _Tokens = None
    output_tokens: _Tokens = None
    cache_creation_input_tokens: _Tokens = None
    cache_read_input_tokens: _Tokens = None
    cache_creation: Split | None = None


class Iteration(Counts):
    """One pass of the call."""

    model: _Name | None = None


class Said(Counts):
    """A usage object: totals, how the call was served, and its passes where it had several."""

    output_tokens_details: Details | None = None
    server_tool_use: ServerTools | None = None
    # Of any type: what is no word means something that has no price, not that there is no usage.
    service_tier: Any = None
    speed: Any = None
    inference_geo: Any = None
    iterations: Annotated[list[Iteration], msgspec.Meta(max_length=_PASSES_MAX)] | None = None


class Message(msgspec.Struct):
    """The part of a message that is of interest."""

    usage: Said | None = None


class Delta(msgspec.Struct):
    """The change a message_delta event announces."""

    stop_reason: str | None = None


class Event(msgspec.Struct):
    """A stream event, or a whole message: of either, what is of interest."""

    type: str = ""
    message: Message | None = None
    usage: Said | None = None
    delta: Delta | None = None


_decoder = msgspec.json.Decoder(Event)
_FIGURES = (
    "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens",
)  # fmt: skip
_WORDS = ("service_tier", "speed", "inference_geo")
_MESSAGE = "message"
_FALLBACK = "fallback_message"
AGAIN = "unsaid"
"""The kind of a pass that the provider began and has said no figures of."""
UNKNOWN = "unknown"
"""What a provider said that is no word: not silence, and nothing that has a price."""


def read_event(data: bytes) -> Event:
    """Read a stream event or a whole message; raises ValueError when it is neither."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not a provider event: {error}") from error


def is_json(data: bytes) -> bool:
    """Say whether `data` is one whole JSON value, whatever is in it."""
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


class Tally:
    """Usage as said so far. What is said is cumulative: of each figure the last one counts (B33).

    Silence is not zero (attacks row 28). Compaction and advisor tokens stand beside the totals,
    in `iterations` (row 33), and are kept apart. So are all passes of a call that a fallback model
    answered, for each model has its own price.
    """

    def __init__(self) -> None:
        self._figures: dict[str, int] = {}
        self._words: dict[str, str] = {}
        self._passes: tuple[Pass, ...] = ()

    @property
    def output_tokens(self) -> int:
        """The output tokens as said last; 0 while nothing was said."""
        return self._figures.get("output_tokens", 0)

    def take(self, said: Said | None) -> None:
        """Take over every figure that was said."""
        if said is None:
            return
        self._take_all(said, _FIGURES)
        for part in (said.cache_creation, said.output_tokens_details, said.server_tool_use):
            if part is not None:
                self._take_all(part, part.__struct_fields__)
        for name in _WORDS:
            word = getattr(said, name)
            if word is not None:
                self._words[name] = word[:64] if type(word) is str and word else UNKNOWN
        if said.iterations is not None:
            self._passes = _passes(said.iterations)

    @property
    def usage(self) -> Usage:
        """The usage as it stands."""
        said, words = self._figures.get, self._words.get
        return Usage(
            input_tokens=said("input_tokens"),
            output_tokens=said("output_tokens"),
            cache_creation_input_tokens=_writes(
                said("cache_creation_input_tokens"),
                said("ephemeral_5m_input_tokens"),
                said("ephemeral_1h_input_tokens"),
            ),
            cache_creation_1h_input_tokens=said("ephemeral_1h_input_tokens"),
            cache_read_input_tokens=said("cache_read_input_tokens"),
            thinking_tokens=said("thinking_tokens"),
            web_search_requests=said("web_search_requests"),
            service_tier=words("service_tier"),
            speed=words("speed"),
            inference_geo=words("inference_geo"),
            passes=self._passes,
        )

    def _take_all(self, said: msgspec.Struct, names: tuple[str, ...]) -> None:
        for name in names:
            figure = getattr(said, name)
            if figure is not None:
                self._figures[name] = figure


def read_again(said: Usage, times: int, searches: int) -> Usage:
    """Return `said` with what was read in its first pass read so often again; a low estimate.

    What was cached then is read from the cache; what came in between counts nothing.
    """
    cached = (said.cache_creation_input_tokens or 0) + (said.cache_read_input_tokens or 0)
    again = Pass(AGAIN, input_tokens=said.input_tokens, cache_read_input_tokens=cached)
    return replace(
        said,
        web_search_requests=max(said.web_search_requests or 0, searches),
        passes=said.passes + (again,) * min(times, _PASSES_MAX),
    )


def _passes(iterations: list[Iteration]) -> tuple[Pass, ...]:
    """Return the passes that the totals leave out, or all of them when another model answered."""
    fallen = any(each.type == _FALLBACK for each in iterations)
    kept = (each for each in iterations if fallen or each.type != _MESSAGE)
    return tuple(_pass(each) for each in kept)


def _pass(said: Iteration) -> Pass:
    split = said.cache_creation or Split()
    hour = split.ephemeral_1h_input_tokens
    return Pass(
        kind=said.type,
        model=said.model,
        input_tokens=said.input_tokens,
        output_tokens=said.output_tokens,
        cache_creation_input_tokens=_writes(
            said.cache_creation_input_tokens, split.ephemeral_5m_input_tokens, hour
        ),
        cache_creation_1h_input_tokens=hour,
        cache_read_input_tokens=said.cache_read_input_tokens,
    )


def _writes(total: int | None, short: int | None, hour: int | None) -> int | None:
    """Return all cache writes: their total, else the sum of the split, as far as it was said."""
    if total is not None or (short is None and hour is None):
        return total
    return (short or 0) + (hour or 0)
