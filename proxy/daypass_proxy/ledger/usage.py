"""Usage: what one upstream attempt used, as the provider counts it, every kind kept apart.

Place in the flow: `meter` reads it from the answer, `price` turns it into a cost, `ledger` books
both. A figure that is None was not said; 0 was said to be zero (attacks row 28).
"""

from __future__ import annotations

import msgspec


class Pass(msgspec.Struct, frozen=True):
    """One entry of `usage.iterations`: a pass of the call that is billed by itself.

    `kind` is the provider's type (`message`, `compaction`, `advisor_message`,
    `fallback_message`); `model` is None where the entry names none, which means the request's own.
    """

    kind: str
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation_1h_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """All tokens of the pass, cache included."""
        return _total(self)


class Usage(msgspec.Struct, frozen=True):
    """What one upstream attempt used.

    As on the wire, `input_tokens` excludes the cache figures; `cache_creation_input_tokens` is the
    total of all cache writes and `cache_creation_1h_input_tokens` the part of it that lives one
    hour; `thinking_tokens` is a part of `output_tokens`. `passes` holds those iterations that the
    totals leave out or that another model did (wire.md 2.3). `service_tier`, `speed` and
    `inference_geo` are what the provider said it served, each at its own rate.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation_1h_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    thinking_tokens: int | None = None
    web_search_requests: int | None = None
    service_tier: str | None = None
    speed: str | None = None
    inference_geo: str | None = None
    passes: tuple[Pass, ...] = ()

    @property
    def tokens(self) -> int:
        """What counts towards a limit of tokens: input, cache and output, passes beside included.

        An iteration of type `message` is a part of the totals already. Where a fallback model
        answered, `passes` are all that there were, and count instead of the totals as they do in
        the price: the one that answered stands in both.
        """
        if not self.passes:
            return _total(self)
        if any(each.kind == "fallback_message" for each in self.passes):
            return sum(each.tokens for each in self.passes)
        beside = sum(each.tokens for each in self.passes if each.kind != "message")
        return _total(self) + beside


def _total(figures: Usage | Pass) -> int:
    return (
        (figures.input_tokens or 0)
        + (figures.output_tokens or 0)
        + (figures.cache_creation_input_tokens or 0)
        + (figures.cache_read_input_tokens or 0)
    )
