"""Recompute every account from its usage rows: `python -m daypass_proxy.ledger.verify PATH`.

The accounts are running sums, kept by the same transactions that write the rows. This is the check
that they are right, to the nano-dollar; it reads one snapshot and may run beside everything else.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

_SUMMED = ("spent_nano", "reserved_nano", "overdraft_nano")
_ACCOUNTS = "SELECT id, spent_nano, reserved_nano, overdraft_nano FROM account ORDER BY id"
_ROWS = """
SELECT account,
    sum(CASE WHEN state = 'settled' THEN cost_nano ELSE 0 END),
    sum(CASE WHEN state = 'open' THEN reserved_nano ELSE 0 END),
    sum(CASE WHEN state = 'settled' THEN max(cost_nano - reserved_nano, 0) ELSE 0 END)
FROM usage GROUP BY account ORDER BY account
"""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A sum that an account's column does not hold; `recorded` is None without an account."""

    account: str
    column: str
    recorded: int | None
    computed: int

    def __str__(self) -> str:
        recorded = "no account" if self.recorded is None else f"{self.recorded} recorded"
        return f"{self.account}: {self.column}: {recorded}, {self.computed} by its usage rows"


def verify(path: Path | str) -> list[Discrepancy]:
    """Return every difference between the accounts and their usage rows; empty when all is right.

    Raises sqlite3.Error for a file that cannot be read.
    """
    address = f"file:{quote(str(path))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
        connection.execute("BEGIN")  # one snapshot for both queries
        recorded = {row[0]: row[1:] for row in connection.execute(_ACCOUNTS)}
        computed = {row[0]: row[1:] for row in connection.execute(_ROWS)}
    return [
        Discrepancy(account, column, held, due)
        for account in sorted(recorded | computed)
        for column, held, due in zip(
            _SUMMED,
            recorded.get(account, (None, None, None)),
            computed.get(account, (0, 0, 0)),
            strict=True,
        )
        if held != due
    ]


def main(arguments: list[str]) -> int:
    """Print the discrepancies of a database file; exit code 0 without any, 1 with, 2 unread."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m daypass_proxy.ledger.verify PATH\n")
        return 2
    try:
        found = verify(arguments[0])
    except sqlite3.Error as error:
        sys.stderr.write(f"cannot read {arguments[0]}: {error}\n")
        return 2
    sys.stdout.writelines(f"{discrepancy}\n" for discrepancy in found)
    if not found:
        sys.stdout.write("every account is the sum of its usage rows\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
