"""Credentials of people and programs that manage: admins and orchestrators, never sandboxes.

A credential reads `dpa_<id>_<secret>` (admin) or `dpo_<id>_<secret>` (orchestrator). The id finds
the row, the secret is shown once and kept as SHA-256: it is 160 random bits, so a slow hash would
only slow us down. A sandbox token can never pass here: it has another form and no row.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from daypass_broker import schema
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_core.problem import Code, refuse

_FORM = re.compile(r"dp(?P<role>[ao])_(?P<id>[a-z2-7]{26})_(?P<secret>[a-z2-7]{32})", re.ASCII)
_SECRET_BYTES = 20
# Compared when there is no row, so that an unknown id takes as long as a wrong secret.
_NO_HASH = hashlib.sha256(b"").hexdigest()


class Role(StrEnum):
    """What a credential is for."""

    ADMIN = "admin"
    ORCHESTRATOR = "orchestrator"


_PREFIX = {Role.ADMIN: "dpa", Role.ORCHESTRATOR: "dpo"}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, once shown; `tenant` is set exactly for orchestrators."""

    credential: str
    role: Role
    orchestrator: str | None = None
    tenant: str | None = None

    @property
    def is_admin(self) -> bool:
        """Say whether every tenant is theirs."""
        return self.role is Role.ADMIN

    def may_see(self, tenant: str) -> bool:
        """Say whether this tenant exists at all for them."""
        return self.is_admin or self.tenant == tenant


@dataclass(frozen=True, slots=True)
class Issued:
    """A new credential; `text` exists here and nowhere else."""

    id: str
    role: Role
    orchestrator: str | None
    tenant: str | None
    text: str = field(repr=False)


def issue(act: Act, role: Role, orchestrator: str | None = None) -> Issued:
    """Make a credential; `orchestrator` names one that the policy knows, and is for that role only.

    Raises Refusal.
    """
    if (role is Role.ORCHESTRATOR) != (orchestrator is not None):
        raise refuse(
            Code.INVALID_REQUEST,
            "orchestrator: must be given for role orchestrator, and only then",
            field="orchestrator",
        )
    tenant = None if orchestrator is None else _tenant_of(act.conn, orchestrator)
    credential_id = act.new_id("crd")
    secret = base64.b32encode(secrets.token_bytes(_SECRET_BYTES)).decode("ascii").lower()
    act.conn.execute(
        sa.insert(schema.credential).values(
            id=credential_id,
            role=role.value,
            orchestrator=orchestrator,
            tenant=tenant,
            hash=_hash(secret),
            created_at=act.at,
        )
    )
    act.tell(
        AuditTag.CREDENTIAL_ISSUED,
        tenant=tenant,
        subject=credential_id,
        detail={"role": role.value, "orchestrator": orchestrator},
    )
    text = f"{_PREFIX[role]}_{credential_id.removeprefix('crd_')}_{secret}"
    return Issued(credential_id, role, orchestrator, tenant, text)


def authenticate(conn: sa.Connection, authorization: str | None) -> Principal | None:
    """Return who sent this Authorization header, None for anything but a live credential.

    The caller says the same words for every None (attacks rows 42, 43): the time taken tells a
    well-formed guess nothing either.
    """
    scheme, _, text = (authorization or "").partition(" ")
    parts = _FORM.fullmatch(text.strip())
    if scheme.lower() != "bearer" or parts is None:
        return None
    table = schema.credential
    row = conn.execute(sa.select(table).where(table.c.id == f"crd_{parts['id']}")).first()
    known = _NO_HASH if row is None else row.hash
    matches = hmac.compare_digest(known, _hash(parts["secret"]))
    if row is None or not matches or row.revoked_at is not None:
        return None
    role = Role(row.role)
    if _PREFIX[role] != f"dp{parts['role']}":
        return None
    return Principal(row.id, role, row.orchestrator, row.tenant)


def revoke(act: Act, credential_id: str) -> bool:
    """End a credential from the next request on; False when it had ended before.

    Raises Refusal (not found).
    """
    table = schema.credential
    row = get(act.conn, credential_id)
    # One conditional update: of two at once one ends it, and the audit tells it once.
    live = (table.c.id == credential_id) & table.c.revoked_at.is_(None)
    if act.conn.execute(sa.update(table).where(live).values(revoked_at=act.at)).rowcount == 0:
        return False
    act.tell(AuditTag.CREDENTIAL_REVOKED, tenant=row.tenant, subject=credential_id)
    return True


def rows(conn: sa.Connection) -> list[sa.Row[Any]]:
    """Return every credential, oldest first, without its hash."""
    columns = schema.credential.c
    return list(conn.execute(_without_hash().order_by(columns.created_at, columns.id)))


def get(conn: sa.Connection, credential_id: str) -> sa.Row[Any]:
    """Return one credential without its hash; raises Refusal (not found)."""
    row = conn.execute(_without_hash().where(schema.credential.c.id == credential_id)).first()
    if row is None:
        raise refuse(Code.NOT_FOUND, "no such credential")
    return row


def _without_hash() -> sa.Select[Any]:
    return sa.select(*(column for column in schema.credential.c if column.name != "hash"))


def _tenant_of(conn: sa.Connection, orchestrator: str) -> str:
    table = schema.orchestrator
    found = conn.execute(sa.select(table.c.tenant).where(table.c.name == orchestrator)).scalar()
    if found is None:
        raise refuse(
            Code.NOT_FOUND,
            f"no orchestrator {orchestrator}: add it to the policy and apply that first",
            field="orchestrator",
        )
    return str(found)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("ascii")).hexdigest()
