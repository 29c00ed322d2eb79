"""Months of calls for the tests of retention, booked by the ledger itself, and a prune of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from daypass_broker import db
from daypass_broker.retention import command
from daypass_broker.retention.command import Done, Wish
from daypass_proxy.ledger import Usage
from daypass_proxy.ledger.face import BatchedLedger
from tests.contract.ledgers import CENT, LEASE, Backend, bill, reservation
from tests.fakes.clock import FakeClock

LATER = int(datetime(2027, 4, 15, tzinfo=UTC).timestamp() * 1000)
"""When the tests prune: with one month kept beside April, January and February may go."""


def at(*when: int) -> FakeClock:
    """Return a clock that shows a moment of UTC."""
    return FakeClock(datetime(*when, tzinfo=UTC).timestamp())  # type: ignore[misc,arg-type]


async def fill(store: Backend) -> None:
    """Book calls from January to April of 2027, in two accounts below a third.

    `idle` is used in January alone, so it stays in the windows of that month. One call ends in the
    month after it began, one was reaped, and one of each month cost more than it held.
    """
    store.account("t", None)
    store.account("a", 10**6 * CENT, parent="t")
    store.query("UPDATE account SET parent = 't' WHERE id = 'a'")
    store.account("idle", None, parent="t")
    clock = at(2027, 1, 5)
    async with store.ledger(clock) as ledger:
        await ledger.reserve(reservation("req_idle", CENT, account="idle", sandbox="sbx_idle"))
        await ledger.settle(bill("req_idle", 3))
        await _month(ledger, clock, 1)
        clock.time = at(2027, 1, 31, 23, 59, 59).time
        await ledger.reserve(reservation("req_border", CENT))
        clock.advance(2)
        await ledger.settle(bill("req_border", 11))
        await ledger.reserve(reservation("req_lost", CENT))
    clock.advance(LEASE)
    async with store.ledger(clock, "w2") as ledger:
        assert store.row("req_lost")["outcome"] == "crashed"
        for month in (2, 3, 4):
            await _month(ledger, clock, month)


async def _month(ledger: BatchedLedger, clock: FakeClock, month: int) -> None:
    clock.time = at(2027, month, 10).time
    for number in range(5):
        name = f"req_{month}_{number}"
        await ledger.reserve(reservation(name, CENT, tokens=9))
        cost = CENT + 7 if number == 0 else number
        await ledger.settle(bill(name, cost, usage=Usage(10, number)))


@contextmanager
def engine_of(store: Backend) -> Iterator[sa.Engine]:
    """Open a store as the owner of its database does."""
    dsn = getattr(store, "dsn", None)
    engine = db.connect(dsn or f"sqlite:///{store.address}")
    try:
        yield engine
    finally:
        engine.dispose()


def prune(
    store: Backend,
    directory: Path,
    *,
    usage_months: int | None = 1,
    audit_months: int | None = None,
    dry_run: bool = False,
    say: Callable[[str], None] = lambda line: None,
    now_ms: int = LATER,
) -> Done:
    """Prune as the command does, at a moment of the test's choice."""
    wish = Wish(usage_months, audit_months, directory, dry_run)
    with engine_of(store) as engine:
        return command.prune(engine, wish, say, now_ms=now_ms)


def problems(store: Backend, directory: Path) -> list[str]:
    """What is wrong with the exports in a directory, beside what the store says of them."""
    with engine_of(store) as engine:
        return command.verify(engine, directory)[1]


def months(store: Backend) -> dict[str, int]:
    """How many calls there are, by their month."""
    found: dict[str, int] = {}
    for (started_at,) in store.query("SELECT started_at FROM usage ORDER BY started_at"):
        name = datetime.fromtimestamp(started_at / 1000, UTC).strftime("%Y-%m")
        found[name] = found.get(name, 0) + 1
    return found


def everything(store: Backend) -> list[tuple[Any, ...]]:
    """All that accounts hold."""
    return store.query("SELECT * FROM account ORDER BY id")
