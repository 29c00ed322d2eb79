"""PostgreSQL as a back end of the ledger's contract tests: one database a test, from a template."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import psycopg.rows

from daypass_proxy.ledger.postgres import open_store
from daypass_proxy.ledger.store import OpenStore
from tests.contract.ledgers import Backend, Query
from tests.servers.roles import PROXY, as_member
from tests.servers.stack import read


class PostgresBackend(Backend):
    """A migrated database; `address` is its URL for a member of the proxy's role.

    What tests do to it beside the ledger they do as its owner, by `dsn`.
    """

    def __init__(self, url: str) -> None:
        self.address = as_member(url, PROXY)
        self.dsn = url.replace("+psycopg", "")

    def open_store(self, busy_seconds: float) -> OpenStore:
        """See `Backend.open_store`."""
        return partial(open_store, self.address, busy_seconds)

    @contextmanager
    def transaction(self) -> Iterator[Query]:
        """See `Backend.transaction`."""
        with psycopg.connect(self.dsn) as connection:

            def query(statement: str, *values: object) -> list[tuple[Any, ...]]:
                cursor = connection.execute(statement.replace("?", "%s").encode(), values)
                return cursor.fetchall() if cursor.description else []

            yield query

    def row(self, usage_id: str) -> dict[str, Any]:
        """See `Backend.row`."""
        found = read(self.address, "SELECT * FROM usage WHERE id = ?", usage_id)
        return found[0] if found else {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """See `Backend.locked`: every account."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute("LOCK TABLE account, usage IN EXCLUSIVE MODE")
            yield

    def assert_whole(self) -> None:
        """See `Backend.assert_whole`: who drops the database looks for broken deadlocks."""
