"""Tables of who may have what: tenants, profiles, orchestrators and their credentials."""

from __future__ import annotations

import sqlalchemy as sa

from daypass_broker.schema.columns import (
    ident,
    integer,
    integer_or_null,
    metadata,
    one_of,
    text,
    text_or_null,
    text_with,
)

tenant = sa.Table(
    "tenant",
    metadata,
    ident(),
    text("profiles"),  # JSON list of profile names a sandbox of this tenant may ask for
    text("state"),
    integer("created_at"),
    integer("updated_at"),
    text_with("time_zone", "UTC"),  # IANA name; days and months of its accounts begin in it
    text_with("limits", "{}"),  # JSON of the limits in the policy document
    one_of("state", "active", "revoked"),
)

profile = sa.Table(
    "profile",
    metadata,
    ident("name"),
    text("details"),  # JSON authorization_details (RFC 9396)
    integer("budget_nano"),
    integer("max_budget_nano"),
    integer("lifetime_s"),
    integer("max_lifetime_s"),
    integer("token_ttl_s"),
    text("launch"),
    integer("created_at"),
    integer("updated_at"),
    text_with("limits", "{}"),  # JSON of the limits in the policy document
    text_with("source", "any"),  # as in a sandbox
    text_with("on_clone", "quarantine"),
    integer_or_null("heartbeat_s"),
    integer("max_depth", "3"),  # how many grants may stand below a sandbox's root
    one_of("launch", "reusable", "single_use"),
    one_of("on_clone", "quarantine", "revoke", "child"),
    sa.CheckConstraint("max_depth >= 0 AND max_depth <= 3", name="max_depth"),
    sa.CheckConstraint("budget_nano >= 0 AND max_budget_nano >= budget_nano", name="budget"),
)

orchestrator = sa.Table(
    "orchestrator",
    metadata,
    ident("name"),
    text("tenant", sa.ForeignKey("tenant.id")),
    integer("created_at"),
)

credential = sa.Table(
    "credential",
    metadata,
    ident(),
    text("role"),
    text_or_null("orchestrator", sa.ForeignKey("orchestrator.name")),
    text_or_null("tenant", sa.ForeignKey("tenant.id")),
    text("hash"),  # SHA-256, hex, of the secret part; the secret itself has 160 random bits
    integer("created_at"),
    integer_or_null("revoked_at"),
    one_of("role", "admin", "orchestrator"),
    sa.CheckConstraint(
        "(role = 'admin' AND orchestrator IS NULL AND tenant IS NULL)"
        " OR (role = 'orchestrator' AND orchestrator IS NOT NULL AND tenant IS NOT NULL)",
        name="bound",
    ),
)
