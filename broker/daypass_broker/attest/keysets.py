"""Issuers' public keys: fetched by discovery or URL, kept for a while, never for ever.

A key set is fetched again when it is old, and at once when a token names a key that is not in it:
issuers change keys without notice. Strangers can name keys too, so that costs at most one request
a cool-down. An issuer that does not answer keeps its last keys for an hour, then they are gone:
a key that was withdrawn must not verify for as long as somebody manages to block us.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from daypass_broker.attest import jws
from daypass_broker.attest.https import FetchError
from daypass_broker.attest.jws import Key
from daypass_core.log import event, get_logger

log = get_logger(__name__)

FRESH_SECONDS = 300.0
STALE_SECONDS = 3600.0
"""How long keys are used that could not be fetched again, counted from the last good fetch."""
COOL_DOWN_SECONDS = 30.0
"""Between two fetches for keys that a token named and the set has not."""
RETRY_SECONDS = 5.0
"""Between two fetches of an issuer that failed."""
DISCOVERY = "/.well-known/openid-configuration"

Fetch = Callable[[str], Awaitable[bytes]]


class KeysUnavailable(Exception):
    """There are no keys to decide with: the issuer does not answer. The message names its host."""


@dataclass(slots=True)
class _Set:
    """What is known of one issuer; moments are monotonic seconds, -inf for never."""

    keys: dict[str, Key] = field(default_factory=dict)
    fetched: float = float("-inf")
    failed: float = float("-inf")
    asked: float = float("-inf")  # the last fetch because of an unknown key
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class KeySets:
    """The key sets of all issuers that rules name; `fetch` gets a URL's body or raises FetchError.

    One object a running loop.
    """

    def __init__(self, fetch: Fetch, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._monotonic = monotonic
        self._sets: dict[tuple[str, str | None], _Set] = {}

    async def find(self, issuer: str, url: str | None, key_id: str) -> Key | None:
        """Return a key of an issuer, whose set is at `url` or found by discovery; None: no such.

        Raises KeysUnavailable.
        """
        one = self._sets.setdefault((issuer, url), _Set())
        # Who holds a known key does not wait for another's fetch: old keys are good for an hour.
        waits = not one.lock.locked() or key_id not in one.keys or self._gone(one)
        if waits and self._due(one, key_id):
            async with one.lock:
                # Somebody else may have fetched while this one waited.
                if self._due(one, key_id):
                    await self._refresh(one, issuer, url)
        if self._gone(one):
            raise KeysUnavailable(f"no keys of {urlsplit(issuer).hostname or issuer}")
        return one.keys.get(key_id)

    def forget(self, kept: set[tuple[str, str | None]]) -> None:
        """Drop the sets that no rule names any more."""
        for source in self._sets.keys() - kept:
            del self._sets[source]

    def _gone(self, one: _Set) -> bool:
        return self._monotonic() - one.fetched > STALE_SECONDS

    def _due(self, one: _Set, key_id: str) -> bool:
        now = self._monotonic()
        if now - one.failed < RETRY_SECONDS:
            return False
        if now - one.fetched > FRESH_SECONDS:
            return True
        # Counted from the last such fetch and not from the last of any kind: a key that came
        # right after a regular one is found at once.
        return key_id not in one.keys and now - one.asked > COOL_DOWN_SECONDS

    async def _refresh(self, one: _Set, issuer: str, url: str | None) -> None:
        was_fresh = self._monotonic() - one.fetched <= FRESH_SECONDS
        try:
            keys = await self._read(issuer, url)
        except (FetchError, ValueError) as error:
            one.failed = self._monotonic()
            event(log, "issuer_keys_not_read", issuer=issuer, cause=str(error))
            return
        one.keys, one.fetched = keys, self._monotonic()
        if was_fresh:
            one.asked = one.fetched

    async def _read(self, issuer: str, url: str | None) -> dict[str, Key]:
        if url is None:
            url = await self._discover(issuer)
        return jws.read_keys(jws.decode_json(await self._fetch(url)))

    async def _discover(self, issuer: str) -> str:
        document = jws.decode_json(await self._fetch(issuer.rstrip("/") + DISCOVERY))
        if not isinstance(document, dict) or document.get("issuer") != issuer:
            raise ValueError("discovery document is of another issuer")
        url = document.get("jwks_uri")
        if not isinstance(url, str) or not url.startswith("https://"):
            raise ValueError("jwks_uri of the discovery document is not https")
        return url
