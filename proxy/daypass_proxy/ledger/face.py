"""The ledger as the event loop sees it, the same for every store: `BatchedLedger`.

Place in the flow: the request path awaits an answer here while the operation waits in the queue and
the writer's thread commits it. Nothing here decides about money, except that a sandbox may not fill
the queue and is given the same refusal again for a moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from daypass_core.clock import Clock
from daypass_proxy.ledger import (
    Balance,
    Hold,
    LedgerRefused,
    LedgerUnavailable,
    Reports,
    Reservation,
    Reserved,
    Settlement,
)
from daypass_proxy.ledger.operations import (
    Extend,
    LookAfter,
    Operation,
    Read,
    Release,
    Reserve,
    Settle,
    nothing_spent,
)
from daypass_proxy.ledger.queue import Queue
from daypass_proxy.ledger.reaper import Leases
from daypass_proxy.ledger.refusals import Refusals
from daypass_proxy.ledger.store import OpenStore
from daypass_proxy.ledger.writer import Answer, Writer

MAX_WAITING: Final = 64
"""Reservations of one sandbox that may wait at a time; one more is refused as overloaded."""

LONGEST_WAIT: Final = 6.0
"""Seconds until an operation without an answer is given up: longer than a lock is waited for."""


class BatchedLedger:
    """A `Ledger` in a migrated database, which other processes may write too.

    Made by `open`; belongs to the event loop it was opened in.
    """

    def __init__(
        self,
        open_store: OpenStore,
        worker: str,
        clock: Clock,
        lease_seconds: float,
        longest_wait: float,
        reports: Reports | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._reports = reports
        self._queue = Queue()
        self._refusals = Refusals()
        self._waiting: dict[str, int] = {}
        self._open: dict[str, str] = {}
        self._longest_wait = longest_wait
        self._overdue: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._writer = Writer(
            self._queue,
            Leases(clock, lease_seconds),
            open_store=open_store,
            deliver=self._deliver_soon,
            clock=clock,
            worker=worker,
            reports=reports,
        )

    @classmethod
    async def open(
        cls,
        open_store: OpenStore,
        worker: str,
        clock: Clock,
        lease_seconds: float,
        *,
        longest_wait: float = LONGEST_WAIT,
        reports: Reports | None = None,
    ) -> BatchedLedger:
        """Start the writer, and settle what a crashed worker left with an expired lease.

        `worker` names this process in its rows. `clock` must be readable: a `StoreClock` needs its
        first `set` before. `longest_wait` in seconds bounds what a store that hangs costs a call.
        Raises LedgerUnavailable when the database is missing, locked or of another schema.
        """
        ledger = cls(open_store, worker, clock, lease_seconds, longest_wait, reports)
        ledger._writer.start()
        try:
            await ledger.look_after_leases()
        except BaseException:
            await ledger.close()
            raise
        return ledger

    @property
    def ready(self) -> bool:
        """See `Ledger.ready`. A store that fails is tried again by the writer itself."""
        return self._writer.unavailable is None

    @property
    def waiting(self) -> int:
        """See `Ledger.waiting`."""
        return self._queue.size

    async def reserve(self, reservation: Reservation) -> Reserved | LedgerRefused:
        """See `Ledger.reserve`. Raises ValueError for a usage id that was used before."""
        began = self._clock.monotonic()
        known = self._refusals.find(reservation, began)
        if known is not None:
            return known
        sandbox = reservation.sandbox
        waiting = self._waiting.get(sandbox, 0)
        if waiting >= MAX_WAITING:
            return LedgerRefused("overloaded")
        self._waiting[sandbox] = waiting + 1
        try:
            answer = await self._admission(reservation)
        finally:
            self._waiting[sandbox] -= 1
            if not self._waiting[sandbox]:
                del self._waiting[sandbox]
        now = self._clock.monotonic()
        if isinstance(answer, Reserved):
            self._open[reservation.usage_id] = reservation.account
        else:
            self._refusals.remember(reservation, answer, now)
        if self._reports is not None:
            self._reports.admission_answered(now - began)
        return answer

    async def extend(self, usage_id: str, more: Hold) -> bool:
        """See `Ledger.extend`."""
        granted: bool = await self._ask(Extend(usage_id, more))
        return granted

    def release(self, usage_id: str, part: Hold) -> None:
        """See `Ledger.release`."""
        if self._writer.unavailable:
            return
        try:
            self._queue.put(Release(usage_id, part))
        except LedgerUnavailable:
            return  # closing: the settlement frees it
        if usage_id in self._open:
            self._refusals.forget(self._open[usage_id])

    async def settle(self, settlement: Settlement) -> None:
        """See `Ledger.settle`. Raises LedgerUnavailable after `close` alone."""
        operation = Settle(settlement)
        if not self._writer.unavailable:
            operation.future = self._loop.create_future()
        self._queue.put(operation)
        account = self._open.pop(settlement.usage_id, None)
        if account is not None:
            self._refusals.forget(account)
        if operation.future is not None:
            await operation.future

    async def balance(self, account: str) -> Balance | None:
        """See `Ledger.balance`; the limits are those of the account and its parents."""
        balance: Balance | None = await self._ask(Read(account))
        return balance

    def count(self, subject: str, kind: str) -> None:
        """See `Ledger.count`."""
        self._queue.count({(subject, kind, int(self._clock.now()) // 60): 1})

    async def look_after_leases(self) -> None:
        """Renew our leases and reap expired ones now; the writer does so every lease/3 itself.

        Raises LedgerUnavailable.
        """
        await self._ask(LookAfter())

    async def close(self) -> None:
        """See `Ledger.close`. Takes about 6 s when the store is gone, longer when it is locked."""
        self._queue.close()
        await asyncio.to_thread(self._writer.join)
        if self._watch is not None:
            self._watch.cancel()

    async def _admission(self, reservation: Reservation) -> Reserved | LedgerRefused:
        future = self._ask(Reserve(reservation))
        try:
            answer: Reserved | LedgerRefused = await future
        except (LedgerUnavailable, asyncio.CancelledError):
            self._reclaim(future)
            raise
        return answer

    def _ask(self, operation: Operation) -> asyncio.Future[Any]:
        """Queue what somebody waits for; raises LedgerUnavailable."""
        if self._writer.unavailable:
            raise LedgerUnavailable(self._writer.unavailable)
        future = operation.future = self._loop.create_future()
        self._queue.put(operation)
        self._watch_over(future)
        return future

    def _watch_over(self, future: asyncio.Future[Any]) -> None:
        """See to it that nobody waits for longer than `longest_wait`.

        All wait equally long, so one timer for the first of them does what one for each would.
        """
        overdue = self._overdue
        while overdue and overdue[0][1].done():
            overdue.popleft()
        overdue.append((self._loop.time() + self._longest_wait, future))
        if self._watch is None:
            self._watch = self._loop.call_later(self._longest_wait, self._give_up)

    def _give_up(self) -> None:
        """Refuse what is overdue, and wait for the next."""
        self._watch = None
        now = self._loop.time()
        while self._overdue and (self._overdue[0][1].done() or self._overdue[0][0] <= now):
            future = self._overdue.popleft()[1]
            if not future.done():
                future.set_exception(LedgerUnavailable("the ledger did not answer in time"))
        if self._overdue:
            self._watch = self._loop.call_at(self._overdue[0][0], self._give_up)

    def _deliver_soon(self, answers: list[Answer]) -> None:
        """Hand the answers of a batch to the loop; called in the writer thread."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, answers)
        except RuntimeError:
            return  # the loop is closed, so nobody waits any more

    def _deliver(self, answers: list[Answer]) -> None:
        for future, result in answers:
            if future.done():  # cancelled or given up: the caller has gone
                self._give_back(result)
            elif isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _reclaim(self, future: asyncio.Future[Any]) -> None:
        """Undo an answer that came after its caller had been told to stop waiting."""
        if not future.done() or future.cancelled():
            return
        if future.exception() is None:
            self._give_back(future.result())

    def _give_back(self, result: object) -> None:
        """Free the hold of a call whose caller went while it was being admitted."""
        if isinstance(result, Reserved):
            try:
                self._queue.put(Settle(nothing_spent(result.usage_id)))
            except LedgerUnavailable:
                return  # closing: the row's lease runs out
