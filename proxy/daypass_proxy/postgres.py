"""How the proxy reaches PostgreSQL: one synchronous connection for each thread that needs one.

Below the revocation view, the ledger and its verification. psycopg is an extra of this
distribution (`daypass-proxy[postgres]`): this file and those that import it are themselves imported
only where the database is one of PostgreSQL, so that an installation on SQLite can do without.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from psycopg import conninfo

from daypass_core import database_url

DRIVER = "postgresql+psycopg://"
"""How SQLAlchemy, and so the broker, may spell the URL of the same database."""


def parse(url: str) -> dict[str, Any]:
    """Return libpq's parameters of a database URL; raises ValueError that repeats nothing of it."""
    try:
        return conninfo.conninfo_to_dict(url.replace(DRIVER, "postgresql://", 1))
    except (psycopg.Error, ValueError):
        # What libpq says quotes the URL, which may hold a password.
        raise ValueError(
            "must be postgresql://user:password@host:port/database, special characters escaped"
        ) from None


def connect(
    url: str | Path, *, name: str, lock_ms: int, statement_ms: int, session: str = ""
) -> psycopg.Connection:
    """Connect in autocommit mode; raises psycopg.Error.

    `url` is the database's, or the file that holds it at this moment. `name` is what the server
    lists the connection as. A statement that waits longer than `lock_ms` milliseconds for a lock,
    or runs longer than `statement_ms`, fails. `session` are further options (`-c name=value …`). A
    standby is refused: it lags, and a view of revocations that lags without knowing it would let
    through what is revoked.
    """
    options = (
        f"-c lock_timeout={lock_ms} -c statement_timeout={statement_ms} -c timezone=UTC {session}"
    )
    wanted = _read(url) if isinstance(url, Path) else parse(url)
    own = {
        "options": f"{wanted.get('options') or ''} {options}".strip(),
        "target_session_attrs": "primary",
        "application_name": name,
    }
    return psycopg.connect(autocommit=True, **(database_url.NETWORK | wanted | own))


def _read(path: Path) -> dict[str, Any]:
    """Read a URL anew: whoever changes a password writes the file, too."""
    try:
        return parse(database_url.url_in(path))
    except ValueError as error:
        raise psycopg.OperationalError(f"the URL in {path} {error}") from None


def reason(error: BaseException) -> str:
    """Return the first line of what the driver says, which holds no values of a statement."""
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return f"{said}; is this login a member of daypass_proxy?"
    return said
