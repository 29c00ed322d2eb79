"""Leases: how a hold outlives neither its worker nor its call.

Every open usage row carries a lease of the worker that opened it. A living worker renews its own
rows every third of the lease; a row whose lease ran out belongs to a worker that is gone, and any
other worker settles it at its reservation. The real bill, should it still come, corrects that once.
"""

from __future__ import annotations

import logging

from daypass_core.clock import Clock
from daypass_core.log import event, get_logger
from daypass_proxy.ledger.store import Row, Transaction

REAPED_AT_ONCE = 200
"""Rows settled in one transaction at most, so that calls do not wait for a long one."""

log = get_logger(__name__)


class Leases:
    """The open rows of this worker, and when to look after them. Used by the writer thread only."""

    def __init__(self, clock: Clock, lease_seconds: float) -> None:
        self.lease_ms = round(lease_seconds * 1000)
        self._clock = clock
        self._every = lease_seconds / 3
        self._next = clock.monotonic()
        self._reaping = True
        self._open: set[str] = set()

    def opened(self, usage_id: str) -> None:
        """Take a row of ours into care once its reservation is durable."""
        self._open.add(usage_id)

    def closed(self, usage_id: str) -> None:
        """Forget a row once its settlement is durable, or can never be."""
        self._open.discard(usage_id)

    def due(self) -> bool:
        """Whether a third of the lease has passed, or the last round left rows to reap."""
        return self._clock.monotonic() >= self._next

    def failed(self) -> None:
        """Note that a round failed: the next one, at once, only renews, then there is a pause.

        So a row of another that cannot be reaped does not end the leases of our calls.
        """
        if not self._reaping:
            self._postpone()
        self._reaping = not self._reaping

    def look_after(self, transaction: Transaction) -> list[Row]:
        """Renew our rows, then return what others left behind to be reaped, in this order.

        Renewing first keeps a worker that was stopped for longer than its lease from reaping
        calls of its own that are still running.
        """
        now_ms = int(self._clock.now() * 1000)
        if self._open:
            transaction.renew(self._open, now_ms + self.lease_ms)
        return transaction.expired(now_ms, REAPED_AT_ONCE) if self._reaping else []

    def looked_after(self, reaped: int) -> None:
        """Note that a round is durable, in which so many rows were reaped."""
        if reaped:
            event(log, "leases_reaped", level=logging.WARNING, rows=reaped)
        if reaped < REAPED_AT_ONCE:
            self._postpone()
        self._reaping = True

    def _postpone(self) -> None:
        self._next = self._clock.monotonic() + self._every
