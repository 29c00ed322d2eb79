"""The stores that the contract suites run against; every test leaves right sums behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import daypass_migrations
from tests.contract.ledgers import SqliteStore
from tests.servers.postgres import PostgresServer, running


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the present schema, to be copied."""
    path = tmp_path_factory.mktemp("schema") / "migrated.db"
    daypass_migrations.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(params=[SqliteStore], ids=["sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, migrated: Path) -> Iterator[SqliteStore]:
    """A store with one account, `a`, of 0.50 USD; checked row by row when the test is done."""
    made: SqliteStore = request.param(tmp_path / "daypass.db", migrated)
    made.account()
    yield made
    made.assert_right()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL server, started for the first test that asks."""
    yield from running()
