"""Roles of broker and proxy, each with no more than it needs; what must never change; a marker.

On PostgreSQL two group roles get grants by column, and a login is made a member of one of them; on
SQLite there are no roles. On both, events are only ever appended, and `schema_compat` says which
releases may run on this schema (see `daypass_migrations.upgrade`).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from daypass_migrations.errors import MigrationRefused

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
readable_from = "0005"

_ROLES = ("daypass_broker", "daypass_proxy")

_COMPAT = """
CREATE TABLE schema_compat (
    id BIGINT NOT NULL,
    readable_from TEXT NOT NULL,
    CONSTRAINT pk_schema_compat PRIMARY KEY (id),
    CONSTRAINT ck_schema_compat_one_row CHECK (id = 1)
);
INSERT INTO schema_compat (id, readable_from) VALUES (1, '0005')
"""

_FIGURES = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_creation_1h_input_tokens",
    "cache_read_input_tokens",
    "thinking_tokens",
    "web_search_requests",
)

_CHECKS = f"""
ALTER TABLE usage ADD CONSTRAINT ck_usage_figures
    CHECK ({" AND ".join(f"COALESCE({name}, 0) >= 0" for name in _FIGURES)});
ALTER TABLE account ADD CONSTRAINT ck_account_windows
    CHECK (day_from <= day_until AND month_from <= month_until);
ALTER TABLE account ADD CONSTRAINT ck_account_parent CHECK (parent <> id);
ALTER TABLE incident ADD CONSTRAINT ck_incident_count CHECK (count >= 0);
ALTER TABLE grant_record ADD CONSTRAINT ck_grant_record_slice
    CHECK (depth >= 0 AND (slice_nano IS NULL OR slice_nano >= 0));
ALTER TABLE lineage ADD CONSTRAINT ck_lineage_generation CHECK (generation >= 0);
ALTER TABLE revocation_version ADD CONSTRAINT ck_revocation_version_version CHECK (version >= 0)
"""

# As in 0002, and now who opened a call, and as what, stays as it is in a correction too.
_CHANGES_A_BILL = """
OLD.state = 'settled' AND NOT (
    OLD.outcome = 'crashed' AND OLD.estimated = 1
    AND NEW.state = 'settled' AND COALESCE(NEW.outcome, 'crashed') <> 'crashed'
    AND NEW.id = OLD.id AND NEW.attempt = OLD.attempt AND NEW.started_at = OLD.started_at
    AND NEW.account = OLD.account AND NEW.tenant = OLD.tenant AND NEW.sandbox = OLD.sandbox
    AND NEW.grant_id = OLD.grant_id AND NEW.token_id = OLD.token_id
    AND NEW.provider = OLD.provider AND NEW.endpoint = OLD.endpoint AND NEW.model = OLD.model
    AND NEW.accounts = OLD.accounts AND NEW.reserved_nano = OLD.reserved_nano
    AND NEW.reserved_tokens = OLD.reserved_tokens
    AND NEW.stream = OLD.stream AND NEW.worker = OLD.worker AND NEW.lease_until = OLD.lease_until
)
"""

_TRIGGERS = {
    "sqlite": (
        "DROP TRIGGER usage_settled_update",
        f"""CREATE TRIGGER usage_settled_update BEFORE UPDATE ON usage FOR EACH ROW
            WHEN {_CHANGES_A_BILL}
            BEGIN SELECT RAISE(ABORT, 'settled usage is final'); END""",
        f"""CREATE TRIGGER usage_figures BEFORE UPDATE ON usage FOR EACH ROW
            WHEN {" OR ".join(f"NEW.{name} < 0" for name in _FIGURES)}
            BEGIN SELECT RAISE(ABORT, 'a figure of usage is negative'); END""",
        """CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit FOR EACH ROW
            BEGIN SELECT RAISE(ABORT, 'events are only appended'); END""",
    ),
    "postgresql": (
        "DROP TRIGGER usage_settled_update ON usage",
        f"""CREATE TRIGGER usage_settled_update BEFORE UPDATE ON usage FOR EACH ROW
            WHEN ({_CHANGES_A_BILL})
            EXECUTE FUNCTION usage_settled_is_final()""",
        """CREATE FUNCTION audit_is_appended() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'events are only appended'
               USING ERRCODE = 'integrity_constraint_violation'; END $$""",
        """CREATE TRIGGER audit_append_only BEFORE UPDATE OR TRUNCATE ON audit
            FOR EACH STATEMENT EXECUTE FUNCTION audit_is_appended()""",
    ),
}

# Another database of the same server may make them at this moment: then they are there after all.
_MAKE_ROLE = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$
"""

