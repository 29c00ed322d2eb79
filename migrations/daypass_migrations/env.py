"""Alembic's entry into the history: runs inside the transaction that `upgrade` opened.

Each migration from 0005 on says in `readable_from` the oldest schema whose releases may still run
on what it made; that is kept in `schema_compat`, for releases that do not know the migration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo

_MARK = sa.text("UPDATE schema_compat SET readable_from = :oldest WHERE readable_from < :oldest")


def _mark(
    ctx: MigrationContext,
    step: MigrationInfo,
    heads: Collection[Any],
    run_args: Mapping[str, Any],
) -> None:
    """Note what a migration says of older releases; it never lets in one that was shut out."""
    oldest = getattr(getattr(step.up_revision, "module", None), "readable_from", None)
    if oldest is not None and ctx.connection is not None:
        ctx.connection.execute(_MARK, {"oldest": oldest})


context.configure(connection=context.config.attributes["connection"], on_version_apply=_mark)
with context.begin_transaction():
    context.run_migrations()
