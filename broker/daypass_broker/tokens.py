"""Access tokens of a sandbox as rows: how many, how fast, and which one is given out again.

Many processes of one sandbox ask at the same time, and stock clients ask again at every renewal.
So a young token is given out again under its own id, a bucket bounds how often anyone may ask, and
no sandbox has more than `MAX_LIVE` live ones of one key. Runs inside the caller's transaction.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from daypass_broker import db, schema
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.policy import ISSUANCE_BUCKET
from daypass_broker.settings import Settings
from daypass_broker.standing import Standing
from daypass_core.claims import Claims, subject
from daypass_core.scope import parse_scope

MAX_LIVE = 8
SAME_TOKEN_MS = 5_000
REFILL_PER_SECOND = 1.0


def take_from_bucket(act: Act, sandbox: sa.Row[Any]) -> bool:
    """Take one issuance out of the sandbox's bucket; False when it is empty.

    The bucket holds ISSUANCE_BUCKET and refills one a second.
    """
    refill = max(0, act.at - sandbox.bucket_at) / 1000 * REFILL_PER_SECOND
    level = min(ISSUANCE_BUCKET, sandbox.bucket_level + refill)
    if level < 1.0:
        return False
    act.conn.execute(
        sa.update(schema.sandbox)
        .where(schema.sandbox.c.id == sandbox.id)
        .values(bucket_level=level - 1.0, bucket_at=act.at)
    )
    return True


def choose_or_record(act: Act, standing: Standing, settings: Settings, key_id: str) -> Claims:
    """Return the claims of the token to sign: a live one once more, or a new one just recorded.

    `key_id` is the key that will sign.
    """
    again = _again(act, standing, key_id)
    if again is not None:
        return _claims(standing, settings, key_id, again.jti, again.iat, again.exp)
    token_id, iat = act.new_id("tok"), act.second
    exp = min(iat + standing.sandbox.token_ttl_s, standing.ends_at)
    _record(act, standing, key_id, token_id, exp)
    return _claims(standing, settings, key_id, token_id, iat, exp)


def _again(act: Act, standing: Standing, key_id: str) -> sa.Row[Any] | None:
    """Find the live token to give out again: the youngest, if it is young or the last allowed.

    Giving it out at the cap, instead of refusing, keeps a sandbox of many short processes working;
    with the window before it, eight tokens are spread over at least 35 s, so the youngest outlives
    the oldest by that.
    """
    usable = [row for row in standing.live if _is_usable(standing, key_id, row)]
    if not usable:
        return None
    youngest = usable[0]
    age, life = act.at - youngest.created_at, (youngest.exp - youngest.iat) * 1000
    # Half its life: so that a token of seconds is not handed out at its very end.
    if age <= min(SAME_TOKEN_MS, life // 2) or len(usable) >= MAX_LIVE:
        return youngest
    return None


def _is_usable(standing: Standing, key_id: str, row: sa.Row[Any]) -> bool:
    cut_off = standing.cut_off
    return bool(
        row.kid == key_id
        and row.grant_id == standing.grant.id
        and row.exp <= standing.ends_at
        and (cut_off is None or row.iat > cut_off)
        and not standing.ended("jti", row.jti)
    )


def _record(act: Act, standing: Standing, key_id: str, token_id: str, exp: int) -> None:
    sandbox = standing.sandbox
    act.conn.execute(
        sa.insert(schema.token).values(
            jti=token_id,
            sandbox=sandbox.id,
            tenant=sandbox.tenant,
            grant_id=standing.grant.id,
            kid=key_id,
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
        detail={"grant": standing.grant.id, "kid": key_id, "exp": exp},
    )


def _claims(
    standing: Standing, settings: Settings, key_id: str, token_id: str, iat: int, exp: int
) -> Claims:
    sandbox = standing.sandbox
    return Claims(
        issuer=settings.issuer,
        audience=settings.audience,
        subject=subject(settings.trust_domain, sandbox.tenant, sandbox.id),
        tenant=sandbox.tenant,
        sandbox=sandbox.id,
        grants=(standing.grant.id,),
        token_id=token_id,
        key_id=key_id,
        issued_at=iat,
        not_before=iat,
        expires_at=exp,
        scope=parse_scope(db.from_json(standing.grant.scope)),
    )
