"""One prune at a time: a lock of the database's own that ends with whoever holds it, however."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from daypass_broker.files import PRIVATE_MODE
from daypass_broker.retention import Say

_LOCK_ID = 0x6461797061737302  # beside those of the migrations
_WAITING = "another prune runs: waiting for its end"


@contextmanager
def alone(engine: sa.Engine, say: Say) -> Iterator[None]:
    """Hold the lock for the length of a block; waits for another that does.

    Raises OSError, and SQLAlchemy's errors for a database that is gone.
    """
    if engine.dialect.name == "postgresql":
        with _postgres(engine, say):
            yield
        return
    descriptor = os.open(f"{engine.url.database}.prune", os.O_RDWR | os.O_CREAT, PRIVATE_MODE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(_WAITING)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _postgres(engine: sa.Engine, say: Say) -> Iterator[None]:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for name in ("lock_timeout", "statement_timeout"):
            conn.exec_driver_sql(f"SET {name} = 0")
        if not conn.exec_driver_sql(f"SELECT pg_try_advisory_lock({_LOCK_ID})").scalar_one():
            say(_WAITING)
            conn.exec_driver_sql(f"SELECT pg_advisory_lock({_LOCK_ID})")
        try:
            yield
        finally:
            # Not back into the pool: its settings are of no use to others, and its lock ends.
            conn.invalidate()
