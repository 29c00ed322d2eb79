"""How broker and proxy hold connections to PostgreSQL: few, never for a call, never for ever."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

import daypass_migrations
from tests.servers.client import RawStream
from tests.servers.load import BODY
from tests.servers.postgres import PostgresServer
from tests.servers.roles import BROKER, PROXY
from tests.servers.stack import Answer, Stack, call
from tests.servers.stub import Send, Step, StubUpstream, Wait, chunk
from tests.servers.wire import message_stream, sse_answer
from tests.support import eventually

pytestmark = pytest.mark.postgres

MakeStack = Callable[..., Stack]
STREAMS = 50
_EVENTS = message_stream("claude-sonnet-4-5")
_HELD: tuple[Step, ...] = (
    Send(sse_answer()),
    *(chunk(event) for event in _EVENTS[:4]),
    Wait("end"),
    *(chunk(event) for event in _EVENTS[4:]),
    Send(b"0\r\n\r\n"),
)


@pytest.fixture
def database_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty database, dropped once the stack on it is down."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)


def connections(url: str) -> list[tuple[str, str]]:
    """The login and state of every connection of broker and proxies."""
    query = (
        "SELECT usename, state FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND usename LIKE 'daypass%'"
    )
    with psycopg.connect(url.replace("+psycopg", "")) as owner:
        return [(str(name), str(state)) for name, state in owner.execute(query).fetchall()]


def at_rest(url: str) -> bool:
    """Whether nobody is in a transaction, or waits in one."""
    return {state for _, state in connections(url)} <= {"idle"}


def test_no_connection_is_held_while_a_stream_runs(
    database_url: str, make_stack: MakeStack, module_stub: StubUpstream
) -> None:
    """B32: 50 open streams take not one connection more than none, and leave none in a transaction;
    the proxy has two, whatever it does.

    The broker, whom no stream needs, is gone meanwhile: some of what it does by itself it does at
    the same time, on connections of their own.
    """
    stack = make_stack(database_url=database_url, proxy_settings={"DAYPASS_LAG_SECONDS": "0"})
    tokens = [stack.access_token(stack.sandbox()) for _ in range(10)]
    assert stack.message(tokens[0]).status == 200
    stack.stop_process("broker")
    before = connections(database_url)
    module_stub.always(list(_HELD))
    streams = [
        RawStream.post(stack.proxy_url, tokens[number % 10], BODY) for number in range(STREAMS)
    ]
    for stream in streams:
        stream.until(b"content_block_delta")
    eventually(lambda: at_rest(database_url), timeout=20)
    during = connections(database_url)
    assert len(during) <= len(before)
    assert [name for name, _ in during].count(f"{PROXY}_login") == 2
    module_stub.release("end")
    for stream in streams:
        assert b"message_stop" in stream.rest()


def exchange_and_leave(stack: Stack, credential: str) -> None:
    """Ask the broker for a token on its socket, and hang up without having read the answer."""
    body = json.dumps({"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
                       "assertion": credential}).encode()  # fmt: skip
    head = (
        "POST /v1/oauth/token HTTP/1.1\r\nHost: broker\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(stack.broker_socket))
        sock.sendall(head.encode() + body)


def test_who_hangs_up_keeps_no_connection(database_url: str, make_stack: MakeStack) -> None:
    """B32: 100 clients that are gone before their answer leave the broker's pool as it was."""
    stack = make_stack(database_url=database_url)
    sandboxes = [stack.sandbox() for _ in range(4)]
    for number in range(100):
        exchange_and_leave(stack, sandboxes[number % 4]["launch"]["credential"])
    assert stack.exchange(sandboxes[0]).status == 200
    eventually(lambda: at_rest(database_url), timeout=20)
    log = stack.log("broker")
    assert "QueuePool" not in log
    assert "no connection is free" not in log


def test_a_store_that_hangs_is_503_in_time(database_url: str, make_stack: MakeStack) -> None:
    """B32, B11: while the row that every act needs is locked by somebody else, 40 requests at once
    are answered with 503 within seconds, none waits behind the others; then all is well again."""
    stack = make_stack(database_url=database_url)
    sandbox = stack.sandbox()
    answers: list[Answer] = []

    def ask() -> None:
        answers.append(stack.admin("POST", "/v1/sandboxes", {"tenant": "acme"}))

    clients = [threading.Thread(target=ask) for _ in range(40)]
    with psycopg.connect(database_url.replace("+psycopg", "")) as owner:
        owner.execute("SELECT version FROM revocation_version FOR UPDATE")
        for client in clients:
            client.start()
        eventually(lambda: len(answers) > 10, timeout=20)
        assert call(stack.admin_url, "GET", "/readyz", timeout=3).status == 200
        for client in clients:
            client.join(12)
    assert {answer.status for answer in answers} == {503}
    assert len(answers) == len(clients)
    assert "retry-after" in answers[0].headers
    assert stack.exchange(sandbox).status == 200


class Login:
    """A login with a password, and the file that says its URL; `rotate` changes the password."""

    def __init__(self, server: PostgresServer, owner_url: str, role: str, folder: Path) -> None:
        self._server = server
        self.name, self.file = f"{role}_rotated", folder / f"{role}.url"
        self._url = make_url(owner_url).set(username=self.name)
        server.run(f"CREATE ROLE {self.name} LOGIN IN ROLE {role}")
        server.demand_password(self.name)

    def rotate(self, password: str) -> None:
        """Change the password and end the connections that were made with the old one."""
        self._server.run(f"ALTER ROLE {self.name} PASSWORD '{password}'")
        mine = (
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{self.name}'"
        )
        self._server.run(mine)

    def write(self, password: str) -> None:
        """Write the URL with this password."""
        url = self._url.set(password=password).render_as_string(hide_password=False)
        self.file.write_text(url + "\n", encoding="utf-8")

    @property
    def settings(self) -> dict[str, str]:
        """What a service is told."""
        return {"DAYPASS_DATABASE_URL": "", "DAYPASS_DATABASE_URL_FILE": str(self.file)}


def test_a_changed_password_needs_no_restart(
    postgres_server: PostgresServer, database_url: str, make_stack: MakeStack, tmp_path: Path
) -> None:
    """With DAYPASS_DATABASE_URL_FILE the passwords of the database are changed under broker and
    proxy: they fail while the files hold the old ones, and go on, not restarted, with the new."""
    daypass_migrations.upgrade(database_url)
    logins = [Login(postgres_server, database_url, role, tmp_path) for role in (BROKER, PROXY)]
    for login in logins:
        login.rotate("erstes/%")
        login.write("erstes/%")
    broker, proxy = logins
    stack = make_stack(
        database_url=database_url, broker_settings=broker.settings, proxy_settings=proxy.settings
    )
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    assert stack.message(token).status == 200
    for login in logins:
        login.rotate("zweites:@")
    assert stack.message(token).status == 503
    assert stack.admin("POST", "/v1/sandboxes", {"tenant": "acme"}).status == 503
    for login in logins:
        login.write("zweites:@")
    eventually(lambda: stack.message(token).status == 200, timeout=30)
    eventually(lambda: stack.exchange(sandbox).status == 200, timeout=30)
    for name in ("broker", "proxy"):
        assert "zweites" not in stack.log(name)

    def both_of_the_proxy() -> bool:
        return [name for name, _ in connections(database_url)].count(proxy.name) == 2

    eventually(both_of_the_proxy, timeout=20)
