"""SQLite files as the broker's commands leave them, to be copied: migrated, a policy, an admin.

What a stack needs is such a file, not to watch three processes make it, which takes longer than its
services do to start. The first stack of a run with some policy has it made by the commands, and on
PostgreSQL each stack has.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

Kind = tuple[str, str]
"""All that the commands write depends on: the policy, and the shortest life of a token."""

_made: dict[Kind, tuple[bytes, str]] = {}
"""The content of a file, and the credential of the admin that it knows."""


def ready_file(file: Path, kind: Kind, make: Callable[[], str]) -> str:
    """Put a file of a kind in its place and return its admin's credential, as `make` does."""
    if file.exists():
        return make()
    if kind not in _made:
        credential = make()
        with closing(sqlite3.connect(file)) as connection:
            _made[kind] = (connection.serialize(), credential)
        return credential
    content, credential = _made[kind]
    file.touch(0o600)  # the mode that `migrate` gives it
    file.write_bytes(content)
    return credential
