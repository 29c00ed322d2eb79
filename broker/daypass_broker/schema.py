"""The tables, as SQLAlchemy Core sees them; the database itself is made by daypass_migrations.

Units: `*_nano` are nano-dollars; `*_at` and `lease_until` are epoch milliseconds of the store's
clock; `iat`, `exp`, `not_before`, `expires_at` and `deadline` are epoch seconds, because they are
compared with JWT claims. JSON lives in text columns, written by `db.to_json`. No column may ever
hold a token, a provider key or a prompt.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from daypass_core.revocation import SCOPES

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _id(name: str = "id") -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=True)


def _text(name: str, *rest: Any) -> sa.Column[str]:
    return sa.Column(name, sa.Text, *rest, nullable=False)


def _text_or_null(name: str, *rest: Any) -> sa.Column[str | None]:
    return sa.Column(name, sa.Text, *rest, nullable=True)


def _int(name: str, default: str | None = None) -> sa.Column[int]:
    """A 64-bit integer: money, times and counters never fit 32 bits for long."""
    zero = None if default is None else sa.text(default)
    return sa.Column(name, sa.BigInteger, nullable=False, server_default=zero)


def _text_with(name: str, default: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default=sa.text(f"'{default}'"))


def _int_or_null(name: str) -> sa.Column[int | None]:
    return sa.Column(name, sa.BigInteger, nullable=True)


def _one_of(column: str, *values: str) -> sa.CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=column)


tenant = sa.Table(
    "tenant",
    metadata,
    _id(),
    _text("profiles"),  # JSON list of profile names a sandbox of this tenant may ask for
    _text("state"),
    _int("created_at"),
    _int("updated_at"),
    _text_with("time_zone", "UTC"),  # IANA name; days and months of its accounts begin in it
    _text_with("limits", "{}"),  # JSON of the limits in the policy document
    _one_of("state", "active", "revoked"),
)

profile = sa.Table(
    "profile",
    metadata,
    _id("name"),
    _text("details"),  # JSON authorization_details (RFC 9396)
    _int("budget_nano"),
    _int("max_budget_nano"),
    _int("lifetime_s"),
    _int("max_lifetime_s"),
    _int("token_ttl_s"),
    _text("launch"),
    _int("created_at"),
    _int("updated_at"),
    _text_with("limits", "{}"),  # JSON of the limits in the policy document
    _one_of("launch", "reusable", "single_use"),
    sa.CheckConstraint("budget_nano >= 0 AND max_budget_nano >= budget_nano", name="budget"),
)

orchestrator = sa.Table(
    "orchestrator",
    metadata,
    _id("name"),
    _text("tenant", sa.ForeignKey("tenant.id")),
    _int("created_at"),
)

credential = sa.Table(
    "credential",
    metadata,
    _id(),
    _text("role"),
    _text_or_null("orchestrator", sa.ForeignKey("orchestrator.name")),
    _text_or_null("tenant", sa.ForeignKey("tenant.id")),
    _text("hash"),  # SHA-256, hex, of the secret part; the secret itself has 160 random bits
    _int("created_at"),
    _int_or_null("revoked_at"),
    _one_of("role", "admin", "orchestrator"),
    sa.CheckConstraint(
        "(role = 'admin' AND orchestrator IS NULL AND tenant IS NULL)"
        " OR (role = 'orchestrator' AND orchestrator IS NOT NULL AND tenant IS NOT NULL)",
        name="bound",
    ),
)

sandbox = sa.Table(
    "sandbox",
    metadata,
    _id(),
    _text("tenant", sa.ForeignKey("tenant.id")),
    _text("profile", sa.ForeignKey("profile.name")),
    _text("state"),
    _text("launch"),
    _text("launch_jti"),
    _int("launch_iat"),
    _int_or_null("launch_used_at"),
    # A replaced launch credential works until this moment, so a renewal in flight does not fail.
    _text_or_null("previous_launch_jti"),
    _int_or_null("previous_launch_until_at"),
    _text("scope"),  # JSON authorization_details, a subset of the profile's
    _int("token_ttl_s"),
    _text("labels"),  # JSON object of strings
    _text("connect"),
    sa.Column("bucket_level", sa.Double, nullable=False),  # issuance bucket: tokens left
    _int("bucket_at"),
    _int("deadline"),
    _text("created_by"),
    _int("created_at"),
    _int_or_null("ended_at"),
    _one_of("state", "active", "ended", "revoked"),
    _one_of("launch", "reusable", "single_use"),
    _one_of("connect", "direct", "socket"),
    sa.Index(None, "created_at", "id"),
    sa.Index(None, "tenant", "created_at", "id"),
    sa.Index(None, "tenant", "state"),
)

grant_ = sa.Table(
    "grant_record",  # GRANT is a reserved word
    metadata,
    _id(),
    _text("sandbox", sa.ForeignKey("sandbox.id")),
    _text_or_null("parent", sa.ForeignKey("grant_record.id")),
    _text("scope"),
    _int("expires_at"),
    _text("state"),
    _int("created_at"),
    _one_of("state", "active", "revoked"),
    sa.Index(None, "sandbox"),
)

token = sa.Table(
    "token",
    metadata,
    _id("jti"),
    _text("sandbox", sa.ForeignKey("sandbox.id")),
    _text("tenant"),
    _text("grant_id", sa.ForeignKey("grant_record.id")),
    _text("kid"),
    _int("iat"),
    _int("exp"),
    _int("created_at"),
    sa.Index(None, "sandbox", "iat"),
)

lineage = sa.Table(
    "lineage",
    metadata,
    _id(),
    _text("sandbox", sa.ForeignKey("sandbox.id")),
    _int("generation"),
    _int("rotated_at"),
    _text("state"),
    _int("created_at"),
    _one_of("state", "active", "quarantined"),
    sa.Index(None, "sandbox"),
)

revocation = sa.Table(
    "revocation",
    metadata,
    _id(),
    _text("scope"),
    _text("ident"),  # '*' for scope global
    _int_or_null("not_before"),  # NULL: absolute, else everything with iat <= not_before
    _int("expires_at"),
    _text("reason"),
    _text("actor"),
    _int("created_at"),
    _int("version"),  # the value of revocation_version this row raised it to
    _one_of("scope", *SCOPES),
    sa.Index(None, "scope", "ident"),
    sa.Index(None, "expires_at"),
)

revocation_version = sa.Table(
    "revocation_version",
    metadata,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    _int("version"),
    sa.CheckConstraint("id = 1", name="one_row"),
)

ACCOUNT_LIMITS = (
    "drain_ms",
    "drain_tokens",
    "token_ceiling",
    "day_ceiling_nano",
    "month_ceiling_nano",
    "rpm_limit",
    "tpm_limit",
    "concurrency_limit",
)

account = sa.Table(
    "account",
    metadata,
    _id(),  # 'sandbox:' or 'tenant:' followed by its id
    _text("kind"),
    _text("tenant"),
    _text_or_null("sandbox"),
    _int_or_null("ceiling_nano"),  # NULL: no ceiling
    _int("spent_nano", "0"),
    _int("reserved_nano", "0"),
    _int("overdraft_nano", "0"),
    _int("updated_at"),
    # Written by the broker: what the account may. NULL in a limit: none.
    _text_or_null("parent"),  # the account every call of this one is booked in too
    _text_with("time_zone", "UTC"),
    _text_or_null("policy"),
    _int_or_null("drain_ms"),
    _int_or_null("drain_tokens"),
    _int_or_null("token_ceiling"),
    _int_or_null("day_ceiling_nano"),
    _int_or_null("month_ceiling_nano"),
    _int_or_null("rpm_limit"),
    _int_or_null("tpm_limit"),
    _int_or_null("concurrency_limit"),
    # Written by the ledger alone, like the amounts above: what the account did.
    _int("tokens_spent", "0"),
    _int("tokens_reserved", "0"),
    _int("open_calls", "0"),
    _int("day_from", "0"),  # a window's bounds are epoch milliseconds, 0: there was none yet
    _int("day_until", "0"),
    _int("day_spent_nano", "0"),
    _int("month_from", "0"),
    _int("month_until", "0"),
    _int("month_spent_nano", "0"),
    _text_with("minute", "[]"),  # JSON list of [last moment in ms, calls, tokens], one a second
    _one_of("policy", "cutoff", "clamp", "reject"),
    sa.CheckConstraint(
        " AND ".join(f"COALESCE({name}, 0) >= 0" for name in ACCOUNT_LIMITS), name="limits"
    ),
    sa.CheckConstraint(
        "tokens_spent >= 0 AND tokens_reserved >= 0 AND open_calls >= 0"
        " AND day_spent_nano >= 0 AND month_spent_nano >= 0",
        name="counters",
    ),
    sa.CheckConstraint(
        "spent_nano >= 0 AND reserved_nano >= 0 AND overdraft_nano >= 0", name="amounts"
    ),
    sa.CheckConstraint("ceiling_nano IS NULL OR ceiling_nano >= 0", name="ceiling"),
    sa.Index(None, "tenant"),
)

usage = sa.Table(
    "usage",
    metadata,
    _id(),
    _int("attempt"),
    _text("state"),
    _text("account"),
    _text("tenant"),
    _text("sandbox"),
    _text("grant_id"),
    _text("token_id"),
    _text("provider"),
    _text("endpoint"),
    _text("model"),
    _int("stream", "0"),
    _int("reserved_nano"),
    _int_or_null("cost_nano"),
    _int_or_null("input_tokens"),  # NULL in a token column: the provider said nothing
    _int_or_null("output_tokens"),
    _int_or_null("cache_creation_input_tokens"),
    _int_or_null("cache_creation_1h_input_tokens"),
    _int_or_null("cache_read_input_tokens"),
    _text_or_null("outcome"),
    _int("estimated", "0"),
    _int_or_null("http_status"),
    _text_or_null("upstream_request_id"),
    _text("worker"),
    _int("lease_until"),
    _int("started_at"),
    _int_or_null("settled_at"),
    _text("accounts"),  # ids of all accounts it is booked in, the leaf first, one blank between
    _int("reserved_tokens", "0"),
    _int_or_null("tokens"),  # all tokens of all passes, as limits count them; NULL while open
    _int_or_null("thinking_tokens"),  # a part of output_tokens
    _int_or_null("web_search_requests"),
    _text_or_null("service_tier"),
    _text_or_null("speed"),
    _text_or_null("inference_geo"),
    _text_or_null("passes"),  # JSON list of the passes billed by themselves, NULL without any
    _one_of("state", "open", "settled"),
    sa.CheckConstraint("stream IN (0, 1) AND estimated IN (0, 1)", name="flags"),
    sa.CheckConstraint("reserved_nano >= 0 AND (cost_nano IS NULL OR cost_nano >= 0)", name="nano"),
    sa.CheckConstraint(
        "state = 'open' OR (cost_nano IS NOT NULL AND outcome IS NOT NULL"
        " AND settled_at IS NOT NULL)",
        name="settled",
    ),
    sa.CheckConstraint("reserved_tokens >= 0 AND (tokens IS NULL OR tokens >= 0)", name="tokens"),
    sa.Index(None, "sandbox", "started_at"),
    sa.Index(None, "tenant", "started_at"),
    sa.Index(None, "state", "lease_until"),
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
    _int("at"),
    _text("tag"),
    _text("actor"),
    _text_or_null("tenant"),
    _text_or_null("sandbox"),
    _text_or_null("subject"),
    _text("detail"),
    _text_or_null("request_id"),
    _text_or_null("prev_hash"),
    _text_or_null("hash"),
    sa.Index(None, "sandbox", "seq"),
    sa.Index(None, "tenant", "seq"),
    sqlite_autoincrement=True,  # a sequence number is never given out twice
)

incident = sa.Table(
    "incident",
    metadata,
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("minute", sa.BigInteger, primary_key=True, autoincrement=False),
    _int("count"),
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("credential", sa.Text, primary_key=True),
    sa.Column("key_hash", sa.Text, primary_key=True),
    _text("request_hash"),
    _text("sandboxes"),  # JSON list of sandbox ids, the answer is rebuilt from their rows
    _int("created_at"),
    sa.Index(None, "created_at"),
)

signing_key = sa.Table(
    "signing_key",
    metadata,
    _id("kid"),
    _text("purpose"),
    _text("state"),
    _text("public_jwk"),
    _int("created_at"),
    _int_or_null("activated_at"),
    _int_or_null("retired_at"),
    _one_of("purpose", "access", "launch", "renewal"),
    _one_of("state", "prepared", "active", "retired"),
)
