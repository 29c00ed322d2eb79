"""Delegation: the holder of an access token buys a narrower one, for a part of its work.

The child is a grant below the buyer's: no more scope, no more of any limit, no longer life, no
other source, and an account of its own below the buyer's, with a slice of its budget where one was
asked for. It cannot be renewed: it has no credential but its token. What ends the buyer's grant
ends the child's, because a token names all its grants (RFC 8693 calls it delegation, `act` says who
acts). Runs inside the issuing transaction; the sandbox's row is locked, so purchases queue there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from daypass_broker import account, db, limits, purchase, schema, slices, tokens
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.purchase import Purchase
from daypass_broker.refused import Refused
from daypass_broker.standing import Standing
from daypass_broker.tokens import Terms
from daypass_core.claims import Claims
from daypass_core.money import format_usd
from daypass_core.revocation import Verdict
from daypass_core.scope import Scope, ScopeError, narrow, parse_scope, scope_to_wire
from daypass_core.source import inside

MAX_CHILDREN = 64
"""How many live grants may hang directly on one."""
MAX_PURCHASES_A_MINUTE = 30
"""How many a grant may buy in any 60 s."""
KEPT_FOR_RENEWAL = 20.0
"""What purchases leave in the sandbox's issuance bucket, so that it can always renew."""
_MINUTE_MS = 60_000


def buy(
    act: Act, buyer: Standing, token: Claims, wanted: Purchase, terms: Terms, peer: str
) -> Claims | Refused:
    """Sell the holder of an access token a narrower one; return its claims, all on record.

    `buyer` is where the token's grants stand, and they may have tokens; `terms.source` is where its
    sandbox is bound to, `peer` where the buyer is.
    """
    refused = (
        _judge_token(buyer, token, act.second, peer)
        or _judge_depth(act, buyer)
        or _judge_rate(act, buyer)
    )
    if refused is not None:
        return refused
    scope = _narrowed(buyer, wanted.scope)
    if isinstance(scope, Refused):
        return scope
    source = token.source or terms.source
    ident = act.new_id("grt")
    draft = replace(token, grants=(*token.grants, ident), scope=scope, source=source)
    if tokens.is_too_large(draft):
        return _beyond(f"{purchase.DETAILS}: does not fit into a token at this depth: name less")
    accounts = _accounts(act, token)
    refused = _judge_limits(accounts, wanted)
    if refused is not None:
        return refused
    until = min(token.expires_at, act.second + _lifetime(buyer, wanted))
    account.make_child(act, ident, accounts[0], wanted.limits)
    if wanted.limits.ceiling_nano is not None:
        slices.set_aside(act, accounts[0], wanted.limits.ceiling_nano)
    child = _insert(act, buyer, token, draft, wanted, until)
    standing = replace(buyer, grants=(*buyer.grants, child), live=())
    return tokens.record(act, standing, replace(terms, source=source), until)


def _judge_token(buyer: Standing, token: Claims, now: int, peer: str) -> Refused | None:
    """Judge the buyer's token as the proxy would, without its leeway."""
    verdict = buyer.revocations.verdict(token)
    if verdict is Verdict.REVOKED:
        return Refused("revoked", "the access token is revoked; its sandbox has to be restored")
    if verdict is Verdict.TOKEN_ENDED:
        return Refused("proof_revoked", "this access token is revoked; present a newer one")
    if now >= token.expires_at:
        return Refused("expired", "the access token has expired; present a fresh one")
    if token.source and not inside(token.source, peer):
        return Refused("foreign_source", "the access token is bound to another network")
    return None


def _judge_depth(act: Act, buyer: Standing) -> Refused | None:
    table = schema.profile.c
    profile = sa.select(table.max_depth).where(table.name == buyer.sandbox.profile)
    most = act.conn.execute(profile).scalar_one()
    if buyer.grant.depth < most:
        return None
    told = f"a token of depth {buyer.grant.depth} can buy none below it: the profile has {most}"
    return Refused("too_deep", told)


