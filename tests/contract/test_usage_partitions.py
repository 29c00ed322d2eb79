"""Usage by month on PostgreSQL: rows have a place, months are made ahead, and looked at alone."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

import daypass_migrations
from daypass_broker import db, partitions
from daypass_broker.retention.months import Month
from daypass_proxy.ledger import postgres_statements as sql
from daypass_proxy.ledger.postgres import _SESSION
from daypass_proxy.ledger.verify import verify
from tests.contract.ledgers import CENT, bill, reservation
from tests.contract.ledgers_postgres import PostgresBackend
from tests.contract.pruning import at, fill
from tests.servers.postgres import PostgresServer
from tests.servers.roles import BROKER, PROXY, as_member
from tests.unit.broker.desk import Desk, make_desk_template

pytestmark = pytest.mark.postgres

MAKE = "SELECT daypass_make_usage_partition(%s)"


@pytest.fixture(scope="module")
def migrated_postgres(postgres_server: PostgresServer) -> str:
    """A database that was migrated in this month: a run may go on over the end of one."""
    url = postgres_server.new_database()
    daypass_migrations.upgrade(url)
    return url


@pytest.fixture
def store(postgres_store: PostgresBackend) -> PostgresBackend:
    """A PostgreSQL database with the account `a`."""
    return postgres_store


@pytest.fixture
def owner(store: PostgresBackend) -> Iterator[psycopg.Connection]:
    """A connection of the owner, in autocommit."""
    with psycopg.connect(store.dsn, autocommit=True) as connection:
        yield connection


def parts(owner: psycopg.Connection) -> set[str]:
    """The names of the parts of `usage`."""
    found = owner.execute("SELECT relid::regclass::text FROM pg_partition_tree('usage')")
    return {name for (name,) in found} - {"usage"}


def this_month() -> Month:
    """The month of the server's clock, which is the machine's."""
    return Month.of(int(time.time() * 1000))


def part_of(month: Month) -> str:
    """The name of a month's part."""
    return f"usage_{month.name.replace('-', '_')}"


def test_this_month_and_the_next_three_are_there(owner: psycopg.Connection) -> None:
    """The migration made them, and a part for everything else."""
    ahead = {part_of(this_month().earlier(-number)) for number in range(4)}
    assert parts(owner) >= ahead | {"usage_default"}


async def test_what_no_month_is_there_for_is_caught_and_moved_when_it_is_made(
    store: PostgresBackend, owner: psycopg.Connection
) -> None:
    """Calls of any time are booked; making their month moves them, settled ones too, unchanged."""
    far = Month.of(int(at(2099, 5, 1).now() * 1000))
    clock = at(2099, 5, 31, 23, 59, 59)
    async with store.ledger(clock) as ledger:
        await ledger.reserve(reservation("req_1", CENT))
        await ledger.settle(bill("req_1", 3))
        await ledger.reserve(reservation("req_open", CENT))
        where = "SELECT tableoid::regclass::text FROM usage WHERE id = %s"
        assert owner.execute(where, ("req_1",)).fetchone() == ("usage_default",)
        before = store.row("req_1")
        assert owner.execute(MAKE, (far.start,)).fetchone() == (True,)
        assert owner.execute(where, ("req_1",)).fetchone() == (part_of(far),)
        assert store.row("req_1") == before
        clock.advance(2)
        await ledger.settle(bill("req_open", 4))
    assert store.row("req_open")["cost_nano"] == 4
    assert verify(store.address) == []
    with pytest.raises(psycopg.errors.IntegrityError, match="is final"):
        owner.execute("DELETE FROM usage WHERE id = 'req_1'")
    with pytest.raises(psycopg.errors.IntegrityError, match="is final"):
        owner.execute("UPDATE usage SET cost_nano = 0 WHERE id = 'req_1'")


def test_a_month_is_made_once_and_only_where_it_is_needed(owner: psycopg.Connection) -> None:
    """Twice is no error; what is no month, long past or far ahead is refused, and nothing made."""
    month = this_month()
    before = parts(owner)
    assert owner.execute(MAKE, (month.start,)).fetchone() == (False,)
    assert owner.execute(MAKE, (month.earlier(-12).start,)).fetchone() == (True,)
    for wrong in (month.start + 1, month.start - 1, month.earlier(2).start, None):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            owner.execute(MAKE, (wrong,))
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        owner.execute(MAKE, (month.earlier(-13).start,))
    assert parts(owner) == before | {part_of(month.earlier(-12))}


