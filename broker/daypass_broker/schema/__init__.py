"""The tables, as SQLAlchemy Core sees them; the database itself is made by daypass_migrations.

Units: `*_nano` are nano-dollars; `*_at` and `lease_until` are epoch milliseconds of the store's
clock; `iat`, `exp`, `not_before`, `expires_at` and `deadline` are epoch seconds, because they are
compared with JWT claims. JSON lives in text columns, written by `db.to_json`. No column may ever
hold a token, a provider key or a prompt.
"""

from daypass_broker.schema.columns import metadata
from daypass_broker.schema.identity import (
    assertion,
    federation_rule,
    grant_,
    lineage,
    sandbox,
    token,
    vendor_event,
)
from daypass_broker.schema.money import (
    ACCOUNT_LIMITS,
    account,
    usage,
    usage_carried,
    usage_pruned,
)
from daypass_broker.schema.policy import credential, orchestrator, profile, tenant
from daypass_broker.schema.revoked import revocation, revocation_version, signing_key
from daypass_broker.schema.trail import audit, audit_head, idempotency, incident, schema_compat

__all__ = [
    "ACCOUNT_LIMITS",
    "account",
    "assertion",
    "audit",
    "audit_head",
    "credential",
    "federation_rule",
    "grant_",
    "idempotency",
    "incident",
    "lineage",
    "metadata",
    "orchestrator",
    "profile",
    "revocation",
    "revocation_version",
    "sandbox",
    "schema_compat",
    "signing_key",
    "tenant",
    "token",
    "usage",
    "usage_carried",
    "usage_pruned",
    "vendor_event",
]
