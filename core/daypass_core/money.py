"""Money at the edge: decimal US dollars outside, integer nano-dollars inside; never a float."""

from __future__ import annotations

import re

NANO = 1_000_000_000
MAX_USD = 1_000_000_000  # keeps every sum of accounts far from the end of 64 bits

_DECIMAL = re.compile(r"([0-9]{1,10})(?:\.([0-9]{1,9}))?", re.ASCII)


def parse_usd(value: object) -> int:
    """Read "2.50" or 2 as nano-dollars; raises ValueError saying what is wrong.

    A float is refused even when it looks exact: 0.1 + 0.2 has no place in an account.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError('must be a decimal in quotes such as "2.50", or an integer')
    found = _DECIMAL.fullmatch(str(value))
    if found is None:
        raise ValueError('must be a decimal in quotes such as "2.50", at least 0, to 9 places')
    dollars, decimals = found.groups(default="")
    nano = int(dollars) * NANO + int(decimals.ljust(9, "0"))
    if nano > MAX_USD * NANO:
        raise ValueError(f"must be at most {MAX_USD}")
    return nano


def format_usd(nano: int) -> str:
    """Write nano-dollars as a decimal with at least two places: 2500000000 is "2.50"."""
    dollars, rest = divmod(abs(nano), NANO)
    decimals = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"{'-' if nano < 0 else ''}{dollars}.{decimals}"
