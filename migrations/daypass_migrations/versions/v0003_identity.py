"""Sandboxes rest, beat and are bound to a place; workloads are attested; grants have children.

A sandbox may be idle, and says where its tokens may be used from. Rules say which attested
workloads may have a sandbox. A grant may be bought by another one, with an account of its own and
a slice of its buyer's budget. A signing key may lie in a vault. SQLite makes `sandbox` anew,
because it cannot change a CHECK.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COLUMNS = """
ALTER TABLE profile ADD COLUMN source TEXT DEFAULT 'any' NOT NULL;
ALTER TABLE profile ADD COLUMN on_clone TEXT DEFAULT 'quarantine' NOT NULL
    CONSTRAINT ck_profile_on_clone CHECK (on_clone IN ('quarantine', 'revoke', 'child'));
ALTER TABLE profile ADD COLUMN heartbeat_s BIGINT;
ALTER TABLE profile ADD COLUMN max_depth BIGINT DEFAULT 3 NOT NULL
    CONSTRAINT ck_profile_max_depth CHECK (max_depth >= 0 AND max_depth <= 3);
ALTER TABLE grant_record ADD COLUMN depth BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE grant_record ADD COLUMN bought_with TEXT;
ALTER TABLE grant_record ADD COLUMN slice_nano BIGINT;
ALTER TABLE grant_record ADD COLUMN returned_at BIGINT;
DROP INDEX ix_grant_record_sandbox;
CREATE INDEX ix_grant_record_sandbox_parent_expires_at
    ON grant_record (sandbox, parent, expires_at);
CREATE INDEX ix_grant_record_lent ON grant_record (expires_at)
    WHERE slice_nano IS NOT NULL AND returned_at IS NULL;
ALTER TABLE account ADD COLUMN lent_nano BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE account ADD COLUMN sliced BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE account ADD COLUMN lent_used_nano BIGINT DEFAULT 0 NOT NULL
    CONSTRAINT ck_account_lent
    CHECK (lent_nano >= 0 AND lent_used_nano >= 0 AND sliced IN (0, 1));
ALTER TABLE signing_key ADD COLUMN store TEXT DEFAULT 'file' NOT NULL
    CONSTRAINT ck_signing_key_store CHECK (store IN ('file', 'transit'));
ALTER TABLE signing_key ADD COLUMN reference TEXT;
ALTER TABLE signing_key ADD COLUMN usable_at BIGINT
"""

_RULES = """
CREATE TABLE federation_rule (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    profile TEXT NOT NULL,
    kind TEXT NOT NULL,
    issuer TEXT NOT NULL,
    audience TEXT NOT NULL,
    document TEXT NOT NULL,
    state TEXT NOT NULL,
    created_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    CONSTRAINT pk_federation_rule PRIMARY KEY (id),
    CONSTRAINT uq_federation_rule_tenant_name UNIQUE (tenant, name),
    CONSTRAINT ck_federation_rule_kind CHECK (kind IN ('oidc', 'kubernetes')),
    CONSTRAINT ck_federation_rule_state CHECK (state IN ('active', 'disabled')),
    CONSTRAINT fk_federation_rule_tenant FOREIGN KEY (tenant) REFERENCES tenant (id),
    CONSTRAINT fk_federation_rule_profile FOREIGN KEY (profile) REFERENCES profile (name)
);
CREATE TABLE assertion (
    id TEXT NOT NULL,
    rule TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    expires_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT pk_assertion PRIMARY KEY (id)
);
CREATE INDEX ix_assertion_expires_at ON assertion (expires_at);
CREATE TABLE vendor_event (
    vendor TEXT NOT NULL,
    event TEXT NOT NULL,
    sandbox TEXT,
    received_at BIGINT NOT NULL,
    CONSTRAINT pk_vendor_event PRIMARY KEY (vendor, event)
);
CREATE INDEX ix_vendor_event_received_at ON vendor_event (received_at);
CREATE INDEX ix_token_exp ON token (exp);
CREATE INDEX ix_incident_minute ON incident (minute)
"""

_OLD_SANDBOX = """
    id, tenant, profile, state, launch, launch_jti, launch_iat, launch_used_at, previous_launch_jti,
    previous_launch_until_at, scope, token_ttl_s, labels, connect, bucket_level, bucket_at,
    deadline, created_by, created_at, ended_at
"""

_SANDBOX = {
    "sqlite": f"""
