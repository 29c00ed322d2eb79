"""What the broker needs of its store, on SQLite and on PostgreSQL alike: schema, time, finality."""

import re
import time

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import daypass_migrations
from daypass_broker import audit, db, schema
from daypass_core.ids import new_id
from tests.contract.brokers import at_once, make
from tests.unit.broker.desk import Store, usage_row


def test_the_migrated_database_is_what_the_broker_expects(empty_url: str) -> None:
    """Alembic finds no difference between the migrated database and the broker's tables."""
    daypass_migrations.upgrade(empty_url)
    engine = db.connect(empty_url)
    with engine.connect() as conn:
        opts = {"compare_server_default": True, "include_name": _is_no_part}
        context = MigrationContext.configure(conn, opts=opts)
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


def _is_no_part(name: str | None, kind: str, _: object) -> bool:
    """The parts of `usage` are nobody's tables: months come and go."""
    return kind != "table" or re.fullmatch(r"usage_(default|\d{4}_\d\d)", name or "") is None


def test_the_migrated_checks_and_indexes_are_the_broker_s(empty_url: str) -> None:
    """CHECK constraints and indexes, which Alembic compares in part only, have equal names."""
    daypass_migrations.upgrade(empty_url)
    engine = db.connect(empty_url)
    inspector = sa.inspect(engine)
    for table in schema.metadata.tables.values():
        checks = {
            str(c.name)
            for c in table.constraints
            if isinstance(c, sa.CheckConstraint)
            and c.info.get("dialect", engine.dialect.name) == engine.dialect.name
        }
        assert {c["name"] for c in inspector.get_check_constraints(table.name)} == checks
        found = inspector.get_indexes(table.name)
        # PostgreSQL tells a UNIQUE constraint as an index too.
        names = {i["name"] for i in found if "duplicates_constraint" not in i}
        assert names == {str(i.name) for i in table.indexes}
    engine.dispose()


def test_upgrading_again_changes_nothing(empty_url: str) -> None:
    """`current` is None, then HEAD, and a second upgrade leaves it there."""
    assert daypass_migrations.current(empty_url) is None
    for _ in range(2):
        daypass_migrations.upgrade(empty_url)
        assert daypass_migrations.current(empty_url) == daypass_migrations.HEAD


def test_upgrades_at_the_same_time_make_one_schema(empty_url: str) -> None:
    """Four processes may upgrade at once; every one of them returns, and the version row is one."""
    at_once(lambda _: daypass_migrations.upgrade(empty_url), 4)
    engine = db.connect(empty_url)
    with db.read(engine) as conn:
        assert conn.execute(sa.select(schema.revocation_version)).all() == [(1, 0)]
    engine.dispose()


@pytest.mark.postgres
def test_a_standby_is_no_store_for_a_broker(postgres_url: str) -> None:
    """Whatever its URL says, a broker connects to a primary alone: on a standby it would be ready,
    and could write nothing."""
    engine = db.connect(f"{postgres_url}&target_session_attrs=any")
    with engine.connect() as conn:
        parameters = conn.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
        assert parameters["target_session_attrs"] == "primary"
    engine.dispose()


def test_the_store_s_clock_is_in_milliseconds(desk: Store) -> None:
    """`now_ms` is the epoch in milliseconds and moves within one transaction."""
    with db.begin(desk.engine) as conn:
        first = db.now_ms(conn)
        assert abs(first - time.time() * 1000) < 5_000
        deadline = time.monotonic() + 5
        while db.now_ms(conn) == first:
            assert time.monotonic() < deadline


def test_what_an_exception_leaves_is_rolled_back(desk: Store) -> None:
    """A write transaction that ends in an exception has written nothing."""

    def fail() -> None:
        with desk.acting() as act:
            audit.append(act.conn, audit.AuditTag.POLICY_APPLIED, "crd_x", at=act.at)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert desk.tags(actor="crd_x") == []


def test_foreign_keys_are_enforced(desk: Store) -> None:
    """A sandbox of a tenant that does not exist cannot be written."""
    (row,) = make(desk)
    with pytest.raises(sa.exc.IntegrityError):
        desk.change(schema.sandbox, row.id, tenant="nobody")


def test_a_count_loses_nothing(desk: Store) -> None:
    """Eight counting the same refusal five times each are one row of 40."""

    def work(_: int) -> None:
        for _ in range(5):
            with db.begin(desk.engine) as conn:
                audit.count(conn, "sbx_a", "clone", 120_001)

    at_once(work)
    assert [tuple(row) for row in desk.rows(schema.incident)] == [("sbx_a", "clone", 2, 40)]


