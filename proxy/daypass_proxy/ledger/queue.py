"""Where operations wait while the writer commits the ones before them.

Settlements go first, then extensions and releases, then reservations: what frees money before what
needs it. Who only asks for a balance comes last, so that no crowd of those delays a call.
Reservations take turns by tenant, also inside the limit of a batch, so that a tenant that sends
thousands delays another by one call of each batch and not by its thousands.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from daypass_proxy.ledger import LedgerUnavailable
from daypass_proxy.ledger.operations import Lane, Operation, Reserve, Settle

INCIDENT_ROWS: Final = 10_000
"""Distinct incident rows kept in memory at most while the store is gone."""

IncidentKey = tuple[str, str, int]
"""Subject, kind and minute (minutes since the epoch) of an incident row."""


@dataclass(slots=True)
class Batch:
    """What one transaction does."""

    operations: list[Operation] = field(default_factory=list)
    incidents: Mapping[IncidentKey, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.operations or self.incidents)


class Queue:
    """The lanes, filled by the event loop and emptied by the writer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bell = _Bell()
        self._settling: deque[Operation] = deque()
        self._resizing: deque[Operation] = deque()
        self._tenants: dict[str, deque[Reserve]] = {}
        self._turns: deque[str] = deque()
        self._reading: deque[Operation] = deque()
        self._size = 0
        self._incidents: Counter[IncidentKey] = Counter()
        self._closed = threading.Event()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    @property
    def size(self) -> int:
        """How many operations wait."""
        return self._size

    def put(self, operation: Operation) -> None:
        """Add one operation. Raises LedgerUnavailable after `close`."""
        with self._lock:
            if self._closed.is_set():
                raise LedgerUnavailable("the ledger is closed")
            if isinstance(operation, Reserve):
                self._put_reserve(operation)
            else:
                self._lane(operation.lane).append(operation)
            self._size += 1
            if self._size == 1:  # with more than one, it was rung before
                self._bell.ring()

    def put_back(self, settlements: list[Settle]) -> None:
        """Return bills that could not be booked to the front, also after `close`."""
        with self._lock:
            self._size += len(settlements)
            self._settling.extendleft(reversed(settlements))

    def count(self, incidents: Mapping[IncidentKey, int]) -> None:
        """Add incidents; they ride with the next batch and do not call for one."""
        with self._lock:
            for key, number in incidents.items():
                if key in self._incidents or len(self._incidents) < INCIDENT_ROWS:
                    self._incidents[key] += number

    def take(self, limit: int, timeout: float) -> Batch | None:
        """Wait up to `timeout` seconds for work; None once closed with nothing left."""
        if not self._size and not self._closed.is_set():
            self._bell.wait(timeout)
        with self._lock:
            self._bell.mute()  # for what is taken now
            operations: list[Operation] = []
            _move(self._settling, operations, limit)
            _move(self._resizing, operations, limit)
            while self._turns and len(operations) < limit:
                operations.append(self._next_reserve())
            _move(self._reading, operations, limit)
            self._size -= len(operations)
            incidents, self._incidents = self._incidents, Counter()
            if not operations and not incidents and self._closed.is_set():
                return None
            return Batch(operations, incidents)

    def clear(self, *lanes: Lane) -> list[Operation]:
        """Take everything out of these lanes."""
        with self._lock:
            found: list[Operation] = []
            for lane in lanes:
                if lane is Lane.RESERVE:
                    while self._turns:
                        found.append(self._next_reserve())
                else:
                    _move(self._lane(lane), found, self._size)
            self._size -= len(found)
            return found

    def close(self) -> None:
        """Refuse further operations and wake the writer."""
        with self._lock:
            self._closed.set()
            self._bell.ring()

    def wait_closed(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for `close`."""
        return self._closed.wait(timeout)

    def _lane(self, lane: Lane) -> deque[Operation]:
        """Return the operations of a lane other than that of reservations."""
        if lane is Lane.SETTLE:
            return self._settling
        return self._reading if lane is Lane.READ else self._resizing

    def _put_reserve(self, operation: Reserve) -> None:
        tenant = operation.reservation.tenant
        waiting = self._tenants.get(tenant)
        if waiting is None:
            waiting = self._tenants[tenant] = deque()
            self._turns.append(tenant)
        waiting.append(operation)

    def _next_reserve(self) -> Reserve:
        """Return the first reservation of the tenant whose turn it is."""
        tenant = self._turns.popleft()
        waiting = self._tenants[tenant]
        operation = waiting.popleft()
        if waiting:
            self._turns.append(tenant)
        else:
            del self._tenants[tenant]
        return operation


class _Bell:
    """Wakes the one thread that waits for it; every call rings, so it is a bare lock.

    A `threading.Condition` makes a lock for each time that somebody waits, and does in Python what
    this does in C.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Let `wait` return, now or when it is called next. One ringer at a time."""
        if self._silent.locked():
            self._silent.release()

    def wait(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the bell, which is silent then."""
        self._silent.acquire(timeout=timeout)

    def mute(self) -> None:
        """Forget that it rang."""
        self._silent.acquire(blocking=False)


def _move(lane: deque[Operation], found: list[Operation], limit: int) -> None:
    """Take from the front of a lane until `found` has `limit` operations."""
    while lane and len(found) < limit:
        found.append(lane.popleft())
