"""Which provider key a tenant uses: `tenant=reference`, as the settings say it.

Read by `settings` for the providers that are built in, by `upstreams` for those of one's own.
Where a tenant has several keys of one provider, they are a pool: `keyring_pool` takes turns.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from daypass_core.secret import Reference, parse_reference

MOST_KEYS = 16
MOST_WEIGHT = 100
_TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}|\*")
# A path may hold these characters too: only what begins another reference is one.
_BETWEEN = re.compile(r"\|(?=(?:[0-9]+\*)?(?:vault|env|file|federation)://)")
_WEIGHTED = re.compile(r"([0-9]{1,9})\*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Weighted:
    """One key of a pool; of all its calls it gets `weight` parts."""

    reference: Reference
    weight: int = 1


@dataclass(frozen=True, slots=True)
class PooledKeys:
    """The two or more keys of a tenant at one provider, in the order of the settings."""

    keys: tuple[Weighted, ...]


KeySource = Reference | PooledKeys
"""Where a tenant's key lives, or its keys."""


def references(source: KeySource) -> tuple[Reference, ...]:
    """Return every reference of a source."""
    if isinstance(source, PooledKeys):
        return tuple(each.reference for each in source.keys)
    return (source,)


def parse_keys(value: str) -> dict[str, KeySource]:
    """Read `tenant=reference[,tenant=reference]`; raises ValueError that repeats no value.

    A reference may be several, `[weight*]reference|[weight*]reference`.
    """
    keys: dict[str, KeySource] = {}
    for number, entry in enumerate(value.split(","), 1):
        tenant, separator, text = entry.strip().partition("=")
        if not separator or not _TENANT.fullmatch(tenant):
            raise ValueError(f"entry {number} must be tenant=reference or *=reference")
        if tenant in keys:
            raise ValueError(
                f"entry {number} repeats a tenant; for several keys of one write"
                " tenant=reference|reference"
            )
        try:
            keys[tenant] = _source(text, tenant)
        except ValueError as error:
            raise ValueError(f"entry {number}: {error}") from None
    return keys


def shared(keys: Mapping[str, KeySource]) -> bool:
    """Say whether two tenants could end up with the same reference."""
    flat = [(tenant, one) for tenant, source in keys.items() for one in references(source)]
    own = [(tenant, one) for tenant, one in flat if tenant != "*"]
    if len({one for _, one in own}) < len(own):
        return True
    defaults = [one for tenant, one in flat if tenant == "*"]
    return any(
        not default.per_tenant or any(_names_another(default, *each) for each in own)
        for default in defaults
    ) or any(_may_meet(*pair) for pair in combinations(defaults, 2))


def _source(text: str, tenant: str) -> KeySource:
    parts = _BETWEEN.split(text)
    if len(parts) == 1:
        return _reference(text, tenant)
    if len(parts) > MOST_KEYS:
        raise ValueError(f"names more than {MOST_KEYS} keys")
    keys = tuple(_weighted(part, tenant) for part in parts)
    if len({each.reference for each in keys}) < len(keys):
        raise ValueError("names a key twice; give it a weight instead, as in 2*reference")
    return PooledKeys(keys)


def _weighted(text: str, tenant: str) -> Weighted:
    match = _WEIGHTED.fullmatch(text)
    if match is None:
        return Weighted(_reference(text, tenant))
    weight = int(match[1])
    if not 1 <= weight <= MOST_WEIGHT:
        raise ValueError(f"a weight must be 1 to {MOST_WEIGHT}")
    return Weighted(_reference(match[2], tenant), weight)


def _reference(text: str, tenant: str) -> Reference:
    """Read one reference; raises BadReference, a ValueError."""
    reference = parse_reference(text)
    if tenant != "*" and reference.per_tenant:
        reference = reference.for_tenant(tenant)
    return reference


def _names_another(default: Reference, tenant: str, reference: Reference) -> bool:
    """Say whether an entry of `tenant` is what the "*" template gives to another tenant."""
    if (default.kind, default.mount, default.field) != (
        reference.kind,
        reference.mount,
        reference.field,
    ):
        return False
    pattern = re.escape(default.path).replace(re.escape("{tenant}"), "([a-z0-9][a-z0-9-]{0,62})")
    match = re.fullmatch(pattern, reference.path)
    return match is not None and any(name != tenant for name in match.groups())


def _may_meet(one: Reference, other: Reference) -> bool:
    """Say whether two templates of a pool could give the same key to two tenants."""
    mine, theirs = one.path.split("/"), other.path.split("/")
    places = (one.kind, one.mount, one.field), (other.kind, other.mount, other.field)
    if places[0] != places[1] or len(mine) != len(theirs):
        return False
    # Where both have the same template, it is of the same tenant that both give the same.
    if any(a == b and "{tenant}" in a for a, b in zip(mine, theirs, strict=True)):
        return False
    return all(_may_equal(a, b) for a, b in zip(mine, theirs, strict=True))


def _may_equal(one: str, other: str) -> bool:
    """Say whether two segments could become the same text: not if their ends differ."""
    if "{tenant}" not in one + other:
        return one == other
    begin, end = one.partition("{tenant}")[0], one.rpartition("{tenant}")[2]
    others = other.partition("{tenant}")[0], other.rpartition("{tenant}")[2]
    return (begin.startswith(others[0]) or others[0].startswith(begin)) and (
        end.endswith(others[1]) or others[1].endswith(end)
    )
