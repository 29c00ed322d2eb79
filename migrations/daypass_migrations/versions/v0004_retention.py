"""Usage is kept by month on PostgreSQL, and old usage may be pruned without losing its sums.

PostgreSQL makes `usage` anew, in partitions of one month (UTC) of `started_at`, and moves the rows;
`usage_default` catches what no month is there for. Months are made by
`daypass_make_usage_partition(month_start bigint)`, which runs as the owner: 0005 lets the role
daypass_broker execute it, and nobody else. SQLite keeps its table.

`usage_carried` holds, by account, the sums of usage rows that were pruned, so that every account
can still be recomputed; `usage_pruned` says which months were, and where they were exported to.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLES = """
CREATE TABLE usage_carried (
    account TEXT NOT NULL,
    calls BIGINT NOT NULL,
    spent_nano BIGINT NOT NULL,
    overdraft_nano BIGINT NOT NULL,
    tokens_spent BIGINT NOT NULL,
    day_from BIGINT DEFAULT 0 NOT NULL,
    day_spent_nano BIGINT DEFAULT 0 NOT NULL,
    month_from BIGINT DEFAULT 0 NOT NULL,
    month_spent_nano BIGINT DEFAULT 0 NOT NULL,
    until_at BIGINT NOT NULL,
    CONSTRAINT pk_usage_carried PRIMARY KEY (account),
    CONSTRAINT ck_usage_carried_sums
        CHECK (calls >= 0 AND spent_nano >= 0 AND overdraft_nano >= 0 AND tokens_spent >= 0
        AND day_spent_nano >= 0 AND month_spent_nano >= 0)
);
CREATE TABLE usage_pruned (
    month_at BIGINT NOT NULL,
    until_at BIGINT NOT NULL,
    calls BIGINT DEFAULT 0 NOT NULL,
    cost_nano BIGINT DEFAULT 0 NOT NULL,
    tokens BIGINT DEFAULT 0 NOT NULL,
    file TEXT,
    sha256 TEXT,
    frozen_at BIGINT NOT NULL,
    pruned_at BIGINT,
    CONSTRAINT pk_usage_pruned PRIMARY KEY (month_at),
    CONSTRAINT ck_usage_pruned_month CHECK (until_at > month_at),
    CONSTRAINT ck_usage_pruned_exported
        CHECK (pruned_at IS NULL OR (file IS NOT NULL AND sha256 IS NOT NULL))
)
"""

_INDEXES = """
CREATE INDEX ix_usage_sandbox_started_at ON usage (sandbox, started_at);
CREATE INDEX ix_usage_state_lease_until ON usage (state, lease_until);
CREATE INDEX ix_usage_tenant_started_at ON usage (tenant, started_at)
"""

_COLUMNS = """
    id, attempt, state, account, tenant, sandbox, grant_id, token_id, provider, endpoint, model,
    stream, reserved_nano, cost_nano, input_tokens, output_tokens, cache_creation_input_tokens,
    cache_creation_1h_input_tokens, cache_read_input_tokens, outcome, estimated, http_status,
    upstream_request_id, worker, lease_until, started_at, settled_at, accounts, reserved_tokens,
    tokens, thinking_tokens, web_search_requests, service_tier, speed, inference_geo, passes
"""

# All that this revision and the next change on PostgreSQL, before anything is done: who holds one
# of these and waits for another would make the copying of `usage` begin anew, again and again.
_LOCK = """
LOCK TABLE usage, account, grant_record, incident, lineage, revocation_version, audit, token
IN ACCESS EXCLUSIVE MODE
"""

_LOCK_MS = 300

# Who prunes sandboxes finds what is theirs, and the foreign keys of grants are checked, by these.
_PRUNED_BY = """
CREATE INDEX ix_account_sandbox ON account (sandbox);
CREATE INDEX ix_grant_record_parent ON grant_record (parent);
CREATE INDEX ix_token_grant_id ON token (grant_id)
"""

# Its indexes and its key give their names to the new table's; what it holds has been checked.
_OLD = """
DROP TRIGGER usage_settled_update ON usage;
DROP TRIGGER usage_settled_delete ON usage;
DROP INDEX ix_usage_sandbox_started_at;
DROP INDEX ix_usage_state_lease_until;
DROP INDEX ix_usage_tenant_started_at;
ALTER TABLE usage RENAME TO usage_0003;
ALTER TABLE usage_0003 DROP CONSTRAINT pk_usage
"""

# A key of all parts would have to hold the month's column, and so let an id come a second time.
# Each part has a key of its own instead: of the id alone, as the whole table had.
_PARTITIONED = """
CREATE TABLE usage (LIKE usage_0003 INCLUDING DEFAULTS INCLUDING CONSTRAINTS)
    PARTITION BY RANGE (started_at);
