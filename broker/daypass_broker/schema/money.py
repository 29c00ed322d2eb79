"""Tables of money: accounts, which both services write, and the usage rows of the ledger."""

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

_FIGURES = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_creation_1h_input_tokens",
    "cache_read_input_tokens",
    "thinking_tokens",
    "web_search_requests",
)

account = sa.Table(
    "account",
    metadata,
    ident(),  # 'sandbox:', 'grant:' or 'tenant:' followed by its id
    text("kind"),
    text("tenant"),
    text_or_null("sandbox"),
    integer_or_null("ceiling_nano"),  # NULL: no ceiling
    integer("spent_nano", "0"),
    integer("reserved_nano", "0"),
    integer("overdraft_nano", "0"),
    integer("updated_at"),
    # Written by the broker: what the account may. NULL in a limit: none.
    text_or_null("parent"),  # the account every call of this one is booked in too
    text_with("time_zone", "UTC"),
    text_or_null("policy"),
    integer_or_null("drain_ms"),
    integer_or_null("drain_tokens"),
    integer_or_null("token_ceiling"),
    integer_or_null("day_ceiling_nano"),
    integer_or_null("month_ceiling_nano"),
    integer_or_null("rpm_limit"),
    integer_or_null("tpm_limit"),
    integer_or_null("concurrency_limit"),
    # Written by the ledger alone, like the amounts above: what the account did.
    integer("tokens_spent", "0"),
    integer("tokens_reserved", "0"),
    integer("open_calls", "0"),
    integer("day_from", "0"),  # a window's bounds are epoch milliseconds, 0: there was none yet
    integer("day_until", "0"),
    integer("day_spent_nano", "0"),
    integer("month_from", "0"),
    integer("month_until", "0"),
    integer("month_spent_nano", "0"),
    text_with("minute", "[]"),  # JSON list of [last moment in ms, calls, tokens], one a second
    # A slice that is set aside for a child is `lent`; what of it was spent or is held, `lent_used`.
    # The broker writes the first and the mark on the child, the ledger the last.
    integer("lent_nano", "0"),
    integer("sliced", "0"),
    integer("lent_used_nano", "0"),
    one_of("policy", "cutoff", "clamp", "reject"),
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
    sa.CheckConstraint("lent_nano >= 0 AND lent_used_nano >= 0 AND sliced IN (0, 1)", name="lent"),
    postgres_check("day_from <= day_until AND month_from <= month_until", "windows"),
    postgres_check("parent <> id", "parent"),
    sa.Index(None, "tenant"),
    sa.Index(None, "sandbox"),
)

usage = sa.Table(
    "usage",
    metadata,
    ident(),
    integer("attempt"),
    text("state"),
    text("account"),
    text("tenant"),
    text("sandbox"),
    text("grant_id"),
    text("token_id"),
    text("provider"),
    text("endpoint"),
    text("model"),
    integer("stream", "0"),
    integer("reserved_nano"),
    integer_or_null("cost_nano"),
    integer_or_null("input_tokens"),  # NULL in a token column: the provider said nothing
    integer_or_null("output_tokens"),
    integer_or_null("cache_creation_input_tokens"),
    integer_or_null("cache_creation_1h_input_tokens"),
    integer_or_null("cache_read_input_tokens"),
    text_or_null("outcome"),
    integer("estimated", "0"),
    integer_or_null("http_status"),
    text_or_null("upstream_request_id"),
    text("worker"),
    integer("lease_until"),
    integer("started_at"),
    integer_or_null("settled_at"),
    text("accounts"),  # ids of all accounts it is booked in, the leaf first, one blank between
    integer("reserved_tokens", "0"),
    integer_or_null("tokens"),  # all tokens of all passes, as limits count them; NULL while open
    integer_or_null("thinking_tokens"),  # a part of output_tokens
    integer_or_null("web_search_requests"),
    text_or_null("service_tier"),
    text_or_null("speed"),
    text_or_null("inference_geo"),
    text_or_null("passes"),  # JSON list of the passes billed by themselves, NULL without any
    one_of("state", "open", "settled"),
    sa.CheckConstraint("stream IN (0, 1) AND estimated IN (0, 1)", name="flags"),
    sa.CheckConstraint("reserved_nano >= 0 AND (cost_nano IS NULL OR cost_nano >= 0)", name="nano"),
    sa.CheckConstraint(
        "state = 'open' OR (cost_nano IS NOT NULL AND outcome IS NOT NULL"
        " AND settled_at IS NOT NULL)",
        name="settled",
    ),
    sa.CheckConstraint("reserved_tokens >= 0 AND (tokens IS NULL OR tokens >= 0)", name="tokens"),
    postgres_check(" AND ".join(f"COALESCE({name}, 0) >= 0" for name in _FIGURES), "figures"),
    sa.Index(None, "sandbox", "started_at"),
    sa.Index(None, "tenant", "started_at"),
    sa.Index(None, "state", "lease_until"),
)

# Sums of usage rows that were pruned. Those of a window hold for the window that began then.
usage_carried = sa.Table(
    "usage_carried",
    metadata,
    ident("account"),
    integer("calls"),
    integer("spent_nano"),
    integer("overdraft_nano"),
    integer("tokens_spent"),
    integer("day_from", "0"),
    integer("day_spent_nano", "0"),
    integer("month_from", "0"),
    integer("month_spent_nano", "0"),
    integer("until_at"),  # no row that began from here on is in the sums
    sa.CheckConstraint(
        "calls >= 0 AND spent_nano >= 0 AND overdraft_nano >= 0 AND tokens_spent >= 0"
        " AND day_spent_nano >= 0 AND month_spent_nano >= 0",
        name="sums",
    ),
)

# Months (UTC) whose usage rows are being pruned, or were.
usage_pruned = sa.Table(
    "usage_pruned",
    metadata,
    sa.Column("month_at", sa.BigInteger, primary_key=True, autoincrement=False),
    integer("until_at"),
    integer("calls", "0"),  # what was exported: rows, and their sums
    integer("cost_nano", "0"),
    integer("tokens", "0"),
    text_or_null("file"),  # the name of the newest export; where it lies is the operator's
    text_or_null("sha256"),
    integer("frozen_at"),  # nothing of the month is changed any more
    integer_or_null("pruned_at"),  # NULL: some of its rows are still there
    sa.CheckConstraint("until_at > month_at", name="month"),
    sa.CheckConstraint(
        "pruned_at IS NULL OR (file IS NOT NULL AND sha256 IS NOT NULL)", name="exported"
    ),
)
