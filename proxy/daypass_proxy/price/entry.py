"""The form of a price file, and how one of its entries becomes a price.

Place in the flow: `price.file` reads a file into these, `price.shelf` keeps the prices. Unknown
fields are errors: what was misspelt would otherwise be priced at a default.
"""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import Annotated, Any

import msgspec

from daypass_proxy.price.price import GEO, ORDINARY, Price
from daypass_proxy.price.rates import Plan, Rates, usd_parts

_Text = Annotated[str, msgspec.Meta(min_length=1)]
# All of them go into the scope of a call that names one.
_Names = Annotated[list[_Text], msgspec.Meta(max_length=16)]
# Smaller is a mistake, thousands of tokens most likely: the window bounds what is held.
_Window = Annotated[int, msgspec.Meta(ge=1_000, le=10**9)]
_Tokens = Annotated[int, msgspec.Meta(gt=0, le=10**9)]
# Text, because JSON numbers are floats to most programs that would write this file.
_Usd = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9})?\Z")]
_Seconds = Annotated[int, msgspec.Meta(ge=1, le=3600)]
_Multiple = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,3}(\.[0-9]{1,4})?\Z")]


class File(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file; its entries are converted one by one, so that an error can name its place."""

    providers: dict[str, list[Any]]
    source: str = ""
    as_of: str = ""


class _RatesEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    input: _Usd
    output: _Usd
    cache_write: _Usd | None = None
    cache_write_1h: _Usd | None = None
    cache_read: _Usd | None = None

    def rates(self) -> Rates:
        """Fill in what is absent: writes at the multiples Anthropic publishes, reads like input.

        The discount of a read differs by model, and a guess must not be too low.
        """
        plain = Decimal(self.input)
        return Rates(
            input=plain,
            output=Decimal(self.output),
            cache_write=Decimal(self.cache_write or plain * Decimal("1.25")),
            cache_write_1h=Decimal(self.cache_write_1h or plain * 2),
            cache_read=Decimal(self.cache_read or plain),
        )


class _TierEntry(_RatesEntry, forbid_unknown_fields=True, kw_only=True):
    above_input_tokens: _Tokens


class _PlanEntry(_RatesEntry, forbid_unknown_fields=True, kw_only=True):
    tiers: list[_TierEntry] = []

    def plan(self) -> Plan:
        """Raise ValueError unless the tiers ascend."""
        starts = [tier.above_input_tokens for tier in self.tiers]
        if starts != sorted(set(starts)):
            raise ValueError("tiers: above_input_tokens must rise from tier to tier")
        tiers = tuple((tier.above_input_tokens, tier.rates()) for tier in self.tiers)
        return Plan(self.rates(), tiers)


class Entry(_PlanEntry, forbid_unknown_fields=True, kw_only=True):
    """One model from some day on."""

    model: _Text
    context_window: _Window
    ids: _Names = []
    prefixes: list[_Text] = []
    patterns: list[_Text] = []
    from_: datetime.date | None = msgspec.field(default=None, name="from")
    service_tiers: dict[_Text, _PlanEntry] = {}
    speeds: dict[_Text, _PlanEntry] = {}
    geos: dict[_Text, _Multiple] = {}
    web_search: _Usd | None = None
    per_second: _Usd | None = None
    max_seconds: _Seconds | None = None
    thinks_unasked: bool = True  # what nobody says must not be held too low
    derived: list[_Text] = []  # says which figures the data set did not have; for readers only

    def price(self) -> Price:
        """Raise ValueError for a plan that cannot be."""
        for name, plans in (("service_tiers", self.service_tiers), ("speeds", self.speeds)):
            if ORDINARY in plans:
                raise ValueError(f"{name}: {ORDINARY} is what the entry itself says")
        if (self.per_second is None) != (self.max_seconds is None):
            raise ValueError("per_second: needs max_seconds, where the call is cut, and it alone")
        return Price(
            self.model,
            self.context_window,
            self.plan(),
            {name: each.plan() for name, each in self.service_tiers.items()},
            {name: each.plan() for name, each in self.speeds.items()},
            {name: int(Decimal(text) * GEO) for name, text in self.geos.items()},
            None if self.web_search is None else usd_parts(Decimal(self.web_search)),
            self.thinks_unasked,
            0 if self.per_second is None else usd_parts(Decimal(self.per_second)),
            self.max_seconds or 0,
        )

    def rules(self) -> list[re.Pattern[str]]:
        """Raise ValueError naming the pattern that is none."""
        rules = [re.compile(re.escape(prefix) + ".*", re.DOTALL) for prefix in self.prefixes]
        return rules + [_pattern(text, index) for index, text in enumerate(self.patterns)]

    @property
    def starts(self) -> float:
        """When the entry comes into force, in epoch seconds: the beginning of its day in UTC."""
        if self.from_ is None:
            return float("-inf")
        begin = datetime.datetime.combine(self.from_, datetime.time(), tzinfo=datetime.UTC)
        return begin.timestamp()


def _pattern(text: str, index: int) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"patterns[{index}]: not a regular expression: {error}") from error
