"""The revocation view: a commit is seen at once, and a store that cannot be read only ages it."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from daypass_core.clock import StoreClock
from daypass_core.problem import Code, Refusal
from daypass_core.revocation import RevocationSet, Verdict
from daypass_proxy.revocations import RevocationView
from daypass_proxy.revocations.sqlite import SqliteRevocations
from daypass_proxy.streams import CutReason, LiveCalls
from tests.fakes.call import entered
from tests.support import aeventually, make_claims

SCHEMA = """
CREATE TABLE revocation (id TEXT, scope TEXT, ident TEXT, not_before BIGINT, expires_at BIGINT);
CREATE TABLE revocation_version (id INTEGER PRIMARY KEY, version BIGINT);
CREATE TABLE other (x INTEGER);
INSERT INTO revocation_version VALUES (1, 0);
"""


class Store:
    """The broker's side of the database."""

    def __init__(self, path: Path, journal: str = "WAL") -> None:
        self.path = path
        self.journal = journal
        self.create()

    def create(self) -> None:
        """Make an empty store."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA journal_mode = {self.journal}")
            connection.executescript(SCHEMA)

    def execute(self, *statements: str) -> None:
        """Commit these statements as one transaction."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def revoke(self, scope: str, ident: str, not_before: int | None = None) -> None:
        """Add a row and raise the version, as the broker does."""
        bound = "NULL" if not_before is None else str(not_before)
        self.execute(
            f"INSERT INTO revocation VALUES ('rev_1', '{scope}', '{ident}', {bound}, 9999999999)",
            "UPDATE revocation_version SET version = version + 1",
        )

    def remove(self) -> None:
        """Take the database away."""
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)


class Monotonic:
    """Monotonic time that runs as it does and can be moved on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        """Return seconds."""
        return time.monotonic() + self.ahead


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store that the view reads."""
    return Store(tmp_path / "daypass.db")


@pytest.fixture
async def parts(store: Store) -> AsyncIterator[tuple[RevocationView, LiveCalls, Monotonic]]:
    """A running view over the store, polled fast."""
    monotonic, calls = Monotonic(), LiveCalls()
    view = RevocationView(
        SqliteRevocations(store.path), calls, StoreClock(monotonic), poll_seconds=0.005
    )
    view.start()
    await asyncio.wait_for(view.wait_ready(), 10)
    yield view, calls, monotonic
    await view.close()


Parts = tuple[RevocationView, LiveCalls, Monotonic]


async def test_not_ready_before_the_first_load(tmp_path: Path) -> None:
    """Before anything was read nothing is admitted."""
    view = RevocationView(SqliteRevocations(tmp_path / "absent.db"), LiveCalls(), StoreClock())
    assert not view.ready
    assert view.age is None
    with pytest.raises(Refusal) as caught:
        view.check_fresh()
    assert caught.value.problem.code is Code.VIEW_STALE
    view.start()
    await view.close()
    assert not view.ready


async def test_fresh(parts: Parts) -> None:
    """A view of an empty store is ready, fresh, and speaks against nobody."""
    view, _, _ = parts
    assert view.ready
    view.check_fresh()
    assert view.verdict(make_claims()) is None


async def test_revocation_is_seen_and_cuts(store: Store, parts: Parts) -> None:
    """A committed revocation is in the view and has cut its open calls and no others."""
    view, calls, _ = parts
    mine, other = make_claims(), make_claims(sandbox="sbx_other")
    with entered(calls, "req_1", mine) as one, entered(calls, "req_2", other) as two:
        store.revoke("sandbox", mine.sandbox, mine.issued_at)
        await aeventually(lambda: one.reason)
        assert one.reason is CutReason.REVOKED
        assert view.verdict(mine) is Verdict.REVOKED
        assert two.reason is None


async def test_global_row_of_the_store(store: Store, parts: Parts) -> None:
    """A global cut-off, whatever stands in its ident, ends what was issued before it."""
    view, _, _ = parts
    claims = make_claims()
    store.revoke("global", "*", claims.issued_at)
    await aeventually(lambda: view.verdict(claims))
    assert view.verdict(make_claims(now=claims.issued_at + 1)) is None