# What nobody was given is nobody's: neither by a page of ours of old, nor by a default of the
# server. The parts of `usage` are reached through it alone.
_TAKE_ALL = """
DO $$
DECLARE
    ours text[] := ARRAY['alembic_version', 'schema_compat', 'tenant', 'profile', 'orchestrator',
        'credential', 'sandbox', 'grant_record', 'token', 'lineage', 'federation_rule', 'assertion',
        'vendor_event', 'signing_key', 'revocation', 'revocation_version', 'account', 'usage',
        'usage_carried', 'usage_pruned', 'audit', 'audit_seq_seq', 'incident', 'idempotency'];
    relation regclass;
BEGIN
    FOR relation IN
        SELECT unnest(ours)::regclass
        UNION SELECT relid FROM pg_partition_tree('usage')
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM PUBLIC, daypass_broker, daypass_proxy', relation);
    END LOOP;
    REVOKE ALL ON FUNCTION daypass_make_usage_partition(bigint), usage_settled_is_final(),
        audit_is_appended() FROM PUBLIC, daypass_broker, daypass_proxy;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO daypass_broker, daypass_proxy', current_schema());
    EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
END $$
"""

_GRANTS = """
GRANT SELECT ON alembic_version, schema_compat, revocation_version, account, usage, usage_carried,
    usage_pruned, incident TO daypass_broker, daypass_proxy;

GRANT SELECT ON tenant, profile, orchestrator, credential, sandbox, grant_record, token, lineage,
    federation_rule, assertion, vendor_event, signing_key, revocation, audit, idempotency
    TO daypass_broker;
GRANT INSERT ON tenant, profile, orchestrator, credential, sandbox, grant_record, token, lineage,
    federation_rule, assertion, vendor_event, signing_key, revocation, incident, idempotency
    TO daypass_broker;
GRANT INSERT (at, tag, actor, tenant, sandbox, subject, detail, request_id, prev_hash, hash)
    ON audit TO daypass_broker;
GRANT USAGE ON SEQUENCE audit_seq_seq TO daypass_broker;
GRANT EXECUTE ON FUNCTION daypass_make_usage_partition(bigint) TO daypass_broker;
GRANT INSERT (id, kind, tenant, sandbox, parent, time_zone, policy, drain_ms, drain_tokens,
    ceiling_nano, token_ceiling, day_ceiling_nano, month_ceiling_nano, rpm_limit, tpm_limit,
    concurrency_limit, sliced, updated_at) ON account TO daypass_broker;
GRANT UPDATE (time_zone, policy, drain_ms, drain_tokens, ceiling_nano, token_ceiling,
    day_ceiling_nano, month_ceiling_nano, rpm_limit, tpm_limit, concurrency_limit, lent_nano,
    sliced, updated_at) ON account TO daypass_broker;
GRANT UPDATE (profiles, state, time_zone, limits, updated_at) ON tenant TO daypass_broker;
GRANT UPDATE (details, budget_nano, max_budget_nano, lifetime_s, max_lifetime_s, token_ttl_s,
    launch, limits, source, on_clone, heartbeat_s, max_depth, updated_at)
    ON profile TO daypass_broker;
GRANT UPDATE (revoked_at) ON credential TO daypass_broker;
GRANT UPDATE (state, launch, launch_jti, launch_iat, launch_used_at, previous_launch_jti,
    previous_launch_until_at, labels, bucket_level, bucket_at, deadline, ended_at, source,
    source_bound, heartbeat_s, heartbeat_at, activated_at, rule, identity, vendor, vendor_id)
    ON sandbox TO daypass_broker;
GRANT UPDATE (expires_at, state, returned_at) ON grant_record TO daypass_broker;
GRANT UPDATE (generation, rotated_at, state) ON lineage TO daypass_broker;
GRANT UPDATE (state, updated_at) ON federation_rule TO daypass_broker;
GRANT UPDATE (state, activated_at, retired_at, usable_at) ON signing_key TO daypass_broker;
GRANT UPDATE (version) ON revocation_version TO daypass_broker;
GRANT DELETE ON token, federation_rule, assertion, vendor_event, revocation, idempotency
    TO daypass_broker;

GRANT UPDATE (count) ON incident TO daypass_broker, daypass_proxy;

GRANT SELECT (scope, ident, not_before, expires_at) ON revocation TO daypass_proxy;
GRANT INSERT ON incident TO daypass_proxy;
GRANT INSERT (id, attempt, state, account, accounts, tenant, sandbox, grant_id, token_id, provider,
    endpoint, model, stream, reserved_nano, reserved_tokens, worker, lease_until, started_at)
    ON usage TO daypass_proxy;
GRANT UPDATE (state, lease_until, reserved_nano, reserved_tokens, cost_nano, tokens, input_tokens,
    output_tokens, cache_creation_input_tokens, cache_creation_1h_input_tokens,
    cache_read_input_tokens, thinking_tokens, web_search_requests, service_tier, speed,
    inference_geo, passes, outcome, estimated, http_status, upstream_request_id, settled_at)
    ON usage TO daypass_proxy;
GRANT UPDATE (spent_nano, reserved_nano, overdraft_nano, tokens_spent, tokens_reserved, open_calls,
    day_from, day_until, day_spent_nano, month_from, month_until, month_spent_nano, lent_used_nano,
    minute, updated_at) ON account TO daypass_proxy
"""

