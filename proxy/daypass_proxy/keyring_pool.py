"""The several keys that a tenant has at one provider: whose turn it is, and which must cool down.

Place in the flow: `keyring` makes a pool where the settings name more than one key. `failover` asks
it which key a call goes up with, and tells it of each answer that is about the key; what is said
here of a key is by its reference. A pool is of one process and one tenant.

A key cools down for a model when the provider says 429 or 529, and for all models when it says
401. That is the only circuit breaker there is, and it never refuses a call: while all keys cool
down, the one that is ready first goes up, so that a client always hears the provider itself.

A rate limit that a sandbox ran into by its own rate is that sandbox's to feel: it is not moved to
another key, and stays with this one until the cool-down ends (`KeyPool.cool`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from daypass_core.secret import Reference
from daypass_proxy.exchange import HeaderPairs, header_text

COOL_SECONDS = 5.0
"""A cool-down when the provider does not say how long."""
COOL_MOST_SECONDS = 60.0
"""The longest cool-down, whatever the provider says."""
REFUSED_SECONDS = 60.0
"""The cool-down of a key that the provider does not know; a changed key ends it."""
MODELS_KEPT = 256
"""Of so many models a key keeps minutes and cool-downs: a wildcard has no end of names."""
_RATE_SECONDS = 60.0
_RATE_LEAST = 5
"""Fewer requests of a sandbox within a minute are no rate of its own."""
_WAIT = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


class Cause(StrEnum):
    """Why a key cools down."""

    RATE = "rate"
    OVERLOADED = "overloaded"
    REFUSED = "refused"


CAUSES = {401: Cause.REFUSED, 429: Cause.RATE, 529: Cause.OVERLOADED}
"""The answers that are about the key, and for which nothing is billed."""


@dataclass(slots=True)
class Use:
    """What became of one key of the settings, over all tenants that use it; for the metrics."""

    requests: int = 0
    failovers: int = 0
    cooled: Counter[Cause] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Cooling:
    """`until` in monotonic seconds; `sandbox` met a rate limit, by its `own` rate or not."""

    until: float
    sandbox: str = ""
    own: bool = False


@dataclass(slots=True)
class _Minute:
    """The requests for one model since `began`, by sandbox."""

    began: float
    by: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class PoolKey:
    """One key of a pool; `weight` is its part of the calls."""

    reference: Reference
    weight: int
    use: Use
    lead: int = 0
    """How far its turn has come, in the smooth weighted order."""
    _cooling: dict[str | None, _Cooling] = field(default_factory=dict)
    _minutes: dict[str, _Minute] = field(default_factory=dict)

    def cooling(self, model: str, now: float) -> _Cooling | None:
        """Return the cool-down in force for `model` that ends last, if there is one."""
        found = [
            each
            for each in (self._cooling.get(model), self._cooling.get(None))
            if each is not None and each.until > now
        ]
        return max(found, key=lambda each: each.until) if found else None

    def cooled_by(self, sandbox: str, model: str, now: float) -> bool:
        """Say whether a rate limit that `sandbox` met has this key cool down now."""
        cooling = self._cooling.get(model)
        return cooling is not None and cooling.until > now and cooling.sandbox == sandbox

    def cool(self, model: str | None, new: _Cooling, now: float) -> bool:
        """Take no further turn for `model`, or any where it is None; False when it took none now.

        Calls that were under way with a key that cools down may make it do so for longer.
        """
        old = self._cooling.get(model)
        if old is None or old.until <= now:
            if len(self._cooling) >= MODELS_KEPT:
                self._make_room(now)
            self._cooling[model] = new
            return True
        self._cooling[model] = replace(new if new.own else old, until=max(old.until, new.until))
        return False

    def _make_room(self, now: float) -> None:
        """Forget cool-downs that are over, then the oldest of a model, until one more fits."""
        for model in [model for model, each in self._cooling.items() if each.until <= now]:
            del self._cooling[model]
        while len(self._cooling) >= MODELS_KEPT:
            del self._cooling[next(model for model in self._cooling if model is not None)]

    def renewed(self) -> None:
        """Forget all cool-downs: the key is another one now."""
        self._cooling.clear()

    def sent(self, model: str, sandbox: str, now: float) -> None:
        """Count a request that goes up with this key."""
        self.use.requests += 1
        minute = self._minutes.get(model)
        if minute is None or now - minute.began >= _RATE_SECONDS:
            # A client chooses the names within a wildcard: the oldest minute makes room.
            self._minutes.pop(model, None)
            if len(self._minutes) >= MODELS_KEPT:
                del self._minutes[next(iter(self._minutes))]
            minute = self._minutes[model] = _Minute(now)
        minute.by[sandbox] += 1

    def mostly_of(self, sandbox: str, model: str) -> bool:
        """Say whether more than half of the last minute's requests were this sandbox's."""
        minute = self._minutes.get(model)
        if minute is None:
            return False
        own = minute.by[sandbox]
        return own >= _RATE_LEAST and own * 2 > minute.by.total()


class KeyPool:
    """The keys of one tenant at one provider."""

    def __init__(self, keys: Sequence[PoolKey]) -> None:
        self.keys = tuple(keys)

    def first(
        self, model: str, sandbox: str, now: float, without: Collection[PoolKey] = ()
    ) -> PoolKey | None:
        """Return the key that a call begins with; None only where none is left.

        That is the one whose turn it is of those that are ready, else the one that is ready first.
        `without` are keys that cannot be had.
        """
        left = [key for key in self.keys if key not in without]
        until: dict[PoolKey, float] = {}
        for key in left:
            cooling = key.cooling(model, now)
            if cooling is None:
                continue
            if cooling.own and cooling.sandbox == sandbox:
                return key
            until[key] = cooling.until
        ready = [key for key in left if key not in until]
        if ready:
            return _turn(ready)
        return min(left, key=until.__getitem__, default=None)

    def another(self, model: str, now: float, tried: Collection[PoolKey]) -> PoolKey | None:
        """Return the key that a call goes on with: one that was not tried and is ready, or None."""
        return _turn(
            [key for key in self.keys if key not in tried and key.cooling(model, now) is None]
        )

    def cool(
        self, key: PoolKey, cause: Cause, seconds: float, model: str, sandbox: str, now: float
    ) -> bool:
        """Have `key` cool down after an answer to `sandbox`; False when the call must not go on.

        A sandbox cools down one key for a model at a time: what it meets on the next one is its
        own rate too, or a request too large for any key, and says nothing to others.
        """
        own = False
        if cause is Cause.RATE:
            if any(each.cooled_by(sandbox, model, now) for each in self.keys):
                return False
            own = key.mostly_of(sandbox, model)
        cooling = _Cooling(now + seconds, sandbox if cause is Cause.RATE else "", own)
        if key.cool(None if cause is Cause.REFUSED else model, cooling, now):
            key.use.cooled[cause] += 1
        return not own

    def renewed(self, reference: Reference) -> None:
        """Take note that the key of `reference` was read, and is another one than before."""
        for key in self.keys:
            if key.reference == reference:
                key.renewed()


def cool_seconds(cause: Cause, headers: HeaderPairs) -> float:
    """Return for how long a key cools down: as told, within bounds; a date is not read as told."""
    if cause is Cause.REFUSED:
        return REFUSED_SECONDS
    for name, unit in ((b"retry-after-ms", 1000), (b"retry-after", 1)):
        said = header_text(headers, name)
        if _WAIT.fullmatch(said):
            return min(float(said) / unit, COOL_MOST_SECONDS)
    return COOL_SECONDS


def _turn(keys: Sequence[PoolKey]) -> PoolKey | None:
    """Return the next key by weights, spread evenly: of 2 and 1, in the order A B A."""
    if not keys:
        return None
    for key in keys:
        key.lead += key.weight
    chosen = max(keys, key=lambda key: key.lead)
    chosen.lead -= sum(key.weight for key in keys)
    return chosen
