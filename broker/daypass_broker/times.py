"""Times at the edge: RFC 3339 outside, epoch seconds or milliseconds inside, always UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_EPOCH = re.compile(r"[0-9]{1,11}", re.ASCII)
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2}))?",
    re.ASCII,
)
_LATEST = 253_402_300_799  # the last second of year 9999, beyond which no format agrees


def format_second(second: int) -> str:
    """Write epoch seconds as RFC 3339, such as 2026-11-29T17:24:00Z."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_ms(ms: int) -> str:
    """Write epoch milliseconds as RFC 3339, such as 2026-11-29T17:24:00.250Z."""
    return f"{format_second(ms // 1000)[:-1]}.{ms % 1000:03d}Z"


def parse_second(value: object) -> int:
    """Read epoch seconds, RFC 3339 with its offset, or a date (its first second, UTC).

    Fractions are cut off. Raises ValueError saying what is expected.
    """
    if type(value) is int and 0 <= value <= _LATEST:
        return value
    if isinstance(value, str) and _EPOCH.fullmatch(value):
        return int(value)
    if isinstance(value, str) and _RFC3339.fullmatch(value):
        try:
            moment = datetime.fromisoformat(value.upper())
            aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            second = int(aware.timestamp())
        except (ValueError, OverflowError):
            second = -1
        if second >= 0:
            return second
    raise ValueError("must be a time such as 2026-11-29T17:24:00Z, or epoch seconds")