def test_only_the_broker_s_role_makes_months(
    store: PostgresBackend, owner: psycopg.Connection
) -> None:
    """The broker may, without owning anything; the proxy may not, nor look into a part."""
    url = store.dsn.replace("postgresql://", "postgresql+psycopg://")
    month = this_month().earlier(-5)
    for role, may in ((PROXY, False), (BROKER, True)):
        with psycopg.connect(as_member(url, role).replace("+psycopg", "")) as connection:
            if may:
                assert connection.execute(MAKE, (month.start,)).fetchone() == (True,)
                continue
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(MAKE, (month.start,))
    assert part_of(month) in parts(owner)
    with (
        psycopg.connect(store.address.replace("+psycopg", "")) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(f"SELECT id FROM {part_of(month)}".encode())


def test_the_broker_makes_them_ahead(
    store: PostgresBackend, owner: psycopg.Connection, tmp_path: Path, migrated: Path
) -> None:
    """Its periodic work makes this month and the next three, where they are missing."""
    url = store.dsn.replace("postgresql://", "postgresql+psycopg://")
    for number in (1, 3):
        owner.execute(f"DROP TABLE {part_of(this_month().earlier(-number))}".encode())
    template = tmp_path / "template"
    template.mkdir()
    shutil.copy(migrated, template / "daypass.db")
    desk = Desk(tmp_path / "desk", make_desk_template(tmp_path / "made", template))
    services = replace(desk.services, engine=db.connect(as_member(url, BROKER)))
    before = parts(owner)
    assert partitions.make_ahead(services) == 2
    assert partitions.make_ahead(services) == 0
    assert parts(owner) - before == {part_of(this_month().earlier(-n)) for n in (1, 3)}
    services.engine.dispose()
    assert partitions.make_ahead(desk.services) == 0
    desk.close()


async def test_an_id_comes_once_a_month_whenever_its_call_began(store: PostgresBackend) -> None:
    """A second reservation under an id that is taken fails, a second later too."""
    clock = at(2099, 1, 2)
    async with store.ledger(clock) as ledger:
        await ledger.reserve(reservation("req_1", 5))
        clock.advance(1)
        with pytest.raises(ValueError, match="cannot do this"):
            await ledger.reserve(reservation("req_1", 5))
        await ledger.settle(bill("req_1", 5))
    assert store.query("SELECT COUNT(*) FROM usage WHERE id = 'req_1'") == [(1,)]


def explained(statement: bytes, values: tuple[object, ...]) -> bytes:
    """Prepare a statement, as the ledger's connection does, and explain the plan that it keeps."""
    for number, _ in enumerate(values, 1):
        statement = statement.replace(b"%s", b"$%d" % number, 1)
    types = ", ".join("jsonb" if isinstance(value, str) else "bigint" for value in values)
    given = ", ".join(f"'{value}'" for value in values)
    name = f"p{abs(hash(statement))}"
    prepared = f"PREPARE {name} ({types}) AS ".encode() + statement
    return prepared + f"; EXPLAIN (ANALYZE) EXECUTE {name} ({given})".encode()


async def test_statements_look_at_the_months_of_their_rows_alone(
    store: PostgresBackend, owner: psycopg.Connection
) -> None:
    """Locking, renewing and settling rows that began in one month touch no other, by their ids."""
    await fill(store)
    start = this_month().start
    span = (start, this_month().until - 1)
    with psycopg.connect(store.address.replace("+psycopg", ""), options=_SESSION) as connection:
        for statement, values in (
            (sql.ROWS, (*span * 2, '["req_1"]')),
            (sql.RENEW, (1, *span * 4, '["req_1"]')),
            (sql.RESIZE, (f'[[1, 1, {start}, "req_1"]]', *span * 2)),
        ):
            cursor = connection.execute(explained(statement, values))
            assert cursor.nextset()
            plan = cursor.fetchall()
            text = "\n".join(line for (line,) in plan)
            ran = {
                part
                for part in parts(owner)
                for line in text.splitlines()
                if f" on {part} " in line and "Scan" in line and "never executed" not in line
            }
            assert ran <= {part_of(this_month())}, text
            # Made while the table is small, and kept when it has grown.
            assert "Index Scan using pk_usage" in text, text
            assert "Index Cond: (id = " in text, text
            assert "started_at_idx" not in text, text
            connection.rollback()


def test_months_are_utc_whatever_the_server_s_zone(owner: psycopg.Connection) -> None:
    """A session in another zone makes the same month."""
    month = this_month().earlier(-7)
    owner.execute("SET timezone = 'Pacific/Kiritimati'")
    assert owner.execute(MAKE, (month.start,)).fetchone() == (True,)
    bounds = owner.execute(
        "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = %s", (part_of(month),)
    ).fetchone()
    assert bounds == (f"FOR VALUES FROM ('{month.start}') TO ('{month.until}')",)
    assert datetime.fromtimestamp(month.start / 1000, UTC).day == 1
