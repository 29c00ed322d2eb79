"""The ledger on one SQLite file: the asynchronous face of the writer thread."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from daypass_core.clock import Clock
from daypass_proxy.ledger import (
    MAX_NANO,
    Balance,
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
    Queue,
    Read,
    Reserve,
    Settle,
)
from daypass_proxy.ledger.reaper import Leases
from daypass_proxy.ledger.store import connect
from daypass_proxy.ledger.writer import Answer, Writer, nothing_spent

MAX_WAITING = 64
"""Reservations of one sandbox that may wait at a time; one more is refused as overloaded."""


class SqliteLedger:
    """A `Ledger` in a migrated SQLite file, which other processes may write too.

    Made by `open`; belongs to the event loop it was opened in.
    """

    def __init__(
        self,
        path: Path,
        worker: str,
        clock: Clock,
        lease_seconds: float,
        busy_seconds: float,
        reports: Reports | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._queue = Queue()
        self._leases = Leases(clock, lease_seconds)
        self._waiting: dict[str, int] = {}
        self._reports = reports
        # A store that hangs, instead of failing, must not keep a call for longer than a lock does.
        self._longest_wait = busy_seconds + 1.0
        self._writer = Writer(
            self._queue,
            self._leases,
            open_store=partial(connect, path, busy_seconds),
            deliver=self._deliver_soon,
            clock=clock,
            worker=worker,
            lease_seconds=lease_seconds,
            reports=reports,
        )

    @classmethod
    async def open(
        cls,
        path: Path | str,
        worker: str,
        clock: Clock,
        lease_seconds: float,
        *,
        busy_seconds: float = 5.0,
        reports: Reports | None = None,
    ) -> SqliteLedger:
        """Start the writer, and settle what a crashed worker left with an expired lease.

        `worker` names this process in its rows. `clock` must be readable: a `StoreClock` needs its
        first `set` before. `busy_seconds` is how long a lock of another process is waited for.
        Raises LedgerUnavailable when the file is missing, locked or of another schema.
        """
        ledger = cls(Path(path), worker, clock, lease_seconds, busy_seconds, reports)
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
        sandbox = reservation.sandbox
        waiting = self._waiting.get(sandbox, 0)
        if waiting >= MAX_WAITING:
            return LedgerRefused("overloaded")
        self._waiting[sandbox] = waiting + 1
        began = self._clock.monotonic()
        try:
            answer: Reserved | LedgerRefused = await self._admission(reservation)
            if self._reports is not None:
                self._reports.admission_answered(self._clock.monotonic() - began)
            return answer
        finally:
            self._waiting[sandbox] -= 1
            if not self._waiting[sandbox]:
                del self._waiting[sandbox]

    async def extend(self, usage_id: str, amount_nano: int) -> bool:
        """See `Ledger.extend`. Raises ValueError for an amount beyond ±`MAX_NANO`."""
        if type(amount_nano) is not int or abs(amount_nano) > MAX_NANO:
            raise ValueError(f"amount_nano must be an integer within {MAX_NANO} nano-dollars")
        granted: bool = await self._ask(Extend(usage_id=usage_id, amount_nano=amount_nano))
        return granted

    async def settle(self, settlement: Settlement) -> None:
        """See `Ledger.settle`. Raises LedgerUnavailable after `close` alone."""
        operation = Settle(settlement=settlement)
        if self._writer.unavailable:
            self._queue.put(operation)
            return
        operation.future = self._loop.create_future()
        self._queue.put(operation)
        await operation.future

    async def balance(self, account: str) -> Balance | None:
        """See `Ledger.balance`."""
        balance: Balance | None = await self._ask(Read(account=account))
        return balance

    def count(self, subject: str, kind: str) -> None:
        """See `Ledger.count`."""
        self._queue.count({(subject, kind, int(self._clock.now()) // 60): 1})

    async def look_after_leases(self) -> None:
        """Renew our leases and reap expired ones now; the writer does so every lease/3 itself.

        Raises LedgerUnavailable.
        """
        await self._ask(LookAfter(leases=self._leases))

    async def close(self) -> None:
        """See `Ledger.close`. Takes about 6 s when the store is gone, longer when it is locked."""
        self._queue.close()
        await asyncio.to_thread(self._writer.join)

    async def _admission(self, reservation: Reservation) -> Any:
        operation = Reserve(reservation=reservation)
        try:
            return await self._ask(operation)
        except (LedgerUnavailable, asyncio.CancelledError):
            self._reclaim(operation.future)
            raise

    async def _ask(self, operation: Operation) -> Any:
        if self._writer.unavailable:
            raise LedgerUnavailable(self._writer.unavailable)
        operation.future = self._loop.create_future()
        self._queue.put(operation)
        try:
            async with asyncio.timeout(self._longest_wait):
                return await operation.future
        except TimeoutError as error:
            raise LedgerUnavailable("the ledger did not answer in time") from error

    def _deliver_soon(self, answers: list[Answer]) -> None:
        """Hand the answers of a batch to the loop; called in the writer thread."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, answers)
        except RuntimeError:
            return  # the loop is closed, so nobody waits any more

    def _deliver(self, answers: list[Answer]) -> None:
        for future, result in answers:
            if future.done():  # cancelled: the caller has gone
                self._give_back(result)
            elif isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _reclaim(self, future: asyncio.Future[Any] | None) -> None:
        """Undo an answer that came after its caller had been told to stop waiting."""
        if future is None or not future.done() or future.cancelled():
            return
        if future.exception() is None:
            self._give_back(future.result())

    def _give_back(self, result: object) -> None:
        """Free the hold of a call whose caller went while it was being admitted."""
        if isinstance(result, Reserved):
            try:
                self._queue.put(Settle(settlement=nothing_spent(result.usage_id)))
            except LedgerUnavailable:
                return  # closing: the row's lease runs out
