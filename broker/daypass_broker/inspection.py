"""Looking into a token: what it says, if it is ours, and whether it would be taken now.

Behind introspection (RFC 7662) and revocation by token (RFC 7009), both for admins and
orchestrators. What does not verify is nothing to us: no claim of it is read, and the caller is told
the same for every reason. An access token is judged as the proxy judges it, the other two kinds as
the token endpoint does.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from daypass_broker import life, lineage, revocation, schema
from daypass_broker.keys import Purpose
from daypass_broker.services import Services
from daypass_core.claims import (
    ACCESS_TYPE,
    LAUNCH_TYPE,
    RENEWAL_TYPE,
    Claims,
    LaunchClaims,
    RenewalClaims,
    access_payload,
    launch_payload,
    renewal_payload,
)
from daypass_core.verify import (
    TokenRefused,
    unverified_type,
    verify_access,
    verify_launch,
    verify_renewal,
)

AnyClaims = Claims | LaunchClaims | RenewalClaims


@dataclass(frozen=True, slots=True)
class Inspected:
    """A token that would be taken now; `recorded` says that a broker put its issuing on record.

    A token that is not on record was signed by somebody else who has the key, or the database is an
    older copy of itself.
    """

    claims: AnyClaims
    recorded: bool

    def payload(self) -> dict[str, object]:
        """Return what it says, in the members of RFC 7662 §2.2 and its own."""
        claims = self.claims
        if isinstance(claims, Claims):
            said = {"token_type": "Bearer", "kind": "access", **access_payload(claims)}
        elif isinstance(claims, LaunchClaims):
            said = {"kind": "launch", **launch_payload(claims)}
        else:
            said = {"kind": "renewal", **renewal_payload(claims)}
        return {
            **said,
            "client_id": claims.subject,
            "sandbox": claims.sandbox,
            "kid": claims.key_id,
            "recorded": self.recorded,
        }


def read(services: Services, unverified_token: str) -> AnyClaims | None:
    """Return the claims of a token of ours that has not expired, without the store; else None."""
    settings, keys, now = services.settings, services.keys, services.clock.now()
    issuer, broker = settings.issuer, settings.broker_audience
    kind, token = unverified_type(unverified_token), unverified_token
    try:
        if kind == ACCESS_TYPE:
            known = keys.public(Purpose.ACCESS)
            return verify_access(token, known, issuer=issuer, audience=settings.audience, now=now)
        if kind == LAUNCH_TYPE:
            known = keys.public(Purpose.LAUNCH)
            return verify_launch(token, known, issuer=issuer, audience=broker, now=now)
        if kind == RENEWAL_TYPE:
            known = keys.public(Purpose.RENEWAL)
            return verify_renewal(token, known, issuer=issuer, audience=broker, now=now)
    except TokenRefused:
        pass
    return None


def inspect(conn: sa.Connection, claims: AnyClaims, at: int) -> Inspected | None:
    """Return the token if it would be taken at `at` (epoch milliseconds), else None."""
    grants = claims.grants if isinstance(claims, Claims) else _root_grants(conn, claims.sandbox)
    revocations = revocation.in_force(
        conn,
        {
            "tenant": [claims.tenant],
            "sandbox": [claims.sandbox],
            "grant": grants,
            "kid": [claims.key_id],
            "jti": [claims.token_id],
        },
    )
    if isinstance(claims, Claims):
        if revocations.verdict(claims) is not None:
            return None
        return Inspected(claims, _is_recorded(conn, claims.token_id))
    cut_off = revocations.cut_off(claims.tenant, claims.sandbox, grants)
    subjects = [("sandbox", claims.sandbox), ("kid", claims.key_id), ("jti", claims.token_id)]
    ended = any(revocations.absolute(scope, ident) for scope, ident in subjects)
    if ended or (cut_off is not None and claims.issued_at <= cut_off):
        return None
    return Inspected(claims, recorded=True) if _is_current(conn, claims, at) else None


def _is_recorded(conn: sa.Connection, token_id: str) -> bool:
    jti = schema.token.c.jti
    return conn.execute(sa.select(jti).where(jti == token_id)).first() is not None


def _root_grants(conn: sa.Connection, sandbox: str) -> tuple[str, ...]:
    grants = schema.grant_.c
    query = sa.select(grants.id).where(grants.sandbox == sandbox, grants.parent.is_(None))
    return tuple(conn.execute(query).scalars())


def _is_current(conn: sa.Connection, claims: LaunchClaims | RenewalClaims, at: int) -> bool:
    """Say whether a launch credential or generation is the one its sandbox goes on with."""
    sandbox, tenant = schema.sandbox, schema.tenant
    row = conn.execute(
        sa.select(sandbox)
        .join(tenant, tenant.c.id == sandbox.c.tenant)
        .where(
            sandbox.c.id == claims.sandbox,
            sandbox.c.tenant == claims.tenant,
            sandbox.c.state == "active",
            ~life.overdue(at),
            tenant.c.state == "active",
        )
    ).first()
    if row is None:
        return False
    if isinstance(claims, RenewalClaims):
        return _is_current_generation(conn, claims, at)
    if claims.token_id == row.launch_jti:
        return row.launch == "reusable" or row.launch_used_at is None
    in_grace = at < (row.previous_launch_until_at or 0)
    return bool(
        row.launch == "reusable" and claims.token_id == row.previous_launch_jti and in_grace
    )


def _is_current_generation(conn: sa.Connection, claims: RenewalClaims, at: int) -> bool:
    table = schema.lineage
    row = conn.execute(
        sa.select(table).where(
            table.c.id == claims.lineage,
            table.c.sandbox == claims.sandbox,
            table.c.state == "active",
        )
    ).first()
    if row is None:
        return False
    in_grace = at - row.rotated_at <= lineage.GRACE_MS
    return bool(
        claims.generation == row.generation
        or (claims.generation == row.generation - 1 and in_grace)
    )
