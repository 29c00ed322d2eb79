"""Heads of the hash chain over the audit trail: one row for the events of about a minute each.

Brokers append them and nobody changes one.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
readable_from = "0005"

_TABLE = """
CREATE TABLE audit_head (
    upto BIGINT NOT NULL,
    first BIGINT NOT NULL,
    events BIGINT NOT NULL,
    at BIGINT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL,
    kid TEXT NOT NULL,
    signature TEXT NOT NULL,
    CONSTRAINT pk_audit_head PRIMARY KEY (upto),
    CONSTRAINT uq_audit_head_previous UNIQUE (previous),
    CONSTRAINT ck_audit_head_events
        CHECK (events >= 1 AND first >= 1 AND upto - first >= events - 1)
)
"""

_SQLITE = tuple(
    f"""CREATE TRIGGER audit_head_{verb} BEFORE {verb} ON audit_head FOR EACH ROW
        BEGIN SELECT RAISE(ABORT, 'heads are only appended'); END"""
    for verb in ("update", "delete")
)

_POSTGRES = (
    """CREATE TRIGGER audit_head_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_head
        FOR EACH STATEMENT EXECUTE FUNCTION audit_is_appended()""",
    # What nobody was given is nobody's, whatever the owner's default privileges say.
    "REVOKE ALL ON audit_head FROM PUBLIC, daypass_broker, daypass_proxy",
    "GRANT SELECT, INSERT ON audit_head TO daypass_broker",
)


def upgrade() -> None:
    """Make the table and what keeps it as it is."""
    connection = op.get_bind()
    connection.exec_driver_sql(_TABLE)
    for statement in _SQLITE if connection.dialect.name == "sqlite" else _POSTGRES:
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Raise: the history is linear and only goes forward."""
    raise NotImplementedError("daypass migrations only go forward")
