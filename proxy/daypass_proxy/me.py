"""What a sandbox may ask about itself, and the little answers that stock clients and probes want.

Nothing here goes upstream: the models a token may call are read from its scope, a wildcard
standing for every model of that name that has a price. Called by `routes`.
"""

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl

import msgspec

from daypass_core.claims import Claims
from daypass_core.money import format_usd
from daypass_core.problem import Code, Refusal, refuse
from daypass_core.scope import Detail, scope_to_wire
from daypass_proxy import limits
from daypass_proxy.exchange import Exchange
from daypass_proxy.ledger import Balance, LedgerUnavailable, Limit, LimitState
from daypass_proxy.services import Services

MODELS_PREFIX = b"/v1/models/"
MODEL_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:@-]{0,255}")
_PROVIDER = "anthropic"  # whose API the bare origin speaks
_MAX_LIMIT = 1000
_QUERY_KEYS = frozenset({"limit", "after_id"})
# The API's own word for "release date unknown".
_EPOCH = "1970-01-01T00:00:00Z"


async def describe_self(exchange: Exchange, services: Services) -> None:
    """GET /v1/self: who the token is, what it may call, what is left of each of its limits."""
    claims = await services.authenticator.authenticate(exchange)
    _no_query(exchange)
    account = claims.account
    try:
        balance = await services.ledger.balance(account)
    except LedgerUnavailable:
        raise refuse(Code.STORE_UNAVAILABLE) from None
    # What those above have and spend is told only where it stands in the way of a call: the limits
    # of the token's own account, and the least that is left for it, as every answer has it, too.
    chain = () if balance is None else balance.limits
    own = [one for one in chain if one.account == account]
    document = {
        "sandbox": claims.sandbox,
        "tenant": claims.tenant,
        "subject": claims.subject,
        "grants": list(claims.grants),
        "token_id": claims.token_id,
        "issued_at": claims.issued_at,
        "expires_at": claims.expires_at,
        "authorization_details": scope_to_wire(claims.scope),
        "budget": None if balance is None else _budget(balance, own),
        "limits": limits.document(own),
        "remaining": limits.remaining(chain),
    }
    await answer_json(exchange, 200, document)


async def list_models(exchange: Exchange, services: Services) -> None:
    """GET /v1/models: the models of the scope, in the API's shape."""
    detail = await models_detail(exchange, services, _PROVIDER)
    limit, after = _page(exchange)
    names = allowed_models(detail, services.prices.models(_PROVIDER))
    start = names.index(after) + 1 if after in names else 0
    page = names[start : start + limit]
    document = {
        "data": [_model(name) for name in page],
        "has_more": len(names) > start + limit,
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
    }
    await answer_json(exchange, 200, document)


async def show_model(exchange: Exchange, services: Services) -> None:
    """GET /v1/models/{id}: one model of the scope, 404 for any other."""
    detail = await models_detail(exchange, services, _PROVIDER)
    _no_query(exchange)
    name = exchange.raw_path.removeprefix(MODELS_PREFIX).decode("ascii")
    if not services.prices.names(detail).allows_model(name):
        raise refuse(Code.NOT_FOUND, "no such model for this sandbox")
    await answer_json(exchange, 200, _model(name))


async def hello(exchange: Exchange, services: Services) -> None:
    """HEAD /api/hello: Claude Code warms its connection with it."""
    await exchange.respond(200, [], b"")


async def live(exchange: Exchange, services: Services) -> None:
    """GET /livez: the loop turns."""
    await answer_json(exchange, 200, {"status": "live"})


async def ready(exchange: Exchange, services: Services) -> None:
    """GET /readyz: what a call would meet, as far as it is known without trying one (B12)."""
    if services.gate.closing:
        await answer_json(exchange, 503, {"status": "stopping"})
        return
    missing = []
    try:
        services.revocations.check_fresh()
    except Refusal:
        missing.append("revocations")
    if not services.ledger.ready:
        missing.append("ledger")
    if not services.jwks.ready:
        await services.jwks.keys_for(None)
    if not services.jwks.ready:
        missing.append("keys of the broker")
    if (lacking := services.keyring.lacking) is not None:
        missing.append(lacking)
    if missing:
        await answer_json(exchange, 503, {"status": "not ready", "missing": missing})
    else:
        await answer_json(exchange, 200, {"status": "ready"})


def allowed_models(detail: Detail, known: Sequence[str]) -> list[str]:
    """Return the exact models of the scope and the known ones its wildcards cover, each once."""
    exact = [name for name in detail.models if not name.endswith("*")]
    return list(dict.fromkeys([*exact, *(name for name in known if detail.allows_model(name))]))


def _budget(balance: Balance, own: Sequence[LimitState]) -> dict[str, str | None]:
    """Return the one budget for the account's life, as money."""
    whole = next((one for one in own if one.limit is Limit.BUDGET), None)
    return {
        "budget_usd": usd(None if whole is None else whole.ceiling),
        "spent_usd": usd(balance.spent_nano),
        "reserved_usd": usd(balance.reserved_nano),
        "set_aside_usd": usd(0 if whole is None else whole.set_aside),
        "remaining_usd": usd(None if whole is None else whole.left),
    }


def usd(nano: int | None) -> str | None:
    """Return nano-dollars as decimal USD with at least two places."""
    return None if nano is None else format_usd(nano)


async def models_detail(exchange: Exchange, services: Services, provider: str) -> Detail:
    """Return what the caller's scope says of a provider, models to list in it; raises Refusal."""
    claims: Claims = await services.authenticator.authenticate(exchange)
    detail = claims.scope.for_provider(provider)
    if detail is None or not detail.allows_endpoint("models"):
        refusal = refuse(Code.INSUFFICIENT_SCOPE)
        services.count_refusal(claims.sandbox, refusal.problem)
        raise refusal
    return detail


def _page(exchange: Exchange) -> tuple[int, str]:
    """Return `limit` and `after_id` of the query; raises Refusal for any other key or value."""
    try:
        pairs = (
            parse_qsl(
                exchange.raw_query.decode("ascii"), keep_blank_values=True, strict_parsing=True
            )
            if exchange.raw_query
            else []
        )
    except ValueError:
        raise refuse(Code.INVALID_REQUEST, "query cannot be read") from None
    query = dict(pairs)
    if len(query) != len(pairs) or not query.keys() <= _QUERY_KEYS:
        raise refuse(Code.INVALID_REQUEST, "the query may hold limit and after_id, once each")
    limit = query.get("limit", str(_MAX_LIMIT))
    if not re.fullmatch(r"[0-9]{1,4}", limit) or not 1 <= int(limit) <= _MAX_LIMIT:
        raise refuse(Code.INVALID_REQUEST, f"limit must be a number from 1 to {_MAX_LIMIT}")
    return int(limit), query.get("after_id", "")


def _no_query(exchange: Exchange) -> None:
    if exchange.raw_query:
        raise refuse(Code.INVALID_REQUEST, "no query is accepted here")


def _model(name: str) -> dict[str, object]:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": _EPOCH,
        "lifecycle": "active",
    }


async def answer_json(exchange: Exchange, status: int, document: dict[str, object]) -> None:
    """Answer with a document that nobody may keep."""
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await exchange.respond(status, headers, msgspec.json.encode(document))
