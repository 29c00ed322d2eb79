"""The ledger: admits calls against a budget and books what they cost, exactly once.

Place in the flow: `admit` reserves before the upstream sees a byte, `relay` extends and settles.
This file holds the values and the seam (`Ledger`); `ledger.sqlite` is the store behind it.
All money is integer nano-dollars; there is no float on this side of the price table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

import msgspec

MAX_NANO = 10**18
"""Largest amount of one call: a thousand million dollars, far inside a 64-bit column.

SQLite turns an integer overflow silently into a float, so an amount that could ever lead
there is refused before it becomes a row.
"""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one upstream attempt, as the provider counts them.

    `None` means that the provider said nothing; `0` means that it said zero. As on the wire,
    `input_tokens` excludes the cache figures; `cache_creation_input_tokens` is the total of all
    cache writes and `cache_creation_1h_input_tokens` the part of it that lives one hour.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation_1h_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class Reservation(msgspec.Struct, frozen=True):
    """What one upstream attempt may cost at most; becomes the open usage row.

    `usage_id` is the caller's (`req_…`), unique per attempt. Raises ValueError for an amount
    outside 0 … `MAX_NANO`.
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
    amount_nano: int

    def __post_init__(self) -> None:
        check_amount("amount_nano", self.amount_nano)


@dataclass(frozen=True, slots=True)
class Reserved:
    """An admitted call: the usage row is durable; `remaining_nano` is None without a ceiling."""

    usage_id: str
    remaining_nano: int | None


Reason = Literal["exhausted", "held", "unknown_account", "overloaded"]


@dataclass(frozen=True, slots=True)
class LedgerRefused:
    """A refused reservation and the account as it stood.

    `exhausted`: even with every hold given back the call would not fit (402). `held`: it would
    fit once calls in flight settle (429). `overloaded`: too many reservations of this sandbox
    wait already (429); its figures are zero, as is `unknown_account`'s.
    """

    reason: Reason
    ceiling_nano: int = 0
    spent_nano: int = 0
    reserved_nano: int = 0


class Outcome(StrEnum):
    """How an upstream attempt ended; the `outcome` column of its usage row."""

    COMPLETE = "complete"
    CLIENT_GONE = "client_gone"
    UPSTREAM_BROKEN = "upstream_broken"
    UPSTREAM_REFUSED = "upstream_refused"  # 4xx or 5xx, nothing billed
    UNREACHABLE = "unreachable"
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

    ceiling_nano: int | None
    spent_nano: int
    reserved_nano: int
    overdraft_nano: int


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
        """Hold `amount_nano` and write the open usage row, both durably or neither.

        Raises LedgerUnavailable. A caller that is cancelled while waiting leaves no hold behind.
        """

    async def extend(self, usage_id: str, amount_nano: int) -> bool:
        """Add to the hold of an open row; False when the ceiling is in the way or it is closed.

        A negative amount gives a part of the hold back. Raises LedgerUnavailable.
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
