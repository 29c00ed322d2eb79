"""Sandboxes, tokens and orders for tests about revoking, on a desk."""

from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from daypass_broker import revocation, sandbox, schema
from daypass_broker.credential import Principal
from daypass_broker.revoke import Effect, Order, revoke
from daypass_broker.sandbox_request import SandboxRequest
from tests.unit.broker.desk import ADMIN, Desk


def make(desk: Desk, tenant: str = "acme") -> Any:
    """Make a sandbox."""
    request = SandboxRequest(tenant=tenant, profile="coding")
    with desk.acting(revocation.share_version) as act:
        return sandbox.create(act, ADMIN, request, min_token_ttl=2)[0]


def order(desk: Desk, scope: str, ident: str = "*", **more: Any) -> Effect:
    """Revoke as admin."""
    return as_(desk, ADMIN, Order(scope, ident, **more))


def as_(desk: Desk, principal: Principal, wanted: Order, later: int = 0) -> Effect:
    """Revoke as anybody, `later` seconds from now."""
    with desk.acting(revocation.lock_version) as act:
        return revoke(replace(act, at=act.at + later * 1000), principal, wanted)


def token_of(desk: Desk, row: Any, jti: str = "tok_a") -> str:
    """Write the row of an access token of this sandbox."""
    (grant,) = desk.rows(schema.grant_, sandbox=row.id)
    with desk.acting() as act:
        act.conn.execute(
            sa.insert(schema.token).values(
                jti=jti,
                sandbox=row.id,
                tenant=row.tenant,
                grant_id=grant.id,
                kid="k",
                iat=act.second,
                exp=act.second + 600,
                created_at=act.at,
            )
        )
    return jti


def state(desk: Desk, row: Any) -> str:
    """The state of a sandbox now."""
    return str(desk.rows(schema.sandbox, id=row.id)[0].state)
