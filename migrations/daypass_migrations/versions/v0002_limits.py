"""Accounts get limits, parents and counters; usage rows say which accounts they were booked in.

What is there already is carried over: every tenant gets an account that is the sum of its calls,
every sandbox's account gets it as its parent, and old calls are booked in both. Windows and minutes
begin empty. SQLite makes `usage` anew, because it cannot add a column that must not be empty.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_COLUMNS = """
ALTER TABLE tenant ADD COLUMN time_zone TEXT DEFAULT 'UTC' NOT NULL;
ALTER TABLE tenant ADD COLUMN limits TEXT DEFAULT '{}' NOT NULL;
ALTER TABLE profile ADD COLUMN limits TEXT DEFAULT '{}' NOT NULL;
ALTER TABLE account ADD COLUMN parent TEXT;
ALTER TABLE account ADD COLUMN time_zone TEXT DEFAULT 'UTC' NOT NULL;
ALTER TABLE account ADD COLUMN policy TEXT
    CONSTRAINT ck_account_policy CHECK (policy IN ('cutoff', 'clamp', 'reject'));
ALTER TABLE account ADD COLUMN drain_ms BIGINT;
ALTER TABLE account ADD COLUMN drain_tokens BIGINT;
ALTER TABLE account ADD COLUMN token_ceiling BIGINT;
ALTER TABLE account ADD COLUMN day_ceiling_nano BIGINT;
ALTER TABLE account ADD COLUMN month_ceiling_nano BIGINT;
ALTER TABLE account ADD COLUMN rpm_limit BIGINT;
ALTER TABLE account ADD COLUMN tpm_limit BIGINT;
ALTER TABLE account ADD COLUMN concurrency_limit BIGINT
    CONSTRAINT ck_account_limits CHECK (
        COALESCE(drain_ms, 0) >= 0 AND COALESCE(drain_tokens, 0) >= 0
        AND COALESCE(token_ceiling, 0) >= 0 AND COALESCE(day_ceiling_nano, 0) >= 0
        AND COALESCE(month_ceiling_nano, 0) >= 0 AND COALESCE(rpm_limit, 0) >= 0
        AND COALESCE(tpm_limit, 0) >= 0 AND COALESCE(concurrency_limit, 0) >= 0);
ALTER TABLE account ADD COLUMN tokens_spent BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE account ADD COLUMN tokens_reserved BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE account ADD COLUMN open_calls BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE account ADD COLUMN day_from BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE account ADD COLUMN day_until BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE account ADD COLUMN day_spent_nano BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE account ADD COLUMN month_from BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE account ADD COLUMN month_until BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE account ADD COLUMN month_spent_nano BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE account ADD COLUMN minute TEXT DEFAULT '[]' NOT NULL
    CONSTRAINT ck_account_counters CHECK (
        tokens_spent >= 0 AND tokens_reserved >= 0 AND open_calls >= 0
        AND day_spent_nano >= 0 AND month_spent_nano >= 0)
"""

_OLD_USAGE = """
    id, attempt, state, account, tenant, sandbox, grant_id, token_id, provider, endpoint, model,
    stream, reserved_nano, cost_nano, input_tokens, output_tokens, cache_creation_input_tokens,
    cache_creation_1h_input_tokens, cache_read_input_tokens, outcome, estimated, http_status,
    upstream_request_id, worker, lease_until, started_at, settled_at
"""

# What an old call is given: the accounts it is booked in, and the tokens it used.
_ACCOUNTS = "account || ' tenant:' || tenant"
_TOKENS = """
CASE WHEN state = 'settled' THEN
    COALESCE(input_tokens, 0) + COALESCE(output_tokens, 0)
    + COALESCE(cache_creation_input_tokens, 0) + COALESCE(cache_read_input_tokens, 0)
END
"""

_USAGE = {
    "sqlite": f"""
CREATE TABLE usage_0002 (
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
    accounts TEXT NOT NULL,
    reserved_tokens BIGINT DEFAULT 0 NOT NULL,
    tokens BIGINT,
    thinking_tokens BIGINT,
    web_search_requests BIGINT,
    service_tier TEXT,
    speed TEXT,
    inference_geo TEXT,
    passes TEXT,
    CONSTRAINT pk_usage PRIMARY KEY (id),
    CONSTRAINT ck_usage_state CHECK (state IN ('open', 'settled')),
    CONSTRAINT ck_usage_flags CHECK (stream IN (0, 1) AND estimated IN (0, 1)),
    CONSTRAINT ck_usage_nano
        CHECK (reserved_nano >= 0 AND (cost_nano IS NULL OR cost_nano >= 0)),
    CONSTRAINT ck_usage_settled
        CHECK (state = 'open'
        OR (cost_nano IS NOT NULL AND outcome IS NOT NULL AND settled_at IS NOT NULL)),
    CONSTRAINT ck_usage_tokens
        CHECK (reserved_tokens >= 0 AND (tokens IS NULL OR tokens >= 0))
);
INSERT INTO usage_0002 ({_OLD_USAGE}, accounts, tokens)
    SELECT {_OLD_USAGE}, {_ACCOUNTS}, {_TOKENS} FROM usage;
