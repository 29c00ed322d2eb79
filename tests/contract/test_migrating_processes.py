"""Migrating PostgreSQL by real processes: several at once, one that is killed, logins with less."""

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from sqlalchemy.engine import make_url

import daypass_migrations
from tests.servers.postgres import PostgresServer
from tests.servers.roles import BROKER, as_member
from tests.support import eventually

pytestmark = pytest.mark.postgres

AT_ONCE = 5
_APPLIED = """
CREATE TABLE applied (revision text);
CREATE FUNCTION note_applied() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO applied VALUES (NEW.version_num); RETURN NEW; END $$;
CREATE TRIGGER note_applied AFTER UPDATE ON alembic_version
    FOR EACH ROW EXECUTE FUNCTION note_applied()
"""


@pytest.fixture
def url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database, for its owner."""
    made = postgres_server.new_database()
    yield made
    postgres_server.drop_database(made)


@pytest.fixture
def old(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same at schema 0003, with a note of each migration that is applied from now on."""
    with monkeypatch.context() as patched:
        patched.setattr(daypass_migrations, "HEAD", "0003")
        daypass_migrations.upgrade(url)
    with connected(url) as owner:
        owner.execute(_APPLIED.encode())
    return url


def connected(url: str) -> psycopg.Connection:
    """Connect in autocommit mode."""
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


