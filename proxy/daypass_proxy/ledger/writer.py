"""The writer thread: one connection, one transaction at a time, as many operations in it as wait.

Group commit without a timer: an idle ledger commits a single operation at once; while a commit runs
the next operations queue up and share the following one. Between batches the writer lets go of the
store for a moment, so that the broker's writes to the same file get through.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from daypass_core.clock import Clock
from daypass_core.log import event, get_logger
from daypass_proxy.ledger import LedgerUnavailable, Reports
from daypass_proxy.ledger.book import Book
from daypass_proxy.ledger.operations import Lane, LookAfter, Operation, Read, Reserve, Settle
from daypass_proxy.ledger.parents import Parents
from daypass_proxy.ledger.queue import Batch, Queue
from daypass_proxy.ledger.reaper import Leases
from daypass_proxy.ledger.store import (
    BatchFailed,
    OpenStore,
    Row,
    Store,
    StoreFailed,
    Transaction,
)

BATCH: Final = 256  # operations in one transaction at most: a few milliseconds under the locks
IDLE_SECONDS: Final = 1.0  # how long incidents and due leases wait for a batch to ride with
# Between batches others get the lock: for a part of the batch's time, at most so many seconds.
PAUSE_SHARE, LONGEST_PAUSE, IDLE_PAUSE = 0.25, 0.005, 0.0005
FIRST_RETRY, LAST_RETRY = 0.05, 2.0
LOCK_RETRY = 0.25  # seconds until a bill whose account was locked is tried again
# How long the parts of a batch that a lock has stopped wait for it again, and for how long after
# one stood alone before a lock all batches wait no longer than so: others must not wait for it.
PART_LOCK_SECONDS, WARY_LOCK_SECONDS, WARY_SECONDS = 0.02, 0.25, 5.0
# How long `close` goes on trying to book what is owed; less than daypass_core.server.CLOSE_SECONDS.
CLOSING_SECONDS = 6.0

Answer = tuple[asyncio.Future[Any], Any]
"""A future and its result; an exception is raised there."""

Results = list[tuple[Operation, Any]]

_REFUSED: Final = (Lane.RESIZE, Lane.RESERVE, Lane.READ)
"""What is not kept while the store is gone."""

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
        open_store: OpenStore,
        deliver: Callable[[list[Answer]], None],
        clock: Clock,
        worker: str,
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
        self._parents = Parents()
        self._store: Store | None = None
        self._retry = FIRST_RETRY
        self._aside: list[Settle] = []
        self._aside_until = 0.0
        self._wary_until = 0.0
        self._began = 0.0  # when the batch that is being written was begun

    def run(self) -> None:
        """Write until the queue is closed and empty, or the store stays gone while closing."""
        give_up_at = float("inf")
        try:
            while (batch := self._next_batch()) is not None:
                began = time.monotonic()
                if batch:
                    self._write(batch, WARY_LOCK_SECONDS if began < self._wary_until else None)
                if self._queue.closed:
                    give_up_at = min(give_up_at, time.monotonic() + CLOSING_SECONDS)
                if (self.unavailable or self._aside) and time.monotonic() >= give_up_at:
                    break
                if not self.unavailable:
                    self._pause(began)
                elif self._queue.wait_closed(self._retry):
                    time.sleep(FIRST_RETRY)
        finally:
            self._end()

    def _next_batch(self) -> Batch | None:
        if self._aside and (self._queue.closed or time.monotonic() >= self._aside_until):
            self._queue.put_back(self._aside)
            self._aside = []
        due = self._leases.due()
        wait = LOCK_RETRY if self._aside else IDLE_SECONDS
        batch = self._queue.take(BATCH, 0.0 if due or self.unavailable else wait)
        # Looking after the leases is also how a store that failed is tried again.
        if batch is not None and (due or self.unavailable):
            batch.operations.insert(0, LookAfter())
        return batch

    def _pause(self, began: float) -> None:
        """Stay away from a store that has one lock for a moment, longer the busier it is.

        Who waits for the lock in another process looks for it only every few milliseconds.
        """
        if self._store is None or not self._store.one_lock:
            return
        longest = LONGEST_PAUSE if self._queue.size else IDLE_PAUSE
        time.sleep(min((time.monotonic() - began) * PAUSE_SHARE, longest))

    def _write(self, batch: Batch, lock_seconds: float | None = None) -> None:
        self._began = began = time.monotonic()
        try:
            results = self._transact(batch, lock_seconds)
        except StoreFailed as error:
            self._store_failed(batch, error)
            return
        except Exception as error:
            self._split(batch, error)
            return
        if self.unavailable is not None:
            event(log, "ledger_store_back")
        self.unavailable, self._retry = None, FIRST_RETRY
        self._committed(results)
        took = time.monotonic() - began
        self._leases.store_took(took)
        if self._reports is not None:
            self._reports.batch_committed(len(results), took)

    def _transact(self, batch: Batch, lock_seconds: float | None) -> Results:
        """Do all of a batch or nothing of it.

        Raises StoreFailed, BatchFailed, or whatever a mistake of ours raises.
        """
        store = self._store = self._store or self._open_store()
        operations = batch.operations
        reading = not batch.incidents and all(isinstance(one, Read) for one in operations)
        transaction = store.begin(reading=reading, lock_seconds=lock_seconds)
        try:
            looking = any(isinstance(one, LookAfter) for one in operations)
            book, expired = self._load(transaction, operations, looking)
            book.reap(expired)
            # Asked only now: while a lock was waited for, a caller may have given up.
            results = [(one, _applied(one, book)) for one in operations if not one.abandoned()]
            transaction.commit(book.changes(batch.incidents))
        except BaseException:
            transaction.roll_back()
            raise
        if looking:
            self._leases.looked_after(len(expired))
        return results

    def _load(
        self, transaction: Transaction, operations: Sequence[Operation], looking: bool
    ) -> tuple[Book, list[Row]]:
        """Lock and load what the operations touch; and the rows to be reaped, if it is time."""
        usage_ids = {one.usage_id for one in operations if one.usage_id}
        leaves = {one.account for one in operations if one.account}
        rows = transaction.rows(usage_ids, self._leases.started(usage_ids)) if usage_ids else []
        self._leases.store_took(time.monotonic() - self._began)
        expired = self._leases.look_after(transaction) if looking else []
        chains = self._parents.find(transaction, leaves)
        needed = {account for leaf in leaves for account in chains.get(leaf, ())}
        for row in (*rows, *expired):
            needed.update(row.accounts.split(" "))
        accounts = transaction.accounts(needed) if needed else []
        if doubtful := _doubtful(operations) - {row.id for row in rows}:
            # Of a connection that was lost while it committed: now that its locks are ours, it has.
            rows = [*rows, *transaction.rows(doubtful)]
        # The time is read under the lock: a lease that starts now must not start in the past.
        now_ms = int(self._clock.now() * 1000)
        lease_ms = self._leases.lease_ms
        book = Book(accounts, rows, chains, worker=self._worker, now_ms=now_ms, lease_ms=lease_ms)
        return book, expired

    def _committed(self, results: Results) -> None:
        answers: list[Answer] = []
        for operation, result in results:
            operation.committed(result, self._leases)
            if isinstance(result, ValueError):
                event(log, "ledger_operation_failed", level=logging.ERROR, reason=repr(result))
            elif result is None and isinstance(operation, Settle) and not operation.doubtful:
                usage_id = operation.usage_id
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
        self._leases.store_was_away()
        if error.broken:
            self._disconnect()
        kept = [one for one in batch.operations if isinstance(one, Settle)]
        if error.doubtful:
            # The commit may have reached the disk: give the holds of the refused calls back.
            kept += [one.undo() for one in batch.operations if isinstance(one, Reserve)]
        self._refuse((*batch.operations, *self._queue.clear(*_REFUSED)), str(error))
        self._queue.put_back(kept)
        self._queue.count(batch.incidents)

    def _refuse(self, operations: Sequence[Operation], reason: str) -> None:
        """Answer operations that were not done; a bill is kept, so who waits for it need not."""
        answers: list[Answer] = []
        for operation in operations:
            if operation.future is not None:
                result = None if isinstance(operation, Settle) else LedgerUnavailable(reason)
                answers.append((operation.future, result))
                operation.future = None
        self._answer(answers)

    def _split(self, batch: Batch, error: Exception) -> None:
        """Write the halves of a batch that failed, so that only the part at fault suffers for it.

        They hardly wait for locks: the batch has waited already.
        """
        parts = [Batch(half) for half in _halves(batch.operations)]
        if batch.incidents:
            parts.append(Batch([], batch.incidents))
        if len(parts) == 1:
            self._at_fault(batch, error)
            return
        for part in parts:
            if self.unavailable:
                self._store_failed(part, StoreFailed(self.unavailable, broken=False))
            else:
                self._write(part, PART_LOCK_SECONDS)

    def _at_fault(self, batch: Batch, error: Exception) -> None:
        """Give one operation up, or a bill a rest when it only has to wait for a lock."""
        locked = isinstance(error, BatchFailed) and error.locked
        if locked:
            self._wary_until = time.monotonic() + WARY_SECONDS
            event(log, "ledger_account_locked", level=logging.WARNING, reason=str(error))
        else:
            event(log, "ledger_operation_failed", level=logging.ERROR, reason=repr(error))
        for operation in batch.operations:
            if isinstance(operation, LookAfter):
                self._leases.failed()
            if locked:
                self._refuse([operation], str(error))
                if isinstance(operation, Settle):
                    self._aside.append(operation)
                    self._aside_until = time.monotonic() + LOCK_RETRY
                continue
            # A bill that is never to be booked: the lease runs out, so that the reservation is.
            operation.committed(None, self._leases)
            if operation.future is not None:
                failed = ValueError(f"the ledger cannot do this: {error}")
                self._answer([(operation.future, failed)])

    def _end(self) -> None:
        lost = [*self._aside, *self._queue.clear(Lane.SETTLE)]
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
        store, self._store = self._store, None
        if store is not None:
            store.close()


def _applied(operation: Operation, book: Book) -> Any:
    """Return the answer to an operation; a ValueError is one, because it has done nothing."""
    try:
        return operation.apply(book)
    except ValueError as error:
        return ValueError(f"the ledger cannot do this: {error}")


def _halves(operations: list[Operation]) -> list[list[Operation]]:
    middle = (len(operations) + 1) // 2
    return [half for half in (operations[:middle], operations[middle:]) if half]


def _doubtful(operations: Sequence[Operation]) -> set[str]:
    return {one.usage_id for one in operations if isinstance(one, Settle) and one.doubtful}
