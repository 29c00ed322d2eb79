"""The revocation view on PostgreSQL: told at once, right without being told, closed when lost."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import psycopg
import pytest

import daypass_migrations
from daypass_broker import db, revocation
from daypass_broker.act import Act
from daypass_broker.revocation import lock_version
from daypass_core.clock import StoreClock
from daypass_core.problem import Refusal
from daypass_core.revocation import Verdict
from daypass_proxy import postgres
from daypass_proxy.revocations import RevocationView
from daypass_proxy.revocations import postgres as postgres_revocations
from daypass_proxy.revocations.postgres import PostgresRevocations
from daypass_proxy.streams import CutReason, LiveCalls
from tests.fakes.call import entered
from tests.servers.postgres import PostgresServer
from tests.support import aeventually, make_claims

pytestmark = pytest.mark.postgres

NEVER = 60.0
"""Poll interval of a view that is to see only what it is told of."""


class Store:
    """The broker's side of a migrated database."""

    def __init__(self, url: str) -> None:
        self.url = url

    def execute(self, *statements: str) -> None:
        """Commit these statements as one transaction, and tell nobody."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def revoke(self, ident: str, not_before: int) -> None:
        """End a sandbox's tokens as a broker does that does not notify."""
        self.execute(
            "UPDATE revocation_version SET version = version + 1",
            "INSERT INTO revocation SELECT 'rev_' || version, 'sandbox',"
            f" '{ident}', {not_before}, 9999999999, '', 'test', 0, version FROM revocation_version",
        )

    def end_connections(self) -> None:
        """End every connection of a view, as a restart of the server does."""
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'daypass-revocations' AND datname = current_database()"
        )


@pytest.fixture
def store(postgres_server: PostgresServer) -> Iterator[Store]:
    """A migrated database."""
    url = postgres_server.new_database()
    daypass_migrations.upgrade(url)
    yield Store(url)
    postgres_server.drop_database(url)


@pytest.fixture
async def parts(store: Store) -> AsyncIterator[tuple[RevocationView, LiveCalls, StoreClock]]:
    """A running view that polls fast."""
    calls, clock = LiveCalls(), StoreClock()
    view = RevocationView(PostgresRevocations(store.url), calls, clock, poll_seconds=0.005)
    view.start()
    await asyncio.wait_for(view.wait_ready(), 10)
    yield view, calls, clock
    await view.close()


Parts = tuple[RevocationView, LiveCalls, StoreClock]


async def test_a_revocation_is_seen_and_cuts(store: Store, parts: Parts) -> None:
    """A committed revocation is found by polling alone, and cuts its open calls and no others."""
    view, calls, _ = parts
    mine, other = make_claims(), make_claims(sandbox="sbx_other")
    with entered(calls, "req_1", mine) as one, entered(calls, "req_2", other) as two:
        store.revoke(mine.sandbox, mine.issued_at)
        await aeventually(lambda: one.reason)
        assert one.reason is CutReason.REVOKED
        assert view.verdict(mine) is Verdict.REVOKED
        assert two.reason is None
    assert view.version == 1


async def test_the_brokers_commit_ends_the_wait(store: Store) -> None:
    """A view that would look again in a minute sees what the broker revokes within a moment."""
    view = RevocationView(
        PostgresRevocations(store.url), LiveCalls(), StoreClock(), poll_seconds=NEVER
    )
    view.start()
    await asyncio.wait_for(view.wait_ready(), 10)
    claims = make_claims()
    engine = db.connect(store.url)
    with db.begin(engine) as conn:
        lock_version(conn)
        act = Act(conn, "test", db.now_ms(conn), lambda prefix: f"{prefix}_1")
        revocation.append(act, "sandbox", claims.sandbox, claims.issued_at, "")
    engine.dispose()
    began = time.monotonic()
    await aeventually(lambda: view.verdict(claims), timeout=NEVER / 4)
    await view.close()
    assert time.monotonic() - began < NEVER / 2


async def test_a_dead_listener_is_replaced_at_once(store: Store) -> None:
    """A view whose connection ends looks on a new one without waiting for its next turn, and what
    it was not told of meanwhile it sees then."""
    view = RevocationView(
        PostgresRevocations(store.url), LiveCalls(), StoreClock(), poll_seconds=NEVER
    )
    view.start()
    await asyncio.wait_for(view.wait_ready(), 10)
    claims = make_claims()
    store.revoke(claims.sandbox, claims.issued_at)
    assert view.verdict(claims) is None
    store.end_connections()
    await aeventually(lambda: view.verdict(claims), timeout=NEVER / 4)
    await view.close()


