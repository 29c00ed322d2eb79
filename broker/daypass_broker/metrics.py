"""The broker's metrics: small methods named by what has happened.

Held in `Services`. Requests are counted where they are answered; what can be looked up is read by
`gauges` when somebody asks. The broker works in threads, so counting takes a lock, which here
costs nothing beside a transaction. A label never holds what a stranger chose: routes and reasons
are words of ours, vendors those of the settings, and all of them are capped all the same.
"""

from __future__ import annotations

import threading

from prometheus_client import CollectorRegistry

from daypass_broker import metric_specs as specs
from daypass_core.metrics import Board, Capped

MAX_REASONS = 100
UNKNOWN = "unknown"


class Metrics:
    """Counts on a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.board = Board(self.registry)
        self._lock = threading.Lock()
        self._reason = Capped(MAX_REASONS)

    def token_answered(self, grant_type: str, outcome: str, seconds: float) -> None:
        """Count a token request; `outcome` is `issued` or an error word of RFC 6749."""
        with self._lock:
            self.board.count(specs.TOKEN_REQUESTS, grant_type, outcome).value += 1
            self.board.spread(specs.TOKEN_SECONDS).observe(seconds)

    def token_refused(self, reason: str) -> None:
        """Count why a token request was refused."""
        with self._lock:
            self.board.count(specs.TOKEN_REFUSALS, self._reason(reason)).value += 1

    def signed(self, purpose: str, seconds: float) -> None:
        """Count a signature."""
        with self._lock:
            self.board.spread(specs.SIGNING, purpose).observe(seconds)

    def admin_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request to the admin listener; `route` is its path without ids."""
        with self._lock:
            self.board.count(specs.ADMIN_REQUESTS, method, route, str(status)).value += 1
            self.board.spread(specs.ADMIN_SECONDS).observe(seconds)

    def webhook_answered(self, vendor: str | None, effect: str) -> None:
        """Count a webhook; `vendor` is None unless the settings name it."""
        with self._lock:
            self.board.count(specs.WEBHOOKS, vendor or UNKNOWN, effect).value += 1
