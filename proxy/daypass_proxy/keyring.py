"""The provider keys: read from Vault, a file or the environment, kept fresh, told to nobody.

Place in the flow: `upstream` takes the credential header of the caller's tenant from here and has
error answers searched for the key; `failover` asks for one re-read when the provider refuses it.
Keys are read in threads at start and every minute, those that failed sooner; a call finds its key
in memory. Where there is no static key, `federation` exchanges an identity token for a bearer, and
that is renewed ahead of its end. Of a tenant with several keys `keyring_pool` says whose turn it
is. The only file of the proxy that reveals a secret.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from logging import ERROR
from typing import Protocol

from daypass_core.clock import Clock
from daypass_core.log import event, get_logger
from daypass_core.secret import Federation, Reference, Secret, SecretUnreadable, read_secret_file
from daypass_core.vault import VaultError, VaultMissing, VaultUnavailable
from daypass_proxy.federation import Bearer
from daypass_proxy.key_forms import Unusable, forms_of, pattern
from daypass_proxy.key_references import KeySource
from daypass_proxy.keyring_held import Held
from daypass_proxy.keyring_pool import KeyPool, PoolKey
from daypass_proxy.keyring_tenants import KeyUnavailable, TenantKeys
from daypass_proxy.keyring_threads import THREADS, ReadThreads
from daypass_proxy.providers import Provider

__all__ = ["KeyUnavailable", "Keyring", "SecretReader", "basic_credential"]

log = get_logger(__name__)

START_SECONDS = 15
"""How long a start waits for keys."""
REFRESH_SECONDS = 60
REREAD_SECONDS = 10
RETRY_SECONDS = 1
"""Between attempts to read a key that cannot be had, at first; the keyring's own double it."""
LONGEST_RETRY_SECONDS = 10
"""The longest pause while Vault is away; what is refused or missing is looked for every minute."""
_AT_ONCE = THREADS - 1  # of the keyring's own reads: one thread is for calls that wait
NO_KEY = "unused"
"""What an upstream that asks for no key is sent as one."""


class SecretReader(Protocol):
    """What the keyring needs of Vault."""

    def read(self, mount: str, path: str, field: str) -> Secret:
        """Return one field; blocks. Raises VaultError."""
        ...

    def reach(self) -> None:
        """Find out whether keys could be read at all; blocks. Raises VaultError."""
        ...


