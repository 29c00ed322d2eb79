"""The books after a test: every database that it used is added up anew, to the nano-dollar.

A test whose databases hold rows that nobody booked (written by hand, or made wrong on purpose) says
so with the marker `unbooked`; nothing else is exempt.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg

import daypass_migrations
from daypass_proxy.ledger.verify import verify

verified: list[str] = []
"""Every database whose books were found right in this run."""


def assert_books_right(target: Path | str) -> None:
    """Fail unless every account of a database is the sum of its usage rows, in every column."""
    assert [str(found) for found in verify(target)] == [], f"the books of {target} are wrong"
    verified.append(str(target))


def ledgers_below(folder: Path) -> Iterator[Path]:
    """Every SQLite file below a folder that has the present schema."""
    for path in sorted(folder.rglob("*.db")):
        if _sqlite_schema(path) == daypass_migrations.HEAD:
            yield path


def holds_ledger(url: str) -> bool:
    """Whether a PostgreSQL database has the present schema."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        if connection.execute("SELECT to_regclass('alembic_version')::text").fetchone() == (None,):
            return False
        found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return found == (daypass_migrations.HEAD,)


def _sqlite_schema(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error:
        return None  # not a database of ours: a test about such files made it
    return str(row[0]) if row else None
