"""The figures of usage as the provider says them, kept together while they come in.

Anthropic's usage objects are cumulative: a stream says some figures at its start, some more and
newer ones later. `Tally` holds what was said last and turns it into the ledger's `Usage`.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from daypass_proxy.ledger import Usage

_TOKENS_MAX = 10**9
"""No answer has so many: a larger figure is unreadable. Of these, a ledger holds the sums."""
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=_TOKENS_MAX)] | None


class Split(msgspec.Struct):
    """Cache writes by how long they live."""

    ephemeral_5m_input_tokens: _Tokens = None
    ephemeral_1h_input_tokens: _Tokens = None


class Counts(msgspec.Struct):
    """Token figures; None where the provider was silent."""

    type: str = ""
    input_tokens: _Tokens = None
    output_tokens: _Tokens = None
    cache_creation_input_tokens: _Tokens = None
    cache_read_input_tokens: _Tokens = None
    cache_creation: Split | None = None


class Said(Counts):
    """A usage object: totals, and the passes of one call where it had several."""

    iterations: list[Counts] | None = None


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
_Figures = TypeVar("_Figures", Counts, Split)


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
    in `iterations` (row 33), and are added.
    """

    # What the top-level totals leave out.
    _BESIDE = frozenset({"compaction", "advisor_message"})

    def __init__(self) -> None:
        self._said: Counts | None = None
        self._split: Split | None = None
        self._beside: list[Counts] = []

    def take(self, said: Said | None) -> None:
        """Take over every figure that was said."""
        if said is None:
            return
        if said.cache_creation is not None:
            self._split = _latest(self._split, said.cache_creation)
        if said.iterations is not None:
            self._beside = [each for each in said.iterations if each.type in self._BESIDE]
        self._said = _latest(self._said, said)

    @property
    def usage(self) -> Usage:
        """The usage as it stands."""
        said = self._said
        if said is None:
            return Usage()
        split, beside = self._split, self._beside
        writes, hour = said.cache_creation_input_tokens, None
        if split is not None:
            hour = split.ephemeral_1h_input_tokens
            if writes is None:
                writes = _sum([split.ephemeral_5m_input_tokens, hour])
        usage = Usage(
            input_tokens=said.input_tokens,
            output_tokens=said.output_tokens,
            cache_creation_input_tokens=writes,
            cache_creation_1h_input_tokens=hour,
            cache_read_input_tokens=said.cache_read_input_tokens,
        )
        return _with_passes(usage, beside) if beside else usage


def _with_passes(usage: Usage, beside: list[Counts]) -> Usage:
    """Return the totals with the passes that they leave out."""
    splits = [each.cache_creation for each in beside if each.cache_creation is not None]
    return Usage(
        input_tokens=_sum([usage.input_tokens, *(each.input_tokens for each in beside)]),
        output_tokens=_sum([usage.output_tokens, *(each.output_tokens for each in beside)]),
        cache_creation_input_tokens=_sum(
            [
                usage.cache_creation_input_tokens,
                *(each.cache_creation_input_tokens for each in beside),
            ]
        ),
        cache_creation_1h_input_tokens=_sum(
            [
                usage.cache_creation_1h_input_tokens,
                *(split.ephemeral_1h_input_tokens for split in splits),
            ]
        ),
        cache_read_input_tokens=_sum(
            [usage.cache_read_input_tokens, *(each.cache_read_input_tokens for each in beside)]
        ),
    )


def _latest(before: _Figures | None, said: _Figures) -> _Figures:
    """Return the figures said last; one that was not said again stays."""
    if before is None:
        return said
    for name in before.__struct_fields__:
        value = getattr(said, name)
        if type(value) is int:
            setattr(before, name, value)
    return before


def _sum(figures: list[int | None]) -> int | None:
    said = [figure for figure in figures if figure is not None]
    return sum(said) if said else None
