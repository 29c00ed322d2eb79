"""Accounts for the ledger's tests: no limits and no money, but for what a test names."""

from typing import Any

from daypass_proxy.ledger.account import COLUMNS, Account

_FRESH: dict[str, Any] = dict.fromkeys(COLUMNS) | dict.fromkeys(
    COLUMNS[COLUMNS.index("lent_nano") :], 0
)


def account(name: str = "a", **columns: Any) -> Account:
    """Return an account as the broker makes it, with these columns."""
    return Account(**{**_FRESH, "id": name, "time_zone": "UTC", "minute": "[]", **columns})
