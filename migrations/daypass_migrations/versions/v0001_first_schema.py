"""The first schema, as frozen SQL that SQLite and Postgres both read.

It is text, not the broker's table objects, because a released migration must make the same database
for ever. Only two column types and the triggers differ by dialect.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SEQUENCE = {
    "sqlite": "INTEGER NOT NULL CONSTRAINT pk_audit PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGSERIAL NOT NULL CONSTRAINT pk_audit PRIMARY KEY",
}

_DOUBLE = {"sqlite": "DOUBLE", "postgresql": "DOUBLE PRECISION"}

_TABLES = """
CREATE TABLE tenant (
    id TEXT NOT NULL,
    profiles TEXT NOT NULL,
    state TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    CONSTRAINT pk_tenant PRIMARY KEY (id),
    CONSTRAINT ck_tenant_state CHECK (state IN ('active', 'revoked'))
);

CREATE TABLE profile (
    name TEXT NOT NULL,
    details TEXT NOT NULL,
    budget_nano BIGINT NOT NULL,
    max_budget_nano BIGINT NOT NULL,
    lifetime_s BIGINT NOT NULL,
    max_lifetime_s BIGINT NOT NULL,
    token_ttl_s BIGINT NOT NULL,
    launch TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    CONSTRAINT pk_profile PRIMARY KEY (name),
    CONSTRAINT ck_profile_launch CHECK (launch IN ('reusable', 'single_use')),
    CONSTRAINT ck_profile_budget CHECK (budget_nano >= 0 AND max_budget_nano >= budget_nano)
);

CREATE TABLE orchestrator (
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT pk_orchestrator PRIMARY KEY (name),
    CONSTRAINT fk_orchestrator_tenant FOREIGN KEY (tenant) REFERENCES tenant (id)
);

CREATE TABLE credential (
    id TEXT NOT NULL,
    role TEXT NOT NULL,
    orchestrator TEXT,
    tenant TEXT,
    hash TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT,
    CONSTRAINT pk_credential PRIMARY KEY (id),
    CONSTRAINT ck_credential_role CHECK (role IN ('admin', 'orchestrator')),
    CONSTRAINT ck_credential_bound
        CHECK ((role = 'admin' AND orchestrator IS NULL AND tenant IS NULL)
        OR (role = 'orchestrator' AND orchestrator IS NOT NULL AND tenant IS NOT NULL)),
    CONSTRAINT fk_credential_orchestrator
        FOREIGN KEY (orchestrator) REFERENCES orchestrator (name),
    CONSTRAINT fk_credential_tenant FOREIGN KEY (tenant) REFERENCES tenant (id)
);

CREATE TABLE sandbox (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    profile TEXT NOT NULL,
    state TEXT NOT NULL,
    launch TEXT NOT NULL,
    launch_jti TEXT NOT NULL,
    launch_iat BIGINT NOT NULL,
    launch_used_at BIGINT,
    previous_launch_jti TEXT,
    previous_launch_until_at BIGINT,
    scope TEXT NOT NULL,
    token_ttl_s BIGINT NOT NULL,
    labels TEXT NOT NULL,
    connect TEXT NOT NULL,
    bucket_level {double} NOT NULL,
    bucket_at BIGINT NOT NULL,
    deadline BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    CONSTRAINT pk_sandbox PRIMARY KEY (id),
    CONSTRAINT ck_sandbox_state CHECK (state IN ('active', 'ended', 'revoked')),
    CONSTRAINT ck_sandbox_launch CHECK (launch IN ('reusable', 'single_use')),
    CONSTRAINT ck_sandbox_connect CHECK (connect IN ('direct', 'socket')),
    CONSTRAINT fk_sandbox_tenant FOREIGN KEY (tenant) REFERENCES tenant (id),
    CONSTRAINT fk_sandbox_profile FOREIGN KEY (profile) REFERENCES profile (name)
);

CREATE INDEX ix_sandbox_created_at_id ON sandbox (created_at, id);

CREATE INDEX ix_sandbox_tenant_created_at_id ON sandbox (tenant, created_at, id);

CREATE INDEX ix_sandbox_tenant_state ON sandbox (tenant, state);

CREATE TABLE grant_record (
    id TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    parent TEXT,
    scope TEXT NOT NULL,
    expires_at BIGINT NOT NULL,
    state TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT pk_grant_record PRIMARY KEY (id),
    CONSTRAINT ck_grant_record_state CHECK (state IN ('active', 'revoked')),
    CONSTRAINT fk_grant_record_sandbox FOREIGN KEY (sandbox) REFERENCES sandbox (id),
    CONSTRAINT fk_grant_record_parent FOREIGN KEY (parent) REFERENCES grant_record (id)
);

