"""Rates: what the kinds of tokens of one model cost, and how they grow with the size of a call.

Place in the flow: `price.entry` makes them from a price file, `price.price` holds one `Plan` for
each way a call can be served. All sums are exact integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from daypass_proxy.ledger import Pass, Usage

PARTS = 10**8
"""Of a nano-dollar: the unit that costs are summed up in, so that all of it is exact integers.

A rate of a price file has nine decimals and a multiple by default (1.25) two more, so in USD for a
million tokens, which is a thousand nano-dollars for one token, it is a whole number of these.
"""


@dataclass(frozen=True, slots=True)
class Rates:
    """USD per million tokens; `cache_write` is the five-minute write.

    Raises ValueError for a rate that is no whole number of PARTS; no price file can hold one.
    """

    input: Decimal
    output: Decimal
    cache_write: Decimal
    cache_write_1h: Decimal
    cache_read: Decimal
    parts: tuple[int, int, int, int, int] = field(init=False, repr=False, compare=False)
    """The same in the same order, each as PARTS of a nano-dollar for one token."""
    dearest_input: tuple[int, int] = field(init=False, repr=False, compare=False)
    """The highest rate of an input token in PARTS, without cache writes of an hour and with."""

    def __post_init__(self) -> None:
        plain, _, write, write_1h, read = parts = (
            _parts(self.input), _parts(self.output), _parts(self.cache_write),
            _parts(self.cache_write_1h), _parts(self.cache_read),
        )  # fmt: skip
        object.__setattr__(self, "parts", parts)
        short = max(plain, write, read)
        object.__setattr__(self, "dearest_input", (short, max(short, write_1h)))


@dataclass(frozen=True, slots=True)
class Plan:
    """The rates of one way of serving a model.

    `tiers` are (threshold, rates), ascending: a pass whose whole input, cache included, is above a
    threshold pays the rates of that tier for every token, as the providers bill.
    """

    rates: Rates
    tiers: tuple[tuple[int, Rates], ...] = ()

    def cost(self, said: Usage | Pass) -> int:
        """Return what these tokens cost in PARTS; a figure that was not said counts zero."""
        plain, output = _count(said.input_tokens), _count(said.output_tokens)
        read = _count(said.cache_read_input_tokens)
        write_1h = _count(said.cache_creation_1h_input_tokens)
        write_5m = max(_count(said.cache_creation_input_tokens) - write_1h, 0)
        rates = self.rates
        for start, above in self.tiers:
            if plain + write_5m + write_1h + read > start:
                rates = above
        per_input, per_output, per_write, per_write_1h, per_read = rates.parts
        return (
            per_input * plain
            + per_output * output
            + per_write * write_5m
            + per_write_1h * write_1h
            + per_read * read
        )

    def dearest(self, input_tokens: int, *, hour_cache: bool = True) -> tuple[int, int]:
        """Return the most that an input and an output token can cost, in PARTS.

        That is, of a pass with up to `input_tokens` of input of whatever kinds; of cache writes of
        an hour only where there may be some.
        """
        dearest_input = self.rates.dearest_input[hour_cache]
        dearest_output = self.rates.parts[1]
        for start, above in self.tiers:
            if input_tokens > start:
                dearest_input = max(dearest_input, above.dearest_input[hour_cache])
                dearest_output = max(dearest_output, above.parts[1])
        return dearest_input, dearest_output


def usd_parts(usd: Decimal) -> int:
    """Return US dollars as PARTS; raises ValueError for what is no whole number of them."""
    return _parts(usd * 10**6)


def _parts(rate: Decimal) -> int:
    """Return a rate in USD per million tokens as PARTS for one token."""
    numerator, denominator = rate.as_integer_ratio()
    parts, rest = divmod(numerator * 1000 * PARTS, denominator)
    if rest or parts < 0:
        raise ValueError(f"{rate} has more than 11 decimals or is negative")
    return parts


def _count(tokens: int | None) -> int:
    return tokens if tokens is not None and tokens > 0 else 0
