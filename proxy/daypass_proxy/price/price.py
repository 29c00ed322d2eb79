"""The price of one model: a plan for each way it is served, multiples by place, fees.

Place in the flow: `price.table` finds it, `price.tariff` prices what a call used with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from daypass_proxy.price.rates import Plan

GEO = 10**4
"""A multiple by place is a whole number of ten-thousandths."""
ORDINARY = "standard"
"""The service tier and the speed that the plan of a model is for."""
# Served in advance or later; what they cost without a plan of their own is not known exactly, but
# is not more than the ordinary price (a commitment, a discount).
_NOT_DEARER = frozenset({"priority", "batch"})
# What providers say of a call that no place was chosen for.
_ANYWHERE = frozenset({"global", "not_available"})


@dataclass(frozen=True, slots=True)
class Price:
    """What one model costs from some day on.

    `service_tiers` and `speeds` hold the plans of what is not ordinary, `geos` the multiples of
    places in ten-thousandths, `web_search` the fee for one search in PARTS of a nano-dollar (None:
    it has no price). `thinks_unasked` says that a request which leaves thinking open may get it.
    `second` is the price of a second of a call's time upstream in PARTS of a nano-dollar, and
    `max_seconds` where such a call is cut; 0 where time costs nothing.
    """

    model: str
    context_window: int
    plan: Plan
    service_tiers: Mapping[str, Plan] = field(default_factory=dict)
    speeds: Mapping[str, Plan] = field(default_factory=dict)
    geos: Mapping[str, int] = field(default_factory=dict)
    web_search: int | None = None
    thinks_unasked: bool = True
    second: int = 0
    max_seconds: int = 0

    def served(self, service_tier: str | None, speed: str | None) -> tuple[tuple[Plan, ...], bool]:
        """Return the plans of a call that was served so, and whether its price is known.

        The dearest of them counts. What is not known is taken for the dearest that is.
        """
        if service_tier in (None, ORDINARY) and speed in (None, ORDINARY):
            return (self.plan,), True
        plans, known = list[Plan](), True
        for value, listed in ((service_tier, self.service_tiers), (speed, self.speeds)):
            if value is None or value == ORDINARY:
                continue
            plan = listed.get(value)
            if plan is not None:
                plans.append(plan)
            elif value in _NOT_DEARER:
                plans.append(self.plan)
                known = False
            else:
                return self.all_plans, False
        return tuple(plans), known and len(plans) == 1

    @property
    def all_plans(self) -> tuple[Plan, ...]:
        """Every plan of the model, the ordinary one first."""
        return (self.plan, *self.service_tiers.values(), *self.speeds.values())

    def multiple(self, geo: str | None) -> tuple[int, bool]:
        """Return the multiple of a place in ten-thousandths, and whether it is known."""
        if geo is None or geo in _ANYWHERE:
            return self.geos.get(geo or "global", GEO), True
        if geo in self.geos:
            return self.geos[geo], True
        return self.dearest_multiple, False

    @property
    def dearest_multiple(self) -> int:
        """The highest multiple of a place that is known."""
        return max(GEO, *self.geos.values()) if self.geos else GEO
