"""Leases: how a hold outlives neither its worker nor its call.

Every open usage row carries a lease of the worker that opened it. A living worker renews its own
rows every third of the lease; a row whose lease ran out belongs to a worker that is gone, and any
other worker settles it at its reservation. The real bill, should it still come, corrects that once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from daypass_core.clock import Clock
from daypass_core.log import event, get_logger
from daypass_proxy.ledger.store import Row, Span, Transaction

REAPED_AT_ONCE = 200
"""Rows settled in one transaction at most, so that calls do not wait for a long one."""

JUMP_SECONDS = 1.0
"""How far the store's clock must get ahead of the machine's between two looks to have jumped."""

log = get_logger(__name__)


class Leases:
    """The open rows of this worker, and when to look after them. Used by the writer thread only."""

    def __init__(self, clock: Clock, lease_seconds: float) -> None:
        self.lease_ms = round(lease_seconds * 1000)
        self._clock = clock
        self._every = lease_seconds / 3
        self._next = clock.monotonic()
        self._reaping = True
        self._open: dict[str, int] = {}
        self._ahead = clock.now() - clock.monotonic()
        self._not_before = clock.monotonic()

    def opened(self, usage_id: str, started_at: int) -> None:
        """Take a row of ours into care once its reservation is durable."""
        self._open[usage_id] = started_at

    def closed(self, usage_id: str) -> None:
        """Forget a row once its settlement is durable, or can never be."""
        self._open.pop(usage_id, None)

    def started(self, usage_ids: Collection[str]) -> Span | None:
        """Return when these rows began; None if one of them is none of ours, or none any more."""
        began = [self._open.get(usage_id) for usage_id in usage_ids]
        known = [moment for moment in began if moment is not None]
        return (min(known), max(known)) if known and len(known) == len(began) else None

    def store_took(self, seconds: float) -> None:
        """Note how long the store took for something: nobody could renew meanwhile."""
        if seconds > self._every:
            self.store_was_away()

    def store_was_away(self) -> None:
        """Note that the store did not answer, so that nobody could renew.

        For as long as a lease lasts nothing is reaped: whoever comes first when the store is back
        must not take the open calls of all others for left behind.
        """
        self._not_before = self._clock.monotonic() + self.lease_ms / 1000

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
        now, moment = self._clock.now(), self._clock.monotonic()
        now_ms = int(now * 1000)
        if now - moment > self._ahead + JUMP_SECONDS:
            # The store's clock jumped ahead, and every lease was over at once: until their workers
            # have renewed them by the new time, nobody can say whose calls live.
            event(
                log,
                "clock_jumped",
                level=logging.WARNING,
                seconds=round(now - moment - self._ahead),
            )
            self._not_before = moment + self.lease_ms / 1000
        self._ahead = now - moment
        if self._open:
            span = min(self._open.values()), max(self._open.values())
            transaction.renew(self._open, now_ms + self.lease_ms, span)
        reaping = self._reaping and moment >= self._not_before
        return transaction.expired(now_ms, REAPED_AT_ONCE) if reaping else []

    def looked_after(self, reaped: int) -> None:
        """Note that a round is durable, in which so many rows were reaped."""
        if reaped:
            event(log, "leases_reaped", level=logging.WARNING, rows=reaped)
        if reaped < REAPED_AT_ONCE:
            self._postpone()
        self._reaping = True

    def _postpone(self) -> None:
        self._next = self._clock.monotonic() + self._every
