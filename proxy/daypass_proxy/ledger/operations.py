"""What the request path can ask of the writer: each operation knows what it needs and does."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Any, ClassVar

from daypass_proxy.ledger import Hold, Outcome, Reservation, Reserved, Settlement, Usage
from daypass_proxy.ledger.book import Book
from daypass_proxy.ledger.reaper import Leases


class Lane(IntEnum):
    """The order inside a batch: what frees money before what needs it, and who only asks last."""

    SETTLE = 0
    RESIZE = 1
    RESERVE = 2
    READ = 3


class Operation:
    """One act on the ledger; `future` is who waits for it, if anybody does.

    `usage_id` is the row that has to be loaded for it, `account` the leaf of the accounts; empty
    where it needs none.
    """

    __slots__ = ("account", "future", "usage_id")
    lane: ClassVar[Lane] = Lane.SETTLE
    owed: ClassVar[bool] = False
    """Whether it has to be done whoever waits for it."""

    def __init__(self, *, usage_id: str = "", account: str = "") -> None:
        self.usage_id = usage_id
        self.account = account
        self.future: asyncio.Future[Any] | None = None

    def apply(self, book: Book) -> Any:
        """Do it; the result is what the caller gets. Raises ValueError, having done nothing."""

    def committed(self, result: Any, leases: Leases) -> None:
        """Note what it means for the leases of this worker that it is durable."""

    def abandoned(self) -> bool:
        """Whether the caller has gone before it was done, so that it need not be."""
        return not self.owed and self.future is not None and self.future.done()


class Reserve(Operation):
    """Admit one upstream attempt."""

    __slots__ = ("reservation",)
    lane = Lane.RESERVE

    def __init__(self, reservation: Reservation) -> None:
        super().__init__(account=reservation.account)
        self.reservation = reservation

    def apply(self, book: Book) -> Any:
        """Return `Reserved` or `LedgerRefused`."""
        return book.reserve(self.reservation)

    def committed(self, result: Any, leases: Leases) -> None:
        """Take the row into care."""
        if type(result) is Reserved:
            leases.opened(result.usage_id, result.started_at)

    def undo(self) -> Settle:
        """Return the operation that frees the hold of a call that was refused after all."""
        call = self.reservation
        return Settle(nothing_spent(call.usage_id), doubtful_in=call.account)


class Extend(Operation):
    """Add to the hold of an open row."""

    __slots__ = ("more",)
    lane = Lane.RESIZE

    def __init__(self, usage_id: str, more: Hold) -> None:
        super().__init__(usage_id=usage_id)
        self.more = more

    def apply(self, book: Book) -> Any:
        """Return whether it was granted."""
        return book.extend(self.usage_id, self.more)


class Release(Operation):
    """Give a part of the hold of an open row back."""

    __slots__ = ("part",)
    lane = Lane.RESIZE

    def __init__(self, usage_id: str, part: Hold) -> None:
        super().__init__(usage_id=usage_id)
        self.part = part

    def apply(self, book: Book) -> Any:
        """Return nothing."""
        book.release(self.usage_id, self.part)


class Settle(Operation):
    """Book one bill. `doubtful`: it undoes a reservation that may have been written or not.

    The lock on its account then tells: whoever may still be writing the reservation holds it.
    """

    __slots__ = ("doubtful", "settlement")
    owed = True

    def __init__(self, settlement: Settlement, *, doubtful_in: str = "") -> None:
        super().__init__(usage_id=settlement.usage_id, account=doubtful_in)
        self.settlement = settlement
        self.doubtful = bool(doubtful_in)

    def apply(self, book: Book) -> Any:
        """Return what `Book.settle` does."""
        return book.settle(self.settlement)

    def committed(self, result: Any, leases: Leases) -> None:
        """Let the row go: it is settled, or can never be, so that its lease has to end."""
        leases.closed(self.usage_id)


class LookAfter(Operation):
    """Renew the leases of this worker and reap those that are over; the writer does both."""

    __slots__ = ()


class Read(Operation):
    """Read one account."""

    __slots__ = ()
    lane = Lane.READ

    def __init__(self, account: str) -> None:
        super().__init__(account=account)

    def apply(self, book: Book) -> Any:
        """Return its `Balance`, None without one."""
        return book.balance(self.account)


def nothing_spent(usage_id: str) -> Settlement:
    """Return the bill of a call whose client went before the upstream saw it."""
    return Settlement(usage_id, Outcome.CLIENT_GONE, Usage(), 0, False, None, None)
