"""Failed proofs per source: whoever only guesses is slowed down before a signature is checked.

A check costs what a token costs us, and an assertion may cost a question to somebody else's server.
A source is the sandbox's address as the proxy saw it, IPv6 by /64. Many sandboxes may share one, so
what has verified from there before passes whatever its neighbours do.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from daypass_core.source import network_of

BURST = 20.0
REFILL_PER_SECOND = 2.0
_MAX_SOURCES = 10_000
_MAX_KNOWN = 10_000


class Failures:
    """Buckets of failures by source, and digests of credentials that verified; both bounded."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def allows(self, peer: str, credential: str, now: float) -> bool:
        """Say whether a proof from this address is looked at; `now` is any clock in seconds.

        Who has no address, as behind a Unix socket, is everybody there: never slowed down.
        """
        source = network_of(peer)
        if source is None or _digest(credential) in self._known:
            return True
        return self._level(source, now) >= 1.0

    def failed(self, peer: str, credential: str, now: float) -> None:
        """Count a failure of this address; the credential is known no more."""
        self._known.pop(_digest(credential), None)
        source = network_of(peer)
        if source is not None:
            self._buckets[source] = (self._level(source, now) - 1.0, now)
            self._buckets.move_to_end(source)
            _trim(self._buckets, _MAX_SOURCES)

    def verified(self, credential: str) -> None:
        """Remember a credential that verified, or that was just given out."""
        digest = _digest(credential)
        self._known[digest] = None
        self._known.move_to_end(digest)
        _trim(self._known, _MAX_KNOWN)

    def _level(self, source: str, now: float) -> float:
        level, at = self._buckets.get(source, (BURST, now))
        return min(BURST, level + max(0.0, now - at) * REFILL_PER_SECOND)


def _digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest()


def _trim(
    entries: OrderedDict[str, tuple[float, float]] | OrderedDict[bytes, None], most: int
) -> None:
    while len(entries) > most:
        entries.popitem(last=False)
