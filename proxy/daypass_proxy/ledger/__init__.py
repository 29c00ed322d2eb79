"""The ledger: admits calls against budgets and rates, and books what they cost, exactly once.

Place in the flow: `admit` reserves before the upstream sees a byte, `relay` extends, `attempt`
settles. This file holds the values and the seam (`Ledger`); the decisions are pure and stand in
`account` and `book`, the stores behind them are SQLite and Postgres.
All money is integer nano-dollars; there is no float on this side of the price table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

import msgspec

from daypass_proxy.ledger.usage import Pass, Usage

__all__ = [
    "MAX_NANO",
    "Balance",
    "Hold",
    "Ledger",
    "LedgerRefused",
    "LedgerUnavailable",
    "Limit",
    "LimitState",
    "Outcome",
    "Pass",
    "Policy",
    "Reason",
    "Reports",
    "Reservation",
    "Reserved",
    "Settlement",
    "Terms",
    "Usage",
    "check_amount",
]

MAX_NANO = 10**18
"""Largest amount of one call: a thousand million dollars, far inside a 64-bit column.

SQLite turns an integer overflow silently into a float, so an amount that could ever lead
there is refused before it becomes a row.
"""
MAX_TOKENS = 10**12
"""Largest number of tokens of one call."""


class Policy(StrEnum):
    """What becomes of a call that may need more than is left."""

    CUTOFF = "cutoff"  # what grows starts with little held, is extended, and cut when refused
    CLAMP = "clamp"  # max_tokens is lowered to what is left
    REJECT = "reject"  # the whole call is held from the start, or refused


class Terms(msgspec.Struct, frozen=True):
    """How the calls of an account are held; the leaf's own columns, else its parents', else these.

    `drain_ms` and `drain_tokens` bound how long, and for how many output tokens, an answer is read
    to its end after its client has gone.
    """

    policy: Policy = Policy.CUTOFF
    drain_ms: int = 2_000
    drain_tokens: int = 500


class Hold(msgspec.Struct, frozen=True):
    """An amount held: nano-dollars and tokens. Raises ValueError out of range."""

    nano: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        _check_hold(self.nano, self.tokens)


class Reservation(msgspec.Struct, frozen=True):
    """What one upstream attempt may cost; becomes the open usage row.

    `usage_id` is the caller's (`req_…`), unique per attempt. `account` is the leaf: its parents are
    found from it, and all of them are held or none. `base` is what the call may use whatever it
    writes: its input ceiling and fees. Each output token holds `output_nano` nano-dollars and one
    token more; the ledger holds between `output_least` and `output_most` of them, as the account's
    policy and what is left say. `whole`: what it uses of them is not seen, so that what is held
    must be all it may ask for, even where it streams. Raises ValueError for an amount out of range.
    """

    usage_id: str
    attempt: int
    account: str
    tenant: str
    sandbox: str
    grant_id: str
    token_id: str
    provider: str
    endpoint: str
    model: str
    stream: bool
    base: Hold
    output_least: int = 0
    output_most: int = 0
    output_nano: int = 0
    whole: bool = False

    def __post_init__(self) -> None:
        base, most = self.base, self.output_most
        if not 0 <= self.output_least <= most:
            raise ValueError("output_least must be at most output_most")
        # The largest `hold`, without making one: this runs on every call.
        _check_hold(base.nano + most * self.output_nano, base.tokens + most)

    @property
    def grows(self) -> bool:
        """Whether more may be held while the answer comes, which can be cut where that fails."""
        return self.stream and not self.whole

    def hold(self, output_tokens: int) -> Hold:
        """Return what is held with so many output tokens."""
        nano = self.base.nano + output_tokens * self.output_nano
        return Hold(nano, self.base.tokens + output_tokens)


class Limit(StrEnum):
    """The limits an account may have, each with a counter of its own."""

    BUDGET = "budget"  # nano-dollars, for the account's life
    TOKENS = "tokens"  # tokens, for the account's life
    DAY = "day"  # nano-dollars, per day of the tenant's time zone
    MONTH = "month"  # nano-dollars, per month of the tenant's time zone
    RPM = "rpm"  # calls admitted in any 60 s
    TPM = "tpm"  # tokens settled in any 60 s, and those held
    CONCURRENCY = "concurrency"  # open calls


class LimitState(msgspec.Struct, frozen=True):
    """One limit of one account as it stands; `ceiling`, `used` and `held` in the limit's unit.

    `set_aside` is the part of `held` that no call holds, but slices of accounts bought from this
    one: theirs to use, and of BUDGET alone.
    `resets_at` is when the window ends (DAY, MONTH), or when the oldest part of the minute is over
    (RPM, TPM), in epoch milliseconds; None where nothing comes back by itself.
    """

    limit: Limit
    account: str
    ceiling: int
    used: int
    held: int
    resets_at: int | None = None
    set_aside: int = 0

    @property
    def left(self) -> int:
        """What is neither used nor held."""
        return max(self.ceiling - self.used - self.held, 0)


class Reserved(msgspec.Struct, frozen=True):
    """An admitted call: the usage row is durable.

    `output_tokens` is how many are held; `limits` are all limits of the call's accounts, the leaf's
    first, as they stand with this call in them. `started_at` is the row's own, in epoch
    milliseconds.
    """

    usage_id: str
    output_tokens: int = 0
    terms: Terms = Terms()
    limits: tuple[LimitState, ...] = ()
    started_at: int = 0


Reason = Literal["exhausted", "held", "rate", "unknown_account", "overloaded"]


@dataclass(frozen=True, slots=True)
class LedgerRefused:
    """A refused reservation, and the limit that was in the way.

    `exhausted`: even with every hold given back the call would not fit before `state.resets_at`
    (402). `held`: it would fit once calls in flight settle (429); so is CONCURRENCY. `rate`: RPM or
    TPM (429). `overloaded`: too many reservations of this sandbox wait already (429).
    `retry_ms` is when it may fit, in milliseconds from now, where that is known. `wanted` is the
    least the call needs in the limit's unit.
    """

    reason: Reason
    state: LimitState | None = None
    wanted: int = 0
    retry_ms: int | None = None


class Outcome(StrEnum):
    """How an upstream attempt ended; the `outcome` column of its usage row."""

    COMPLETE = "complete"
    CLIENT_GONE = "client_gone"
    UPSTREAM_BROKEN = "upstream_broken"
    UPSTREAM_REFUSED = "upstream_refused"  # 4xx or 5xx, nothing billed
    UNREACHABLE = "unreachable"
    CUT_BUDGET = "cut_budget"  # an extension was refused
    CUT_REVOKED = "cut_revoked"
    CUT_STALE = "cut_stale"
    CUT_TOO_LONG = "cut_too_long"
    SHUTDOWN = "shutdown"
    CRASHED = "crashed"  # written by the reaper alone


class Settlement(msgspec.Struct, frozen=True):
    """What an attempt really cost. Raises ValueError for a cost outside 0 … `MAX_NANO`."""

    usage_id: str
    outcome: Outcome
    usage: Usage
    cost_nano: int
    estimated: bool
    http_status: int | None
    upstream_request_id: str | None

    def __post_init__(self) -> None:
        check_amount("cost_nano", self.cost_nano)
        if self.outcome is Outcome.CRASHED:
            raise ValueError("only the reaper writes the outcome crashed; name the real outcome")


@dataclass(frozen=True, slots=True)
class Balance:
    """An account as committed. `overdraft_nano` is the part of `spent_nano` beyond the holds."""

    account: str
    spent_nano: int
    reserved_nano: int
    overdraft_nano: int
    tokens_spent: int
    tokens_reserved: int
    open_calls: int
    limits: tuple[LimitState, ...] = ()


class Reports(Protocol):
    """Whom a ledger tells how long it took; the metrics."""

    def admission_answered(self, seconds: float) -> None:
        """A reservation was granted or refused."""

    def batch_committed(self, operations: int, seconds: float) -> None:
        """A transaction is over; called in the writer's thread."""


