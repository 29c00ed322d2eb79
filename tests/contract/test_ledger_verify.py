"""Verifying the books: every sum of every account is found wrong to the nano-dollar, or right."""

import json
import sqlite3
import sys
from pathlib import Path

import pytest

from daypass_core.settings import SettingsError
from daypass_proxy import __main__ as main_module
from daypass_proxy.ledger import Outcome, Usage
from daypass_proxy.ledger.store import Unreadable
from daypass_proxy.ledger.verify import SUMS, verify
from daypass_proxy.settings import load_database_url
from tests.contract.ledgers import CENT, LEASE, Backend, bill, reservation
from tests.fakes.clock import FakeClock

DAY_SECONDS = 24 * 3600
SPENT = 10_000_005


async def fill(store: Backend) -> None:
    """Book one call beyond its hold, and leave another one open."""
    store.account("t", None)
    store.account("a", parent="t")
    store.query("UPDATE account SET parent = 't' WHERE id = 'a'")
    async with store.ledger(FakeClock()) as ledger:
        await ledger.reserve(reservation("req_1", CENT))
        await ledger.settle(bill("req_1", SPENT, usage=Usage(10, 20)))
        await ledger.reserve(reservation("req_2", 7, tokens=9))


async def test_every_sum_is_recomputed(store: Backend) -> None:
    """A column that is one too high is named with what it should be, in a leaf and its parent."""
    await fill(store)
    assert verify(store.address) == []
    right = dict(zip(SUMS, (SPENT, 7, 5, 30, 9, 1, SPENT, SPENT, 0), strict=True))
    for account in ("a", "t"):
        for column, due in right.items():
            change = f"UPDATE account SET {column} = {column} + ? WHERE id = ?"
            store.query(change, 1, account)
            said = f"{account}: {column}: {due + 1} recorded, {due} by its usage rows"
            assert [str(found) for found in verify(store.address)] == [said]
            store.query(change, -1, account)


async def test_what_is_left_of_slices_is_recomputed(store: Backend) -> None:
    """Of a buyer, what is set aside and not used has to be what its children have left of it."""
    clock = FakeClock()
    assert store.buy("a", "c", 30)
    assert store.buy("a", "d", 20)
    assert store.buy("c", "e", 10)
    async with store.ledger(clock) as ledger:
        await ledger.reserve(reservation("req_1", 9, account="e"))
        await ledger.settle(bill("req_1", 12))
        await ledger.reserve(reservation("req_2", 3, account="c"))
        await ledger.reserve(reservation("req_3", 8, account="d"))
    store.give_back("d")
    assert [store.column("lent_nano", name) for name in "ac"] == [38, 10]
    assert [store.column("lent_used_nano", name) for name in "ac"] == [23, 10]
    assert verify(store.address) == []
    store.query("UPDATE account SET lent_used_nano = 22 WHERE id = 'a'")
    said = "a: lent_used_nano: 22 recorded, 23 by its usage rows"
    assert [str(found) for found in verify(store.address)] == [said]
    store.query("UPDATE account SET lent_used_nano = 23, lent_nano = 39 WHERE id = 'a'")
    assert [found.computed for found in verify(store.address)] == [24]
    store.query("UPDATE account SET lent_nano = 38 WHERE id = 'a'")
    clock.advance(LEASE)
    async with store.ledger(clock, "w2") as ledger:
        await ledger.settle(bill("req_3", 5))
        assert [found.limits[0].left for found in [await ledger.balance("a")] if found] == [
            50 * CENT - 12 - 3 - 5 - 15
        ]


async def test_rows_without_an_account_are_named(store: Backend) -> None:
    """An account that is gone is named by what its rows come to; one without rows has no sums."""
    await fill(store)
    store.query("UPDATE account SET id = 'b' WHERE id = 'a'")
    found = verify(store.address)
    assert [each.recorded for each in found if each.account == "a"] == [None] * len(SUMS)
    assert [each.computed for each in found if each.account == "b"] == [0] * (len(SUMS) - 1)
    assert "a: spent_nano: no account, 10000005 by its usage rows" in map(str, found)
    store.query("UPDATE account SET id = 'a' WHERE id = 'b'")


async def test_only_the_present_windows_count(store: Backend) -> None:
    """After midnight the day's sum holds what was settled since, also when a guess is corrected."""
    clock = FakeClock()
    async with store.ledger(clock) as ledger:
        await ledger.reserve(reservation("req_1", CENT))
        await ledger.reserve(reservation("req_2", CENT))
        await ledger.settle(bill("req_1", 3))
    clock.advance(LEASE + DAY_SECONDS)
    async with store.ledger(clock, "w2") as ledger:
        assert verify(store.address) == []
        clock.advance(DAY_SECONDS)
        await ledger.settle(bill("req_2", 5, outcome=Outcome.COMPLETE))
        assert store.column("day_spent_nano") == 5
        assert verify(store.address) == []


async def test_the_command(
    store: Backend, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 0 when all is right, 1 with discrepancies, 2 unread; text, or JSON for machines."""
    monkeypatch.setattr(main_module, "harden", lambda: None)
    monkeypatch.setattr(main_module, "configure", lambda service, level: None)
    await fill(store)
    assert main_module.main(["verify", store.address]) == 0
    assert "every account is the sum" in capsys.readouterr().out
    store.query("UPDATE account SET spent_nano = spent_nano - 1 WHERE id = 'a'")
    assert main_module.main(["verify", "--json", store.address]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {"account": "a", "column": "spent_nano", "recorded": SPENT - 1, "computed": SPENT}
    ]
    monkeypatch.setattr(main_module, "load_database_url", lambda: store.address)
    assert main_module.main(["verify"]) == 1
    assert "a: spent_nano: 10000004 recorded, 10000005" in capsys.readouterr().out
    store.query("UPDATE account SET spent_nano = spent_nano + 1 WHERE id = 'a'")
    assert main_module.main(["verify", "/nowhere/at-all.db"]) == 2
    assert "cannot verify" in capsys.readouterr().err


@pytest.mark.parametrize(
    "target",
    [
        "/nowhere/at-all.db",
        "sqlite:////nowhere/at-all.db",
        "postgresql://127.0.0.1:1/none",
        "postgresql+psycopg://me:secret%zz@db.test/x",
    ],
)
def test_what_cannot_be_read(target: str) -> None:
    """A database that is not there is an error in words, which repeat no password."""
    with pytest.raises(Unreadable) as caught:
        verify(target)
    assert "secret" not in str(caught.value)


def test_without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the extra says how to get it."""
    monkeypatch.setitem(sys.modules, "daypass_proxy.ledger.verify_postgres", None)
    with pytest.raises(Unreadable, match=r"pip install 'daypass-proxy\[postgres\]'"):
        verify("postgresql://127.0.0.1:1/none")


def test_a_database_of_another_schema(tmp_path: Path) -> None:
    """A file without our tables is not taken for one without discrepancies."""
    sqlite3.connect(tmp_path / "other.sqlite").close()
    with pytest.raises(Unreadable, match="no schema yet"):
        verify(tmp_path / "other.sqlite")


def test_the_database_is_a_setting() -> None:
    """The command needs no setting but where the database is, and says when that is not set."""
    url = "sqlite:////var/lib/daypass.db"
    assert load_database_url({"DAYPASS_DATABASE_URL": url}) == url
    with pytest.raises(SettingsError, match="DAYPASS_DATABASE_URL: is not set"):
        load_database_url({})
