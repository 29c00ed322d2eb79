"""Whether the schema of a database suits this release: asked by whoever opens one; and why not.

Place in the flow: both stores ask when they connect, `verify` and `reconcile` before they read. A
process that is connected already goes on while a migration that suits it is applied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from daypass_core import schema_version
from daypass_proxy.ledger.store import SCHEMA

if TYPE_CHECKING:
    import psycopg

_SQLITE: Final = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
_POSTGRES: Final = "SELECT to_regclass('alembic_version')::text"

First = Callable[[str], Any]
"""Runs a statement and returns its first value, None without a row."""


def of_sqlite(connection: sqlite3.Connection) -> str | None:
    """Return why this file is not for us; raises sqlite3.Error."""

    def first(statement: str) -> Any:
        row = connection.execute(statement).fetchone()
        return row and row[0]

    return _objection(first, _SQLITE)


def of_postgres(connection: psycopg.Connection[Any]) -> str | None:
    """Return why this database is not for us; raises psycopg.Error."""

    def first(statement: str) -> Any:
        row = connection.execute(statement.encode()).fetchone()
        return row and row[0]

    return _objection(first, _POSTGRES)


def _objection(first: First, is_there: str) -> str | None:
    revision = first(schema_version.REVISION) if first(is_there) else None
    newer = schema_version.is_newer(revision, SCHEMA)
    oldest = first(schema_version.READABLE_FROM) if newer else None
    return schema_version.objection(revision, oldest, SCHEMA)
