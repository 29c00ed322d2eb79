"""The provider keys: read from Vault, a file or the environment, kept fresh, told to nobody.

Place in the flow: `upstream` takes the credential header of the caller's tenant from here, asks for
one re-read when the provider refuses it, and has error answers searched for the key. Keys are read
in a thread at start and every minute; a call finds its key in memory. The only file of the proxy
that reveals a secret.
"""

from __future__ import annotations

import asyncio
import base64
import random
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from logging import ERROR
from typing import Protocol
from urllib.parse import quote

from daypass_core.clock import Clock
from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Problem, Refusal
from daypass_core.secret import BadReference, Reference, Secret, SecretUnreadable, read_secret_file
from daypass_core.vault import VaultError, VaultMissing
from daypass_proxy.providers import Provider

log = get_logger(__name__)

REFRESH_SECONDS = 60
STALE_SECONDS = 15 * 60
REREAD_SECONDS = 10
_RETRY_SECONDS = 1  # between attempts to read a key that was never read
_AT_ONCE = 4
_SHORTEST_FORM = 8
_SHORTEST_HALF = 12


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


class Keyring:
    """The keys of all tenants of this process."""

    def __init__(
        self,
        references: Mapping[str, Reference],
        *,
        env_secrets: Mapping[str, Secret],
        vault: SecretReader | None,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`references` by tenant, "*" for all others; `jitter` gives 0 … 1."""
        self._references = references
        self._env_secrets = env_secrets
        self._vault = vault
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._held: dict[Reference, _Held] = {}
        # A tenant's reference never changes; only tenants of tokens we signed come here.
        self._by_tenant: dict[str, _Held] = {}
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._refresher: asyncio.Task[None] | None = None
        self._reading: set[asyncio.Task[None]] = set()
        self.reads = {"ok": 0, "failed": 0}
        """How reads of keys ended; for the metrics."""

    async def start(self) -> None:
        """Read every key that is named, then keep them fresh; a failed read is logged only."""
        for reference in self._references.values():
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

    async def header_for(self, tenant: str, provider: Provider) -> tuple[bytes, bytes]:
        """Return the credential header of this tenant; raises KeyUnavailable.

        Answers from memory, except for the first call of a tenant of the "*" reference.
        """
        held = self._find(tenant)
        if held.secret is None:
            await self._whatever_the_caller_does(self._first_read(held))
        if held.secret is None or self._clock.monotonic() - held.read_at > STALE_SECONDS:
            raise KeyUnavailable
        return provider.credential(held.secret.reveal())

    async def refresh(self, tenant: str, provider: Provider, refused: tuple[bytes, bytes]) -> bool:
        """Read the tenant's key again because the provider refused this header.

        True when the key is now another one, so that trying again makes sense. Reads a key at
        most once in 10 s, however many calls were refused.
        """
        held = self._find(tenant)
        if not self._differs(held, provider, refused):
            await self._whatever_the_caller_does(self._reread(held, provider, refused))
        return self._differs(held, provider, refused)

    def leaks(self, tenant: str, data: bytes) -> bool:
        """Say whether `data` holds this tenant's key, plain or coded, or half of it (row 15)."""
        try:
            held = self._find(tenant)
        except KeyUnavailable:
            return False
        for forms in (held.forms, held.old_forms):
            if forms is not None and forms.search(data):
                return True
        return False

    async def read_all(self) -> None:
        """Read every key that was ever asked for once more."""
        await asyncio.gather(*(self._read_locked(held) for held in list(self._held.values())))

    def _find(self, tenant: str) -> _Held:
        known = self._by_tenant.get(tenant)
        if known is not None:
            return known
        reference = self._references.get(tenant, self._references.get("*"))
        try:
            own = None if reference is None else reference.for_tenant(tenant)
        except BadReference:
            own = None
        if own is None:
            event(log, "key_not_configured", level=ERROR, tenant=tenant)
            raise KeyUnavailable
        held = self._held.get(own)
        if held is None:
            held = self._held[own] = _Held(own)
        self._by_tenant[tenant] = held
        return held

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
            forms = _pattern(_forms(secret.reveal())) if changed else held.forms
        except VaultMissing as error:
            # Somebody took the key away; a Vault that cannot answer says so otherwise.
            held.secret = None
            self._failed(held, error)
        except (VaultError, SecretUnreadable, _Unusable) as error:
            self._failed(held, error)
        except Exception as error:
            # Unforeseen, so its text is not ours to show; it must not end the refreshing of others.
            self._failed(held, _Unusable(type(error).__name__))
        else:
            if held.secret is not None and changed:
                held.old_forms = held.forms
                event(log, "key_changed", reference=str(held.reference))
            held.secret, held.read_at, held.forms = secret, began, forms
            self.reads["ok"] += 1

    def _blocking_read(self, reference: Reference) -> Secret:
        if reference.kind == "vault":
            if self._vault is None:
                raise _Unusable("no vault is configured")
            return self._vault.read(reference.mount, reference.path, reference.field)
        if reference.kind == "file":
            return read_secret_file(reference.path)
        secret = self._env_secrets.get(reference.path)
        if secret is None:
            raise _Unusable("variable is not set")
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


class _Unusable(Exception):
    """A key that cannot be had or sent; the message holds no part of it."""


def basic_credential(user: str, password: Secret) -> bytes:
    """Return a credential as Basic authentication says it to an egress proxy (RFC 7617)."""
    return b"Basic " + base64.b64encode(f"{user}:{password.reveal()}".encode())


def _forms(key: str) -> frozenset[bytes]:
    """Return the byte strings by which `key` would be found; raises _Unusable."""
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise _Unusable("key holds characters that cannot stand in a header")
    raw = key.encode()
    middle = len(raw) // 2
    halves = [half for half in (raw[:middle], raw[middle:]) if len(half) >= _SHORTEST_HALF]
    if halves:
        # The end as well, by which keys are told apart; all keys of a provider begin alike.
        halves.append(raw[-_SHORTEST_HALF:])
    forms = {
        raw,
        quote(key, safe="").encode(),
        key.replace("/", r"\/").encode(),
        raw.hex().encode(),
        raw.hex().upper().encode(),
    }
    for code in (base64.b64encode, base64.urlsafe_b64encode):
        # Inside longer base64 the key may begin at any of three alignments; what depends on the
        # neighbouring bytes is cut off at both ends.
        for shift in range(3):
            coded = code(bytes(shift) + raw)
            forms.add(coded[(shift * 8 + 5) // 6 : len(raw + bytes(shift)) * 8 // 6])
    found = [form for form in (*forms, *halves) if len(form) >= _SHORTEST_FORM]
    # Where a form is, every part of it is: looking for the parts alone finds as much.
    return frozenset(
        form for form in found if not any(part in form for part in found if part != form)
    )


def _pattern(forms: frozenset[bytes]) -> re.Pattern[bytes] | None:
    """Return what finds any of `forms`; None when there are none, for that would find all."""
    if not forms:
        return None
    pattern = re.compile(b"|".join(map(re.escape, sorted(forms))))
    # The module remembers what it compiled; a key is remembered here alone.
    re.purge()
    return pattern
