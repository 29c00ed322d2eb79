"""Where a caller stands: its rows, locked in one order, and whether it may have a token at all.

The version row comes first (FOR SHARE), taken by the caller: a revocation takes it FOR UPDATE, so a
revocation is either seen here or comes after the token it ends. Then the sandbox. Runs inside the
caller's write transaction; nothing here writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from daypass_broker import revocation, schema
from daypass_broker.attest import Attested
from daypass_broker.refused import Refused
from daypass_core.claims import MAX_ACCESS_LIFE
from daypass_core.revocation import RevocationSet


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose rows are looked up, and what of its proof a revocation could name.

    `grants` are those of an access token, root to leaf; none of them means the root. `until` is the
    epoch second that the proof itself ends, where nothing may outlive it.
    """

    tenant: str
    sandbox: str
    grants: tuple[str, ...] = ()
    key_ids: tuple[str, ...] = ()
    token_ids: tuple[str, ...] = ()
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What the store says about one caller, at one version of the revocations.

    `grants` go from the root to the one that is asked for; `live` are the access tokens of that one
    that have not expired, youngest first, revoked ones included.
    """

    sandbox: sa.Row[Any]
    tenant_active: bool
    grants: tuple[sa.Row[Any], ...]
    live: tuple[sa.Row[Any], ...]
    revocations: RevocationSet
    until: int | None = None

    @property
    def grant(self) -> sa.Row[Any]:
        """The grant that a token is issued from: the leaf."""
        return self.grants[-1]

    @property
    def grant_ids(self) -> tuple[str, ...]:
        """The ids of all grants, as a token has them."""
        return tuple(grant.id for grant in self.grants)

    @property
    def cut_off(self) -> int | None:
        """The latest second whose tokens are ended for this caller, None without a cut-off."""
        row = self.sandbox
        return self.revocations.cut_off(row.tenant, row.id, self.grant_ids)

    @property
    def ends_at(self) -> int:
        """The epoch second nothing issued to this caller may outlive."""
        ends = [self.sandbox.deadline, *(grant.expires_at for grant in self.grants)]
        return int(min(ends if self.until is None else [*ends, self.until]))

    def ended(self, scope: str, ident: str) -> bool:
        """Say whether an absolute revocation names this."""
        return self.revocations.absolute(scope, ident)


def look_up(conn: sa.Connection, subject: Subject, key_id: str, now: int) -> Standing | None:
    """Lock and read the rows of a caller; None when there is no such sandbox, or no such grants.

    `key_id` is the key that would sign, `now` is in epoch seconds. The caller holds
    `revocation.share_version`.
    """
    sandbox = conn.execute(
        sa.select(schema.sandbox)
        .where(schema.sandbox.c.id == subject.sandbox, schema.sandbox.c.tenant == subject.tenant)
        .with_for_update()
    ).first()
    if sandbox is None:
        return None
    grants = _grants(conn, sandbox.id, subject.grants)
    if not grants:
        return None
    tenant_state = conn.execute(
        sa.select(schema.tenant.c.state).where(schema.tenant.c.id == sandbox.tenant)
    ).scalar_one()
    token = schema.token
    live = conn.execute(
        sa.select(token)
        .where(token.c.sandbox == sandbox.id, token.c.grant_id == grants[-1].id, token.c.exp > now)
        # Says no more, but the index has it: of the tokens of a day only the last hour is read.
        .where(token.c.iat >= now - MAX_ACCESS_LIFE)
        .order_by(token.c.created_at.desc(), token.c.jti)
    ).all()
    named = {
        "tenant": [sandbox.tenant],
        "sandbox": [sandbox.id],
        "grant": [grant.id for grant in grants],
        "kid": [*subject.key_ids, key_id],
        "jti": [*subject.token_ids, *(row.jti for row in live)],
    }
    return Standing(
        sandbox=sandbox,
        tenant_active=tenant_state == "active",
        grants=grants,
        live=tuple(live),
        revocations=revocation.in_force(conn, named),
        until=subject.until,
    )


def _grants(conn: sa.Connection, sandbox: str, ids: Sequence[str]) -> tuple[sa.Row[Any], ...]:
    """Read a chain of grants, root to leaf; empty when they are no chain of this sandbox."""
    table = schema.grant_
    wanted = table.c.id.in_(ids) if ids else table.c.parent.is_(None)
    query = sa.select(table).where(table.c.sandbox == sandbox, wanted).order_by(table.c.depth)
    rows = tuple(conn.execute(query))
    parents = (None, *(row.id for row in rows[:-1]))
    is_chain = tuple(row.parent for row in rows) == parents
    return rows if is_chain and len(rows) == max(len(ids), 1) else ()


def judge(standing: Standing, now: float) -> Refused | None:
    """Say why nothing is issued here at `now` (epoch seconds); None when it may be.

    The proof has verified, so every answer says what can be done about it.
    """
    sandbox = standing.sandbox
    if sandbox.state == "ended" or _is_silent(sandbox, now):
        return Refused("ended", "sandbox ended; register a new one")
    if sandbox.state == "idle":
        return Refused("idle", "sandbox is idle; its orchestrator has to activate it first")
    if now >= sandbox.deadline:
        return Refused("deadline", "sandbox deadline has passed; register a new sandbox")
    if not standing.tenant_active or standing.ended("tenant", sandbox.tenant):
        return Refused("tenant_revoked", "tenant is revoked, and its sandboxes with it")
    root, *bought = standing.grants
    absolute = standing.ended("sandbox", sandbox.id) or standing.ended("global", "*")
    if sandbox.state == "revoked" or absolute or _is_revoked(standing, root):
        return _revoked(sandbox.id)
    if any(_is_revoked(standing, grant) for grant in bought):
        return Refused("grant_revoked", "the grant of this token is revoked, and all below it")
    if now >= standing.ends_at:
        return Refused("expired", "credential has expired; present a fresh one")
    return None


def judge_credential(standing: Standing, attested: Attested, now: float) -> Refused | None:
    """Judge the launch credential or renewal generation itself, at `now` (epoch seconds)."""
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


def _is_silent(sandbox: sa.Row[Any], now: float) -> bool:
    """Say whether it is overdue by its heartbeat, though nobody has ended it yet."""
    if sandbox.state != "active" or sandbox.heartbeat_s is None or sandbox.heartbeat_at is None:
        return False
    return bool(now * 1000 >= sandbox.heartbeat_at + sandbox.heartbeat_s * 1000)


def _is_revoked(standing: Standing, grant: sa.Row[Any]) -> bool:
    return grant.state == "revoked" or standing.ended("grant", grant.id)


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
