"""The ledger's store in PostgreSQL by itself: its locks, its errors, what it does to a session."""

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence

import psycopg
import pytest

import daypass_migrations
from daypass_proxy.app import BUSY_SECONDS
from daypass_proxy.ledger import Hold, Outcome, Reservation, Settlement, Usage
from daypass_proxy.ledger.book import Book
from daypass_proxy.ledger.postgres import PostgresStore, open_store
from daypass_proxy.ledger.store import BatchFailed, Changes, StoreFailed
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.postgres

NOW = 1_800_000_000_000
LEASE_MS = 60_000


@pytest.fixture
def url(postgres_url: str) -> str:
    """A migrated database: `tenant:acme`, and below it the accounts `a0` to `a9`."""
    daypass_migrations.upgrade(postgres_url)
    insert = (
        "INSERT INTO account (id, kind, tenant, parent, updated_at) VALUES (%s, %s, 'acme', %s, 0)"
    )
    with other(postgres_url) as connection:
        connection.execute(insert, ("tenant:acme", "tenant", None))
        for number in range(10):
            connection.execute(insert, (f"a{number}", "sandbox", "tenant:acme"))
    return postgres_url


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    """A store on it that waits a second for locks."""
    opened = open_store(url, 1.0)
    yield opened
    opened.close()


def other(url: str) -> psycopg.Connection:
    """Return the connection of another process, in a transaction."""
    return psycopg.connect(url.replace("+psycopg", ""))


def reservation(number: int, account: str) -> Reservation:
    """Return a call of an account."""
    words = ("acme", "sbx_1", "grt_1", "tok_1", "anthropic", "messages", "claude-opus-5", True)
    return Reservation(f"req_{number}", 1, account, *words, base=Hold(100, 10))


def bill(number: int, **fields: object) -> Settlement:
    """Return what it cost."""
    values: dict[str, object] = {
        "outcome": Outcome.COMPLETE,
        "usage": Usage(7, 3),
        "cost_nano": 60,
        "estimated": False,
        "http_status": 200,
        "upstream_request_id": "req_up",
    }
    return Settlement(f"req_{number}", **(values | fields))  # type: ignore[arg-type]


def batch(
    store: PostgresStore,
    reserve: Sequence[Reservation] = (),
    settle: Sequence[Settlement] = (),
    *,
    lock_seconds: float | None = None,
) -> None:
    """Do one batch as the writer does."""
    transaction = store.begin(lock_seconds=lock_seconds)
    try:
        rows = transaction.rows([one.usage_id for one in settle]) if settle else []
        chains = transaction.chains({one.account for one in reserve}) if reserve else {}
        wanted = {name for row in rows for name in row.accounts.split(" ")}
        wanted.update(name for chain in chains.values() for name in chain)
        accounts = transaction.accounts(sorted(wanted))
        book = Book(accounts, rows, chains, worker="w", now_ms=NOW, lease_ms=LEASE_MS)
        for one in settle:
            book.settle(one)
        for each in reserve:
            book.reserve(each)
        transaction.commit(book.changes({("sbx_1", "kind", 1): 1}))
    except (BatchFailed, StoreFailed):
        transaction.roll_back()
        raise


def states(url: str) -> list[tuple[str, str]]:
    """Return every usage row with its state."""
    with other(url) as connection:
        return connection.execute("SELECT id, state FROM usage ORDER BY id").fetchall()


def test_a_batch_is_written_whole(url: str, store: PostgresStore) -> None:
    """Rows, accounts and incidents of a batch are there after it, with every column."""
    batch(store, [reservation(1, "a1"), reservation(2, "a2")])
    batch(store, [reservation(3, "a1")], [bill(1), bill(2, usage=Usage(), cost_nano=0)])
    assert states(url) == [("req_1", "settled"), ("req_2", "settled"), ("req_3", "open")]
    with other(url) as connection:
        row = "SELECT accounts, tokens, input_tokens, cache_read_input_tokens, worker FROM usage"
        assert connection.execute(f"{row} WHERE id = 'req_1'".encode()).fetchone() == (
            "a1 tenant:acme", 10, 7, None, "w",
        )  # fmt: skip
        account = "SELECT spent_nano, reserved_nano, open_calls, updated_at FROM account"
        found = connection.execute(f"{account} WHERE id = 'tenant:acme'".encode()).fetchone()
        assert found == (60, 100, 1, NOW)
        assert connection.execute("SELECT count FROM incident").fetchall() == [(2,)]


