"""What the roles of the migrations may do on PostgreSQL: exactly what the golden file lists.

A change of `tests/vectors/grants.json` is a change of who may do what, and is reviewed as one.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

import daypass_migrations
from tests.servers.grants import ROLES, allows, attempts, granted
from tests.servers.postgres import PostgresServer
from tests.servers.roles import BROKER, PROXY, as_member

pytestmark = pytest.mark.postgres

GOLDEN = Path(__file__).parents[1] / "vectors" / "grants.json"


@pytest.fixture(scope="module")
def owner_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A migrated database."""
    url = postgres_server.new_database()
    daypass_migrations.upgrade(url)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def owner(owner_url: str) -> Iterator[psycopg.Connection]:
    """A connection of who owns the database."""
    with connected(owner_url) as connection:
        yield connection


def connected(url: str) -> psycopg.Connection:
    """Connect in autocommit mode."""
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


def refused(connection: psycopg.Connection, statement: str) -> bool:
    """Say whether a statement is refused for want of a privilege; any other error is raised."""
    try:
        connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


def test_the_catalogue_is_the_golden_file(owner: psycopg.Connection) -> None:
    """Every grant that stands in the catalogue is listed, and every one that is listed stands."""
    assert granted(owner) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_what_was_granted_before_is_taken_back(
    postgres_server: PostgresServer, owner_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the roles, and everybody, were given by hand in the schema before, what they have
    after the migration is the golden file's."""
    del owner_url  # the roles are there
    url = postgres_server.new_database()
    with monkeypatch.context() as patched:
        patched.setattr(daypass_migrations, "HEAD", "0003")
        daypass_migrations.upgrade(url)
    with connected(url) as owner:
        owner.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO daypass_proxy, PUBLIC")
        owner.execute("GRANT UPDATE (ceiling_nano) ON account TO daypass_proxy")
        owner.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO daypass_proxy")
        daypass_migrations.upgrade(url)
        assert granted(owner) == json.loads(GOLDEN.read_text(encoding="utf-8"))
    postgres_server.drop_database(url)


def test_a_superuser_is_no_role_for_a_service(
    postgres_server: PostgresServer, owner_url: str
) -> None:
    """Grants limit no superuser, so that a database is not migrated with one as a role."""
    del owner_url  # the roles are there
    url = postgres_server.new_database()
    postgres_server.run("ALTER ROLE daypass_proxy SUPERUSER")
    try:
        with pytest.raises(daypass_migrations.MigrationRefused, match="proxy is a superuser"):
            daypass_migrations.upgrade(url)
    finally:
        postgres_server.run("ALTER ROLE daypass_proxy NOSUPERUSER")
    assert daypass_migrations.current(url) is None
    postgres_server.drop_database(url)


@pytest.mark.parametrize("role", ROLES)
def test_what_is_not_granted_is_refused(
    owner: psycopg.Connection, owner_url: str, role: str
) -> None:
    """Each privilege on each column of each table, also of the parts of usage, is refused where it
    is not listed and works where it is."""
    grants = json.loads(GOLDEN.read_text(encoding="utf-8"))
    wrong, tried = [], {True: 0, False: 0}
    with connected(as_member(owner_url, role)) as member:
        for wanted in list(attempts(owner)):
            allowed = allows(grants, role, wanted)
            tried[allowed] += 1
            if refused(member, wanted.statement) is allowed:
                wrong.append(wanted.statement)
    assert wrong == []
    assert tried[False] > 500
    assert tried[True] > 50


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE own (id text)",
        "CREATE FUNCTION own() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE ROLE own",
        "ALTER TABLE account ADD COLUMN own text",
        "ALTER TABLE usage DISABLE TRIGGER USER",
        "ALTER TABLE account DROP CONSTRAINT ck_account_amounts",
        "DROP TABLE audit",
        "SELECT setval('audit_seq_seq', 1)",
        "SET session_replication_role = replica",
        "COPY account TO PROGRAM 'true'",
    ],
)
def test_no_role_owns_anything(owner_url: str, role: str, statement: str) -> None:
    """Nobody but the owner changes what there is: no table, trigger, CHECK, number or grant."""
    with connected(as_member(owner_url, role)) as member:
        assert refused(member, statement)


def test_nobody_passes_on_what_he_has(owner_url: str) -> None:
    """Who may read a table can let nobody else read it."""
    with connected(as_member(owner_url, BROKER)) as broker:
        broker.execute("GRANT SELECT ON credential TO PUBLIC")  # a warning: nothing was granted
    with connected(as_member(owner_url, PROXY)) as proxy:
        assert refused(proxy, "SELECT hash FROM credential")


def test_a_new_table_is_nobody_s(owner: psycopg.Connection, owner_url: str) -> None:
    """A table that the owner makes later can be neither read nor written by either role."""
    owner.execute("CREATE TABLE later (id text)")
    try:
        for role in ROLES:
            with connected(as_member(owner_url, role)) as member:
                assert refused(member, "SELECT id FROM later")
                assert refused(member, "INSERT INTO later VALUES ('x')")
    finally:
        owner.execute("DROP TABLE later")