_INSUFFICIENT_PRIVILEGE = "42501"


def upgrade() -> None:
    """Add the marker, what must never change and, on PostgreSQL, roles and their grants.

    Raises MigrationRefused when there are no such roles and this login may not make them.
    """
    connection = op.get_bind()
    on_postgres = connection.dialect.name == "postgresql"
    for block in (_COMPAT, _CHECKS) if on_postgres else (_COMPAT,):
        for statement in block.split(";"):
            connection.exec_driver_sql(statement)
    for statement in _TRIGGERS[connection.dialect.name]:
        connection.exec_driver_sql(statement)
    if on_postgres:
        _make_roles(connection)
        # The driver has a meaning of its own for a percent sign.
        for statement in (_TAKE_ALL.replace("%", "%%"), *_GRANTS.split(";")):
            connection.exec_driver_sql(statement)
        _check_schema_reachable(connection)


def _make_roles(connection: sa.Connection) -> None:
    try:
        for role in _ROLES:
            connection.exec_driver_sql(_MAKE_ROLE.format(role=role))
    except sa.exc.ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
            raise
        raise MigrationRefused(
            "this login may not make roles; let an administrator of the server run"
            " `CREATE ROLE daypass_broker NOLOGIN; CREATE ROLE daypass_proxy NOLOGIN;`, then"
            " migrate again"
        ) from None
    powerful = connection.exec_driver_sql(
        "SELECT rolname FROM pg_roles WHERE rolname IN ('daypass_broker', 'daypass_proxy')"
        " AND rolsuper"
    ).scalars()
    for role in powerful:
        raise MigrationRefused(f"{role} is a superuser, whom no grant limits; take that from it")


def _check_schema_reachable(connection: sa.Connection) -> None:
    """Who does not own the schema cannot grant it; then PUBLIC has it, or an administrator must.

    Nor can he keep others from making something in it, which could pass for something of ours.
    """
    for role in _ROLES:
        make = f"SELECT has_schema_privilege('{role}', current_schema(), 'CREATE')"
        if connection.exec_driver_sql(make).scalar():
            name = connection.exec_driver_sql("SELECT current_schema()").scalar()
            raise MigrationRefused(
                f"{role} may make things in the schema; let its owner run"
                f" `REVOKE CREATE ON SCHEMA {name} FROM PUBLIC, {role};`, then migrate again"
            )
        reach = f"SELECT has_schema_privilege('{role}', current_schema(), 'USAGE')"
        if not connection.exec_driver_sql(reach).scalar():
            name = connection.exec_driver_sql("SELECT current_schema()").scalar()
            raise MigrationRefused(
                f"{role} cannot reach the schema; let its owner run"
                f" `GRANT USAGE ON SCHEMA {name} TO daypass_broker, daypass_proxy;`, then migrate"
                " again"
            )


def downgrade() -> None:
    """Raise: the history is linear and only goes forward."""
    raise NotImplementedError("daypass migrations only go forward")