def _judge_rate(act: Act, buyer: Standing) -> Refused | None:
    """Bound what one grant, and what one sandbox may buy. The bucket is taken from last."""
    table = schema.grant_.c
    mine = (table.sandbox == buyer.sandbox.id) & (table.parent == buyer.grant.id)
    # What expired before that minute was bought before it, and may be very many.
    mine &= table.expires_at > act.second - _MINUTE_MS // 1000 - 1
    live = (table.state == "active") & (table.expires_at > act.second)
    recent = table.created_at > act.at - _MINUTE_MS
    counts = sa.select(
        sa.func.count(sa.case((live, 1))), sa.func.count(sa.case((recent, 1)))
    ).where(mine)
    alive, bought = act.conn.execute(counts).one()
    if alive >= MAX_CHILDREN:
        told = f"{MAX_CHILDREN} tokens bought with this grant are live, which is the most"
        return Refused("too_many_children", told, error="slow_down", retry_after=5)
    if bought >= MAX_PURCHASES_A_MINUTE:
        told = f"this grant has bought {MAX_PURCHASES_A_MINUTE} tokens in a minute; wait a moment"
        return Refused("slow_down", told, error="slow_down", retry_after=5)
    if not tokens.take_from_bucket(act, buyer.sandbox, keep=KEPT_FOR_RENEWAL):
        told = "this sandbox asks too often; wait a second"
        return Refused("slow_down", told, error="slow_down", retry_after=1)
    return None


def _narrowed(buyer: Standing, wanted: Scope | None) -> Scope | Refused:
    own = parse_scope(db.from_json(buyer.grant.scope))
    if wanted is None:
        return own
    try:
        return narrow(own, wanted)
    except ScopeError as error:
        told = f"{purchase.refused_details(error)} to the buyer"
        return Refused("beyond_buyer", told, error="invalid_authorization_details")


def _accounts(act: Act, token: Claims) -> Sequence[sa.Row[Any]]:
    """Lock the buyer's account and read it with all its parents."""
    table = schema.account
    own = sa.select(table).where(table.c.id == token.account)
    rows = [act.conn.execute(own.with_for_update()).one()]
    while (parent := rows[-1].parent) is not None:
        rows.append(act.conn.execute(sa.select(table).where(table.c.id == parent)).one())
    return rows


def _judge_limits(accounts: Sequence[sa.Row[Any]], wanted: Purchase) -> Refused | None:
    # All but the budget, which is held against what is left of it and not against the whole.
    others = replace(wanted.limits, ceiling_nano=None)
    for field, bound in limits.beyond(account.most(accounts), others):
        return _beyond(f"{purchase.LIMITS}.{field}: {bound}, as the buyer's")
    if wanted.limits.ceiling_nano is None:
        return None
    free = slices.free_nano(accounts[0])
    if free is None:
        return _beyond(
            f"{purchase.LIMITS}.budget_usd: the buyer has no budget of its own to cut from,"
            " leave it out"
        )
    if wanted.limits.ceiling_nano > free:
        told = f"budget_usd: {format_usd(max(free, 0))} of the buyer's budget is free"
        return Refused("insufficient_budget", told, error="insufficient_budget")
    return None


def _beyond(told: str) -> Refused:
    return Refused("beyond_buyer", told, error="invalid_request")


def _lifetime(buyer: Standing, wanted: Purchase) -> int:
    """Return how long the child may live, in seconds; asked for more than that, it gets that."""
    usual: int = buyer.sandbox.token_ttl_s
    return usual if wanted.lifetime_s is None else min(wanted.lifetime_s, usual)


def _insert(
    act: Act, buyer: Standing, token: Claims, draft: Claims, wanted: Purchase, until: int
) -> sa.Row[Any]:
    table, ident = schema.grant_, draft.grants[-1]
    act.conn.execute(
        sa.insert(table).values(
            id=ident,
            sandbox=buyer.sandbox.id,
            parent=buyer.grant.id,
            scope=db.to_json(scope_to_wire(draft.scope)),
            expires_at=until,
            state="active",
            created_at=act.at,
            depth=buyer.grant.depth + 1,
            bought_with=token.token_id,
            slice_nano=wanted.limits.ceiling_nano,
        )
    )
    act.tell(
        AuditTag.GRANT_ISSUED,
        tenant=buyer.sandbox.tenant,
        sandbox=buyer.sandbox.id,
        subject=ident,
        detail={
            "expires_at": until,
            "grants": list(token.grants),
            "bought_with": token.token_id,
            "limits": wanted.limits.given(),
        },
    )
    return act.conn.execute(sa.select(table).where(table.c.id == ident)).one()