def migrate(url: str) -> subprocess.Popen[str]:
    """Start `python -m daypass_broker migrate`."""
    return subprocess.Popen(
        [sys.executable, "-m", "daypass_broker", "migrate"],
        env={"PATH": os.defpath, "DAYPASS_DATABASE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a process; return its exit code and all that it said."""
    out, complaint = process.communicate(timeout=300)
    return process.returncode, out + complaint


def versions(url: str) -> list[str]:
    """The revisions in the version table."""
    with connected(url) as owner:
        found = owner.execute("SELECT version_num FROM alembic_version").fetchall()
    return [str(row[0]) for row in found]


WAITING: LiteralString = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
DONE = (0, f"database is at revision {daypass_migrations.HEAD}\n")


def test_five_processes_make_one_schema(url: str) -> None:
    """B52: five that migrate an empty database at once all succeed, and the version row is one."""
    assert [ended(one) for one in [migrate(url) for _ in range(AT_ONCE)]] == [DONE] * AT_ONCE
    assert versions(url) == [daypass_migrations.HEAD]


def test_five_processes_apply_each_migration_once(old: str) -> None:
    """B52: five that find pending migrations all succeed, and each of them was applied once."""
    assert [ended(one) for one in [migrate(old) for _ in range(AT_ONCE)]] == [DONE] * AT_ONCE
    with connected(old) as owner:
        applied = [str(row[0]) for row in owner.execute("SELECT revision FROM applied")]
    assert applied == ["0004", "0005", "0006"]


def test_limits_of_the_database_s_sessions_end_no_migration(old: str) -> None:
    """One that has to wait for another's migration, or copies for long, is not ended by a
    `statement_timeout` or `lock_timeout` that the database was given for its services."""
    name = make_url(old).database
    with connected(old) as owner:
        for limit in ("statement_timeout", "lock_timeout"):
            owner.execute(f"ALTER DATABASE {name} SET {limit} = '200ms'".encode())
        owner.execute(f"SELECT pg_advisory_lock({daypass_migrations._LOCK_ID})".encode())
        process = migrate(old)
        eventually(lambda: owner.execute(WAITING).fetchone(), timeout=120)
        time.sleep(0.5)
        assert owner.execute(WAITING).fetchone()
        owner.execute("SELECT pg_advisory_unlock_all()")
        assert ended(process) == DONE
        owner.execute(f"ALTER DATABASE {name} RESET ALL".encode())  # whoever looks has time again


def test_one_that_is_killed_leaves_nothing(old: str) -> None:
    """B52: killed in the middle, between two revisions, a migration leaves the old schema whole and
    no lock; the next process does all of it."""
    waiting = (
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND query ~ '^UPDATE alembic_version'"
    )
    with psycopg.connect(old.replace("+psycopg", "")) as busy, connected(old) as owner:
        # By then `usage` is in its parts.
        busy.execute("LOCK TABLE alembic_version IN SHARE MODE")
        process = migrate(old)
        eventually(lambda: owner.execute(waiting.encode()).fetchone(), timeout=120)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert versions(old) == ["0003"]
    with connected(old) as owner:
        assert owner.execute("SELECT to_regclass('usage_default')").fetchone() == (None,)
    assert ended(migrate(old)) == DONE


def test_a_table_in_use_is_waited_for_in_moments(old: str) -> None:
    """While a call holds what a migration needs, calls behind the migration go on after a moment
    each time; when it lets go, the migration is done."""
    with psycopg.connect(old.replace("+psycopg", "")) as busy:
        busy.execute("LOCK TABLE usage IN ROW EXCLUSIVE MODE")
        process = migrate(old)
        with connected(old) as other:
            other.execute("SET lock_timeout = '30s'")
            eventually(lambda: other.execute(WAITING).fetchone(), timeout=120)
            waited = []
            for _ in range(10):
                began = time.monotonic()
                other.execute("SELECT count(*) FROM usage")
                waited.append(time.monotonic() - began)
    assert ended(process) == DONE
    # The longest may be the machine's.
    assert statistics.median(waited) < 1


def test_all_tables_together_are_waited_for_in_moments(old: str) -> None:
    """Where one table after the other is let go just before the migration gives up on it, calls
    wait behind it no longer than for one of them: not until all are let go."""
    tables = ("account", "grant_record", "incident", "lineage", "audit")
    gone, behind = list[str](), list[int]()

    def let_go() -> None:
        for table, holder in holders.items():
            time.sleep(0.25)
            gone.append(table)
            holder.rollback()

    with ExitStack() as stack:
        holders = {
            table: stack.enter_context(psycopg.connect(old.replace("+psycopg", "")))
            for table in tables
        }
        for table, holder in holders.items():
            holder.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE".encode())
        process = migrate(old)
        letting_go = threading.Thread(target=let_go)
        with connected(old) as other:
            eventually(lambda: other.execute(WAITING).fetchone(), timeout=120)
            letting_go.start()
            while process.poll() is None and letting_go.is_alive():
                before = len(gone)
                other.execute("SELECT count(*) FROM usage")
                behind.append(len(gone) - before)
        letting_go.join()
    assert ended(process) == DONE
    assert max(behind) <= 2


@pytest.mark.parametrize("table", ["account", "grant_record", "incident", "audit", "token"])
def test_all_tables_are_had_before_anything_is_done(old: str, table: str) -> None:
    """While a call or a broker holds one table, no row of another is copied: calls that hold one
    and wait for the other would make it begin anew for ever."""
    waiting = "SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with psycopg.connect(old.replace("+psycopg", "")) as busy, connected(old) as owner:
        busy.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE".encode())
        process = migrate(old)
        (query,) = eventually(lambda: owner.execute(waiting.encode()).fetchall(), timeout=120)
        assert query[0].strip().startswith("LOCK TABLE usage")
    assert ended(process) == DONE


def test_who_owns_nothing_is_told(url: str, postgres_server: PostgresServer) -> None:
    """A login of the broker's role may start `migrate` where there is nothing to do; where there
    is, it is told in one sentence who can."""
    daypass_migrations.upgrade(url)
    broker = as_member(url, BROKER)
    assert ended(migrate(broker)) == DONE
    empty = postgres_server.new_database()
    name = make_url(broker).set(database=make_url(empty).database)
    code, said = ended(migrate(name.render_as_string(hide_password=False)))
    assert (code, said.count("\n")) == (1, 1)
    assert "may not change the schema: migrate as the one that owns the database" in said
    postgres_server.drop_database(empty)


def test_an_owner_who_may_not_make_roles(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """An owner without CREATEROLE migrates where the roles are, and is told what to run where they
    are not; nothing is left of what was begun."""
    login = f"owner_{tmp_path.name}"
    postgres_server.run(f'CREATE ROLE "{login}" LOGIN')
    url = postgres_server.new_database()
    database = make_url(url).database
    postgres_server.run(f'ALTER DATABASE {database} OWNER TO "{login}"')
    owned = make_url(url).set(username=login).render_as_string(hide_password=False)
    renamed = ("daypass_broker", "daypass_proxy")
    there = [role for role in renamed if _exists(url, role)]
    for role in there:
        postgres_server.run(f"ALTER ROLE {role} RENAME TO {role}_aside")
    try:
        with pytest.raises(daypass_migrations.MigrationRefused, match="CREATE ROLE daypass_broker"):
            daypass_migrations.upgrade(owned)
        assert daypass_migrations.current(owned) is None
    finally:
        for role in there:
            postgres_server.run(f"ALTER ROLE {role}_aside RENAME TO {role}")
    for role in renamed:
        if role not in there:
            postgres_server.run(f"CREATE ROLE {role} NOLOGIN")
    assert daypass_migrations.upgrade(owned) == daypass_migrations.HEAD
    postgres_server.drop_database(url)


def _exists(url: str, role: str) -> bool:
    with connected(url) as owner:
        found = owner.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone()
    return found is not None
