"""Access tokens of a grant as rows: how many, how fast, and which one is given out again.

Many processes of one sandbox ask at the same time, and stock clients ask again at every renewal.
So a young token is given out again under its own id, a bucket bounds how often anyone may ask, and
no grant has more than `MAX_LIVE` live ones of one key. Runs inside the caller's transaction.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from daypass_broker import db, schema
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.policy import ISSUANCE_BUCKET
from daypass_broker.refused import Refused
from daypass_broker.settings import Settings
from daypass_broker.standing import Standing
from daypass_core.claims import Claims, access_payload, subject
from daypass_core.scope import parse_scope
from daypass_core.verify import MAX_TOKEN_BYTES

MAX_LIVE = 8
SAME_TOKEN_MS = 5_000
REFILL_PER_SECOND = 1.0
# Header and signature of a token, and the two dots.
_AROUND_BYTES = 120 + 86 + 2


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for any token made in one act.

    `key_id` is the key that will sign, `source` the networks a token may be used from.
    """

    settings: Settings
    key_id: str
    source: tuple[str, ...] = ()


def take_from_bucket(act: Act, sandbox: sa.Row[Any], *, keep: float = 0.0) -> bool:
    """Take one issuance out of the sandbox's bucket; False when no more than `keep` would be left.

    The bucket holds ISSUANCE_BUCKET and refills one a second.
    """
    refill = max(0, act.at - sandbox.bucket_at) / 1000 * REFILL_PER_SECOND
    level = min(ISSUANCE_BUCKET, sandbox.bucket_level + refill)
    if level < keep + 1.0:
        return False
    act.conn.execute(
        sa.update(schema.sandbox)
        .where(schema.sandbox.c.id == sandbox.id)
        .values(bucket_level=level - 1.0, bucket_at=act.at)
    )
    return True


def choose_or_record(act: Act, standing: Standing, terms: Terms) -> Claims | Refused:
    """Return the claims of the token to sign: a live one once more, or a new one just recorded."""
    valid = [row for row in standing.live if _is_valid(standing, terms.key_id, row)]
    fitting = [row for row in valid if row.exp <= standing.ends_at]
    if fitting and (len(valid) >= MAX_LIVE or _is_young(act, fitting[0])):
        row = fitting[0]
        return _claims(standing, terms, row.jti, row.iat, row.exp)
    if len(valid) >= MAX_LIVE:
        # All of them outlive what was shown: an assertion older than others of this workload.
        told = "this sandbox has as many tokens as it may; present the newest assertion"
        return Refused("slow_down", told, error="slow_down", retry_after=1)
    return record(act, standing, terms, act.second + standing.sandbox.token_ttl_s)


def record(act: Act, standing: Standing, terms: Terms, until: int) -> Claims:
    """Write a new token down and return its claims; it ends at `until` (epoch seconds) at most."""
    sandbox, token_id = standing.sandbox, act.new_id("tok")
    exp = min(until, standing.ends_at)
    claims = _claims(standing, terms, token_id, act.second, exp)
    act.conn.execute(
        sa.insert(schema.token).values(
            jti=token_id,
            sandbox=sandbox.id,
            tenant=sandbox.tenant,
            grant_id=standing.grant.id,
            kid=terms.key_id,
            iat=act.second,
            exp=exp,
            created_at=act.at,
        )
    )
    act.tell(
        AuditTag.TOKEN_ISSUED,
        tenant=sandbox.tenant,
        sandbox=sandbox.id,
        subject=token_id,
        detail={"grant": standing.grant.id, "kid": terms.key_id, "exp": exp},
    )
    return claims


def is_too_large(claims: Claims) -> bool:
    """Say whether a token with these claims would be longer than anybody takes."""
    payload = json.dumps(access_payload(claims), separators=(",", ":")).encode()
    return -(-len(payload) * 4 // 3) + _AROUND_BYTES > MAX_TOKEN_BYTES


def _is_young(act: Act, row: sa.Row[Any]) -> bool:
    """Say whether a token is to be given out once more rather than a new one.

    At the cap it is so whatever its age, instead of refusing, which keeps a sandbox of many short
    processes working; with this window before it, eight tokens are spread over at least 35 s, so
    the youngest outlives the oldest by that.
    """
    # Half its life: so that a token of seconds is not handed out at its very end.
    half_life = (row.exp - row.iat) * 1000 // 2
    return bool(act.at - row.created_at <= min(SAME_TOKEN_MS, half_life))


def _is_valid(standing: Standing, key_id: str, row: sa.Row[Any]) -> bool:
    cut_off = standing.cut_off
    return bool(
        row.kid == key_id
        and row.grant_id == standing.grant.id
        and (cut_off is None or row.iat > cut_off)
        and not standing.ended("jti", row.jti)
    )


def _claims(standing: Standing, terms: Terms, token_id: str, iat: int, exp: int) -> Claims:
    sandbox, settings = standing.sandbox, terms.settings
    return Claims(
        issuer=settings.issuer,
        audience=settings.audience,
        subject=subject(settings.trust_domain, sandbox.tenant, sandbox.id),
        tenant=sandbox.tenant,
        sandbox=sandbox.id,
        grants=standing.grant_ids,
        token_id=token_id,
        key_id=terms.key_id,
        issued_at=iat,
        not_before=iat,
        expires_at=exp,
        scope=parse_scope(db.from_json(standing.grant.scope)),
        source=terms.source,
    )
