"""The limits of an account: read from a document, kept, compared, and written again.

One table, `KEYS`, says how each is called in documents and requests, which column of `account` it
is, and what its values look like. A limit that is absent does not limit. How a call is held
(`over_budget`, `drain_*`) stands here too: a tenant or profile bounds it like an amount.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from functools import cache
from typing import Literal
from zoneinfo import available_timezones

from daypass_broker.fields import Fields
from daypass_core.money import format_usd

UTC = "UTC"
OVER_BUDGET = ("reject", "clamp", "cutoff")
"""What becomes of a call that may need more than is left, the most careful way first."""
MAX_COUNT = 10**15
MAX_DRAIN_MS = 60_000
_SECONDS = re.compile(r"[0-9]{1,2}(?:\.[0-9]{1,3})?", re.ASCII)
# Of the machine or of nowhere: another process may read something else in them.
_NO_PLACES = frozenset({"localtime", "Factory"})

Value = int | str


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one account, named as its columns; None: none.

    `*_nano` are nano-dollars, `drain_ms` milliseconds, the rest tokens and calls.
    """

    ceiling_nano: int | None = None
    day_ceiling_nano: int | None = None
    month_ceiling_nano: int | None = None
    token_ceiling: int | None = None
    rpm_limit: int | None = None
    tpm_limit: int | None = None
    concurrency_limit: int | None = None
    policy: str | None = None
    drain_ms: int | None = None
    drain_tokens: int | None = None

    def columns(self) -> dict[str, Value | None]:
        """Return all of them by column."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def given(self) -> dict[str, Value]:
        """Return those there are, by column."""
        return {name: value for name, value in self.columns().items() if value is not None}

    def document(self) -> dict[str, Value]:
        """Return those there are, as `read` takes them again."""
        values = ((key, getattr(self, key.column)) for key in KEYS)
        return {key.name: key.shown(value) for key, value in values if value is not None}

    def below(self, other: Limits) -> Limits:
        """Return these limits, with those of `other` where there is none."""
        return replace(other, **self.given())  # type: ignore[arg-type]


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class Key:
    """One limit as documents call it, its column, and the kind of its values."""

    name: str
    column: str
    kind: Literal["usd", "count", "way", "seconds"]

    def read(self, given: Fields) -> Value | None:
        """Take the limit out of an object; raises FieldError naming it."""
        if self.kind == "usd":
            return given.usd(self.name)
        if self.kind == "count":
            return given.integer(self.name, least=0, most=MAX_COUNT)
        if self.kind == "way":
            return given.text(self.name, choices=OVER_BUDGET)
        return _milliseconds(given, self.name)

    def shown(self, value: Value) -> Value:
        """Write a value of the column as documents have it."""
        if self.kind == "usd":
            return format_usd(int(value))
        if self.kind == "seconds":
            seconds, rest = divmod(int(value), 1000)
            return f"{seconds}.{rest:03d}".rstrip("0") if rest else seconds
        return value

    def bound(self, most: Value) -> str:
        """Say in words what a value may be at most."""
        if self.kind == "way":
            return f"must be {' or '.join(OVER_BUDGET[: OVER_BUDGET.index(str(most)) + 1])}"
        return f"must be at most {self.shown(most)}"

    def allows(self, most: Value | None, wanted: Value | None) -> bool:
        """Say whether `wanted` is at most `most`; None is more than everything."""
        if most is None:
            return True
        if wanted is None:
            return False
        if self.kind == "way":
            return OVER_BUDGET.index(str(wanted)) <= OVER_BUDGET.index(str(most))
        return int(wanted) <= int(most)


KEYS: tuple[Key, ...] = (
    Key("budget_usd", "ceiling_nano", "usd"),
    Key("budget_per_day_usd", "day_ceiling_nano", "usd"),
    Key("budget_per_month_usd", "month_ceiling_nano", "usd"),
    Key("token_budget", "token_ceiling", "count"),
    Key("requests_per_minute", "rpm_limit", "count"),
    Key("tokens_per_minute", "tpm_limit", "count"),
    Key("concurrency", "concurrency_limit", "count"),
    Key("over_budget", "policy", "way"),
    Key("drain_seconds", "drain_ms", "seconds"),
    Key("drain_tokens", "drain_tokens", "count"),
)
BUDGET = KEYS[0]
USUAL = Limits(policy="cutoff", drain_ms=2_000, drain_tokens=500)
"""How calls are held where neither the account nor its parent says so; the proxy's `Terms`."""


def read(given: Fields, *, budget: bool = True) -> Limits:
    """Take all limits out of an object, `budget_usd` only when asked; raises FieldError."""
    found = {key.column: key.read(given) for key in KEYS if budget or key is not BUDGET}
    return Limits(**found)  # type: ignore[arg-type]


def read_changes(given: Fields) -> dict[str, Value | None]:
    """Take the limits to be changed out of an object, by column; null takes one away.

    Raises FieldError, also for a budget of null: no sandbox is without one by a slip.
    """
    changes: dict[str, Value | None] = {}
    for key in KEYS:
        if key is not BUDGET and given.null(key.name):
            changes[key.column] = None
        elif (value := key.read(given)) is not None:
            changes[key.column] = value
    return changes


def terms(given: Limits) -> Limits:
    """Return of these limits only how calls are held."""
    return Limits(policy=given.policy, drain_ms=given.drain_ms, drain_tokens=given.drain_tokens)


def from_document(document: Mapping[str, object]) -> Limits:
    """Read what `Limits.document` gave."""
    return read(Fields(dict(document)))


def beyond(most: Limits, wanted: Limits) -> Iterator[tuple[str, str]]:
    """Yield each limit of `wanted` that is more than `most` allows, with what it must be.

    What `wanted` leaves out asks for nothing.
    """
    for key in KEYS:
        limit, asked = getattr(most, key.column), getattr(wanted, key.column)
        if asked is not None and not key.allows(limit, asked):
            yield key.name, key.bound(limit)


def time_zone(given: Fields, name: str) -> str | None:
    """Take the IANA name of a time zone; raises FieldError."""
    value = given.text(name)
    if value is not None and value not in _zones():
        raise given.error(name, "is no IANA time zone: write one such as Europe/Berlin or UTC")
    return value


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones()) - _NO_PLACES


def _milliseconds(given: Fields, name: str) -> int | None:
    value = given.raw(name)
    if value is None:
        return None
    # A float is read as Python shows it; seconds are no money. An integer may have more digits than
    # Python shows.
    short = type(value) is int and 0 <= value <= MAX_DRAIN_MS
    if not (short or isinstance(value, str | float)) or not _SECONDS.fullmatch(str(value)):
        raise given.error(name, "must be seconds from 0 to 60, with at most 3 decimals")
    milliseconds = int(Decimal(str(value)) * 1000)
    if milliseconds > MAX_DRAIN_MS:
        raise given.error(name, f"must be at most {MAX_DRAIN_MS // 1000} seconds")
    return milliseconds