class LedgerUnavailable(Exception):
    """The store cannot be written now, so nothing was admitted; answer 503 with retry-after."""


class Ledger(Protocol):
    """The seam between the request path and the store of money."""

    @property
    def ready(self) -> bool:
        """Whether the store can be written, as far as is known."""

    @property
    def waiting(self) -> int:
        """How many operations wait for the next transaction."""

    async def reserve(self, reservation: Reservation) -> Reserved | LedgerRefused:
        """Hold the call in all its accounts and write the open usage row, or do nothing.

        Raises LedgerUnavailable. A caller that is cancelled while waiting leaves no hold behind.
        """

    async def extend(self, usage_id: str, more: Hold) -> bool:
        """Add to the hold of an open row; False when a limit is in the way or it is closed.

        Raises LedgerUnavailable.
        """

    def release(self, usage_id: str, part: Hold) -> None:
        """Give a part of the hold of an open row back, soon and without an answer.

        More than is held gives all of it back. Lost when the store is gone: the settlement frees
        whatever is held then.
        """

    async def settle(self, settlement: Settlement) -> None:
        """Book the real cost and free the hold; exactly once however often it is called.

        Returns when durable, or when the store is gone and the settlement is kept for retrying.
        It is taken over before anything is waited for: a caller that is cancelled while waiting
        changes nothing.
        """

    async def balance(self, account: str) -> Balance | None:
        """Read an account as last committed. Raises LedgerUnavailable."""

    def count(self, subject: str, kind: str) -> None:
        """Count a refusal or incident of a known subject; written with a later batch."""

    async def close(self) -> None:
        """Write what waits, then let go of the store."""


def check_amount(name: str, amount: int) -> None:
    """Raise ValueError unless `amount` is nano-dollars that a row can hold."""
    if type(amount) is not int or not 0 <= amount <= MAX_NANO:
        raise ValueError(f"{name} must be an integer of 0 to {MAX_NANO} nano-dollars")


def _check_hold(nano: int, tokens: int) -> None:
    """Raise ValueError unless both are amounts that a row can hold."""
    if type(nano) is not int or not 0 <= nano <= MAX_NANO:
        check_amount("nano", nano)  # it has the words; called only for them, as calls take time
    if type(tokens) is not int or not 0 <= tokens <= MAX_TOKENS:
        raise ValueError(f"tokens must be an integer of 0 to {MAX_TOKENS}")
