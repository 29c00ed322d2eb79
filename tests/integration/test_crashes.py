"""kill -9 of the proxy, and of PostgreSQL, under 50 streams: no row lost, none doubled (B35).

Each round ends a process at a random moment; `make test-crashes` does more of them.
"""

import random
import signal
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from tests.servers.load import COST_NANO, NumberedAnswers, Streams
from tests.servers.postgres import PostgresServer
from tests.servers.stack import Stack
from tests.servers.stub import StubUpstream
from tests.support import eventually

LEASE_SECONDS = 1
BACKENDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]

MakeStack = Callable[..., Stack]


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How often something is killed."""
    return int(request.config.getoption("crash_rounds"))


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server that a test may kill."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=BACKENDS)
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database; none means a SQLite file."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else ""


def test_b35_killed_proxies_lose_and_double_nothing(
    database_url: str, make_stack: MakeStack, upstream: StubUpstream, rounds: int
) -> None:
    """B35: whatever reached the provider has one row, booked as its bill or, after the lease, held.

    All that a killed proxy leaves behind is settled by the next one, at the hold and marked.
    """
    stack, sandbox, streams = start(make_stack, upstream, database_url)
    choose = random.Random()
    with streams:
        for _ in range(rounds):
            streams.wait_for(choose.randrange(1, 80))
            stack.stop_process("proxy", signal.SIGKILL)
            stack.start_proxy()
        streams.wait_for(50)
    rows = at_rest(stack, sandbox)
    assert_booked_once(rows, upstream)
    crashed = [row for row in rows if row["outcome"] == "crashed"]
    assert all(row["estimated"] and row["cost_nano"] == row["reserved_nano"] for row in crashed)
    # A bill that the dead proxy still had in memory is booked as the hold instead.
    assert len(streams.completed - {row["upstream_request_id"] for row in rows}) <= len(crashed)
    if not database_url:
        assert_file_whole(stack)


@pytest.mark.postgres
def test_b35_a_killed_database_loses_nothing(
    own_server: PostgresServer, make_stack: MakeStack, upstream: StubUpstream, rounds: int
) -> None:
    """B35: while the server is gone new calls get 503 and running ones go on; each bill is booked.

    No call is taken for crashed, since its proxy lives, and none is booked twice however the commit
    ended that the server died in.
    """
    stack, sandbox, streams = start(make_stack, upstream, own_server.new_database())
    choose = random.Random()
    with streams:
        for _ in range(rounds):
            streams.wait_for(choose.randrange(1, 80))
            own_server.kill()
            own_server.start()
        streams.wait_for(50)
    rows = at_rest(stack, sandbox)
    assert_booked_once(rows, upstream)
    assert {row["outcome"] for row in rows} <= {"complete", "client_gone", "unreachable"}
    assert streams.completed <= {row["upstream_request_id"] for row in rows}
    assert set(streams.statuses) <= {200, 503}


def start(
    make_stack: MakeStack, upstream: StubUpstream, database_url: str
) -> tuple[Stack, Mapping[str, Any], Streams]:
    """Start a stack with a short lease, and make clients for it that have not begun.

    Its proxy turns nobody away for being late: how busy this machine is says nothing of the books.
    """
    upstream.always(NumberedAnswers())
    settings = {"DAYPASS_LEASE_SECONDS": str(LEASE_SECONDS), "DAYPASS_LAG_SECONDS": "0"}
    stack = make_stack(database_url=database_url, proxy_settings=settings)
    sandbox = stack.sandbox(budget_usd="1000.00")
    return stack, sandbox, Streams([stack.proxy_url], stack.access_token(sandbox))


def at_rest(stack: Stack, sandbox: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows once the leases of the dead are over and nothing is held any more."""

    def resting() -> bool:
        account = stack.account(sandbox)
        held = account["reserved_nano"], account["tokens_reserved"], account["open_calls"]
        return held == (0, 0, 0)

    eventually(resting, timeout=60 * LEASE_SECONDS)
    return stack.usage(sandbox)


def assert_booked_once(rows: list[dict[str, Any]], upstream: StubUpstream) -> None:
    """No call of the provider without a row, no answer with two, whole answers at their price."""
    assert {row["state"] for row in rows} == {"settled"}
    assert len(rows) >= len(upstream.requests)
    answers = [row["upstream_request_id"] for row in rows if row["upstream_request_id"]]
    assert len(answers) == len(set(answers))
    complete = [row for row in rows if row["outcome"] == "complete"]
    assert {(row["cost_nano"], row["estimated"]) for row in complete} == {(COST_NANO, 0)}


def assert_file_whole(stack: Stack) -> None:
    """The SQLite file is in order by its own judgement."""
    path = stack.database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
