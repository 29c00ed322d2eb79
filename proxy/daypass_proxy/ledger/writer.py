"""The writer thread: one connection, one transaction at a time, as many operations in it as wait.

Group commit without a timer: an idle ledger commits a single operation at once; while a commit runs
the next operations queue up and share the following one. Between batches the writer lets go of the
write lock for as long as it held it, so that the broker's writes to the same file get through.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

from daypass_core.clock import Clock
from daypass_core.log import event, get_logger
from daypass_proxy.ledger import (
    LedgerUnavailable,
    Outcome,
    Reports,
    Reserved,
    Settlement,
    Usage,
)
from daypass_proxy.ledger.operations import (
    Batch,
    Lane,
    LookAfter,
    Operation,
    Queue,
    Read,
    Reserve,
    Settle,
)
from daypass_proxy.ledger.reaper import Leases
from daypass_proxy.ledger.statements import Book
from daypass_proxy.ledger.store import StoreFailed, failure, is_failure

BATCH = 256  # operations in one transaction at most: a few milliseconds under the write lock
IDLE_SECONDS = 1.0  # how long incidents and due leases wait for a batch to ride with
LONGEST_PAUSE, IDLE_PAUSE = 0.005, 0.0005  # seconds without the lock, under load and without
FIRST_RETRY, LAST_RETRY = 0.05, 2.0
# How long `close` goes on trying to book what is owed; less than daypass_core.server.CLOSE_SECONDS.
CLOSING_SECONDS = 6.0

Answer = tuple[asyncio.Future[Any], Any]
"""A future and its result; an exception is raised there."""

log = get_logger(__name__)


class Writer(threading.Thread):
    """The only thread that writes the ledger's rows.

    `open_store` connects, in this thread. `deliver` gets the answers of a whole batch in one call,
    still in this thread. `unavailable` is the reason why the store fails, None while it works.
    """

    def __init__(
        self,
        queue: Queue,
        leases: Leases,
        *,
        open_store: Callable[[], sqlite3.Connection],
        deliver: Callable[[list[Answer]], None],
        clock: Clock,
        worker: str,
        lease_seconds: float,
        reports: Reports | None = None,
    ) -> None:
        super().__init__(name="ledger", daemon=True)
        self.unavailable: str | None = None
        self._queue = queue
        self._leases = leases
        self._open_store = open_store
        self._deliver = deliver
        self._clock = clock
        self._worker = worker
        self._reports = reports
        self._lease_ms = round(lease_seconds * 1000)
        self._connection: sqlite3.Connection | None = None
        self._retry = FIRST_RETRY

    def run(self) -> None:
        """Write until the queue is closed and empty, or the store stays gone while closing."""
        give_up_at = float("inf")
        try:
            while (batch := self._next_batch()) is not None:
                if batch:
                    self._write(batch)
                if self._queue.closed:
                    give_up_at = min(give_up_at, time.monotonic() + CLOSING_SECONDS)
                if self.unavailable and time.monotonic() >= give_up_at:
                    break
                if self.unavailable and self._queue.wait_closed(self._retry):
                    time.sleep(FIRST_RETRY)
        finally:
            self._end()

    def _next_batch(self) -> Batch | None:
        due = self._leases.due()
        batch = self._queue.take(BATCH, 0.0 if due or self.unavailable else IDLE_SECONDS)
        # Looking after the leases is also how a store that failed is tried again.
        if batch is not None and (due or self.unavailable):
            batch.operations.insert(0, LookAfter(leases=self._leases))
        return batch

    def _write(self, batch: Batch) -> None:
        began = time.monotonic()
        try:
            results = self._transact(batch)
        except StoreFailed as error:
            self._store_failed(batch, error)
            return
        except Exception as error:
            self._one_by_one(batch, error)
            return
        if self.unavailable is not None:
            event(log, "ledger_store_back")
        self.unavailable, self._retry = None, FIRST_RETRY
        self._committed(results)
        if self._reports is not None:
            self._reports.batch_committed(len(results), time.monotonic() - began)
        # Who waits for the lock in another process looks for it only every few milliseconds.
        longest = LONGEST_PAUSE if len(results) > 1 or self._queue.waiting else IDLE_PAUSE
        time.sleep(min(time.monotonic() - began, longest))

    def _transact(self, batch: Batch) -> list[tuple[Operation, Any]]:
        """Do all of a batch or nothing of it.

        Raises StoreFailed, or what an operation raised that is at fault itself.
        """
        connection = self._connection = self._connection or self._open_store()
        reading = all(isinstance(operation, Read) for operation in batch.operations)
        try:
            connection.execute("BEGIN" if reading and not batch.incidents else "BEGIN IMMEDIATE")
            # The time is read under the lock: a lease that starts now must not start in the past.
            now_ms = int(self._clock.now() * 1000)
            book = Book(connection, worker=self._worker, now_ms=now_ms, lease_ms=self._lease_ms)
            results = [
                (operation, operation.apply(book))
                for operation in batch.operations
                if not operation.abandoned()
            ]
            book.count(batch.incidents)
        except BaseException as error:
            self._roll_back(connection)
            if isinstance(error, sqlite3.Error) and is_failure(error):
                raise failure(error) from error
            raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back(connection)
            raise failure(error, doubtful=True) from error
        return results

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()

    def _committed(self, results: list[tuple[Operation, Any]]) -> None:
        answers: list[Answer] = []
        for operation, result in results:
            if isinstance(operation, Reserve) and isinstance(result, Reserved):
                self._leases.opened(result.usage_id)
            if isinstance(operation, Settle):
                self._leases.closed(operation.settlement.usage_id)
                if result is None and not operation.doubtful:
                    usage_id = operation.settlement.usage_id
                    event(log, "settlement_without_row", level=logging.ERROR, usage_id=usage_id)
            if operation.future is not None:
                answers.append((operation.future, result))
        self._answer(answers)

    def _store_failed(self, batch: Batch, error: StoreFailed) -> None:
        """Keep the bills for the next try, refuse the rest, and stop admitting until it works."""
        if self.unavailable is None:
            event(log, "ledger_store_failed", level=logging.ERROR, reason=str(error))
        else:
            self._retry = min(self._retry * 2, LAST_RETRY)
        self.unavailable = str(error)
        if error.broken:
            self._disconnect()
        kept = [operation for operation in batch.operations if isinstance(operation, Settle)]
        if error.doubtful:
            # The commit may have reached the disk: give the holds of the refused calls back.
            kept += [
                undo(operation) for operation in batch.operations if isinstance(operation, Reserve)
            ]
        waiting = self._queue.clear(Lane.EXTEND, Lane.RESERVE)
        answers: list[Answer] = []
        for operation in (*batch.operations, *waiting):
            if operation.future is not None:
                result = None if isinstance(operation, Settle) else LedgerUnavailable(str(error))
                answers.append((operation.future, result))
                operation.future = None
        self._queue.put_back(kept)
        self._queue.count(batch.incidents)
        self._answer(answers)

    def _one_by_one(self, batch: Batch, error: Exception) -> None:
        """Find the operation that made a batch fail, so that the others do not suffer for it."""
        parts = [Batch([operation]) for operation in batch.operations]
        if batch.incidents:
            parts.append(Batch([], batch.incidents))
        if len(parts) == 1:
            self._at_fault(batch, error)
            return
        for part in parts:
            if self.unavailable:
                self._store_failed(part, StoreFailed(self.unavailable, broken=False))
            else:
                self._write(part)

    def _at_fault(self, batch: Batch, error: Exception) -> None:
        event(log, "ledger_operation_failed", level=logging.ERROR, reason=repr(error))
        for operation in batch.operations:
            if isinstance(operation, LookAfter):
                self._leases.postpone()
            if isinstance(operation, Settle):
                # Never to be booked: let the lease run out, so that the reservation is.
                self._leases.closed(operation.settlement.usage_id)
            if operation.future is not None:
                self._answer(
                    [(operation.future, ValueError(f"the ledger cannot do this: {error}"))]
                )

    def _end(self) -> None:
        lost = self._queue.clear(Lane.SETTLE)
        if lost:
            # Their rows stay open; another worker books them at the reservation after the lease.
            event(log, "ledger_closed_with_bills_unbooked", level=logging.ERROR, bills=len(lost))
        self._queue.close()
        self.unavailable = "the ledger is closed"
        left = lost + self._queue.clear(*Lane)
        closed = LedgerUnavailable(self.unavailable)
        self._answer([(one.future, closed) for one in left if one.future is not None])
        self._disconnect()

    def _answer(self, answers: list[Answer]) -> None:
        if answers:
            self._deliver(answers)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def undo(operation: Reserve) -> Settle:
    """Return the operation that frees the hold of a call that was refused after all."""
    return Settle(settlement=nothing_spent(operation.reservation.usage_id), doubtful=True)


def nothing_spent(usage_id: str) -> Settlement:
    """Return the bill of a call whose client went before the upstream saw it."""
    return Settlement(usage_id, Outcome.CLIENT_GONE, Usage(), 0, False, None, None)