class Exchanger(Protocol):
    """What the keyring needs of `federation`."""

    async def exchange(self, who: Federation, assertion: str) -> Bearer:
        """Return a bearer for an identity token; raises key_forms.Unusable."""
        ...


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
        exchanger: Exchanger | None = None,
    ) -> None:
        """`sources` by provider and tenant, "*" for all others; `jitter` gives 0 … 1.

        `keyless` are the providers that ask for no key; `exchanger` is for federation:// alone.
        """
        self._env_secrets = env_secrets
        self._vault = vault
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._keyless = frozenset(keyless)
        self._exchanger = exchanger
        self._threads = ReadThreads()
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._keeping: list[asyncio.Task[None]] = []
        self._reading: set[asyncio.Task[None]] = set()
        self._tenants = TenantKeys(sources, self._keep)
        self._by_tenant = self._tenants.of_vault
        self._reached: bool | None = None  # None until somebody asked, if anybody has to
        self.reads = {"ok": 0, "failed": 0}
        """How reads of keys ended; for the metrics."""
        self.uses = self._tenants.uses
        """What became of each key of a pool, by provider and reference as in the settings."""
        self.pooled = bool(self.uses)
        """Whether any tenant has a pool; where none has, nobody needs to ask `pool`."""

    async def start(self) -> None:
        """Read every key that is named, then keep them fresh; a failed read is logged only.

        What takes longer than `START_SECONDS` is there when it comes.
        """
        self._tenants.take_named()
        await asyncio.wait([self._begin(self.read_all())], timeout=START_SECONDS)
        self._keeping.append(asyncio.create_task(self._keep_fresh(), name="keyring"))

    async def close(self) -> None:
        """Stop refreshing, and reads under way; a thread that hangs is not waited for."""
        tasks = [*self._reading, *self._keeping]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.close()

    @property
    def age(self) -> float | None:
        """Seconds since the key that was read longest ago was read; None without any."""
        return max(self.ages.values(), default=None)

    @property
    def ages(self) -> dict[str, float]:
        """Seconds since each key was read, by reference; a bearer is not among them."""
        return self._tenants.ages(self._clock.monotonic())

    @property
    def states(self) -> dict[str, int]:
        """How many keys are fresh, stale and lost."""
        return self._tenants.states(self._clock.monotonic())

    @property
    def lacking(self) -> str | None:
        """Why no call at all could go up for want of a key, as a sentence; None when one could.

        That one tenant has none is no reason to send the calls of all others elsewhere.
        """
        now, held = self._clock.monotonic(), list(self._tenants)
        if self._keyless or self._reached or any(each.usable(now) for each in held):
            return None
        if self._tenants.of_files or not (held or self._by_tenant):
            return None  # they are read at the first call of their tenant, and not before
        return "provider keys: not one can be read from where it lives"

    @property
    def findings(self) -> dict[Reference, str | None]:
        """Why each key could not be read the last time; None where it was."""
        return {held.reference: held.finding for held in self._tenants}

    def pool(self, tenant: str, provider: str) -> KeyPool | None:
        """Return this tenant's keys at the provider where there are several."""
        return self._tenants.pool(tenant, provider)

    async def read_new(self, pool: KeyPool) -> None:
        """Read the keys of a pool that were never asked for: answers are searched for all."""
        held = [self._tenants.hold(key.reference) for key in pool.keys]
        new = [self._needed_read(each) for each in held if each.tried_at is None]
        reads = [self._whatever_the_caller_does(reading) for reading in new]
        await asyncio.gather(*reads)

    async def header_for(
        self, tenant: str, provider: Provider, key: PoolKey | None = None
    ) -> tuple[bytes, bytes]:
        """Return the credential header of this tenant at the provider; raises KeyUnavailable.

        Where the tenant has a pool, `key` says with which of its keys. Answers from memory, except
        for the first call of a tenant of the "*" reference, and where there is no usable key.
        """
        if provider.name in self._keyless:
            return provider.credential(NO_KEY)
        held = self._of(tenant, provider.name, key)
        if not held.usable(self._clock.monotonic()):
            await self._whatever_the_caller_does(self._needed_read(held))
            if not held.usable(self._clock.monotonic()):
                raise KeyUnavailable(tenant, provider.name)
        assert held.secret is not None  # it is usable
        return _header(held, held.secret, provider)

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
        held = self._of(tenant, provider.name, key)
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
            return any(self._tenants.hold(key.reference).is_in(data) for key in pool.keys)
        try:
            held = self._tenants.find(tenant, provider)
        except KeyUnavailable:
            return False
        return held.is_in(data)

    async def read_all(self) -> None:
        """Read every key that was ever asked for once more, but those that are renewed.

        Those first that were read longest ago: behind a rate limit the last ones may get nothing.
        """
        everyone = sorted(self._tenants, key=lambda held: held.read_at)
        await self._read_these(one for one in everyone if not (one.federated and one.tried_at))

    def _of(self, tenant: str, provider: str, key: PoolKey | None) -> Held:
        if key is None:
            return self._tenants.find(tenant, provider)
        return self._tenants.hold(key.reference)

    @staticmethod
    def _differs(held: Held, provider: Provider, refused: tuple[bytes, bytes]) -> bool:
        return held.secret is not None and _header(held, held.secret, provider) != refused

    async def _keep_fresh(self) -> None:
        pause = float(RETRY_SECONDS)
        while True:
            # Jitter, so that a fleet of proxies does not ask Vault in step.
            left = REFRESH_SECONDS * (0.9 + 0.2 * self._jitter())
            while left > 0:
                failed = self._failed_ones()
                wait = min(left, pause) if failed or self._reached is False else left
                await self._sleep(wait)
                left -= wait
                if left > 0:
                    passing = self._reached is False or any(held.passing for held in failed)
                    most = LONGEST_RETRY_SECONDS if passing else REFRESH_SECONDS
                    pause = min(pause * 2, most)
                    await self._read_these(failed)
            if not self._failed_ones():
                pause = float(RETRY_SECONDS)
            await self.read_all()

    def _failed_ones(self) -> list[Held]:
        found = [held for held in self._tenants if held.error and not held.federated]
        return sorted(found, key=lambda held: held.read_at)

    def _keep(self, held: Held) -> None:
        """Have a bearer renewed from now on."""
        if held.federated:
            keeping = self._keep_bearer(held)
            self._keeping.append(asyncio.create_task(keeping, name="keyring bearer"))

    async def _keep_bearer(self, held: Held) -> None:
        """Exchange for the next bearer ahead of the end of each; the first is `_needed_read`'s."""
        pause = float(RETRY_SECONDS)
        while True:
            now = self._clock.monotonic()
            due = held.renewal_at(self._jitter()) - now
            await self._sleep(pause if held.error or held.secret is None else max(due, pause))
            async with held.lock:
                # A call may have had it exchanged meanwhile, because the provider refused it.
                early = held.renewal_at(1.0) - self._clock.monotonic()
                if held.tried_at is not None and (held.error or early <= 0):
                    await self._read(held)
            failed = held.error is not None
            pause = min(pause * 2, LONGEST_RETRY_SECONDS) if failed else float(RETRY_SECONDS)

    async def _read_these(self, several: Iterable[Held]) -> None:
        if self._by_tenant:
            await self._reach()
        await asyncio.gather(*(self._read_locked(held) for held in several))

    async def _reach(self) -> None:
        """Find out whether Vault could be asked for the key of a tenant that comes first now."""
        if self._vault is None:
            return
        try:
            await self._threads.run("vault", self._vault.reach)
        except Exception as error:  # as in _read: the refreshing of keys must not end with it
            reason = str(error) if isinstance(error, VaultError) else type(error).__name__
            if self._reached is not False:
                event(log, "vault_not_reached", level=ERROR, reason=reason)
            self._reached = False
        else:
            self._reached = True

    async def _read_locked(self, held: Held) -> None:
        async with self._few, held.lock:
            await self._read(held)

    async def _whatever_the_caller_does(self, reading: Coroutine[None, None, None]) -> None:
        """Wait for a read that all calls of a tenant wait for: who hangs up must not stop it."""
        await asyncio.shield(self._begin(reading))

    def _begin(self, reading: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(reading, name="keyring read")
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        return task

    async def _reread(self, held: Held, provider: Provider, refused: tuple[bytes, bytes]) -> None:
        async with held.lock:
            now = self._clock.monotonic()
            lately = held.reread_at is not None and now - held.reread_at < REREAD_SECONDS
            if not lately and not self._differs(held, provider, refused):
                await self._read(held)
                held.reread_at = self._clock.monotonic()  # it may have taken longer than the pause

    async def _needed_read(self, held: Held) -> None:
        async with held.lock:
            now = self._clock.monotonic()
            tried = held.tried_at is not None and now - held.tried_at < RETRY_SECONDS
            if not tried and not held.usable(now):
                await self._read(held)

    async def _read(self, held: Held) -> None:
        """Read one key; on failure keep what there is, and let it age."""
        began = held.tried_at = self._clock.monotonic()
        try:
            secret, life = await self._get(held.reference)
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
            if life is not None:
                event(log, "key_exchanged", reference=str(held.reference), life_seconds=round(life))
            elif held.secret is not None and changed:
                event(log, "key_changed", reference=str(held.reference))
            if changed:
                self._tenants.renewed(held.reference)
            held.took(secret, forms, began, life)
            self.reads["ok"] += 1

    async def _get(self, reference: Reference) -> tuple[Secret, float | None]:
        """Return a key, and its life in seconds where it has an end."""
        if reference.kind != "federation":
            return await self._threads.run(reference, self._blocking_read, reference), None
        if self._exchanger is None:
            raise Unusable("nothing to exchange identity tokens with")
        # Read at each exchange: whoever projects the file replaces it (case B23).
        identity = await self._threads.run(reference, read_secret_file, reference.path)
        return await self._exchanger.exchange(reference.federation, identity.reveal())

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

    def _failed(self, held: Held, error: Exception) -> None:
        self.reads["failed"] += 1
        now = self._clock.monotonic()
        if held.failed(error, now, passing=isinstance(error, VaultUnavailable)):
            age = None if held.secret is None else round(now - held.read_at)
            where, why = str(held.reference), held.error
            event(log, "key_read_failed", level=ERROR, reference=where, reason=why, age_seconds=age)


def _header(held: Held, secret: Secret, provider: Provider) -> tuple[bytes, bytes]:
    """Return the header that a key goes up in: a bearer's is the same at all providers."""
    if held.federated:
        return b"authorization", b"Bearer " + secret.reveal().encode("ascii")
    return provider.credential(secret.reveal())


def basic_credential(user: str, password: Secret) -> bytes:
    """Return a credential as Basic authentication says it to an egress proxy (RFC 7617)."""
    return b"Basic " + base64.b64encode(f"{user}:{password.reveal()}".encode())
