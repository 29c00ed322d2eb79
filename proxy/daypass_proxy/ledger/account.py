"""An account as one record: its limits, which the broker writes, and its counters, which we write.

Place in the flow: a store loads the accounts of a batch, `book` decides on them and changes their
counters, the store writes them back. Nothing here knows of a database: a store only needs to keep
the order of the columns.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Account(msgspec.Struct, array_like=True):
    """One row of the table `account`, a field per column, in the order of `COLUMNS`.

    Amounts are nano-dollars, moments are epoch milliseconds. A limit that is None is not set. A
    window from 0 until 0 was never opened. `minute` is what `minute.Minute` reads and writes.
    `lent_nano` is set aside for accounts that were bought from this one, `lent_used_nano` what of
    it is used; `sliced` is 1 where the account's own ceiling is set aside so in its parent.
    """

    id: str
    parent: str | None
    time_zone: str
    policy: str | None
    drain_ms: int | None
    drain_tokens: int | None
    ceiling_nano: int | None
    token_ceiling: int | None
    day_ceiling_nano: int | None
    month_ceiling_nano: int | None
    rpm_limit: int | None
    tpm_limit: int | None
    concurrency_limit: int | None
    lent_nano: int
    sliced: int
    spent_nano: int
    reserved_nano: int
    overdraft_nano: int
    tokens_spent: int
    tokens_reserved: int
    open_calls: int
    day_from: int
    day_until: int
    day_spent_nano: int
    month_from: int
    month_until: int
    month_spent_nano: int
    lent_used_nano: int
    minute: str

    @property
    def set_aside_nano(self) -> int:
        """What is left of the slices of its children: neither spent nor held, but promised."""
        return self.lent_nano - self.lent_used_nano


COLUMNS: Final = Account.__struct_fields__
"""Every column that is read, in the order of the fields."""

WRITTEN: Final = (*COLUMNS[COLUMNS.index("spent_nano") :], "updated_at", "id")
"""The columns that a batch writes, in the order of `written`; the last one says which row."""


def written(account: Account, now_ms: int) -> tuple[object, ...]:
    """Return the values of `WRITTEN`, with `now_ms` as the time of the change."""
    return (
        account.spent_nano,
        account.reserved_nano,
        account.overdraft_nano,
        account.tokens_spent,
        account.tokens_reserved,
        account.open_calls,
        account.day_from,
        account.day_until,
        account.day_spent_nano,
        account.month_from,
        account.month_until,
        account.month_spent_nano,
        account.lent_used_nano,
        account.minute,
        now_ms,
        account.id,
    )
