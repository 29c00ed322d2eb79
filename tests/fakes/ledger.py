"""A ledger in memory: one ceiling per account, everything that was asked and booked in lists."""

import asyncio
from collections import Counter

from daypass_proxy.ledger import (
    Balance,
    Hold,
    LedgerRefused,
    LedgerUnavailable,
    Limit,
    LimitState,
    Policy,
    Reservation,
    Reserved,
    Settlement,
    Terms,
)


class FakeLedger:
    """A `Ledger` that a test can fill, empty, take away (`unavailable`) and make slow.

    A reservation is held in its leaf alone: chains are the real ledger's.
    """

    def __init__(self, **ceilings: int) -> None:
        """`ceilings` in nano-dollars by account; an account not named has none."""
        self.ceilings = ceilings
        self.terms: dict[str, Terms] = {}
        """By account; one not named has `Terms()`."""
        self.spent: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.reservations: list[Reservation] = []
        self.extensions: list[tuple[str, Hold]] = []
        """Those granted."""
        self.releases: list[tuple[str, Hold]] = []
        self.settlements: list[Settlement] = []
        self.counted: Counter[tuple[str, str]] = Counter()
        self.refusal: LedgerRefused | None = None
        self.grants: int | None = None
        """How many more extensions are granted; None for as many as fit."""
        self.limits: tuple[LimitState, ...] = ()
        """Put into every `Reserved` and `Balance` after the budget's own."""
        self.unavailable = False
        self.may_settle = asyncio.Event()
        """Cleared by a test that wants settlements to hang."""
        self.may_settle.set()
        self.settling = asyncio.Event()
        self.held: dict[str, Hold] = {}
        """By usage id, while the row is open."""
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
        """Hold what the account's policy says, as the real one does."""
        if self.unavailable:
            raise LedgerUnavailable
        if self.refusal is not None:
            return self.refusal
        account = reservation.account
        terms = self.terms.get(account, Terms())
        output = self._output_tokens(reservation, terms.policy)
        if output is None:
            return self._refused(reservation, terms.policy)
        self.reservations.append(reservation)
        self._open[reservation.usage_id] = reservation
        self.held[reservation.usage_id] = reservation.hold(output)
        return Reserved(reservation.usage_id, output, terms, self._limits(account))

    async def extend(self, usage_id: str, more: Hold) -> bool:
        """Add to the hold when the row is open, its account has room, and the test lets it."""
        if self.unavailable:
            raise LedgerUnavailable
        reservation = self._open.get(usage_id)
        if reservation is None or self.grants == 0:
            return False
        room = self._room(reservation.account)
        if room is not None and more.nano > room:
            return False
        if self.grants is not None:
            self.grants -= 1
        held = self.held[usage_id]
        self.held[usage_id] = Hold(held.nano + more.nano, held.tokens + more.tokens)
        self.extensions.append((usage_id, more))
        return True

    def release(self, usage_id: str, part: Hold) -> None:
        """Give a part of the hold back, at once."""
        self.releases.append((usage_id, part))
        if usage_id in self._open:
            held = self.held[usage_id]
            nano, tokens = held.nano - part.nano, held.tokens - part.tokens
            self.held[usage_id] = Hold(max(nano, 0), max(tokens, 0))

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

    async def balance(self, account: str) -> Balance | None:
        """Return the account as it stands. Raises LedgerUnavailable."""
        if self.unavailable:
            raise LedgerUnavailable
        mine = [self.held[key] for key, row in self._open.items() if row.account == account]
        return Balance(
            account=account,
            spent_nano=self.spent[account],
            reserved_nano=sum(hold.nano for hold in mine),
            overdraft_nano=0,
            tokens_spent=self.tokens[account],
            tokens_reserved=sum(hold.tokens for hold in mine),
            open_calls=len(mine),
            limits=self._limits(account),
        )

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

    async def _book_later(self, settlement: Settlement) -> None:
        await self.may_settle.wait()
        self._book(settlement)

    def _book(self, settlement: Settlement) -> None:
        self.settlements.append(settlement)
        reservation = self._open.pop(settlement.usage_id, None)
        if reservation is not None:
            del self.held[settlement.usage_id]
            self.spent[reservation.account] += settlement.cost_nano
            self.tokens[reservation.account] += settlement.usage.tokens

    def _output_tokens(self, wanted: Reservation, policy: Policy) -> int | None:
        """Return how many output tokens are held; None when even the fewest do not fit."""
        least, most = wanted.output_least, wanted.output_most
        if policy is Policy.REJECT:
            least = most
        elif policy is Policy.CUTOFF and wanted.grows:
            most = least
        room = self._room(wanted.account)
        if room is None:
            return most
        if wanted.hold(least).nano > room:
            return None
        if not wanted.output_nano:
            return most
        return min(most, (room - wanted.base.nano) // wanted.output_nano)

    def _refused(self, wanted: Reservation, policy: Policy) -> LedgerRefused:
        fewest = wanted.output_most if policy is Policy.REJECT else wanted.output_least
        nano = wanted.hold(fewest).nano
        state = self._limits(wanted.account)[0]
        exhausted = state.used + nano > state.ceiling
        return LedgerRefused("exhausted" if exhausted else "held", state, nano)

    def _limits(self, account: str) -> tuple[LimitState, ...]:
        ceiling = self.ceilings.get(account)
        if ceiling is None:
            return self.limits
        spent, held = self.spent[account], self._held(account)
        return (LimitState(Limit.BUDGET, account, ceiling, spent, held), *self.limits)

    def _room(self, account: str) -> int | None:
        ceiling = self.ceilings.get(account)
        return None if ceiling is None else ceiling - self.spent[account] - self._held(account)

    def _held(self, account: str) -> int:
        mine = (key for key, row in self._open.items() if row.account == account)
        return sum(self.held[key].nano for key in mine)
