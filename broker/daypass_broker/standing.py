"""Where a sandbox stands: its rows, locked in one order, and whether it may have a token at all.

The version row comes first (FOR SHARE): a revocation takes it FOR UPDATE, so a revocation is either
seen here or comes after the token it ends. Then the sandbox. Runs inside the caller's write
transaction; nothing here writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from daypass_broker import revocation, schema
from daypass_broker.attest import Attested
from daypass_broker.refused import Refused
from daypass_core.revocation import Revocation, RevocationSet


@dataclass(frozen=True, slots=True)
class Standing:
    """What the store says about one sandbox, at one version of the revocations.

    `live` are its access tokens that have not expired, youngest first, revoked ones included.
    """

    sandbox: sa.Row[Any]
    tenant_active: bool
    grant: sa.Row[Any]
    live: tuple[sa.Row[Any], ...]
    revocations: RevocationSet

    @property
    def cut_off(self) -> int | None:
        """The latest second whose tokens are ended for this sandbox, None without a cut-off."""
        row = self.sandbox
        return self.revocations.cut_off(row.tenant, row.id, (self.grant.id,))

    @property
    def ends_at(self) -> int:
        """The epoch second nothing issued to this sandbox may outlive."""
        return int(min(self.sandbox.deadline, self.grant.expires_at))

    def ended(self, scope: str, ident: str) -> bool:
        """Say whether an absolute revocation names this."""
        return self.revocations.absolute(scope, ident)


def look_up(conn: sa.Connection, attested: Attested, key_id: str, now: int) -> Standing | None:
    """Lock and read the rows of the attested sandbox; None when there is no such sandbox.

    `key_id` is the key that would sign, `now` is in epoch seconds.
    """
    revocation.share_version(conn)
    sandbox = conn.execute(
        sa.select(schema.sandbox)
        .where(schema.sandbox.c.id == attested.sandbox, schema.sandbox.c.tenant == attested.tenant)
        .with_for_update()
    ).first()
    if sandbox is None:
        return None
    grant = conn.execute(
        sa.select(schema.grant_).where(
            schema.grant_.c.sandbox == sandbox.id, schema.grant_.c.parent.is_(None)
        )
    ).one()
    tenant_state = conn.execute(
        sa.select(schema.tenant.c.state).where(schema.tenant.c.id == sandbox.tenant)
    ).scalar_one()
    token = schema.token
    live = conn.execute(
        sa.select(token)
        .where(token.c.sandbox == sandbox.id, token.c.exp > now)
        .order_by(token.c.created_at.desc(), token.c.jti)
    ).all()
    named = {
        "tenant": [sandbox.tenant],
        "sandbox": [sandbox.id],
        "grant": [grant.id],
        "kid": [attested.key_id, key_id],
        "jti": [attested.token_id, *(row.jti for row in live)],
    }
    return Standing(
        sandbox=sandbox,
        tenant_active=tenant_state == "active",
        grant=grant,
        live=tuple(live),
        revocations=_revocations(conn, named),
    )


def _revocations(conn: sa.Connection, named: dict[str, list[str]]) -> RevocationSet:
    """Read the revocations that can matter here: the global ones and those of the named."""
    table = schema.revocation
    concerned = sa.or_(
        table.c.scope == "global",
        *((table.c.scope == scope) & table.c.ident.in_(idents) for scope, idents in named.items()),
    )
    rows = conn.execute(
        sa.select(table.c.scope, table.c.ident, table.c.not_before, table.c.expires_at).where(
            concerned
        )
    )
    return RevocationSet.from_rows(
        Revocation(row.scope, row.ident, row.not_before, row.expires_at) for row in rows
    )


def judge(standing: Standing, attested: Attested, now: float) -> Refused | None:
    """Say why this sandbox gets no token at `now` (epoch seconds); None when it may have one.

    The proof has verified, so every answer says what can be done about it.
    """
    return _judge_sandbox(standing, now) or _judge_proof(standing, attested, now)


def _judge_sandbox(standing: Standing, now: float) -> Refused | None:
    sandbox, grant = standing.sandbox, standing.grant
    if sandbox.state == "ended":
        return Refused("ended", "sandbox ended; register a new one")
    if now >= standing.ends_at:
        return Refused("deadline", "sandbox deadline has passed; register a new sandbox")
    if not standing.tenant_active or standing.ended("tenant", sandbox.tenant):
        return Refused("tenant_revoked", "tenant is revoked, and its sandboxes with it")
    revoked = sandbox.state == "revoked" or grant.state == "revoked"
    absolute = (
        standing.ended("sandbox", sandbox.id)
        or standing.ended("grant", grant.id)
        or standing.ended("global", "*")
    )
    if revoked or absolute:
        return _revoked(sandbox.id)
    return None


def _judge_proof(standing: Standing, attested: Attested, now: float) -> Refused | None:
    """Judge the launch credential or renewal generation itself."""
    cut_off = standing.cut_off
    if cut_off is not None and attested.issued_at <= cut_off:
        return _revoked(standing.sandbox.id)
    if standing.ended("kid", attested.key_id) or standing.ended("jti", attested.token_id):
        return Refused(
            "proof_revoked", "this credential is revoked; ask for a new launch credential"
        )
    if attested.lineage is None and not _is_current_launch(standing.sandbox, attested, now):
        return Refused("launch_replaced", "launch credential replaced; use the newest one")
    return None


def _is_current_launch(sandbox: sa.Row[Any], attested: Attested, now: float) -> bool:
    if attested.token_id == sandbox.launch_jti:
        return True
    # A renewal in flight must not fail because the credential was replaced; one that works only
    # once has no renewals in flight, and its grace would be a second use.
    return bool(
        sandbox.launch == "reusable"
        and attested.token_id == sandbox.previous_launch_jti
        and now * 1000 < (sandbox.previous_launch_until_at or 0)
    )


def _revoked(sandbox_id: str) -> Refused:
    undo = f"daypass sandbox restore {sandbox_id}"
    return Refused("revoked", f"sandbox revoked; an administrator can lift this with: {undo}")
