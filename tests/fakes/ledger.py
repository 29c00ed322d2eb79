"""A ledger in memory: one ceiling per account, everything that was booked in a list."""

import asyncio
from collections import Counter

from daypass_proxy.ledger import (
    Balance,
    LedgerRefused,
    LedgerUnavailable,
    Reservation,
    Reserved,
    Settlement,
)


class FakeLedger:
    """A `Ledger` that a test can fill, empty, take away (`unavailable`) and make slow."""

    def __init__(self, **ceilings: int) -> None:
        """`ceilings` in nano-dollars by account; an account not named has none."""
        self.ceilings = ceilings
        self.spent: Counter[str] = Counter()
        self.reservations: list[Reservation] = []
        self.settlements: list[Settlement] = []
        self.counted: Counter[tuple[str, str]] = Counter()
        self.refusal: LedgerRefused | None = None
        self.unavailable = False
        self.may_settle = asyncio.Event()
        """Cleared by a test that wants settlements to hang."""
        self.may_settle.set()
        self.settling = asyncio.Event()
        self._open: dict[str, Reservation] = {}
        self._booking: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> bool:
        """Whether it is there."""
        return not self.unavailable

    @property
    def waiting(self) -> int:
        """Nothing ever waits."""
        return 0

    async def reserve(self, reservation: Reservation) -> Reserved | LedgerRefused:
        """Hold the amount, as the real one does."""
        if self.unavailable:
            raise LedgerUnavailable
        if self.refusal is not None:
            return self.refusal
        held = self._held(reservation.account)
        ceiling = self.ceilings.get(reservation.account)
        if ceiling is not None:
            spent = self.spent[reservation.account]
            if spent + reservation.amount_nano > ceiling:
                return LedgerRefused("exhausted", ceiling, spent, held)
            if spent + held + reservation.amount_nano > ceiling:
                return LedgerRefused("held", ceiling, spent, held)
        self.reservations.append(reservation)
        self._open[reservation.usage_id] = reservation
        left = None if ceiling is None else ceiling - self.spent[reservation.account] - held
        return Reserved(reservation.usage_id, left)

    async def extend(self, usage_id: str, amount_nano: int) -> bool:
        """Say whether the row is open."""
        return usage_id in self._open

    async def settle(self, settlement: Settlement) -> None:
        """Book it, whatever becomes of the caller; a second settlement of one row shows too."""
        self.settling.set()
        if self.may_settle.is_set():
            self._book(settlement)
            return
        booking = asyncio.create_task(self._book_later(settlement))
        self._booking.add(booking)
        booking.add_done_callback(self._booking.discard)
        await asyncio.shield(booking)

    async def _book_later(self, settlement: Settlement) -> None:
        await self.may_settle.wait()
        self._book(settlement)

    def _book(self, settlement: Settlement) -> None:
        self.settlements.append(settlement)
        reservation = self._open.pop(settlement.usage_id, None)
        if reservation is not None:
            self.spent[reservation.account] += settlement.cost_nano

    async def balance(self, account: str) -> Balance | None:
        """Return the account as it stands."""
        return Balance(self.ceilings.get(account), self.spent[account], self._held(account), 0)

    def count(self, subject: str, kind: str) -> None:
        """Count."""
        self.counted[(subject, kind)] += 1

    async def close(self) -> None:
        """Do nothing."""

    @property
    def open_rows(self) -> int:
        """Rows reserved and not settled."""
        return len(self._open)

    @property
    def settlement(self) -> Settlement:
        """The one settlement there must be."""
        assert len(self.settlements) == 1, self.settlements
        return self.settlements[0]

    def _held(self, account: str) -> int:
        return sum(row.amount_nano for row in self._open.values() if row.account == account)
