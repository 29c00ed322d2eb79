"""What the tables are made of: one metadata, and a word for every kind of column."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def ident(name: str = "id") -> sa.Column[str]:
    """Return a primary key of text."""
    return sa.Column(name, sa.Text, primary_key=True)


def text(name: str, *rest: Any) -> sa.Column[str]:
    """Return a column of text that must be given."""
    return sa.Column(name, sa.Text, *rest, nullable=False)


def text_or_null(name: str, *rest: Any) -> sa.Column[str | None]:
    """Return a column of text that may be NULL."""
    return sa.Column(name, sa.Text, *rest, nullable=True)


def integer(name: str, default: str | None = None) -> sa.Column[int]:
    """Return a 64-bit integer: money, times and counters never fit 32 bits for long."""
    zero = None if default is None else sa.text(default)
    return sa.Column(name, sa.BigInteger, nullable=False, server_default=zero)


def text_with(name: str, default: str) -> sa.Column[str]:
    """Return a column of text with a default."""
    return sa.Column(name, sa.Text, nullable=False, server_default=sa.text(f"'{default}'"))


def integer_or_null(name: str) -> sa.Column[int | None]:
    """Return a 64-bit integer that may be NULL."""
    return sa.Column(name, sa.BigInteger, nullable=True)


def one_of(column: str, *values: str) -> sa.CheckConstraint:
    """Return the CHECK that a column is one of these values."""
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=column)


def postgres_check(condition: str, name: str) -> sa.CheckConstraint:
    """Return a CHECK that stands on PostgreSQL alone: SQLite adds none to a table that there is."""
    return sa.CheckConstraint(condition, name=name, info={"dialect": "postgresql"})
