"""Which keys belong to a tenant at a provider, and all that are in memory.

Place in the flow: `keyring` looks keys up here and reads them. What the settings name is fixed; a
key of the "*" reference and a pool are made at the first call of their tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from logging import ERROR

from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Problem, Refusal
from daypass_core.secret import BadReference, Reference
from daypass_proxy.key_references import KeySource, PooledKeys, references
from daypass_proxy.keyring_held import Held, State
from daypass_proxy.keyring_pool import KeyPool, PoolKey, Use

log = get_logger(__name__)


class KeyUnavailable(Refusal):
    """There is no usable key for this tenant now (503)."""

    def __init__(self, tenant: str, provider: str) -> None:
        # Both are in the caller's own token; where the key lives is no matter of a sandbox.
        title = f"the key of {tenant} at {provider} is not available right now"
        super().__init__(Problem.of(Code.KEY_UNAVAILABLE, title))


class NoKey(KeyUnavailable):
    """The settings have no key for this tenant at this provider (403): no wait brings one."""

    def __init__(self, tenant: str, provider: str) -> None:
        event(log, "key_not_configured", level=ERROR, tenant=tenant, provider=provider)
        title = f"there is no key of {tenant} at {provider} here"
        hint = "an admin can name one in the settings, or take the provider off the profile"
        problem = Problem.of(Code.INSUFFICIENT_SCOPE, title, hint=hint)
        Refusal.__init__(self, problem)


class TenantKeys:
    """The keys of all tenants of this process."""

    def __init__(
        self, sources: Mapping[str, Mapping[str, KeySource]], on_new: Callable[[Held], None]
    ) -> None:
        """`sources` by provider and tenant, "*" for all others; `on_new` is told of each key."""
        self._sources = sources
        self._on_new = on_new
        self._held: dict[Reference, Held] = {}
        # A tenant's reference never changes; only tenants of tokens we signed come here.
        self._by_tenant: dict[str, dict[str, Held]] = {name: {} for name in sources}
        self._pools: dict[tuple[str, str], KeyPool] = {}
        self._named = [
            one
            for tenants in sources.values()
            for source in tenants.values()
            for one in references(source)
        ]
        by_tenant = {one.kind for one in self._named if one.per_tenant}
        self.of_vault = "vault" in by_tenant
        """Whether Vault has keys by tenant, which no setting names."""
        self.of_files = bool(by_tenant - {"vault"})
        """Whether files are named by tenant."""
        self.uses: dict[tuple[str, str], Use] = {
            (provider, str(one)): Use()
            for provider, tenants in sources.items()
            for source in tenants.values()
            if isinstance(source, PooledKeys)
            for one in references(source)
        }

    def __iter__(self) -> Iterator[Held]:
        """Give all that are in memory, also to a thread that only looks."""
        return iter(list(self._held.values()))

    def take_named(self) -> None:
        """Hold every key that is named outright."""
        for reference in self._named:
            if not reference.per_tenant:
                self.hold(reference)

    def find(self, tenant: str, provider: str) -> Held:
        """Return a tenant's key; raises NoKey where the settings have none."""
        by_tenant = self._by_tenant.setdefault(provider, {})
        known = by_tenant.get(tenant)
        if known is not None:
            return known
        sources = self._sources.get(provider, {})
        source = sources.get(tenant, sources.get("*"))
        try:
            # Of a pool the first, for whoever does not ask for one of its keys.
            own = None if source is None else references(source)[0].for_tenant(tenant)
        except BadReference:
            own = None
        if own is None:
            raise NoKey(tenant, provider)
        held = by_tenant[tenant] = self.hold(own)
        return held

    def hold(self, reference: Reference) -> Held:
        """Return the key of a reference, which was not read yet if it is a new one."""
        held = self._held.get(reference)
        if held is None:
            held = self._held[reference] = Held(reference)
            self._on_new(held)
        return held

    def pool(self, tenant: str, provider: str) -> KeyPool | None:
        """Return a tenant's keys at the provider where there are several; raises NoKey.

        That is so where one of them cannot be named for this tenant, even if others could.
        """
        tenants = self._sources.get(provider, {})
        source = tenants.get(tenant, tenants.get("*"))
        if not isinstance(source, PooledKeys):
            return None
        known = self._pools.get((provider, tenant))
        return known or self._new_pool(source, tenant, provider)

    def renewed(self, reference: Reference) -> None:
        """Take note that the key of `reference` is another one than before."""
        for pool in self._pools.values():
            pool.renewed(reference)

    def ages(self, now: float) -> dict[str, float]:
        """Return seconds since each key was read; bearers end by themselves, not by age."""
        return {
            str(held.reference): now - held.read_at
            for held in self
            if held.secret is not None and not held.federated
        }

    def states(self, now: float) -> dict[str, int]:
        """Count the keys by what they are good for."""
        found = {state.value: 0 for state in State}
        for held in self:
            found[held.state(now).value] += 1
        return found

    def _new_pool(self, source: PooledKeys, tenant: str, provider: str) -> KeyPool:
        try:
            keys = [
                PoolKey(
                    each.reference.for_tenant(tenant),
                    each.weight,
                    self.uses[provider, str(each.reference)],
                )
                for each in source.keys
            ]
        except BadReference:
            raise NoKey(tenant, provider) from None
        pool = self._pools[provider, tenant] = KeyPool(keys)
        return pool
