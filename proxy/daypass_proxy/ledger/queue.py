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
        self._ready = threading.Condition(threading.Lock())
        self._settling: deque[Operation] = deque()
        self._resizing: deque[Operation] = deque()
        self._tenants: dict[str, deque[Reserve]] = {}
        self._turns: deque[str] = deque()
        self._reading: deque[Operation] = deque()
        self._size = 0
        self._incidents: Counter[IncidentKey] = Counter()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def size(self) -> int:
        """How many operations wait."""
        return self._size

    def put(self, operation: Operation) -> None:
        """Add one operation. Raises LedgerUnavailable after `close`."""
        with self._ready:
            if self._closed:
                raise LedgerUnavailable("the ledger is closed")
            self._size += 1
            if isinstance(operation, Reserve):
                self._put_reserve(operation)
            else:
                self._lane(operation.lane).append(operation)
            self._ready.notify()

    def put_back(self, settlements: list[Settle]) -> None:
        """Return bills that could not be booked to the front, also after `close`."""
        with self._ready:
            self._size += len(settlements)
            self._settling.extendleft(reversed(settlements))

    def count(self, incidents: Mapping[IncidentKey, int]) -> None:
        """Add incidents; they ride with the next batch and do not call for one."""
        with self._ready:
            for key, number in incidents.items():
                if key in self._incidents or len(self._incidents) < INCIDENT_ROWS:
                    self._incidents[key] += number

    def take(self, limit: int, timeout: float) -> Batch | None:
        """Wait up to `timeout` seconds for work; None once closed with nothing left."""
        with self._ready:
            if not self._size and not self._closed:
                self._ready.wait(timeout)
            operations: list[Operation] = []
            _move(self._settling, operations, limit)
            _move(self._resizing, operations, limit)
            while self._turns and len(operations) < limit:
                operations.append(self._next_reserve())
            _move(self._reading, operations, limit)
            self._size -= len(operations)
            incidents, self._incidents = self._incidents, Counter()
            if self._closed and not operations and not incidents:
                return None
            return Batch(operations, incidents)

    def clear(self, *lanes: Lane) -> list[Operation]:
        """Take everything out of these lanes."""
        with self._ready:
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
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def wait_closed(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for `close`."""
        with self._ready:
            return self._ready.wait_for(lambda: self._closed, timeout)

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


def _move(lane: deque[Operation], found: list[Operation], limit: int) -> None:
    """Take from the front of a lane until `found` has `limit` operations."""
    while lane and len(found) < limit:
        found.append(lane.popleft())