def test_what_is_not_our_database(postgres_server: PostgresServer) -> None:
    """A server that is not there and a database that was not migrated are said in words."""
    with pytest.raises(StoreFailed, match="no database at the PostgreSQL server"):
        open_store("postgresql://127.0.0.1:1/none", 1.0)
    url = postgres_server.new_database()
    with pytest.raises(StoreFailed, match=r"no schema yet, this release needs .*broker migrate"):
        open_store(url, 1.0)
    postgres_server.drop_database(url)


def test_the_session_is_durable_and_bounded(store: PostgresStore) -> None:
    """A commit is on disk when it is answered, and nothing of the session lasts for ever."""
    shown = {
        name: store._connection.execute(f"SHOW {name}".encode()).fetchone()
        for name in ("synchronous_commit", "lock_timeout", "statement_timeout")
    }
    assert shown == {
        "synchronous_commit": ("on",),
        "lock_timeout": ("1s",),
        "statement_timeout": ("2s",),
    }
    (idle,) = store._connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() or ()
    assert idle == "3s"
    (whole,) = store._connection.execute("SHOW transaction_timeout").fetchone() or ()
    assert whole == "4s"  # of a PostgreSQL 17 or newer, as tests have it


def test_who_waits_for_one_that_has_stopped_passes(url: str) -> None:
    """A proxy that stands still in the middle of a batch loses its locks before the patience of
    those who wait for them is over: their calls are late and not refused. Its own batch is undone.
    """
    with (
        contextlib.closing(open_store(url, BUSY_SECONDS)) as stopped,
        contextlib.closing(open_store(url, BUSY_SECONDS)) as waiting,
    ):
        transaction = stopped.begin()
        transaction.accounts(["a1", "tenant:acme"])
        batch(waiting, [reservation(1, "a1")])
        with pytest.raises(StoreFailed):
            transaction.commit(Changes())
    assert states(url) == [("req_1", "open")]


def test_a_lock_is_waited_for_or_fails_the_batch(url: str, store: PostgresStore) -> None:
    """A locked account fails the batch after as long as it was begun with; others pass."""
    with other(url) as locking:
        locking.execute("UPDATE account SET ceiling_nano = 1000 WHERE id = 'a1'")
        for lock_seconds, least, most in ((0.02, 0.01, "20ms"), (None, 0.9, "1s")):
            assert longest_wait(store, lock_seconds) == most
            began = time.monotonic()
            with pytest.raises(BatchFailed) as caught:
                batch(store, [reservation(1, "a1")], lock_seconds=lock_seconds)
            assert caught.value.locked
            assert time.monotonic() - began > least
        batch(store, [reservation(2, "a2")])
        reading = store.begin(reading=True)
        assert [found.id for found in reading.accounts(["a1"])] == ["a1"]
        reading.commit(Changes())
    batch(store, [reservation(1, "a1")])
    assert states(url) == [("req_1", "open"), ("req_2", "open")]


def longest_wait(store: PostgresStore, lock_seconds: float | None) -> str:
    """How long the server lets a transaction wait for a lock, in its own words."""
    transaction = store.begin(lock_seconds=lock_seconds)
    transaction.chains({"a1"})
    (shown,) = store._connection.execute("SHOW lock_timeout").fetchone() or ()
    transaction.roll_back()
    return str(shown)


def test_rows_of_others_are_not_waited_for_by_leases(url: str, store: PostgresStore) -> None:
    """Renewing and reaping skip what another process holds; both leave out what is settled."""
    batch(store, [reservation(n, "a1") for n in range(4)])
    batch(store, settle=[bill(3)])
    with other(url) as holding:
        holding.execute("SELECT FROM usage WHERE id = 'req_1' FOR UPDATE")
        transaction = store.begin()
        transaction.renew(["req_0", "req_1", "req_3", "req_none"], NOW + 2 * LEASE_MS)
        found = transaction.expired(NOW + LEASE_MS, 10)
        assert [row.id for row in found] == ["req_2"]
        assert transaction.expired(NOW + LEASE_MS - 1, 10) == []
        transaction.commit(Changes())
        again = store.begin()
        assert len(again.expired(NOW + 2 * LEASE_MS, 1)) == 1
        again.roll_back()
    with other(url) as connection:
        renewed = "SELECT id FROM usage WHERE lease_until > %s"
        assert connection.execute(renewed, (NOW + LEASE_MS,)).fetchall() == [("req_0",)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"upstream_request_id": "nul \0 in it"},
        {"upstream_request_id": "half a \ud83d pair"},
        {"http_status": 2**63},
        {"http_status": 2**70},
    ],
)
def test_a_value_that_no_row_can_hold(
    url: str, store: PostgresStore, wrong: dict[str, object]
) -> None:
    """It fails its batch as being at fault, writes nothing, and the store goes on."""
    batch(store, [reservation(1, "a1"), reservation(2, "a1")])
    with pytest.raises(BatchFailed) as caught:
        batch(store, settle=[bill(2), bill(1, **wrong)])
    assert not caught.value.locked
    assert {state for _, state in states(url)} == {"open"}
    batch(store, settle=[bill(2)])


