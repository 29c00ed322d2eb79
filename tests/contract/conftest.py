"""The stores that the contract suites run against; every test leaves right sums behind.

Also the transport, which runs on both event loops: what they do at the ends of connections differs.
"""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import uvloop

import daypass_migrations
from daypass_proxy.transport import Timeouts
from daypass_proxy.transport.dial import trust
from daypass_proxy.transport.pool import Pool
from tests.contract.ledgers import Backend, SqliteBackend
from tests.contract.ledgers_postgres import PostgresBackend
from tests.contract.transports import PATIENT, Make, Serving
from tests.servers.ca import Authority
from tests.servers.postgres import PostgresServer
from tests.servers.raw import RawServer, Serve
from tests.servers.roles import BROKER, as_member
from tests.unit.broker.desk import Store


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the present schema, to be copied."""
    path = tmp_path_factory.mktemp("schema") / "migrated.db"
    daypass_migrations.upgrade(f"sqlite:///{path}")
    return path


BACKENDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: PostgresServer) -> str:
    """A PostgreSQL database with the present schema, to be copied."""
    url = postgres_server.new_database()
    daypass_migrations.upgrade(url)
    return url


@pytest.fixture
def sqlite_store(tmp_path: Path, migrated: Path) -> Iterator[SqliteBackend]:
    """A SQLite file with one account, `a`, of 0.50 USD; checked row by row after the test."""
    made = SqliteBackend(tmp_path / "daypass.db", migrated)
    made.account()
    yield made
    made.assert_right()


@pytest.fixture
def postgres_store(
    postgres_server: PostgresServer, migrated_postgres: str
) -> Iterator[PostgresBackend]:
    """The same in PostgreSQL."""
    made = PostgresBackend(postgres_server.new_database(migrated_postgres))
    made.account()
    yield made
    made.assert_right()
    postgres_server.drop_database(made.address)


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest) -> Backend:
    """The same for each back end in turn."""
    made: Backend = request.getfixturevalue(f"{request.param}_store")
    return made


@pytest.fixture(params=BACKENDS)
def new_store(
    request: pytest.FixtureRequest, tmp_path: Path, migrated: Path
) -> Iterator[Callable[[], Backend]]:
    """Makes as many empty stores of a back end as a test needs."""
    if request.param == "sqlite":
        numbers = count()
        yield lambda: SqliteBackend(tmp_path / f"daypass{next(numbers)}.db", migrated)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    template: str = request.getfixturevalue("migrated_postgres")
    made: list[PostgresBackend] = []

    def new() -> PostgresBackend:
        made.append(PostgresBackend(server.new_database(template)))
        return made[-1]

    yield new
    for one in made:
        server.drop_database(one.address)


@pytest.fixture(params=BACKENDS)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.new_database()
    yield url
    server.drop_database(url)


@pytest.fixture(params=BACKENDS)
def desk(request: pytest.FixtureRequest, tmp_path: Path, migrated: Path) -> Iterator[Store]:
    """A migrated database with a policy applied, by a login that has the broker's role."""
    if request.param == "sqlite":
        shutil.copy(migrated, tmp_path / "daypass.db")
        store = Store(f"sqlite:///{tmp_path / 'daypass.db'}")
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.new_database(request.getfixturevalue("migrated_postgres"))
        store = Store(as_member(url, BROKER), url)
    store.apply()
    yield store
    store.close()
    if request.param == "postgres":
        booked = request.node.get_closest_marker("unbooked") is None
        server.drop_database(store.url, booked=booked)


Loops = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]


def pytest_asyncio_loop_factories(item: pytest.Item) -> Loops:
    """Run the transport's suites on both loops, everything else on the standard one."""
    if not item.path.name.startswith("test_transport"):
        return {"asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@cache
def system_trust() -> ssl.SSLContext:
    """What the transport trusts by itself, read once: there are many authorities in it."""
    return trust()


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes transports and closes them."""
    made: list[Pool] = []

    def make(timeouts: Timeouts, **options: Any) -> Pool:
        made.append(Pool(timeouts, **{"tls": system_trust(), **options}))
        return made[-1]

    yield make
    for transport in made:
        await transport.close()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority that only this run knows."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def serving(request: pytest.FixtureRequest, make: Make, authority: Authority) -> Serving:
    """Serves with a function, and gives a transport that trusts the server."""

    @asynccontextmanager
    async def serving(
        serve: Serve, timeouts: Timeouts = PATIENT
    ) -> AsyncIterator[tuple[RawServer, Pool]]:
        tls = authority.server("127.0.0.1") if request.param else None
        transport = make(timeouts, tls=trust(authority.file))
        async with RawServer(serve, tls=tls) as server:
            yield server, transport

    return serving
