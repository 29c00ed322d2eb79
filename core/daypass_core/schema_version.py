"""Which schema of the database a release may run on: its own, or a newer one that still suits it.

Place in the flow: broker and proxy read two values when they connect and ask `objection`. The
migrations keep both: the revision the schema is at, and in `schema_compat` the oldest revision
whose releases may run on it. So a release goes on while the next one migrates, and can be gone back
to; and one that a migration has left behind says so once, instead of failing call by call.
"""

from __future__ import annotations

from typing import Final

REVISION: Final = "SELECT version_num FROM alembic_version"
"""Reads the revision, in either database, from its one row."""
READABLE_FROM: Final = "SELECT readable_from FROM schema_compat"
"""Reads the oldest revision whose releases may run here; only there from revision 0005 on."""

_MIGRATE: Final = "run `python -m daypass_broker migrate` of this release as the database's owner"


def is_newer(revision: str | None, made_for: str) -> bool:
    """Say whether the schema is newer than the one that a release was made for."""
    return revision is not None and revision > made_for


def objection(revision: str | None, readable_from: str | None, made_for: str) -> str | None:
    """Say why a release made for the schema `made_for` cannot run on this one; None when it can.

    `revision` is None where the database has none, `readable_from` where it was not read. Revisions
    are four digits, so that they compare as text.
    """
    if revision is None:
        return f"the database has no schema yet, this release needs {made_for}: {_MIGRATE}"
    if revision < made_for:
        return f"the database is at schema {revision}, this release needs {made_for}: {_MIGRATE}"
    if revision == made_for or (readable_from is not None and readable_from <= made_for):
        return None
    return (
        f"the database is at schema {revision}, which needs a release made for schema"
        f" {readable_from or revision} or newer; this one was made for {made_for}: upgrade it"
    )