def test_a_usage_id_that_was_used_before(url: str, store: PostgresStore) -> None:
    """A second row of one id fails its batch, and nothing else of the batch is written."""
    batch(store, [reservation(1, "a1")])
    with pytest.raises(BatchFailed) as caught:
        batch(store, [reservation(1, "a2"), reservation(2, "a2")], [bill(1)])
    assert not caught.value.locked
    assert states(url) == [("req_1", "open")]


@pytest.mark.parametrize("committing", [False, True])
def test_a_lost_server_is_doubtful_only_while_committing(
    url: str, store: PostgresStore, committing: bool
) -> None:
    """A connection lost before the commit was sent wrote nothing; lost in it, nobody knows."""
    transaction = store.begin()
    chains = transaction.chains({"a1"})
    accounts = transaction.accounts(chains["a1"]) if committing else []
    book = Book(accounts, [], chains, worker="w", now_ms=NOW, lease_ms=LEASE_MS)
    book.reserve(reservation(1, "a1"))
    with other(url) as ending:
        ending.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'daypass-ledger' AND datname = current_database()"
        )

    def go_on() -> None:
        if committing:
            transaction.commit(book.changes({}))
        else:
            transaction.accounts(["a1"])

    with pytest.raises(StoreFailed) as caught:
        go_on()
    assert caught.value.doubtful is committing
    assert caught.value.broken
    transaction.roll_back()
    store.close()


def test_a_chain_has_an_end(url: str, store: PostgresStore) -> None:
    """Chains go from the leaf upwards; one with a parent missing, or that goes round, is none."""
    with other(url) as connection:
        connection.execute("UPDATE account SET parent = 'gone' WHERE id = 'a2'")
        connection.execute("UPDATE account SET parent = 'a4' WHERE id = 'a3'")
        connection.execute("UPDATE account SET parent = 'a3' WHERE id = 'a4'")
    transaction = store.begin(reading=True)
    chains = transaction.chains({"a1", "a2", "a3", "none"})
    transaction.roll_back()
    assert chains == {"a1": ("a1", "tenant:acme")}


def test_mixed_batches_never_lock_each_other_out(url: str, postgres_server: PostgresServer) -> None:
    """Four processes' worth of random batches over the same rows and accounts: not one deadlock."""
    failures: list[BaseException] = []
    taken = iter(range(1_000_000))
    lock = threading.Lock()
    open_calls: list[int] = []

    def work(seed: int) -> None:
        choose = random.Random(seed)
        mine = open_store(url, 60.0)
        # Whoever waits for the disk is not in anybody's way: it would only take longer.
        mine._connection.execute("SET synchronous_commit = off")
        mine._connection.execute("SET idle_in_transaction_session_timeout = 0")
        with contextlib.closing(mine):
            for _ in range(BATCHES // 4):
                with lock:
                    new = [next(taken) for _ in range(choose.randrange(6))]
                    old = [
                        open_calls.pop() for _ in range(min(choose.randrange(6), len(open_calls)))
                    ]
                shared = choose.sample(range(max(new, default=0) + 1), 1)
                settle = [bill(number) for number in dict.fromkeys([*old, *shared])]
                try:
                    batch(
                        mine,
                        [reservation(one, f"a{choose.randrange(10)}") for one in new],
                        settle,
                    )
                except BaseException as error:
                    failures.append(error)
                    raise
                with lock:
                    open_calls.extend(new)
                    choose.shuffle(open_calls)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert postgres_server.deadlocks(url) == 0


BATCHES = 10_000
"""Enough to meet at every pair of rows many times."""
