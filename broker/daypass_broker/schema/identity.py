"""Tables of who holds what: sandboxes, grants, tokens, lineages, and the rules of workloads."""

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

sandbox = sa.Table(
    "sandbox",
    metadata,
    ident(),
    text("tenant", sa.ForeignKey("tenant.id")),
    text("profile", sa.ForeignKey("profile.name")),
    text("state"),
    text("launch"),
    text("launch_jti"),
    integer("launch_iat"),
    integer_or_null("launch_used_at"),
    # A replaced launch credential works until this moment, so a renewal in flight does not fail.
    text_or_null("previous_launch_jti"),
    integer_or_null("previous_launch_until_at"),
    text("scope"),  # JSON authorization_details, a subset of the profile's
    integer("token_ttl_s"),
    text("labels"),  # JSON object of strings
    text("connect"),
    sa.Column("bucket_level", sa.Double, nullable=False),  # issuance bucket: tokens left
    integer("bucket_at"),
    integer("deadline"),
    text("created_by"),
    integer("created_at"),
    integer_or_null("ended_at"),
    # Where its tokens may be used from: 'any', 'first', or networks (CIDR) with one blank between.
    text_with("source", "any"),
    text_or_null("source_bound"),  # the network that 'first' was bound to
    text_with("on_clone", "quarantine"),
    integer_or_null("heartbeat_s"),  # ended when nobody says for so long that it lives; NULL: never
    integer_or_null("heartbeat_at"),
    integer_or_null("activated_at"),  # NULL: still idle
    text_or_null("rule", sa.ForeignKey("federation_rule.id")),  # NULL: it was registered
    text_or_null("identity"),  # the workload, as its rule names it
    text_or_null("vendor"),
    text_or_null("vendor_id"),
    one_of("state", "idle", "active", "ended", "revoked"),
    one_of("launch", "reusable", "single_use", "attested"),
    one_of("connect", "direct", "socket"),
    one_of("on_clone", "quarantine", "revoke", "child"),
    sa.UniqueConstraint("rule", "identity"),
    sa.Index(None, "vendor", "vendor_id"),
    sa.Index(None, "created_at", "id"),
    sa.Index(None, "tenant", "created_at", "id"),
    sa.Index(None, "tenant", "state"),
    sa.Index(None, "state", "deadline"),  # for the reaper: it looks at the living alone
)

# Of all grants there ever were, those whose slices are still out.
_LENT = sa.text("slice_nano IS NOT NULL AND returned_at IS NULL")
grant_ = sa.Table(
    "grant_record",  # GRANT is a reserved word
    metadata,
    ident(),
    text("sandbox", sa.ForeignKey("sandbox.id")),
    text_or_null("parent", sa.ForeignKey("grant_record.id")),
    text("scope"),
    integer("expires_at"),
    text("state"),
    integer("created_at"),
    integer("depth", "0"),  # 0: the root
    text_or_null("bought_with"),  # the `jti` of the access token that a child was bought with
    integer_or_null("slice_nano"),  # what was set aside for a child in its buyer's account
    integer_or_null("returned_at"),  # when the rest of the slice was given back
    postgres_check("depth >= 0 AND (slice_nano IS NULL OR slice_nano >= 0)", "slice"),
    one_of("state", "active", "revoked"),
    # A sandbox may buy one a second: the root, and the living below one, are found past the dead.
    sa.Index(None, "sandbox", "parent", "expires_at"),
    sa.Index(None, "parent"),  # its foreign key, for every grant that is pruned
    sa.Index("ix_grant_record_lent", "expires_at", sqlite_where=_LENT, postgresql_where=_LENT),
)

federation_rule = sa.Table(
    "federation_rule",
    metadata,
    ident(),
    text("name"),
    text("tenant", sa.ForeignKey("tenant.id")),
    text("profile", sa.ForeignKey("profile.name")),
    text("kind"),
    text("issuer"),
    text("audience"),
    text("document"),  # JSON: where the keys are, which claims are demanded, what names a workload
    text("state"),
    text("created_by"),
    integer("created_at"),
    integer("updated_at"),
    one_of("kind", "oidc", "kubernetes"),
    one_of("state", "active", "disabled"),
    sa.UniqueConstraint("tenant", "name"),
)

assertion = sa.Table(
    "assertion",
    metadata,
    ident(),  # SHA-256, hex, of the assertion; never the assertion itself
    text("rule"),
    text("sandbox"),
    integer("expires_at"),
    integer("created_at"),
    sa.Index(None, "expires_at"),
)

vendor_event = sa.Table(
    "vendor_event",
    metadata,
    sa.Column("vendor", sa.Text, primary_key=True),
    sa.Column("event", sa.Text, primary_key=True),
    text_or_null("sandbox"),
    integer("received_at"),
    sa.Index(None, "received_at"),
)

token = sa.Table(
    "token",
    metadata,
    ident("jti"),
    text("sandbox", sa.ForeignKey("sandbox.id")),
    text("tenant"),
    text("grant_id", sa.ForeignKey("grant_record.id")),
    text("kid"),
    integer("iat"),
    integer("exp"),
    integer("created_at"),
    sa.Index(None, "sandbox", "iat"),
    sa.Index(None, "grant_id"),  # as well
    sa.Index(None, "exp"),  # a revocation of everybody looks at those that live, and at no others
)

lineage = sa.Table(
    "lineage",
    metadata,
    ident(),
    text("sandbox", sa.ForeignKey("sandbox.id")),
    integer("generation"),
    integer("rotated_at"),
    text("state"),
    integer("created_at"),
    one_of("state", "active", "quarantined"),
    postgres_check("generation >= 0", "generation"),
    sa.Index(None, "sandbox"),
)
