"""The broker's verification keys as this proxy knows them: fetched, aged, kept when it is away.

`authenticate` asks for the keys of each unseen token. A set is used for 300 s and then renewed
behind the scenes; an unknown key id fetches at once, but not more often than every 30 s, so that
invented ids cost nobody anything (attack row 20). The last good set outlives a broker outage.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from daypass_core.clock import Clock
from daypass_core.jwks import JwksError, PublicKeys, parse_jwks
from daypass_core.log import event, get_logger
from daypass_proxy.broker_link import BrokerUnreachable

log = get_logger(__name__)

TTL_SECONDS = 300.0
UNKNOWN_KEY_SECONDS = 30.0
# While no set was ever read, look this often: a proxy may start before its broker.
EMPTY_SECONDS = 1.0


class JwksCache:
    """One key set, replaced whole."""

    def __init__(self, fetch: Callable[[], Awaitable[bytes]], clock: Clock) -> None:
        """`fetch` returns the key set's bytes or raises BrokerUnreachable."""
        self._fetch = fetch
        self._clock = clock
        self._keys: PublicKeys | None = None
        self._fetched = 0.0
        self._tried: float | None = None
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
        """Return the set to check a token with `key_id` against, None when none was ever read."""
        now = self._clock.monotonic()
        if self._keys is None:
            if self._tried is None or now - self._tried >= EMPTY_SECONDS or self._refreshing:
                await self._refreshed()
        elif key_id is not None and key_id not in self._keys:
            if self._refreshing or self._tried is None or now - self._tried >= UNKNOWN_KEY_SECONDS:
                await self._refreshed()
        elif now - self._fetched >= TTL_SECONDS and (
            self._tried is None or now - self._tried >= UNKNOWN_KEY_SECONDS
        ):
            self._start()
        return self._keys

    async def close(self) -> None:
        """Stop a fetch under way."""
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.gather(self._refresh, return_exceptions=True)

    @property
    def _refreshing(self) -> bool:
        return self._refresh is not None and not self._refresh.done()

    def _start(self) -> "asyncio.Task[None]":
        if self._refresh is None or self._refresh.done():
            self._tried = self._clock.monotonic()
            self._refresh = asyncio.get_running_loop().create_task(self._run())
        return self._refresh

    async def _refreshed(self) -> None:
        # Shielded: one client that hangs up must not take the fetch away from the others.
        await asyncio.shield(self._start())

    async def _run(self) -> None:
        try:
            self._keys = parse_jwks(await self._fetch())
            self._fetched = self._clock.monotonic()
            self.reads["ok"] += 1
        except (BrokerUnreachable, JwksError) as error:
            self.reads["failed"] += 1
            event(log, "key_set_not_read", level=logging.WARNING, reason=str(error))
