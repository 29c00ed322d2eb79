"""This release while the next one migrates, afterwards, and when it has been left behind."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest

import daypass_migrations
from tests.servers.load import NumberedAnswers, Streams
from tests.servers.next_release import NEXT, migrate
from tests.servers.postgres import PostgresServer
from tests.servers.stack import Stack, call
from tests.servers.stub import StubUpstream
from tests.support import eventually

pytestmark = pytest.mark.postgres

MakeStack = Callable[..., Stack]
OURS = daypass_migrations.HEAD
_EXPANDING = """
ALTER TABLE usage ADD COLUMN region TEXT;
ALTER TABLE account ADD COLUMN note TEXT DEFAULT '' NOT NULL;
ALTER TABLE sandbox ADD COLUMN zone TEXT;
ALTER TABLE token ADD COLUMN note TEXT;
CREATE INDEX ix_account_note ON account (note)
"""


@pytest.fixture
def database_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty database, dropped once the stack on it is down."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url, booked=False)


@pytest.fixture
def stack(database_url: str, make_stack: MakeStack, module_stub: StubUpstream) -> Stack:
    """A stack on PostgreSQL whose provider streams with pauses."""
    made = make_stack(database_url=database_url)
    module_stub.always(NumberedAnswers())
    return made


def by_owner(stack: Stack, statement: str) -> None:
    """Run one statement as the owner of the database."""
    with psycopg.connect(stack.database_url.replace("+psycopg", "")) as owner:
        owner.execute(statement.encode())


def run(module: str, command: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a command that ends by itself; return its exit code and what it complained of."""
    done = subprocess.run(
        [sys.executable, "-m", module, *command.split()],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr


def test_an_expanding_migration_is_not_noticed(stack: Stack, tmp_path: Path) -> None:
    """B87: under load no call and no token is refused while the next release adds columns and an
    index; the running processes go on afterwards, and can be started anew."""
    token = stack.access_token(stack.sandbox())
    with Streams([stack.proxy_url], token, clients=6) as streams:
        streams.wait_for(10)
        migrate(tmp_path, stack.database_url, _EXPANDING, readable_from=OURS)
        for _ in range(3):
            assert stack.exchange(stack.sandbox()).status == 200
        streams.wait_for(20)
    assert set(streams.statuses) == {200}
    stack.stop_process("proxy")
    stack.stop_process("broker")
    stack.start_broker()
    stack.start_proxy()
    assert stack.message(stack.access_token(stack.sandbox()), stream=True).status == 200
    owner = stack.common | {"DAYPASS_DATABASE_URL": stack.database_url}
    assert run("daypass_broker", "migrate", owner) == (0, "")
    assert run("daypass_proxy", "verify", stack.proxy_environment)[0] == 0
    assert stack.rows("SELECT version_num FROM alembic_version") == [{"version_num": NEXT}]
    for name in ("proxy", "broker"):
        assert "cached plan" not in stack.log(name)


def test_a_release_left_behind_says_so_once(stack: Stack, tmp_path: Path) -> None:
    """B87, B12: after a migration that shuts it out, a broker is not ready any more, and none of
    the programs starts: each says in one sentence which schema is needed."""
    migrate(tmp_path, stack.database_url, "SELECT 1", readable_from=NEXT)
    eventually(lambda: call(stack.admin_url, "GET", "/readyz").status == 503)
    assert call(stack.admin_url, "GET", "/livez").status == 200
    stack.stop_process("proxy")
    stack.stop_process("broker")
    told = (
        f"the database is at schema {NEXT}, which needs a release made for schema {NEXT} or newer;"
        f" this one was made for {OURS}: upgrade it"
    )
    owner = stack.common | {"DAYPASS_DATABASE_URL": stack.database_url}
    for module, command, environment, code in (
        ("daypass_broker", "migrate", owner, 1),
        ("daypass_broker", "serve", stack.broker_environment, 1),
        ("daypass_broker", f"apply {stack.folder}/policy.yaml", owner, 1),
        ("daypass_broker", "credential create --role admin", owner, 1),
        ("daypass_broker", "keys replace", stack.broker_environment, 1),
        ("daypass_proxy", "serve", stack.proxy_environment, 2),
        ("daypass_proxy", "verify", stack.proxy_environment, 2),
    ):
        found, said = run(module, command, environment)
        assert (found, told in said) == (code, True), (module, command, found, said)
    by_owner(stack, f"UPDATE schema_compat SET readable_from = '{OURS}'")  # so that it is verified


def test_a_column_of_another_type_costs_no_more_than_a_retry(stack: Stack) -> None:
    """B87: statements that were prepared before a column got another type are prepared anew within
    the second, not refused as long as the connection lives ("cached plan must not change …")."""
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    for _ in range(8):  # the drivers prepare what comes often
        assert stack.message(token).status == 200
        assert stack.admin("GET", f"/v1/sandboxes/{sandbox['id']}").status == 200
    by_owner(stack, "ALTER TABLE account ALTER COLUMN rpm_limit TYPE integer")
    by_owner(stack, "ALTER TABLE sandbox ALTER COLUMN token_ttl_s TYPE integer")
    eventually(lambda: stack.message(token).status == 200)
    assert {stack.message(token).status for _ in range(8)} == {200}
    asked = [stack.admin("GET", f"/v1/sandboxes/{sandbox['id']}").status for _ in range(8)]
    assert set(asked[1:]) == {200}
    assert stack.exchange(sandbox).status == 200
