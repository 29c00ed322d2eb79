"""Fixtures of every test that needs a running daypass: a stack for a module, or one of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.canary import CANARY
from tests.servers.books import assert_books_right
from tests.servers.postgres import PostgresServer, running
from tests.servers.stack import Stack
from tests.servers.stub import StubUpstream


@pytest.fixture(scope="module")
def module_stub() -> Iterator[StubUpstream]:
    """A stub provider that lives as long as the module's stack."""
    with StubUpstream([f"sk-ant-{CANARY}-acme", f"sk-ant-{CANARY}-globex"]) as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short-named folder for the stack's files (Unix socket paths are limited)."""
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Key references of two tenants, as files."""
    keys = tmp_path_factory.mktemp("keys")
    for tenant in ("acme", "globex"):
        (keys / f"{tenant}.secret").write_text(f"sk-ant-{CANARY}-{tenant}")
    return f"*=file://{keys}/{{tenant}}.secret"


@pytest.fixture(scope="module")
def module_stack(folder: Path, module_stub: StubUpstream, keys: str) -> Iterator[Stack]:
    """The stack of the module."""
    with Stack(folder, module_stub.url, keys) as stack:
        yield stack


@pytest.fixture
def stack(module_stack: Stack, module_stub: StubUpstream) -> Iterator[Stack]:
    """The module's stack with a stub that has forgotten earlier tests; its books are right after.

    Also with calls under way: what is verified is one snapshot.
    """
    module_stub.reset()
    yield module_stack
    assert_books_right(module_stack.database_url)


@pytest.fixture
def upstream(module_stub: StubUpstream) -> StubUpstream:
    """The stub that the stack talks to."""
    return module_stub


@pytest.fixture
def make_stack(
    tmp_path_factory: pytest.TempPathFactory, module_stub: StubUpstream, keys: str
) -> Iterator[Callable[..., Stack]]:
    """Start a stack with settings of the test's own; stopped at the end of the test."""
    module_stub.reset()
    started: list[Stack] = []

    def make(**fields: object) -> Stack:
        values = {"upstream_url": module_stub.url, "keys": keys} | fields
        made = Stack(tmp_path_factory.mktemp("own"), **values)  # type: ignore[arg-type]
        started.append(made)
        return made.__enter__()

    yield make
    for made in started:
        made.__exit__()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL server, started for the first test that asks."""
    yield from running()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database of the test's own; its books are verified in the end."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)
