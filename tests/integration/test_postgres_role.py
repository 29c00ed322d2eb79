"""A whole daypass under the logins that docs/postgres.md makes, and what those cannot do."""

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
BROKER, PROXY = "broker_login", "proxy_login"


@pytest.fixture
def urls(postgres_server: PostgresServer) -> Iterator[dict[str, str]]:
    """A migrated database, as its owner reaches it and as the logins of the page do."""
    owner = postgres_server.new_database()
    daypass_migrations.upgrade(owner)
    (statements,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    run(owner, statements)
    logins = {name: make_url(owner).set(username=name) for name in (BROKER, PROXY)}
    found = {name: url.render_as_string(hide_password=False) for name, url in logins.items()}
    yield {"owner": owner, **found}
    postgres_server.drop_database(owner)
    for name in logins:
        postgres_server.run(f"DROP ROLE {name}")


def run(url: str, statements: str) -> None:
    """Run SQL as whom the URL names."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute(statements.encode())


def test_the_logins_are_enough_and_no_more(
    urls: dict[str, str], make_stack: Callable[..., Stack]
) -> None:
    """Policies, sandboxes, calls, limits, keys and revocations work under the logins of the page;
    neither the other's part nor anything that is settled can be written with them."""
    stack = make_stack(
        database_url=urls["owner"],
        broker_settings={"DAYPASS_DATABASE_URL": urls[BROKER]},
        proxy_settings={"DAYPASS_DATABASE_URL": urls[PROXY]},
    )
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    assert stack.message(token).status == 200
    assert stack.message(token, model="not-in-scope").status == 400
    stack.settled(sandbox)
    eventually(lambda: stack.incidents(sandbox["id"]))
    limits = {"requests_per_minute": 100}
    assert stack.admin("PATCH", f"/v1/sandboxes/{sandbox['id']}", limits).status == 200
    assert stack.admin("POST", f"/v1/sandboxes/{sandbox['id']}/launch").status == 201
    assert stack.admin("POST", "/v1/keys/rotate", {"purpose": "access"}).status in (200, 201)
    order = {"scope": "sandbox", "ident": sandbox["id"]}
    assert stack.admin("POST", "/v1/revocations", order).status == 201
    eventually(lambda: stack.message(token).status == 401)
    assert stack.admin("POST", f"/v1/sandboxes/{sandbox['id']}/restore").status == 200
    assert stack.admin("DELETE", f"/v1/sandboxes/{sandbox['id']}").status == 200
    assert verify(urls[PROXY]) == []
    for name, beyond in (
        (PROXY, "UPDATE account SET ceiling_nano = 1"),
        (PROXY, "DELETE FROM revocation"),
        (PROXY, "SELECT hash FROM credential"),
        (BROKER, "UPDATE account SET spent_nano = 0"),
        (BROKER, "INSERT INTO usage SELECT * FROM usage"),
        (BROKER, "DELETE FROM audit"),
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(urls[name], beyond)
    for settled in ("cost_nano = 0", "state = 'open'", "outcome = 'crashed', estimated = 1"):
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="is final"):
            run(urls[PROXY], f"UPDATE usage SET {settled}")