CREATE TABLE usage_default PARTITION OF usage DEFAULT;
ALTER TABLE usage_default ADD CONSTRAINT pk_usage_default PRIMARY KEY (id)
"""

# The new part is filled, if the catch-all holds rows of its month, and only then attached: that
# takes no lock in which calls could wait for long, and none at all of the other parts. Rows that
# have to be moved, after months in which nothing ran, do lock the table while they are.
_FUNCTION = """
CREATE FUNCTION daypass_make_usage_partition(month_start bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s' AS $$
DECLARE
    at timestamp := to_timestamp(month_start / 1000.0) AT TIME ZONE 'UTC';
    month_end bigint := extract(epoch FROM at + interval '1 month') * 1000;
    now_at timestamp := clock_timestamp() AT TIME ZONE 'UTC';
    part text := 'usage_' || to_char(at, 'YYYY_MM');
    place text := '{literal}.' || quote_ident(part);
    held boolean;
    other name;
BEGIN
    IF month_start IS NULL OR at <> date_trunc('month', at)
        OR month_start <> (extract(epoch FROM at) * 1000)::bigint THEN
        RAISE EXCEPTION 'not the first millisecond of a month'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF to_regclass(place) IS NOT NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock({lock_id});
    IF to_regclass(place) IS NOT NULL THEN
        RETURN false;
    END IF;
    SELECT EXISTS (SELECT FROM {schema}.usage_default
        WHERE started_at >= month_start AND started_at < month_end) INTO held;
    IF NOT held AND NOT at BETWEEN date_trunc('month', now_at) - interval '1 month'
        AND date_trunc('month', now_at) + interval '12 months' THEN
        RAISE EXCEPTION 'this month is not needed' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF held THEN
        LOCK TABLE {schema}.usage IN ACCESS EXCLUSIVE MODE;
    END IF;
    EXECUTE format('CREATE TABLE %s'
        ' (LIKE {quoted}.usage INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', place);
    EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %I PRIMARY KEY (id)', place, 'pk_' || part);
    -- It is reached through `usage` alone, whatever the owner's default privileges say.
    EXECUTE format('REVOKE ALL ON %s FROM PUBLIC', place);
    FOR other IN SELECT rolname FROM pg_roles
        WHERE rolname IN ('daypass_broker', 'daypass_proxy') LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %I', place, other);
    END LOOP;
    IF held THEN
        EXECUTE format('INSERT INTO %s SELECT * FROM {quoted}.usage_default'
            ' WHERE started_at >= $1 AND started_at < $2', place) USING month_start, month_end;
        ALTER TABLE {schema}.usage_default DISABLE TRIGGER USER;
        DELETE FROM {schema}.usage_default
            WHERE started_at >= month_start AND started_at < month_end;
        ALTER TABLE {schema}.usage_default ENABLE TRIGGER USER;
    END IF;
    EXECUTE format('ALTER TABLE {quoted}.usage ATTACH PARTITION %s'
        ' FOR VALUES FROM (%s) TO (%s)', place, month_start, month_end);
    RETURN true;
END $$
"""
_LOCK_ID = 0x6461797061737301  # beside the migrations' own

# The months that old rows are of, this one and the three that come; then the rows themselves.
_MONTHS = """
SELECT (extract(epoch FROM month) * 1000)::bigint FROM (
    SELECT DISTINCT date_trunc('month', to_timestamp(started_at / 1000.0) AT TIME ZONE 'UTC')
        AS month FROM usage_0003
    UNION SELECT date_trunc('month', now() AT TIME ZONE 'UTC') + ahead * interval '1 month'
        FROM generate_series(0, 3) AS ahead) AS months
ORDER BY month
"""

_MONTH = """
SELECT 'usage_' || to_char(at, 'YYYY_MM'),
    CAST(extract(epoch FROM at + interval '1 month') * 1000 AS bigint)
FROM (SELECT to_timestamp(:month / 1000.0) AT TIME ZONE 'UTC' AS at) AS month
"""

# As in 0002; 0005 writes the first of them anew.
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

_POSTGRES_TRIGGERS = (
    f"""CREATE TRIGGER usage_settled_update BEFORE UPDATE ON usage FOR EACH ROW
        WHEN ({_CHANGES_A_BILL})
        EXECUTE FUNCTION usage_settled_is_final()""",
    """CREATE TRIGGER usage_settled_delete BEFORE DELETE ON usage FOR EACH ROW
        WHEN (OLD.state = 'settled')
        EXECUTE FUNCTION usage_settled_is_final()""",
)

# On SQLite a month that is pruned is frozen by its row: its bills are corrected no more, and they,
# no others, may be deleted. PostgreSQL drops a whole partition.
_FROZEN = """EXISTS (SELECT 1 FROM usage_pruned
    WHERE OLD.started_at >= month_at AND OLD.started_at < until_at)"""

_SQLITE_TRIGGERS = (
    "DROP TRIGGER usage_settled_delete",
    f"""CREATE TRIGGER usage_settled_delete BEFORE DELETE ON usage FOR EACH ROW
        WHEN OLD.state = 'settled' AND NOT {_FROZEN}
        BEGIN SELECT RAISE(ABORT, 'settled usage is final'); END""",
    f"""CREATE TRIGGER usage_frozen_update BEFORE UPDATE ON usage FOR EACH ROW
        WHEN OLD.state = 'settled' AND {_FROZEN}
        BEGIN SELECT RAISE(ABORT, 'settled usage is final, and being pruned'); END""",
)


def upgrade() -> None:
    """Make the tables of what is pruned and, on PostgreSQL, `usage` by month."""
    connection = op.get_bind()
    on_postgres = connection.dialect.name == "postgresql"
    if on_postgres:
        # As one statement: calls wait for all of the locks no longer than for one of them.
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {_LOCK_MS}")
        connection.exec_driver_sql(_LOCK)
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        _partition()
    for statement in (_TABLES + ";" + _PRUNED_BY).split(";"):
        connection.exec_driver_sql(statement)
    for statement in _POSTGRES_TRIGGERS if on_postgres else _SQLITE_TRIGGERS:
        connection.exec_driver_sql(statement)


def _partition() -> None:
    connection = op.get_bind()
    for statement in (_OLD + ";" + _PARTITIONED).split(";"):
        connection.exec_driver_sql(statement)
    schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    # All by name, and only PG's own is looked up: it runs as the owner, and an operator that
    # somebody made in our schema, for just these types, would be taken for one of PG's.
    literal = schema.replace("'", "''")
    quoted = literal.replace("%", "%%")
    function = _FUNCTION.format(schema=schema, quoted=quoted, literal=literal, lock_id=_LOCK_ID)
    connection.exec_driver_sql(function.replace("%", "%%"))
    connection.exec_driver_sql(
        "REVOKE ALL ON FUNCTION daypass_make_usage_partition(bigint) FROM PUBLIC"
    )
    months = connection.exec_driver_sql(_MONTHS).scalars().all()
    # By the function they would have to be caught and moved a second time.
    for month in months:
        _make(month)
    connection.exec_driver_sql(
        f"INSERT INTO usage ({_COLUMNS}) SELECT {_COLUMNS} FROM usage_0003"  # noqa: S608 - ours
    )
    connection.exec_driver_sql("DROP TABLE usage_0003")
    for statement in _INDEXES.split(";"):
        connection.exec_driver_sql(statement)


def _make(month: int) -> None:
    """Make the partition of one month, under the name that the function would give it."""
    connection = op.get_bind()
    name, end = connection.execute(sa.text(_MONTH), {"month": month}).one()
    connection.exec_driver_sql(
        f"CREATE TABLE {name} PARTITION OF usage FOR VALUES FROM ({month}) TO ({end})"
    )
    connection.exec_driver_sql(f"ALTER TABLE {name} ADD CONSTRAINT pk_{name} PRIMARY KEY (id)")


def downgrade() -> None:
    """Raise: the history is linear and only goes forward."""
    raise NotImplementedError("restore a backup: the third schema has no place for what was pruned")