def write(desk: Store, statement: sa.Executable) -> None:
    """Run one statement in its own transaction, as whom nothing but the schema itself limits."""
    with db.begin(desk.owner) as conn:
        conn.execute(statement)


@pytest.mark.unbooked
def test_a_settled_bill_is_final(desk: Store) -> None:
    """A settled usage row takes no change and no deletion, whoever asks."""
    table = schema.usage
    write(desk, sa.insert(table).values(**usage_row(0)))
    for change in ({"cost_nano": 0}, {"state": "open"}, {"tenant": "globex"}):
        with pytest.raises(sa.exc.IntegrityError):
            write(desk, sa.update(table).values(**change))
    with pytest.raises(sa.exc.IntegrityError):
        write(desk, sa.delete(table))


@pytest.mark.unbooked
def test_a_crashed_call_is_corrected_once(desk: Store) -> None:
    """An estimated bill of a crashed call may become the real one, once, and nothing else of it."""
    table = schema.usage
    crashed = usage_row(0, outcome="crashed", estimated=1)
    write(desk, sa.insert(table).values(**crashed))
    real = {"outcome": "complete", "estimated": 0, "cost_nano": 3}
    with pytest.raises(sa.exc.IntegrityError):
        write(desk, sa.update(table).values(cost_nano=3))
    with pytest.raises(sa.exc.IntegrityError):
        write(desk, sa.update(table).values(**real, account="sandbox:sbx_b"))
    write(desk, sa.update(table).values(**real))
    with pytest.raises(sa.exc.IntegrityError):
        write(desk, sa.update(table).values(outcome="crashed", estimated=1))


def test_an_event_is_never_changed(desk: Store) -> None:
    """The audit trail takes events, and no change of one that is there, whoever asks."""
    with desk.acting() as act:
        audit.append(act.conn, audit.AuditTag.POLICY_APPLIED, "crd_x", at=act.at)
    with pytest.raises(sa.exc.IntegrityError, match="only appended"):
        write(desk, sa.update(schema.audit).values(actor="crd_y"))
    assert "crd_y" not in {row.actor for row in desk.rows(schema.audit)}


@pytest.mark.unbooked
def test_no_figure_of_a_bill_is_below_nothing(desk: Store) -> None:
    """Neither database takes a bill with a negative number of tokens."""
    table = schema.usage
    row = usage_row(0, state="open", cost_nano=None, outcome=None, settled_at=None)
    write(desk, sa.insert(table).values(**row))
    for name in ("input_tokens", "cache_read_input_tokens", "web_search_requests"):
        with pytest.raises(sa.exc.IntegrityError):
            write(desk, sa.update(table).values({name: -1}))


def test_an_id_is_never_given_out_twice(desk: Store) -> None:
    """Audit numbers go on after the newest event is gone."""
    with desk.acting() as act:
        for _ in range(2):
            audit.append(act.conn, audit.AuditTag.POLICY_APPLIED, new_id("crd"), at=act.at)
    newest = desk.rows(schema.audit)[-1].seq
    write(desk, sa.delete(schema.audit).where(schema.audit.c.seq == newest))
    with desk.acting() as act:
        audit.append(act.conn, audit.AuditTag.POLICY_APPLIED, new_id("crd"), at=act.at)
    assert desk.rows(schema.audit)[-1].seq > newest


@pytest.mark.postgres
def test_a_statement_that_a_migration_made_stale_is_asked_again(postgres_url: str) -> None:
    """B87: a statement prepared before a column got another type fails once, as a store that does
    not answer at the moment, and not as a fault of ours."""
    engine, migrating = db.connect(postgres_url), db.connect(postgres_url)

    def act(wanted: sa.Engine, statement: str) -> None:
        with db.begin(wanted) as conn:
            conn.execute(sa.text(statement))

    act(migrating, "CREATE TABLE one (a BIGINT)")
    for _ in range(8):  # the driver prepares what comes often
        act(engine, "SELECT a FROM one")
    act(migrating, "ALTER TABLE one ALTER COLUMN a TYPE INTEGER")
    with pytest.raises(db.StoreUnavailable):
        act(engine, "SELECT a FROM one")
    act(engine, "SELECT a FROM one")
    engine.dispose()
    migrating.dispose()