CREATE INDEX ix_grant_record_sandbox ON grant_record (sandbox);

CREATE TABLE token (
    jti TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    tenant TEXT NOT NULL,
    grant_id TEXT NOT NULL,
    kid TEXT NOT NULL,
    iat BIGINT NOT NULL,
    exp BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT pk_token PRIMARY KEY (jti),
    CONSTRAINT fk_token_sandbox FOREIGN KEY (sandbox) REFERENCES sandbox (id),
    CONSTRAINT fk_token_grant_id FOREIGN KEY (grant_id) REFERENCES grant_record (id)
);

CREATE INDEX ix_token_sandbox_iat ON token (sandbox, iat);

CREATE TABLE lineage (
    id TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    generation BIGINT NOT NULL,
    rotated_at BIGINT NOT NULL,
    state TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT pk_lineage PRIMARY KEY (id),
    CONSTRAINT ck_lineage_state CHECK (state IN ('active', 'quarantined')),
    CONSTRAINT fk_lineage_sandbox FOREIGN KEY (sandbox) REFERENCES sandbox (id)
);

CREATE INDEX ix_lineage_sandbox ON lineage (sandbox);

CREATE TABLE revocation (
    id TEXT NOT NULL,
    scope TEXT NOT NULL,
    ident TEXT NOT NULL,
    not_before BIGINT,
    expires_at BIGINT NOT NULL,
    reason TEXT NOT NULL,
    actor TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT pk_revocation PRIMARY KEY (id),
    CONSTRAINT ck_revocation_scope
        CHECK (scope IN ('global', 'tenant', 'sandbox', 'grant', 'kid', 'jti'))
);

CREATE INDEX ix_revocation_expires_at ON revocation (expires_at);

CREATE INDEX ix_revocation_scope_ident ON revocation (scope, ident);

CREATE TABLE revocation_version (
    id BIGINT NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT pk_revocation_version PRIMARY KEY (id),
    CONSTRAINT ck_revocation_version_one_row CHECK (id = 1)
);

CREATE TABLE account (
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    sandbox TEXT,
    ceiling_nano BIGINT,
    spent_nano BIGINT DEFAULT 0 NOT NULL,
    reserved_nano BIGINT DEFAULT 0 NOT NULL,
    overdraft_nano BIGINT DEFAULT 0 NOT NULL,
    updated_at BIGINT NOT NULL,
    CONSTRAINT pk_account PRIMARY KEY (id),
    CONSTRAINT ck_account_amounts
        CHECK (spent_nano >= 0 AND reserved_nano >= 0 AND overdraft_nano >= 0),
    CONSTRAINT ck_account_ceiling CHECK (ceiling_nano IS NULL OR ceiling_nano >= 0)
);

CREATE INDEX ix_account_tenant ON account (tenant);

CREATE TABLE usage (
    id TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    state TEXT NOT NULL,
    account TEXT NOT NULL,
    tenant TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    grant_id TEXT NOT NULL,
    token_id TEXT NOT NULL,
    provider TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    model TEXT NOT NULL,
    stream BIGINT DEFAULT 0 NOT NULL,
    reserved_nano BIGINT NOT NULL,
    cost_nano BIGINT,
    input_tokens BIGINT,
    output_tokens BIGINT,
    cache_creation_input_tokens BIGINT,
    cache_creation_1h_input_tokens BIGINT,
    cache_read_input_tokens BIGINT,
    outcome TEXT,
    estimated BIGINT DEFAULT 0 NOT NULL,
    http_status BIGINT,
    upstream_request_id TEXT,
    worker TEXT NOT NULL,
    lease_until BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    settled_at BIGINT,
    CONSTRAINT pk_usage PRIMARY KEY (id),
    CONSTRAINT ck_usage_state CHECK (state IN ('open', 'settled')),
    CONSTRAINT ck_usage_flags CHECK (stream IN (0, 1) AND estimated IN (0, 1)),
    CONSTRAINT ck_usage_nano
        CHECK (reserved_nano >= 0 AND (cost_nano IS NULL OR cost_nano >= 0)),
    CONSTRAINT ck_usage_settled
        CHECK (state = 'open'
        OR (cost_nano IS NOT NULL AND outcome IS NOT NULL AND settled_at IS NOT NULL))
);