async def test_unchanged_version_is_not_reloaded(store: Store, parts: Parts) -> None:
    """Commits that are no revocations leave the set as it is."""
    view, _, _ = parts
    before = view._set
    store.execute("INSERT INTO other VALUES (1)")
    seen = view._as_of
    await aeventually(lambda: view._as_of != seen)
    await aeventually(lambda: (view.age or 1) < 1)
    assert view._set is before


async def test_store_clock(parts: Parts, tmp_path: Path) -> None:
    """The view carries the store's time into the clock, to the fraction of a second."""
    clock = StoreClock()
    with pytest.raises(RuntimeError):
        clock.now()
    store = Store(tmp_path / "second.db")
    view = RevocationView(SqliteRevocations(store.path), LiveCalls(), clock, poll_seconds=0.005)
    view.start()
    await asyncio.wait_for(view.wait_ready(), 10)
    assert abs(clock.now() - time.time()) < 1.0
    await view.close()


async def test_locked_store_ages(tmp_path: Path) -> None:
    """A store that another process holds exclusively makes the view age, then it recovers."""
    store = Store(tmp_path / "locked.db", journal="DELETE")
    view = RevocationView(
        SqliteRevocations(store.path), LiveCalls(), StoreClock(), poll_seconds=0.005
    )
    view.start()
    await asyncio.wait_for(view.wait_ready(), 10)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        await aeventually(lambda: (view.age or 0) > 0.2)
    await aeventually(lambda: (view.age or 99) < 0.1)
    await view.close()


async def test_lost_store_ages_and_cuts(store: Store, parts: Parts) -> None:
    """A store that is gone: at 31 s nothing is admitted, at 61 s open calls are cut, not before."""
    view, calls, monotonic = parts
    store.remove()
    await aeventually(lambda: (view.age or 0) > 0.1)
    with entered(calls, "req_1", make_claims()) as call:
        monotonic.ahead += 32
        with pytest.raises(Refusal):
            view.check_fresh()
        assert view.cut_stale() == 0
        assert call.reason is None
        monotonic.ahead += 30
        assert view.cut_stale() == 1
        assert call.reason is CutReason.STALE


async def test_watch_cuts_by_itself(store: Store) -> None:
    """Nobody has to ask: open calls are cut when the view has become too old for them."""
    calls = LiveCalls()
    view = RevocationView(
        SqliteRevocations(store.path),
        calls,
        StoreClock(),
        poll_seconds=0.005,
        stale_stream_seconds=0.05,
    )
    view.start()
    await asyncio.wait_for(view.wait_ready(), 10)
    with entered(calls, "req_1", make_claims()) as call:
        store.remove()
        await aeventually(lambda: call.reason is CutReason.STALE)
    await view.close()


async def test_replaced_store_is_read_anew(store: Store, parts: Parts) -> None:
    """A database file put in place of the old one is noticed, and its rows hold."""
    view, _, _ = parts
    claims = make_claims()
    store.remove()
    store.create()
    store.revoke("jti", claims.token_id)
    await aeventually(lambda: view.verdict(claims) is Verdict.TOKEN_ENDED)


async def test_row_not_understood(store: Store, parts: Parts) -> None:
    """A revocation of an unknown scope is not skipped: the view ages until it is gone."""
    view, _, _ = parts
    store.revoke("galaxy", "milky-way", 1)
    await aeventually(lambda: (view.age or 0) > 0.1)
    store.execute("DELETE FROM revocation", "UPDATE revocation_version SET version = version + 1")
    await aeventually(lambda: (view.age or 99) < 0.1)


async def test_empty_version_table(store: Store, parts: Parts) -> None:
    """Without the version row nothing can be known to be current."""
    view, _, _ = parts
    store.execute("DELETE FROM revocation_version")
    await aeventually(lambda: (view.age or 0) > 0.1)


async def test_view_does_not_write(store: Store, parts: Parts) -> None:
    """The view holds no lock that keeps the broker from writing."""
    for number in range(50):
        store.execute(f"INSERT INTO other VALUES ({number})")
    view, _, _ = parts
    view.check_fresh()


def test_take_without_news() -> None:
    """A look that found nothing new makes the view fresh and keeps its set."""
    clock = StoreClock()
    view = RevocationView(SqliteRevocations(Path("unused")), LiveCalls(), clock)
    view.take(RevocationSet.from_rows(()), clock.monotonic())
    kept = view._set
    view.take(None, clock.monotonic())
    assert view._set is kept
    assert view.age is not None
