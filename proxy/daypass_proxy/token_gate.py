"""How many token requests may be under way at once: in all, and for one peer.

Held in `Services`, entered by `token`. A place is kept while the broker is waited for, so the bound
is also what a broker that restarts finds at its door.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from daypass_proxy.exchange import UNIX_PEER

MAX_IN_FLIGHT = 64
MAX_PER_PEER = 8
# Behind a shared Unix socket all sandboxes are one peer.
MAX_PER_SOCKET = 32


@dataclass(slots=True)
class TokenGate:
    """How many token requests are under way, in all and per peer."""

    total: int = 0
    peers: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def enter(self, peer: str) -> Iterator[bool]:
        """Give True and hold a place, or False when there is none."""
        most = MAX_PER_SOCKET if peer == UNIX_PEER else MAX_PER_PEER
        mine = self.peers.get(peer, 0)
        if self.total >= MAX_IN_FLIGHT or mine >= most:
            yield False
            return
        self.total += 1
        self.peers[peer] = mine + 1
        try:
            yield True
        finally:
            self.total -= 1
            self.peers[peer] -= 1
            if not self.peers[peer]:
                del self.peers[peer]
