"""Locks that others hold for long in PostgreSQL: who is in nobody's way waits for nobody."""

import asyncio
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from daypass_proxy.ledger import LedgerUnavailable, Reserved
from daypass_proxy.ledger import postgres_statements as sql
from daypass_proxy.ledger.postgres import PostgresTransaction, _json
from daypass_proxy.ledger.store import Changes, StoreFailed
from tests.contract.ledgers import CENT, Wall, bill, reservation
from tests.contract.ledgers_postgres import PostgresBackend
from tests.support import aeventually

pytestmark = pytest.mark.postgres

BUSY = 2.0


@contextmanager
def held(store: PostgresBackend, name: str) -> Iterator[None]:
    """Let somebody keep the lock on an account for the length of a block."""
    with psycopg.connect(store.dsn) as holding:
        holding.execute("UPDATE account SET drain_ms = 1 WHERE id = %s", (name,))
        yield
        holding.rollback()


async def test_an_account_locked_for_long_holds_up_no_other_tenant(
    postgres_store: PostgresBackend,
) -> None:
    """One batch waits for the lock; those after it do not, though a bill and calls go on to need
    it. The bill is booked when the lock is gone."""
    postgres_store.account("b", None)
    async with postgres_store.ledger(Wall(), busy_seconds=BUSY) as ledger:
        await ledger.reserve(reservation("req_a", CENT))
        with held(postgres_store, "a"):
            await ledger.settle(bill("req_a", 5))
            waited = []
            for number in range(8):
                locked = asyncio.ensure_future(ledger.reserve(reservation(f"req_a{number}", 1)))
                began = time.monotonic()
                other = reservation(f"req_b{number}", 1, account="b", sandbox="b", tenant="b")
                assert isinstance(await ledger.reserve(other), Reserved)
                waited.append(time.monotonic() - began)
                with pytest.raises(LedgerUnavailable):
                    await locked
            # Not the longest of them, which may be the machine's: each would wait for the lock.
            assert statistics.median(waited) < BUSY / 2
        await aeventually(lambda: postgres_store.sums() == (5, 0, 0))


async def test_a_commit_that_ends_after_its_connection_was_lost_is_undone(
    postgres_store: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server still writes a call that was refused as doubtful: its hold is freed all the same,
    and not booked at the end of a lease."""
    commit = PostgresTransaction.commit
    server = psycopg.connect(postgres_store.address.replace("+psycopg", ""))

    def lost(transaction: PostgresTransaction, changes: Changes) -> None:
        if not changes.opened:
            commit(transaction, changes)
            return
        transaction.roll_back()
        for statement, rows in ((sql.OPEN, changes.opened), (sql.BOOK, changes.accounts)):
            server.execute(statement, (_json(rows),))
        raise StoreFailed("connection lost", doubtful=True)

    monkeypatch.setattr(PostgresTransaction, "commit", lost)
    async with postgres_store.ledger(Wall(), busy_seconds=BUSY) as ledger:
        with pytest.raises(LedgerUnavailable, match="lost"):
            await ledger.reserve(reservation("req_1", CENT))
        await aeventually(lambda: waiting_for_a_lock(postgres_store))
        server.commit()
        server.close()
        await aeventually(lambda: postgres_store.row("req_1").get("state") == "settled")
    assert postgres_store.sums() == (0, 0, 0)
    assert postgres_store.row("req_1")["outcome"] == "client_gone"


def waiting_for_a_lock(store: PostgresBackend) -> bool:
    """Whether the ledger waits for a lock."""
    return bool(store.query("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
