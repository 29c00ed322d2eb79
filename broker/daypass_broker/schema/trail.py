"""Tables of what happened: the audit trail, incidents, and answers given before."""

from __future__ import annotations

import sqlalchemy as sa

from daypass_broker.schema.columns import (
    integer,
    metadata,
    postgres_check,
    text,
    text_or_null,
)

schema_compat = sa.Table(
    "schema_compat",
    metadata,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    text("readable_from"),  # the oldest schema whose releases may run on this one
    sa.CheckConstraint("id = 1", name="one_row"),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column(
        "seq",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        primary_key=True,
        autoincrement=True,
    ),
    integer("at"),
    text("tag"),
    text("actor"),
    text_or_null("tenant"),
    text_or_null("sandbox"),
    text_or_null("subject"),
    text("detail"),
    text_or_null("request_id"),
    text_or_null("prev_hash"),  # these two are not used: heads have tables of their own
    text_or_null("hash"),
    sa.Index(None, "sandbox", "seq"),
    sa.Index(None, "tenant", "seq"),
    sqlite_autoincrement=True,  # a sequence number is never given out twice
)

# The hash chain over the trail, up to the event `upto`; see `daypass_broker.chain`.
audit_head = sa.Table(
    "audit_head",
    metadata,
    sa.Column("upto", sa.BigInteger, primary_key=True, autoincrement=False),
    integer("first"),  # the first event that is in this head and in none before
    integer("events"),  # how many these are: numbers may be missing, of acts that failed
    integer("at"),
    text("previous"),  # the hash of the head before, in hex
    text("hash"),
    text("kid"),  # of the access key that made the signature
    text("signature"),
    sa.UniqueConstraint("previous", name="uq_audit_head_previous"),
    sa.CheckConstraint("events >= 1 AND first >= 1 AND upto - first >= events - 1", name="events"),
)

incident = sa.Table(
    "incident",
    metadata,
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("minute", sa.BigInteger, primary_key=True, autoincrement=False),
    integer("count"),
    postgres_check("count >= 0", "count"),
    sa.Index(None, "minute"),
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("credential", sa.Text, primary_key=True),
    sa.Column("key_hash", sa.Text, primary_key=True),
    text("request_hash"),
    text("sandboxes"),  # JSON list of sandbox ids, the answer is rebuilt from their rows
    integer("created_at"),
    sa.Index(None, "created_at"),
)
