"""Why a database is not migrated, in words for whoever runs the migration."""

from __future__ import annotations


class MigrationRefused(Exception):
    """The database stays as it was; the message says what was found and what to run."""
