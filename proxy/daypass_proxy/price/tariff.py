"""The tariff of one call: what its usage costs, each pass at its own model's rates.

Place in the flow: `estimate.quote` makes it when the call is admitted, `attempt` turns the metered
usage into the cost that the ledger books. Everything is summed up in integers and rounded once.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from daypass_proxy.ledger import Pass, Usage
from daypass_proxy.price.price import GEO, Price
from daypass_proxy.price.rates import PARTS

FALLBACK = "fallback_message"
_MESSAGE = "message"
_KNOWN_KINDS = frozenset({_MESSAGE, FALLBACK, "compaction", "advisor_message"})


class Cost(NamedTuple):
    """Nano-dollars; `estimated` where something was billed whose price is not known exactly."""

    nano: int
    estimated: bool = False


class Listing(Protocol):
    """The prices of one provider at one time."""

    def find(self, model: str) -> Price | None:
        """Return the price of a model."""
        ...

    def every(self) -> tuple[Price, ...]:
        """Return all prices in force."""
        ...


class _Nothing:
    """The listing of a price that stands alone."""

    def find(self, model: str) -> Price | None:
        """Know no model."""
        return None

    def every(self) -> tuple[Price, ...]:
        """Know no price."""
        return ()


_NOTHING = _Nothing()


class Tariff(msgspec.Struct, frozen=True):
    """What a call costs; `speed` and `inference_geo` are what it asked for.

    They count where the provider does not say how it served the call.
    """

    price: Price
    listing: Listing = _NOTHING
    speed: str | None = None
    inference_geo: str | None = None

    @property
    def model(self) -> str:
        """The model's own id, one for all its names."""
        return self.price.model

    @property
    def context_window(self) -> int:
        """The most input tokens of a pass."""
        return self.price.context_window

    @property
    def max_seconds(self) -> int:
        """How long a call may take upstream, because its time costs something; 0 if it does not."""
        return self.price.max_seconds

    def time(self, milliseconds: int) -> int:
        """Return what so much of the upstream's time costs in nano-dollars, rounded up."""
        return -(-self.price.second * milliseconds // (1000 * PARTS))

    def cost(self, usage: Usage) -> Cost:
        """Return what `usage` costs; a figure the provider left out counts zero.

        The totals are the request's own model's, and every pass beside them has its own. When a
        fallback model answered, each pass is priced by its model instead of the totals.
        """
        passes = usage.passes
        if not passes:
            parts, known = self._own(usage, usage)
        else:
            parts, known = 0, True
            fallen = any(each.kind == FALLBACK for each in passes)
            if not fallen:
                parts, known = self._own(usage, usage)
            for each in passes:
                if fallen or each.kind != _MESSAGE:
                    more, sure = self._pass(each, usage)
                    parts += more
                    known = known and sure and each.kind in _KNOWN_KINDS
        if usage.web_search_requests:
            fee, sure = self._search_fee()
            parts += fee * usage.web_search_requests * GEO
            known = known and sure
        unit = PARTS * GEO
        return Cost((parts + unit // 2) // unit, not known)  # nothing here is negative: half up

    def _own(self, said: Usage | Pass, call: Usage) -> tuple[int, bool]:
        """Price figures of the request's own model, in PARTS times GEO."""
        speed, geo = call.speed or self.speed, call.inference_geo or self.inference_geo
        return _cost(self.price, said, call.service_tier, speed, geo)

    def _pass(self, said: Pass, call: Usage) -> tuple[int, bool]:
        if said.model is None:
            return self._own(said, call)
        price = self.listing.find(said.model)
        if price is self.price or (price is None and said.model == self.model):
            return self._own(said, call)
        geo = call.inference_geo or self.inference_geo
        if price is None:
            # The provider named a model that nobody priced: the dearest that is known.
            most = 0
            for each in (self.price, *self.listing.every()):
                for plan in each.all_plans:
                    most = max(most, plan.cost(said) * each.multiple(geo)[0])
            return most, False
        # Another model is fast only where it can be.
        speed = call.speed or self.speed
        return _cost(price, said, call.service_tier, speed if speed in price.speeds else None, geo)

    def _search_fee(self) -> tuple[int, bool]:
        fee = self.price.web_search
        if fee is not None:
            return fee, True
        return max((each.web_search or 0 for each in self.listing.every()), default=0), False


def _cost(
    price: Price, said: Usage | Pass, tier: str | None, speed: str | None, geo: str | None
) -> tuple[int, bool]:
    plans, known = price.served(tier, speed)
    multiple, placed = price.multiple(geo)
    return max(plan.cost(said) for plan in plans) * multiple, known and placed
