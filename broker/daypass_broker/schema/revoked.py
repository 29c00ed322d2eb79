"""Tables of what is ended: revocations, their one version, and the keys that sign."""

from __future__ import annotations

import sqlalchemy as sa

from daypass_broker.schema.columns import (
    ident,
    integer,
    integer_or_null,
    metadata,
    one_of,
    postgres_check,
    text,
    text_or_null,
    text_with,
)
from daypass_core.revocation import SCOPES

revocation = sa.Table(
    "revocation",
    metadata,
    ident(),
    text("scope"),
    text("ident"),  # '*' for scope global
    integer_or_null("not_before"),  # NULL: absolute, else everything with iat <= not_before
    integer("expires_at"),
    text("reason"),
    text("actor"),
    integer("created_at"),
    integer("version"),  # the value of revocation_version this row raised it to
    one_of("scope", *SCOPES),
    sa.Index(None, "scope", "ident"),
    sa.Index(None, "expires_at"),
)

revocation_version = sa.Table(
    "revocation_version",
    metadata,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    integer("version"),
    sa.CheckConstraint("id = 1", name="one_row"),
    postgres_check("version >= 0", "version"),
)

signing_key = sa.Table(
    "signing_key",
    metadata,
    ident("kid"),
    text("purpose"),
    text("state"),
    text("public_jwk"),
    integer("created_at"),
    integer_or_null("activated_at"),
    integer_or_null("retired_at"),
    text_with("store", "file"),  # where the private half is
    text_or_null("reference"),  # its name in a vault, NULL in a file
    integer_or_null("usable_at"),  # a prepared key is known to every proxy from this moment on
    one_of("store", "file", "transit"),
    one_of("purpose", "access", "launch", "renewal"),
    one_of("state", "prepared", "active", "retired"),
)
