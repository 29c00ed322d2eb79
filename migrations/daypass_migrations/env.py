"""Alembic's entry into the history: runs inside the transaction that `upgrade` opened."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
