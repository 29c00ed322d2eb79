"""The ledger's store on one SQLite file, which several processes may write in turn.

Place in the flow: the writer holds one `SqliteStore` and the file's one write lock for each batch.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from daypass_proxy.ledger import schema
from daypass_proxy.ledger.account import COLUMNS, WRITTEN, Account
from daypass_proxy.ledger.store import (
    CHAIN_LENGTH,
    KEY,
    OPENED,
    RESIZED,
    ROW,
    SETTLED,
    BatchFailed,
    Changes,
    Row,
    Span,
    StoreFailed,
)

# What a wrong statement or value raises; anything else of sqlite3 is the store failing.
_OURS: Final = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
)
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


# What is put into the statements below are our own constants, never a value.
# ruff: noqa: S608
def _update(table: str, columns: Sequence[str], keys: int, more: str = "") -> str:
    """Return the update of one row; the last `keys` columns say which."""
    names = [f"{name} = ?" for name in columns]
    changed, which = ", ".join(names[:-keys]), " AND ".join(names[-keys:])
    return f"UPDATE {table} SET {more}{changed} WHERE {which}"


_LISTED: Final = "id IN (SELECT value FROM json_each(?))"
_ROWS: Final = f"SELECT {', '.join(ROW)} FROM usage WHERE {_LISTED}"
_EXPIRED: Final = (
    f"SELECT {', '.join(ROW)} FROM usage WHERE state = 'open' AND lease_until <= ? LIMIT ?"
)
_ACCOUNTS: Final = f"SELECT {', '.join(COLUMNS)} FROM account WHERE {_LISTED}"
_CHAINS: Final = f"""
WITH RECURSIVE up (leaf, id, parent, height) AS (
    SELECT id, id, parent, 1 FROM account WHERE {_LISTED}
    UNION ALL
    SELECT up.leaf, account.id, account.parent, up.height + 1
    FROM up JOIN account ON account.id = up.parent WHERE up.height < {CHAIN_LENGTH}
)
SELECT leaf, id FROM up WHERE leaf IN (SELECT leaf FROM up WHERE parent IS NULL)
ORDER BY leaf, height
"""
_RENEW: Final = f"UPDATE usage SET lease_until = ? WHERE state = 'open' AND {_LISTED}"
_OPEN: Final = (
    f"INSERT INTO usage (state, {', '.join(OPENED)}) VALUES ('open'{', ?' * len(OPENED)})"
)
_RESIZE: Final = _update("usage", RESIZED, len(KEY))
_SETTLE: Final = _update("usage", SETTLED, len(KEY), "state = 'settled', ")
_BOOK: Final = _update("account", WRITTEN, 1)
_COUNT: Final = """
INSERT INTO incident (subject, kind, minute, count) VALUES (?, ?, ?, ?)
ON CONFLICT (subject, kind, minute) DO UPDATE SET count = count + excluded.count
"""


class SqliteStore:
    """A `Store` in a migrated SQLite file. Raises StoreFailed for any other.

    `busy_seconds` is how long a lock of another process is waited for.
    """

    one_lock = True

    def __init__(self, path: Path | str, busy_seconds: float = 5.0) -> None:
        self._connection = connect(Path(path), busy_seconds)

    def begin(
        self, *, reading: bool = False, lock_seconds: float | None = None
    ) -> SqliteTransaction:
        """See `Store.begin`. One lock is for the whole file: no part of a batch goes without."""
        try:
            self._connection.execute("BEGIN" if reading else "BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise _failure(error) from error
        return SqliteTransaction(self._connection)

    def close(self) -> None:
        """See `Store.close`."""
        self._connection.close()


class SqliteTransaction:
    """A `Transaction` that holds the write lock of the file, or reads one snapshot of it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, usage_ids: Collection[str], started: Span | None = None) -> list[Row]:
        """See `Transaction.rows`: one table, and a key of ids alone."""
        return [Row(*row) for row in self._run(_ROWS, _listed(usage_ids))]

    def renew(
        self, usage_ids: Collection[str], lease_until: int, started: Span | None = None
    ) -> None:
        """See `Transaction.renew`."""
        self._run(_RENEW, lease_until, _listed(usage_ids))

    def expired(self, now_ms: int, limit: int) -> list[Row]:
        """See `Transaction.expired`."""
        return [Row(*row) for row in self._run(_EXPIRED, now_ms, limit)]

    def chains(self, leaves: Collection[str]) -> dict[str, tuple[str, ...]]:
        """See `Transaction.chains`."""
        found: dict[str, tuple[str, ...]] = {}
        for leaf, account in self._run(_CHAINS, _listed(leaves)):
            found[leaf] = (*found.get(leaf, ()), account)
        return found

    def accounts(self, account_ids: Collection[str]) -> list[Account]:
        """See `Transaction.accounts`."""
        return [Account(*row) for row in self._run(_ACCOUNTS, _listed(account_ids))]

    def commit(self, changes: Changes) -> None:
        """See `Transaction.commit`. A statement runs once per row, which costs no round trip."""
        with _translated():
            for statement, rows in (
                (_OPEN, changes.opened),
                (_RESIZE, changes.resized),
                (_SETTLE, changes.settled),
                (_BOOK, changes.accounts),
                (_COUNT, changes.incidents),
            ):
                if rows:
                    self._connection.executemany(statement, rows)
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise _failure(error, doubtful=True) from error

    def roll_back(self) -> None:
        """See `Transaction.roll_back`."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._connection.close()

    def _run(self, statement: str, *values: object) -> list[Any]:
        with _translated():
            # fetchall: an unfinished statement would make the commit fail.
            return self._connection.execute(statement, values).fetchall()


def connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Open a migrated database for writing, with every commit durable on disk.

    Raises StoreFailed for a file that is missing, of another schema, or not in WAL mode.
    """
    try:
        # mode=rw: a missing file is a mistake to report, not a database to create.
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw", uri=True, timeout=busy_seconds, isolation_level=None
        )
    except sqlite3.Error as error:
        raise StoreFailed(f"no database at {path}; start the broker first ({error})") from error
    try:
        _prepare(connection, path)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise _failure(error) from error
        raise
    return connection


def _listed(ids: Collection[str]) -> str:
    return json.dumps(list(ids))


@contextmanager
def _translated() -> Iterator[None]:
    """Raise StoreFailed or BatchFailed for what sqlite3 raises, and for what no row can hold."""
    try:
        yield
    except (*_OURS, UnicodeError, OverflowError) as error:
        raise BatchFailed(f"no row can hold this: {error}", locked=False) from error
    except sqlite3.Error as error:
        raise _failure(error) from error


def _failure(error: sqlite3.Error, *, doubtful: bool = False) -> StoreFailed:
    """Translate an error of the store; a lock that another process holds breaks nothing."""
    busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY
    return StoreFailed(f"the ledger's store fails: {error}", doubtful=doubtful, broken=not busy)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    objection = schema.of_sqlite(connection)
    if objection is not None:
        raise StoreFailed(f"{path}: {objection}")
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise StoreFailed(f"the file system of {path} cannot do WAL; put it on a local disk")
    # FULL: a commit that was answered survives a power cut, not only the end of the process.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