async def test_the_clock_is_the_servers(parts: Parts) -> None:
    """The view carries the server's time into the clock, to the fraction of a second."""
    _, _, clock = parts
    # One look may be slow; the next one brings the time again.
    await aeventually(lambda: abs(clock.now() - time.time()) < 1.0)


async def test_lost_connections_are_made_anew(store: Store, parts: Parts) -> None:
    """After the server ended the connection the next look reads all rows on another one."""
    view, _, _ = parts
    claims = make_claims()
    store.end_connections()
    store.revoke(claims.sandbox, claims.issued_at)
    await aeventually(lambda: view.verdict(claims))
    await aeventually(lambda: view.age is not None and view.age < 1)


async def test_after_a_failover_a_version_says_nothing(store: Store, parts: Parts) -> None:
    """The rows are read anew on a new connection: another server's may differ under one number."""
    view, _, _ = parts
    claims = make_claims()
    store.revoke(claims.sandbox, claims.issued_at)
    await aeventually(lambda: view.verdict(claims))
    store.execute("DELETE FROM revocation")
    store.end_connections()
    await aeventually(lambda: view.verdict(claims) is None)


async def test_what_is_not_understood_ages_the_view(store: Store, parts: Parts) -> None:
    """Without the version row the view ages, past its limit nothing is admitted; then it heals."""
    view, _, _ = parts
    view._stale_seconds = 0.1
    store.execute("DELETE FROM revocation_version")
    await aeventually(lambda: (view.age or 0) > 0.1)
    with pytest.raises(Refusal):
        view.check_fresh()
    store.execute("INSERT INTO revocation_version VALUES (1, 7)")
    await aeventually(lambda: view.version == 7 and (view.age or 99) < 0.1)


async def test_a_locked_table_ages_the_view(store: Store, parts: Parts) -> None:
    """A server that answers but does not get at the rows fails each look; none waits for ever."""
    view, _, _ = parts
    with psycopg.connect(store.url.replace("+psycopg", "")) as locking:
        locking.execute("LOCK TABLE revocation_version")
        await aeventually(lambda: (view.age or 0) > 1.2)
    await aeventually(lambda: (view.age or 99) < 0.1)


async def test_the_view_cannot_write(store: Store) -> None:
    """The view's connection is read-only, by the server's own word, and has no time to lose."""
    with closing(PostgresRevocations(store.url)) as looking:
        looking.look()
        connection = looking._connection
        assert connection is not None
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("UPDATE revocation_version SET version = 9")
        assert connection.execute("SHOW statement_timeout").fetchone() == ("3s",)
        assert connection.execute("SHOW lock_timeout").fetchone() == ("1s",)


async def test_a_connection_that_cannot_listen_is_closed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that fails just after it has connected leaves no connection behind."""
    monkeypatch.setattr(postgres_revocations, "CHANNEL", "no channel")
    with closing(PostgresRevocations(store.url)) as looking:
        for _ in range(3):
            with pytest.raises(psycopg.errors.SyntaxError) as failed:
                looking.look()
        with psycopg.connect(store.url.replace("+psycopg", "")) as connection:
            left = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'daypass-revocations'"
            await aeventually(lambda: connection.execute(left.encode()).fetchall() == [])
        assert failed.tb is not None  # it keeps what was not closed alive


async def test_a_server_that_is_not_there() -> None:
    """A view that reaches no server is not ready, admits nothing, and closes at once."""
    store = PostgresRevocations("postgresql://127.0.0.1:1/none")
    view = RevocationView(store, LiveCalls(), StoreClock(), poll_seconds=NEVER)
    view.start()
    with pytest.raises(Refusal):
        view.check_fresh()
    await asyncio.wait_for(view.close(), NEVER / 2)
    assert not view.ready


def test_options_of_the_url_are_kept(store: Store) -> None:
    """Parameters of the URL, its `options` too, hold beside those of our own; none lets a standby
    answer, which may not know yet what was revoked."""
    url = store.url + "&options=-c%20search_path%3Dother&target_session_attrs=any"
    with postgres.connect(url, name="test", lock_ms=7, statement_ms=9) as connection:
        shown = [
            connection.execute(f"SHOW {name}".encode()).fetchone()
            for name in ("search_path", "lock_timeout", "application_name")
        ]
        assert connection.info.get_parameters()["target_session_attrs"] == "primary"
    assert shown == [("other",), ("7ms",), ("test",)]
