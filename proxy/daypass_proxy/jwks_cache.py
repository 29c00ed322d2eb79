"""The broker's verification keys as this proxy knows them: fetched, aged, kept when it is away.

`authenticate` asks for the keys of each unseen token. A set is used for 300 s and then renewed
behind the scenes; an unknown key id fetches at once, so a rotation refuses nobody, but at most once
a second, so that invented ids cost nobody anything (attack row 20). That is no gap: brokers publish
a key seconds before they sign with it, so a set younger than the pause has it. The last good set
outlives a broker outage for as long as any token signed before it can live.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from daypass_core.claims import MAX_ACCESS_LIFE
from daypass_core.clock import Clock
from daypass_core.jwks import JwksError, PublicKeys, parse_jwks
from daypass_core.log import event, get_logger
from daypass_core.verify import LEEWAY
from daypass_proxy.broker_link import BrokerUnreachable

log = get_logger(__name__)

TTL_SECONDS = 300.0
PAUSE_SECONDS = 1.0
"""Between the beginnings of two fetches; the broker's shortest notice of a new key is five."""
WAIT_SECONDS = 2.0
"""How long a call waits for a fetch; a broker that hangs must not hold calls as well."""
STALE_SECONDS = float(MAX_ACCESS_LIFE + LEEWAY)
"""A set older than this verifies nothing: what it could verify was issued since."""


class JwksCache:
    """One key set, replaced whole."""

    def __init__(self, fetch: Callable[[], Awaitable[bytes]], clock: Clock) -> None:
        """`fetch` returns the key set's bytes or raises BrokerUnreachable."""
        self._fetch = fetch
        self._clock = clock
        self._keys: PublicKeys | None = None
        self._fetched = 0.0
        self._tried: float | None = None
        self._failing = False
        self._refresh: asyncio.Task[None] | None = None
        self.reads = {"ok": 0, "failed": 0}
        """How fetches ended; for the metrics."""

    @property
    def ready(self) -> bool:
        """Say whether any key set was read."""
        return self._keys is not None

    @property
    def age(self) -> float | None:
        """Seconds since the set in use was fetched; None without one."""
        return None if self._keys is None else self._clock.monotonic() - self._fetched

    async def keys_for(self, key_id: str | None) -> PublicKeys | None:
        """Return the set to check a token with `key_id` against, None when that cannot be known."""
        age = self.age
        if age is None or age >= STALE_SECONDS or self._is_unknown(key_id):
            if not await self._refreshed() and self._is_unknown(key_id):
                return None  # it may have been published since
        elif age >= TTL_SECONDS and self._may_try():
            self._start()
        age = self.age
        return None if age is None or age >= STALE_SECONDS else self._keys

    async def renew(self) -> None:
        """Fetch the set now, unless that was just done: something speaks against what we know."""
        await self._refreshed()

    async def close(self) -> None:
        """Stop a fetch under way."""
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.gather(self._refresh, return_exceptions=True)

    def _is_unknown(self, key_id: str | None) -> bool:
        return key_id is not None and self._keys is not None and key_id not in self._keys

    @property
    def _refreshing(self) -> bool:
        return self._refresh is not None and not self._refresh.done()

    def _may_try(self) -> bool:
        return self._tried is None or self._clock.monotonic() - self._tried >= PAUSE_SECONDS

    def _start(self) -> "asyncio.Task[None]":
        if self._refresh is None or self._refresh.done():
            self._tried = self._clock.monotonic()
            self._refresh = asyncio.get_running_loop().create_task(self._run())
        return self._refresh

    async def _refreshed(self) -> bool:
        """Fetch unless that was just done; False when the newest set could not be had."""
        if self._refreshing or self._may_try():
            # Waited for, not awaited: a client that hangs up must not take the fetch from others.
            await asyncio.wait([self._start()], timeout=WAIT_SECONDS)
        return not self._failing and not self._refreshing

    async def _run(self) -> None:
        try:
            keys = parse_jwks(await self._fetch())
        except (BrokerUnreachable, JwksError) as error:
            self.reads["failed"] += 1
            if not self._failing:
                event(log, "key_set_not_read", level=logging.WARNING, reason=str(error))
            self._failing = True
            return
        if self._keys is None or set(keys) != set(self._keys):
            event(log, "key_set_changed", keys=len(keys))
        self._keys = keys
        self._fetched = self._clock.monotonic()
        self._failing = False
        self.reads["ok"] += 1