CREATE INDEX ix_usage_sandbox_started_at ON usage (sandbox, started_at);

CREATE INDEX ix_usage_state_lease_until ON usage (state, lease_until);

CREATE INDEX ix_usage_tenant_started_at ON usage (tenant, started_at);

CREATE TABLE audit (
    seq {sequence},
    at BIGINT NOT NULL,
    tag TEXT NOT NULL,
    actor TEXT NOT NULL,
    tenant TEXT,
    sandbox TEXT,
    subject TEXT,
    detail TEXT NOT NULL,
    request_id TEXT,
    prev_hash TEXT,
    hash TEXT
);

CREATE INDEX ix_audit_sandbox_seq ON audit (sandbox, seq);

CREATE INDEX ix_audit_tenant_seq ON audit (tenant, seq);

CREATE TABLE incident (
    subject TEXT NOT NULL,
    kind TEXT NOT NULL,
    minute BIGINT NOT NULL,
    count BIGINT NOT NULL,
    CONSTRAINT pk_incident PRIMARY KEY (subject, kind, minute)
);

CREATE TABLE idempotency (
    credential TEXT NOT NULL,
    key_hash TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    sandboxes TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT pk_idempotency PRIMARY KEY (credential, key_hash)
);

CREATE INDEX ix_idempotency_created_at ON idempotency (created_at);

CREATE TABLE signing_key (
    kid TEXT NOT NULL,
    purpose TEXT NOT NULL,
    state TEXT NOT NULL,
    public_jwk TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    activated_at BIGINT,
    retired_at BIGINT,
    CONSTRAINT pk_signing_key PRIMARY KEY (kid),
    CONSTRAINT ck_signing_key_purpose CHECK (purpose IN ('access', 'launch', 'renewal')),
    CONSTRAINT ck_signing_key_state CHECK (state IN ('prepared', 'active', 'retired'))
);

INSERT INTO revocation_version (id, version) VALUES (1, 0)
"""

# A settled bill is final. One exception: a call booked as crashed, with an estimated cost, may be
# corrected once by the worker that comes back late with the real bill; what it was stays as it is.
_CHANGES_A_BILL = """
OLD.state = 'settled' AND NOT (
    OLD.outcome = 'crashed' AND OLD.estimated = 1
    AND NEW.state = 'settled' AND COALESCE(NEW.outcome, 'crashed') <> 'crashed'
    AND NEW.id = OLD.id AND NEW.attempt = OLD.attempt AND NEW.started_at = OLD.started_at
    AND NEW.account = OLD.account AND NEW.tenant = OLD.tenant AND NEW.sandbox = OLD.sandbox
    AND NEW.grant_id = OLD.grant_id AND NEW.token_id = OLD.token_id
    AND NEW.provider = OLD.provider AND NEW.endpoint = OLD.endpoint AND NEW.model = OLD.model
)
"""

_TRIGGERS = {
    "sqlite": (
        f"""CREATE TRIGGER usage_settled_update BEFORE UPDATE ON usage FOR EACH ROW
            WHEN {_CHANGES_A_BILL}
            BEGIN SELECT RAISE(ABORT, 'settled usage is final'); END""",
        """CREATE TRIGGER usage_settled_delete BEFORE DELETE ON usage FOR EACH ROW
            WHEN OLD.state = 'settled'
            BEGIN SELECT RAISE(ABORT, 'settled usage is final'); END""",
    ),
    "postgresql": (
        """CREATE FUNCTION usage_settled_is_final() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'settled usage is final'
               USING ERRCODE = 'integrity_constraint_violation'; END $$""",
        f"""CREATE TRIGGER usage_settled_update BEFORE UPDATE ON usage FOR EACH ROW
            WHEN ({_CHANGES_A_BILL})
            EXECUTE FUNCTION usage_settled_is_final()""",
        """CREATE TRIGGER usage_settled_delete BEFORE DELETE ON usage FOR EACH ROW
            WHEN (OLD.state = 'settled')
            EXECUTE FUNCTION usage_settled_is_final()""",
    ),
}


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    tables = _TABLES.format(sequence=_SEQUENCE[dialect], double=_DOUBLE[dialect])
    for statement in tables.split(";"):
        op.get_bind().exec_driver_sql(statement)
    for statement in _TRIGGERS[dialect]:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup: there is nothing before the first schema")