CREATE TABLE sandbox_0003 (
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
    bucket_level DOUBLE NOT NULL,
    bucket_at BIGINT NOT NULL,
    deadline BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    source TEXT DEFAULT 'any' NOT NULL,
    source_bound TEXT,
    on_clone TEXT DEFAULT 'quarantine' NOT NULL,
    heartbeat_s BIGINT,
    heartbeat_at BIGINT,
    activated_at BIGINT,
    rule TEXT,
    identity TEXT,
    vendor TEXT,
    vendor_id TEXT,
    CONSTRAINT pk_sandbox PRIMARY KEY (id),
    CONSTRAINT uq_sandbox_rule_identity UNIQUE (rule, identity),
    CONSTRAINT ck_sandbox_state CHECK (state IN ('idle', 'active', 'ended', 'revoked')),
    CONSTRAINT ck_sandbox_launch CHECK (launch IN ('reusable', 'single_use', 'attested')),
    CONSTRAINT ck_sandbox_connect CHECK (connect IN ('direct', 'socket')),
    CONSTRAINT ck_sandbox_on_clone CHECK (on_clone IN ('quarantine', 'revoke', 'child')),
    CONSTRAINT fk_sandbox_tenant FOREIGN KEY (tenant) REFERENCES tenant (id),
    CONSTRAINT fk_sandbox_profile FOREIGN KEY (profile) REFERENCES profile (name),
    CONSTRAINT fk_sandbox_rule FOREIGN KEY (rule) REFERENCES federation_rule (id)
);
INSERT INTO sandbox_0003 ({_OLD_SANDBOX}, activated_at)
    SELECT {_OLD_SANDBOX}, created_at FROM sandbox;
DROP TABLE sandbox;
ALTER TABLE sandbox_0003 RENAME TO sandbox;
CREATE INDEX ix_sandbox_created_at_id ON sandbox (created_at, id);
CREATE INDEX ix_sandbox_tenant_created_at_id ON sandbox (tenant, created_at, id);
CREATE INDEX ix_sandbox_tenant_state ON sandbox (tenant, state);
CREATE INDEX ix_sandbox_state_deadline ON sandbox (state, deadline);
CREATE INDEX ix_sandbox_vendor_vendor_id ON sandbox (vendor, vendor_id)
""",  # noqa: S608 - the only things put in are our own constants
    "postgresql": """
ALTER TABLE sandbox DROP CONSTRAINT ck_sandbox_state;
ALTER TABLE sandbox DROP CONSTRAINT ck_sandbox_launch;
ALTER TABLE sandbox ADD CONSTRAINT ck_sandbox_state
    CHECK (state IN ('idle', 'active', 'ended', 'revoked'));
ALTER TABLE sandbox ADD CONSTRAINT ck_sandbox_launch
    CHECK (launch IN ('reusable', 'single_use', 'attested'));
ALTER TABLE sandbox ADD COLUMN source TEXT DEFAULT 'any' NOT NULL;
ALTER TABLE sandbox ADD COLUMN source_bound TEXT;
ALTER TABLE sandbox ADD COLUMN on_clone TEXT DEFAULT 'quarantine' NOT NULL
    CONSTRAINT ck_sandbox_on_clone CHECK (on_clone IN ('quarantine', 'revoke', 'child'));
ALTER TABLE sandbox ADD COLUMN heartbeat_s BIGINT;
ALTER TABLE sandbox ADD COLUMN heartbeat_at BIGINT;
ALTER TABLE sandbox ADD COLUMN activated_at BIGINT;
ALTER TABLE sandbox ADD COLUMN rule TEXT
    CONSTRAINT fk_sandbox_rule REFERENCES federation_rule (id);
ALTER TABLE sandbox ADD COLUMN identity TEXT;
ALTER TABLE sandbox ADD COLUMN vendor TEXT;
ALTER TABLE sandbox ADD COLUMN vendor_id TEXT;
ALTER TABLE sandbox ADD CONSTRAINT uq_sandbox_rule_identity UNIQUE (rule, identity);
CREATE INDEX ix_sandbox_vendor_vendor_id ON sandbox (vendor, vendor_id);
CREATE INDEX ix_sandbox_state_deadline ON sandbox (state, deadline);
UPDATE sandbox SET activated_at = created_at
""",
}


def upgrade() -> None:
    connection = op.get_bind()
    for block in (_COLUMNS, _RULES, _SANDBOX[connection.dialect.name]):
        for statement in block.split(";"):
            connection.exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup: the second schema has no place for identities")