def test_a_new_month_is_reached_through_usage_alone(
    owner: psycopg.Connection, owner_url: str
) -> None:
    """The broker makes a month of usage; nobody reads or writes the new part by its own name."""
    query = "SELECT relid::text FROM pg_partition_tree('usage') WHERE isleaf"
    before = set(owner.execute(query).fetchall())
    month = (
        "SELECT daypass_make_usage_partition((extract(epoch FROM date_trunc('month',"
        " now() AT TIME ZONE 'UTC') + interval '7 months') * 1000)::bigint)"
    )
    with connected(as_member(owner_url, PROXY)) as proxy:
        assert refused(proxy, month)
    with connected(as_member(owner_url, BROKER)) as broker:
        assert broker.execute(month).fetchone() == (True,)
    ((made,),) = set(owner.execute(query).fetchall()) - before
    for role in ROLES:
        with connected(as_member(owner_url, role)) as member:
            assert refused(member, f"SELECT id FROM {made}")
            assert refused(member, f"DELETE FROM {made}")
            assert refused(member, f"UPDATE {made} SET cost_nano = 0")


def test_the_function_of_the_owner_runs_nothing_of_others(
    owner: psycopg.Connection, owner_url: str
) -> None:
    """An operator in our schema that suits the function's types better than PostgreSQL's own is not
    taken for it: it would run as the owner."""
    month = (
        "SELECT daypass_make_usage_partition((extract(epoch FROM date_trunc('month',"
        " now() AT TIME ZONE 'UTC') + interval '9 months') * 1000)::bigint)"
    )
    owner.execute("GRANT CREATE ON SCHEMA public TO daypass_broker")
    try:
        with connected(as_member(owner_url, BROKER)) as broker:
            broker.execute(
                "CREATE FUNCTION public.trap(bigint, numeric) RETURNS numeric LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE EXCEPTION 'run as %', current_user; END $$"
            )
            broker.execute(
                "CREATE OPERATOR public./ (FUNCTION = public.trap, LEFTARG = bigint,"
                " RIGHTARG = numeric)"
            )
            assert broker.execute(month.encode()).fetchone() == (True,)
            broker.execute("DROP FUNCTION public.trap CASCADE")
    finally:
        owner.execute("REVOKE CREATE ON SCHEMA public FROM daypass_broker")


def test_a_schema_that_others_may_make_things_in_is_refused(
    postgres_server: PostgresServer,
) -> None:
    """Where the owner of the database does not own the schema and cannot keep others from making
    things in it, the migration says what to run, and does nothing."""
    url, login = postgres_server.new_database(), "owns_no_schema"
    postgres_server.run(f"CREATE ROLE {login} LOGIN")
    owned = make_url(url).set(username=login).render_as_string(hide_password=False)
    with connected(url) as administrator:
        administrator.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
        with pytest.raises(daypass_migrations.MigrationRefused, match="REVOKE CREATE ON SCHEMA"):
            daypass_migrations.upgrade(owned)
        assert daypass_migrations.current(url) is None
    postgres_server.drop_database(url)
    postgres_server.run(f"DROP ROLE {login}")


def test_default_privileges_of_the_owner_do_not_reach_a_new_month(
    owner: psycopg.Connection, owner_url: str
) -> None:
    """What the owner's default privileges give to everybody, or to a role, a new part of usage does
    not have: truncating it would pass by every trigger."""
    month = (
        "SELECT daypass_make_usage_partition((extract(epoch FROM date_trunc('month',"
        " now() AT TIME ZONE 'UTC') + interval '8 months') * 1000)::bigint)"
    )
    query = "SELECT relid::text FROM pg_partition_tree('usage') WHERE isleaf"
    before = set(owner.execute(query).fetchall())
    to_all = "ALTER DEFAULT PRIVILEGES {} ALL ON TABLES {} PUBLIC, daypass_broker, daypass_proxy"
    owner.execute(to_all.format("GRANT", "TO").encode())
    try:
        owner.execute(month.encode())
    finally:
        owner.execute(to_all.format("REVOKE", "FROM").encode())
    ((made,),) = set(owner.execute(query).fetchall()) - before
    for role in ROLES:
        with connected(as_member(owner_url, role)) as member:
            for statement in (f"SELECT id FROM {made}", f"TRUNCATE {made}"):
                assert refused(member, statement)


def test_events_are_only_appended(owner: psycopg.Connection, owner_url: str) -> None:
    """The broker adds to the audit trail; not even the owner changes or truncates what is there."""
    new = "INSERT INTO audit (at, tag, actor, detail) VALUES (1, 'policy.applied', 'x', '{}')"
    with connected(as_member(owner_url, BROKER)) as broker:
        broker.execute(new.encode())
        assert refused(broker, "INSERT INTO audit (seq, at, tag, actor, detail)"
                               " VALUES (1, 1, 'x', 'x', '{}')")  # fmt: skip
    with connected(as_member(owner_url, PROXY)) as proxy:
        assert refused(proxy, new)
    for statement in ("UPDATE audit SET actor = 'y'", "TRUNCATE audit"):
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="only appended"):
            owner.execute(statement.encode())


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO incident VALUES ('sbx', 'clone', 1, -1)",
        "UPDATE revocation_version SET version = -1",
        "INSERT INTO account (id, kind, tenant, updated_at, parent) VALUES ('a', 'x', 't', 0, 'a')",
        "INSERT INTO account (id, kind, tenant, updated_at, day_from) VALUES ('a', 'x', 't', 0, 1)",
        "INSERT INTO account (id, kind, tenant, updated_at, open_calls)"
        " VALUES ('a', 'x', 't', 0, -1)",
        "INSERT INTO account (id, kind, tenant, updated_at, overdraft_nano)"
        " VALUES ('a', 'x', 't', 0, -1)",
    ],
)
def test_no_sum_falls_below_nothing(owner: psycopg.Connection, statement: str) -> None:
    """Counters, windows, versions and chains have bounds that hold for the owner too."""
    with pytest.raises(psycopg.errors.CheckViolation):
        owner.execute(statement.encode())
