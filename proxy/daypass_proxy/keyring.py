"""The provider keys: read from Vault, a file or the environment, kept fresh, told to nobody.

Place in the flow: `upstream` takes the credential header of the caller's tenant from here and has
error answers searched for the key; `failover` asks for one re-read when the provider refuses it.
Keys are read in a thread at start and every minute; a call finds its key in memory. Of a tenant
with several keys `keyring_pool` says whose turn it is. The only file of the proxy that reveals a
secret.
"""

from __future__ import annotations

import asyncio
import base64
import random
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from logging import ERROR
from typing import Protocol

from daypass_core.clock import Clock
from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Problem, Refusal
from daypass_core.secret import BadReference, Reference, Secret, SecretUnreadable, read_secret_file
from daypass_core.vault import VaultError, VaultMissing
from daypass_proxy.key_forms import Unusable, forms_of, pattern
from daypass_proxy.key_references import KeySource, PooledKeys, references
from daypass_proxy.keyring_pool import KeyPool, PoolKey, Use
from daypass_proxy.providers import Provider

log = get_logger(__name__)

REFRESH_SECONDS = 60
STALE_SECONDS = 15 * 60
REREAD_SECONDS = 10
_RETRY_SECONDS = 1  # between attempts to read a key that was never read
_AT_ONCE = 4
NO_KEY = "unused"
"""What an upstream that asks for no key is sent as one."""


class SecretReader(Protocol):
    """What the keyring needs of Vault."""

    def read(self, mount: str, path: str, field: str) -> Secret:
        """Return one field; blocks. Raises VaultError."""
        ...


class KeyUnavailable(Refusal):
    """There is no usable key for this tenant now (503)."""

    def __init__(self) -> None:
        super().__init__(Problem.of(Code.KEY_UNAVAILABLE))


@dataclass(slots=True)
class _Held:
    """One key in memory. `forms` are how it could show in an answer, `old_forms` the last key's.

    A pattern finds them in one pass over the headers of every answer; None when there are none.
    """

    reference: Reference
    secret: Secret | None = None
    read_at: float = 0.0
    tried_at: float | None = None
    reread_at: float | None = None
    forms: re.Pattern[bytes] | None = field(default=None, repr=False)
    old_forms: re.Pattern[bytes] | None = field(default=None, repr=False)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def is_in(self, data: bytes) -> bool:
        """Say whether `data` holds the key, or the one before it."""
        for forms in (self.forms, self.old_forms):
            if forms is not None and forms.search(data):
                return True
        return False


