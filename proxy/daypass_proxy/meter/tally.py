"""The figures of usage as the provider says them, kept together while they come in.

Anthropic's usage objects are cumulative: a stream says some figures at its start, some more and
newer ones later. `Tally` holds what was said last and turns it into the ledger's `Usage`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from daypass_proxy.ledger import Usage

_Tokens = Annotated[int, msgspec.Meta(ge=0)] | None


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


def read_event(data: bytes) -> Event:
    """Read a stream event or a whole message; raises ValueError when it is neither."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not a provider event: {error}") from error


class Tally:
    """Usage as said so far. What is said is cumulative: of each figure the last one counts (B33).

    Silence is not zero (attacks row 28). Compaction and advisor tokens stand beside the totals,
    in `iterations` (row 33), and are added.
    """

    # What the top-level totals leave out.
    _BESIDE = frozenset({"compaction", "advisor_message"})

    def __init__(self) -> None:
        self._said = Counts()
        self._split = Split()
        self._beside: list[Counts] = []

    def take(self, said: Said | None) -> None:
        """Take over every figure that was said."""
        if said is None:
            return
        _take_over(self._said, said)
        if said.cache_creation is not None:
            _take_over(self._split, said.cache_creation)
        if said.iterations is not None:
            self._beside = [each for each in said.iterations if each.type in self._BESIDE]

    @property
    def usage(self) -> Usage:
        """The usage as it stands."""
        said, beside = self._said, self._beside
        hour = self._split.ephemeral_1h_input_tokens
        writes = said.cache_creation_input_tokens
        if writes is None:
            writes = _sum([self._split.ephemeral_5m_input_tokens, hour])
        splits = [each.cache_creation for each in beside if each.cache_creation is not None]
        return Usage(
            input_tokens=_sum([said.input_tokens, *(each.input_tokens for each in beside)]),
            output_tokens=_sum([said.output_tokens, *(each.output_tokens for each in beside)]),
            cache_creation_input_tokens=_sum(
                [writes, *(each.cache_creation_input_tokens for each in beside)]
            ),
            cache_creation_1h_input_tokens=_sum(
                [hour, *(split.ephemeral_1h_input_tokens for split in splits)]
            ),
            cache_read_input_tokens=_sum(
                [said.cache_read_input_tokens, *(each.cache_read_input_tokens for each in beside)]
            ),
        )


def _take_over(into: msgspec.Struct, said: msgspec.Struct) -> None:
    for name in into.__struct_fields__:
        value = getattr(said, name)
        if type(value) is int:
            setattr(into, name, value)


def _sum(figures: list[int | None]) -> int | None:
    said = [figure for figure in figures if figure is not None]
    return sum(said) if said else None
