"""What the ledger needs of a database: to load what a batch touches, locked, and to write it whole.

Place in the flow: the writer opens a `Store` in its own thread and begins one `Transaction` per
batch. What the batch does is decided between loading and writing, in Python, by `book`; a store
only moves rows. `sqlite` and `postgres` each hold one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from daypass_proxy.ledger.account import Account

SCHEMA: Final = "0006"
"""The schema that the statements of both stores were written for: the head of the migrations."""

CHAIN_LENGTH: Final = 8
"""Accounts of one chain at most, so that a wrong parent cannot make a store go round for ever."""


class Row(msgspec.Struct, array_like=True):
    """A usage row as far as it decides anything, a field per column, in the order of `ROW`.

    `accounts` are the ids of the accounts that it is booked in, the leaf first, one space between
    them. `estimated` is 0 or 1.
    """

    id: str
    state: str
    accounts: str
    reserved_nano: int
    reserved_tokens: int
    cost_nano: int | None
    tokens: int | None
    outcome: str | None
    estimated: int
    settled_at: int | None
    started_at: int


ROW: Final = Row.__struct_fields__
"""The columns of `usage` that are read, in the order of the fields."""

OPENED: Final = (
    "id",
    "attempt",
    "account",
    "accounts",
    "tenant",
    "sandbox",
    "grant_id",
    "token_id",
    "provider",
    "endpoint",
    "model",
    "stream",
    "reserved_nano",
    "reserved_tokens",
    "worker",
    "lease_until",
    "started_at",
)
"""The columns of a new usage row; its state is `open`, the rest is NULL or its default."""

KEY: Final = ("started_at", "id")
"""The columns that say which usage row: on PostgreSQL its month says in which part it is."""

RESIZED: Final = ("reserved_nano", "reserved_tokens", *KEY)
"""The columns of a row whose hold has changed; the last ones say which row."""

SETTLED: Final = (
    "reserved_nano",
    "reserved_tokens",
    "cost_nano",
    "tokens",
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_creation_1h_input_tokens",
    "cache_read_input_tokens",
    "thinking_tokens",
    "web_search_requests",
    "service_tier",
    "speed",
    "inference_geo",
    "passes",
    "outcome",
    "estimated",
    "http_status",
    "upstream_request_id",
    "settled_at",
    *KEY,
)
"""The columns of a row that becomes `settled`, or is corrected; the last ones say which row."""

Span = tuple[int, int]
"""The first and the last moment of something, both included, in epoch milliseconds."""

Values = tuple[object, ...]
"""A row to be written: integers, text and None alone."""


@dataclass(slots=True)
class Changes:
    """All that a batch writes: each list is one statement, each tuple one row of it.

    The tuples have the columns `OPENED`, `RESIZED`, `SETTLED` and `account.WRITTEN`; no row is in
    two of the lists, and none twice in one. `incidents` are (subject, kind, minute, how many more),
    to be added to what is there. Accounts and incidents are in the order of their keys.
    """

    opened: list[Values] = field(default_factory=list)
    resized: list[Values] = field(default_factory=list)
    settled: list[Values] = field(default_factory=list)
    accounts: list[Values] = field(default_factory=list)
    incidents: list[tuple[str, str, int, int]] = field(default_factory=list)


class Unreadable(Exception):
    """The database cannot be read, or is none of ours; the message says what was found."""


class StoreFailed(Exception):
    """The store cannot be written now. `doubtful`: the commit itself failed, so it may have been.

    `broken`: the connection is not to be used again.
    """

    def __init__(self, message: str, *, doubtful: bool = False, broken: bool = True) -> None:
        super().__init__(message)
        self.doubtful = doubtful
        self.broken = broken


class BatchFailed(Exception):
    """Nothing of the batch was written, because of a part of it; its other parts may pass.

    `locked`: another process holds a row that the batch needs, or the two waited for each other, so
    that the same part may pass later. Otherwise a value is one that no row can hold.
    """

    def __init__(self, message: str, *, locked: bool) -> None:
        super().__init__(message)
        self.locked = locked


class Transaction(Protocol):
    """One batch. The methods are called in the order they stand in, those that are needed.

    Each raises StoreFailed, or BatchFailed; after either, `roll_back` is called.
    """

    def rows(self, usage_ids: Collection[str], started: Span | None = None) -> list[Row]:
        """Load usage rows, locked in the order of their ids; one that is missing is left out.

        `started` says when all of them began, where that is known: it is not looked elsewhere.
        """

    def renew(
        self, usage_ids: Collection[str], lease_until: int, started: Span | None = None
    ) -> None:
        """Move the leases of those rows that are open; one locked elsewhere is skipped.

        `started` as in `rows`.
        """

    def expired(self, now_ms: int, limit: int) -> list[Row]:
        """Load up to `limit` open rows whose lease is over at `now_ms`, locked.

        One that another process holds is skipped: it is being settled there.
        """

    def chains(self, leaves: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return the ids of each account and its parents, from it upwards, without a lock.

        An account that does not exist is left out, and so is one whose chain has no end within
        `CHAIN_LENGTH` ids: a limit that cannot be found is not taken for none.
        """

    def accounts(self, account_ids: Collection[str]) -> list[Account]:
        """Load accounts, locked in the order of their ids unless the transaction only reads."""

    def commit(self, changes: Changes) -> None:
        """Write the changes and make them durable, each kind in one statement."""

    def roll_back(self) -> None:
        """Undo everything. Raises nothing: a connection that cannot is closed by the store."""


class Store(Protocol):
    """One connection, used by the writer's thread alone.

    `one_lock`: a transaction locks all of the database, so that other processes can only write
    while none runs.
    """

    one_lock: bool

    def begin(self, *, reading: bool = False, lock_seconds: float | None = None) -> Transaction:
        """Begin a transaction. Raises StoreFailed.

        `reading`: nothing will be locked or written. `lock_seconds`: how long a lock that another
        process holds is waited for, None for as long as the store was told to.
        """

    def close(self) -> None:
        """Let go of the database. Raises nothing."""


OpenStore = Callable[[], Store]
"""Connects to a migrated database, in the writer's thread. Raises StoreFailed."""