class Keyring:
    """The keys of all tenants of this process."""

    def __init__(
        self,
        sources: Mapping[str, Mapping[str, KeySource]],
        *,
        env_secrets: Mapping[str, Secret],
        vault: SecretReader | None,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        keyless: Collection[str] = (),
    ) -> None:
        """`sources` by provider and tenant, "*" for all others; `jitter` gives 0 … 1.

        `keyless` are the providers that ask for no key.
        """
        self._sources = sources
        self._env_secrets = env_secrets
        self._vault = vault
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._keyless = frozenset(keyless)
        self._held: dict[Reference, _Held] = {}
        # A tenant's reference never changes; only tenants of tokens we signed come here.
        self._by_tenant: dict[str, dict[str, _Held]] = {name: {} for name in sources}
        self._pools: dict[tuple[str, str], KeyPool] = {}
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._refresher: asyncio.Task[None] | None = None
        self._reading: set[asyncio.Task[None]] = set()
        self.reads = {"ok": 0, "failed": 0}
        """How reads of keys ended; for the metrics."""
        self.uses: dict[tuple[str, str], Use] = {
            (provider, str(one)): Use()
            for provider, tenants in sources.items()
            for source in tenants.values()
            if isinstance(source, PooledKeys)
            for one in references(source)
        }
        """What became of each key of a pool, by provider and reference as in the settings."""
        self.pooled = bool(self.uses)
        """Whether any tenant has a pool; where none has, nobody needs to ask `pool`."""

    async def start(self) -> None:
        """Read every key that is named, then keep them fresh; a failed read is logged only."""
        for tenants in self._sources.values():
            for source in tenants.values():
                for reference in references(source):
                    if not reference.per_tenant:
                        self._held.setdefault(reference, _Held(reference))
        await self.read_all()
        self._refresher = asyncio.create_task(self._keep_fresh(), name="keyring")

    async def close(self) -> None:
        """Stop refreshing, and reads under way."""
        tasks = [*self._reading, *([self._refresher] if self._refresher else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def age(self) -> float | None:
        """Seconds since the key that was read longest ago was read; None without any."""
        read = [held.read_at for held in list(self._held.values()) if held.secret is not None]
        return self._clock.monotonic() - min(read) if read else None

    def pool(self, tenant: str, provider: str) -> KeyPool | None:
        """Return this tenant's keys at the provider where there are several."""
        tenants = self._sources.get(provider, {})
        source = tenants.get(tenant, tenants.get("*"))
        if not isinstance(source, PooledKeys):
            return None
        known = self._pools.get((provider, tenant))
        return known or self._new_pool(source, tenant, provider)

    async def read_new(self, pool: KeyPool) -> None:
        """Read the keys of a pool that were never asked for: answers are searched for all."""
        new = [held for key in pool.keys if (held := self._hold(key.reference)).tried_at is None]
        reads = [self._whatever_the_caller_does(self._first_read(held)) for held in new]
        await asyncio.gather(*reads)

    async def header_for(
        self, tenant: str, provider: Provider, key: PoolKey | None = None
    ) -> tuple[bytes, bytes]:
        """Return the credential header of this tenant at the provider; raises KeyUnavailable.

        Where the tenant has a pool, `key` says with which of its keys. Answers from memory, except
        for the first call of a tenant of the "*" reference.
        """
        if provider.name in self._keyless:
            return provider.credential(NO_KEY)
        held = self._find(tenant, provider.name) if key is None else self._hold(key.reference)
        if held.secret is None:
            await self._whatever_the_caller_does(self._first_read(held))
        if held.secret is None or self._clock.monotonic() - held.read_at > STALE_SECONDS:
            raise KeyUnavailable
        return provider.credential(held.secret.reveal())

    async def refresh(
        self,
        tenant: str,
        provider: Provider,
        refused: tuple[bytes, bytes],
        key: PoolKey | None = None,
    ) -> bool:
        """Read the tenant's key, or `key` of its pool, again: the provider refused this header.

        True when the key is now another one, so that trying again makes sense. Reads a key at
        most once in 10 s, however many calls were refused.
        """
        if provider.name in self._keyless:
            return False
        held = self._find(tenant, provider.name) if key is None else self._hold(key.reference)
        if not self._differs(held, provider, refused):
            await self._whatever_the_caller_does(self._reread(held, provider, refused))
        return self._differs(held, provider, refused)

    def leaks(self, tenant: str, provider: str, data: bytes) -> bool:
        """Say whether `data` holds this tenant's key, plain or coded, or half of it (row 15).

        The key for this provider, or any key of its pool: another's was never sent there.
        """
        if provider in self._keyless:
            return False
        if self.pooled and (pool := self.pool(tenant, provider)) is not None:
            return any(self._hold(key.reference).is_in(data) for key in pool.keys)
        try:
            held = self._find(tenant, provider)
        except KeyUnavailable:
            return False
        return held.is_in(data)

    async def read_all(self) -> None:
        """Read every key that was ever asked for once more."""
        await asyncio.gather(*(self._read_locked(held) for held in list(self._held.values())))

    def _find(self, tenant: str, provider: str) -> _Held:
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
            event(log, "key_not_configured", level=ERROR, tenant=tenant, provider=provider)
            raise KeyUnavailable
        held = by_tenant[tenant] = self._hold(own)
        return held

    def _hold(self, reference: Reference) -> _Held:
        held = self._held.get(reference)
        if held is None:
            held = self._held[reference] = _Held(reference)
        return held

    def _new_pool(self, source: PooledKeys, tenant: str, provider: str) -> KeyPool | None:
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
            return None
        pool = self._pools[provider, tenant] = KeyPool(keys)
        return pool

    @staticmethod
    def _differs(held: _Held, provider: Provider, refused: tuple[bytes, bytes]) -> bool:
        return held.secret is not None and provider.credential(held.secret.reveal()) != refused

    async def _keep_fresh(self) -> None:
        while True:
            # Jitter, so that a fleet of proxies does not ask Vault in step.
            await self._sleep(REFRESH_SECONDS * (0.9 + 0.2 * self._jitter()))
            await self.read_all()

    async def _read_locked(self, held: _Held) -> None:
        async with self._few, held.lock:
            await self._read(held)

    async def _whatever_the_caller_does(self, reading: Coroutine[None, None, None]) -> None:
        """Wait for a read that all calls of a tenant wait for: who hangs up must not stop it."""
        task = asyncio.create_task(reading, name="keyring read")
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        await asyncio.shield(task)

    async def _reread(self, held: _Held, provider: Provider, refused: tuple[bytes, bytes]) -> None:
        async with held.lock:
            now = self._clock.monotonic()
            lately = held.reread_at is not None and now - held.reread_at < REREAD_SECONDS
            if not lately and not self._differs(held, provider, refused):
                held.reread_at = now
                await self._read(held)

    async def _first_read(self, held: _Held) -> None:
        async with held.lock:
            now = self._clock.monotonic()
            tried = held.tried_at is not None and now - held.tried_at < _RETRY_SECONDS
            if held.secret is None and not tried:
                await self._read(held)

    async def _read(self, held: _Held) -> None:
        """Read one key in a thread; on failure keep what there is, and let it age."""
        began = held.tried_at = self._clock.monotonic()
        try:
            secret = await asyncio.to_thread(self._blocking_read, held.reference)
            changed = held.secret != secret
            forms = pattern(forms_of(secret.reveal())) if changed else held.forms
        except VaultMissing as error:
            # Somebody took the key away; a Vault that cannot answer says so otherwise.
            held.secret = None
            self._failed(held, error)
        except (VaultError, SecretUnreadable, Unusable) as error:
            self._failed(held, error)
        except Exception as error:
            # Unforeseen, so its text is not ours to show; it must not end the refreshing of others.
            self._failed(held, Unusable(type(error).__name__))
        else:
            if held.secret is not None and changed:
                held.old_forms = held.forms
                event(log, "key_changed", reference=str(held.reference))
                for pool in self._pools.values():
                    pool.renewed(held.reference)
            held.secret, held.read_at, held.forms = secret, began, forms
            self.reads["ok"] += 1

    def _blocking_read(self, reference: Reference) -> Secret:
        if reference.kind == "vault":
            if self._vault is None:
                raise Unusable("no vault is configured")
            return self._vault.read(reference.mount, reference.path, reference.field)
        if reference.kind == "file":
            return read_secret_file(reference.path)
        secret = self._env_secrets.get(reference.path)
        if secret is None:
            raise Unusable("variable is not set")
        return secret

    def _failed(self, held: _Held, error: Exception) -> None:
        self.reads["failed"] += 1
        age = None if held.secret is None else round(self._clock.monotonic() - held.read_at)
        event(
            log,
            "key_read_failed",
            level=ERROR,
            reference=str(held.reference),
            reason=f"{type(error).__name__}: {error}",
            age_seconds=age,
        )


def basic_credential(user: str, password: Secret) -> bytes:
    """Return a credential as Basic authentication says it to an egress proxy (RFC 7617)."""
    return b"Basic " + base64.b64encode(f"{user}:{password.reveal()}".encode())
