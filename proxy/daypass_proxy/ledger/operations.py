"""What the request path can ask of the writer, and the queue where it waits for the next batch."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar

from daypass_proxy.ledger import LedgerUnavailable, Reservation, Settlement
from daypass_proxy.ledger.reaper import Leases
from daypass_proxy.ledger.statements import Book, IncidentKey

INCIDENT_ROWS = 10_000
"""Distinct incident rows kept in memory at most while the store is gone."""


class Lane(IntEnum):
    """The order inside a batch: what frees money comes before what needs it."""

    SETTLE = 0
    EXTEND = 1
    RESERVE = 2


@dataclass(slots=True, eq=False, kw_only=True)
class Operation:
    """One act on the ledger; `future` is who waits for it, if anybody does."""

    lane: ClassVar[Lane]
    future: asyncio.Future[Any] | None = None

    def apply(self, book: Book) -> Any:
        """Do it inside the transaction of `book`."""
        raise NotImplementedError

    def abandoned(self) -> bool:
        """Whether the caller has gone before it was done, so that it need not be."""
        return self.future is not None and self.future.cancelled()


@dataclass(slots=True, eq=False, kw_only=True)
class Reserve(Operation):
    """Admit one upstream attempt."""

    lane = Lane.RESERVE
    reservation: Reservation

    def apply(self, book: Book) -> Any:
        """Return `Reserved` or `LedgerRefused`."""
        return book.reserve(self.reservation)


@dataclass(slots=True, eq=False, kw_only=True)
class Extend(Operation):
    """Change the hold of an open row."""

    lane = Lane.EXTEND
    usage_id: str
    amount_nano: int

    def apply(self, book: Book) -> Any:
        """Return whether it was granted."""
        return book.extend(self.usage_id, self.amount_nano)


@dataclass(slots=True, eq=False, kw_only=True)
class Settle(Operation):
    """Book one bill. `doubtful` marks the undoing of a reservation that may never have been."""

    lane = Lane.SETTLE
    settlement: Settlement
    doubtful: bool = False

    def apply(self, book: Book) -> Any:
        """Return what `Book.settle` does."""
        return book.settle(self.settlement)

    def abandoned(self) -> bool:
        """Never: a bill is owed whoever waits for it."""
        return False


@dataclass(slots=True, eq=False, kw_only=True)
class LookAfter(Operation):
    """Renew leases and reap."""

    lane = Lane.SETTLE
    leases: Leases

    def apply(self, book: Book) -> Any:
        """Return nothing."""
        self.leases.look_after(book)


@dataclass(slots=True, eq=False, kw_only=True)
class Read(Operation):
    """Read one account."""

    lane = Lane.RESERVE
    account: str

    def apply(self, book: Book) -> Any:
        """Return its `Balance`, None without one."""
        return book.balance(self.account)


@dataclass(slots=True)
class Batch:
    """What one transaction does."""

    operations: list[Operation] = field(default_factory=list)
    incidents: Mapping[IncidentKey, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.operations or self.incidents)


class Queue:
    """Where operations wait while the writer commits the ones before them."""

    def __init__(self) -> None:
        self._ready = threading.Condition(threading.Lock())
        self._lanes: tuple[deque[Operation], ...] = tuple(deque() for _ in Lane)
        self._incidents: Counter[IncidentKey] = Counter()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def waiting(self) -> bool:
        """Whether the next batch would not be empty."""
        return any(self._lanes)

    @property
    def size(self) -> int:
        """How many operations wait."""
        return sum(map(len, self._lanes))

    def put(self, operation: Operation) -> None:
        """Add one operation. Raises LedgerUnavailable after `close`."""
        with self._ready:
            if self._closed:
                raise LedgerUnavailable("the ledger is closed")
            self._lanes[operation.lane].append(operation)
            self._ready.notify()

    def put_back(self, settlements: list[Settle]) -> None:
        """Return bills that could not be booked to the front, also after `close`."""
        with self._ready:
            self._lanes[Lane.SETTLE].extendleft(reversed(settlements))

    def count(self, incidents: Mapping[IncidentKey, int]) -> None:
        """Add incidents; they ride with the next batch and do not call for one."""
        with self._ready:
            for key, number in incidents.items():
                if key in self._incidents or len(self._incidents) < INCIDENT_ROWS:
                    self._incidents[key] += number

    def take(self, limit: int, timeout: float) -> Batch | None:
        """Wait up to `timeout` seconds for work; None once closed with nothing left."""
        with self._ready:
            if not any(self._lanes) and not self._closed:
                self._ready.wait(timeout)
            operations: list[Operation] = []
            for lane in self._lanes:
                while lane and len(operations) < limit:
                    operations.append(lane.popleft())
            incidents, self._incidents = self._incidents, Counter()
            if self._closed and not operations and not incidents:
                return None
            return Batch(operations, incidents)

    def clear(self, *lanes: Lane) -> list[Operation]:
        """Take everything out of these lanes."""
        with self._ready:
            found = [operation for lane in lanes for operation in self._lanes[lane]]
            for lane in lanes:
                self._lanes[lane].clear()
            return found

    def close(self) -> None:
        """Refuse further operations and wake the writer."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def wait_closed(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for `close`."""
        with self._ready:
            return self._ready.wait_for(lambda: self._closed, timeout)
