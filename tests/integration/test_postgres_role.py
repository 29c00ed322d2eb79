"""The proxy under a role that may do what docs/postgres.md grants, and nothing else."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

import daypass_migrations
from daypass_proxy.ledger.verify import verify
from tests.servers.postgres import PostgresServer
from tests.servers.stack import Stack
from tests.support import eventually

pytestmark = pytest.mark.postgres

PAGE = Path(__file__).resolve().parents[2] / "docs" / "postgres.md"


@pytest.fixture
def urls(postgres_server: PostgresServer) -> Iterator[tuple[str, str]]:
    """A migrated database, as its owner reaches it and as the proxy's role does."""
    owner = postgres_server.new_database()
    daypass_migrations.upgrade(owner)
    (statements,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    run(owner, statements)
    proxy = make_url(owner).set(username="daypass_proxy", password="change-me")
    yield owner, proxy.render_as_string(hide_password=False)
    postgres_server.drop_database(owner)
    postgres_server.run("DROP ROLE daypass_proxy")


def run(url: str, statements: str) -> None:
    """Run SQL as whom the URL names."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute(statements.encode())


def test_the_role_is_enough_and_no_more(
    urls: tuple[str, str], make_stack: Callable[..., Stack]
) -> None:
    """Calls are admitted, booked and revoked under the role; ceilings and secrets are beyond it."""
    owner, proxy = urls
    stack = make_stack(database_url=owner, proxy_settings={"DAYPASS_DATABASE_URL": proxy})
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    assert stack.message(token).status == 200
    assert stack.message(token, model="not-in-scope").status == 400
    stack.settled(sandbox)
    eventually(lambda: stack.incidents(sandbox["id"]))
    order = {"scope": "sandbox", "ident": sandbox["id"]}
    assert stack.admin("POST", "/v1/revocations", order).status == 201
    eventually(lambda: stack.message(token).status == 401)
    assert verify(proxy) == []
    for beyond in (
        "UPDATE account SET ceiling_nano = 1",
        "UPDATE account SET parent = NULL",
        "UPDATE usage SET account = 'other'",
        "DELETE FROM usage",
        "DELETE FROM revocation",
        "UPDATE revocation_version SET version = 0",
        "SELECT * FROM credential",
        "SELECT * FROM sandbox",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(proxy, beyond)