DROP TABLE usage;
ALTER TABLE usage_0002 RENAME TO usage;
CREATE INDEX ix_usage_sandbox_started_at ON usage (sandbox, started_at);
CREATE INDEX ix_usage_state_lease_until ON usage (state, lease_until);
CREATE INDEX ix_usage_tenant_started_at ON usage (tenant, started_at)
""",  # noqa: S608 - the only things put in are our own constants
    "postgresql": f"""
DROP TRIGGER usage_settled_update ON usage;
ALTER TABLE usage ADD COLUMN accounts TEXT;
ALTER TABLE usage ADD COLUMN reserved_tokens BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE usage ADD COLUMN tokens BIGINT;
ALTER TABLE usage ADD COLUMN thinking_tokens BIGINT;
ALTER TABLE usage ADD COLUMN web_search_requests BIGINT;
ALTER TABLE usage ADD COLUMN service_tier TEXT;
ALTER TABLE usage ADD COLUMN speed TEXT;
ALTER TABLE usage ADD COLUMN inference_geo TEXT;
ALTER TABLE usage ADD COLUMN passes TEXT;
ALTER TABLE usage ADD CONSTRAINT ck_usage_tokens
    CHECK (reserved_tokens >= 0 AND (tokens IS NULL OR tokens >= 0));
UPDATE usage SET accounts = {_ACCOUNTS}, tokens = {_TOKENS};
ALTER TABLE usage ALTER COLUMN accounts SET NOT NULL
""",  # noqa: S608 - the only things put in are our own constants
}

# The accounts that exist keep their sums; what is new to them, and all of a tenant's, is summed.
_SUMS = """
UPDATE account SET parent = 'tenant:' || tenant WHERE kind = 'sandbox';

UPDATE account SET
    tokens_spent = COALESCE((SELECT SUM(u.tokens) FROM usage u WHERE u.account = account.id), 0),
    open_calls = (SELECT COUNT(*) FROM usage u WHERE u.account = account.id AND u.state = 'open');

INSERT INTO account (id, kind, tenant, spent_nano, reserved_nano, overdraft_nano, tokens_spent,
    open_calls, updated_at)
SELECT 'tenant:' || known.tenant, 'tenant', known.tenant,
    COALESCE(booked.spent, 0), COALESCE(booked.reserved, 0), COALESCE(booked.overdraft, 0),
    COALESCE(booked.tokens, 0), COALESCE(booked.open_calls, 0), known.updated_at
FROM (
    SELECT tenant, MAX(at) AS updated_at FROM (
        SELECT id AS tenant, updated_at AS at FROM tenant
        UNION ALL SELECT tenant, updated_at FROM account
        UNION ALL SELECT tenant, started_at FROM usage) named
    GROUP BY tenant) known
LEFT JOIN (
    SELECT tenant,
        SUM(CASE WHEN state = 'settled' THEN cost_nano ELSE 0 END) AS spent,
        SUM(CASE WHEN state = 'open' THEN reserved_nano ELSE 0 END) AS reserved,
        SUM(CASE WHEN state = 'settled' AND cost_nano > reserved_nano
            THEN cost_nano - reserved_nano ELSE 0 END) AS overdraft,
        SUM(COALESCE(tokens, 0)) AS tokens,
        SUM(CASE WHEN state = 'open' THEN 1 ELSE 0 END) AS open_calls
    FROM usage GROUP BY tenant) booked
ON booked.tenant = known.tenant
"""

# As in the first schema, a settled bill is final but for one correction of a crashed call; where it
# was booked and what it had held stay as they are even then.
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
        f"""CREATE TRIGGER usage_settled_update BEFORE UPDATE ON usage FOR EACH ROW
            WHEN ({_CHANGES_A_BILL})
            EXECUTE FUNCTION usage_settled_is_final()""",
    ),
}


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    for block in (_COLUMNS, _USAGE[dialect], _SUMS):
        for statement in block.split(";"):
            op.get_bind().exec_driver_sql(statement)
    for statement in _TRIGGERS[dialect]:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup: the first schema has no place for what was booked")
