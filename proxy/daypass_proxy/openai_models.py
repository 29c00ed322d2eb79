"""The models of a token in the shape of OpenAI's API: answered here, from its scope.

Called by `routes` for `/openai/v1/models` and the like of every upstream. A wildcard of the scope
stands for every model of that name that has a price.
"""

import re

from daypass_core.problem import Code, refuse
from daypass_core.scope import Detail
from daypass_proxy.exchange import Exchange
from daypass_proxy.me import allowed_models, answer_json, models_detail
from daypass_proxy.services import Services

MODEL_ID = re.compile(rb"[A-Za-z0-9](?:[A-Za-z0-9._:@-]|/(?=[A-Za-z0-9])){0,255}")
"""Names of models on servers of one's own have parts: `meta-llama/Llama-3.1-8B`."""
# What clients say of themselves or page with; there is one page, and it is the same for all.
_QUERY = re.compile(rb"(?:(?:client_version|limit|order)=[A-Za-z0-9._-]{0,32}(?:&(?=.)|\Z))*")


async def list_models(exchange: Exchange, services: Services, provider: str) -> None:
    """GET …/v1/models: the models of the scope."""
    detail = await _detail(exchange, services, provider)
    names = allowed_models(detail, services.prices.models(provider))
    await answer_json(
        exchange, 200, {"object": "list", "data": [_model(name, provider) for name in names]}
    )


async def show_model(exchange: Exchange, services: Services, provider: str, name: str) -> None:
    """GET …/v1/models/{id}: one model of the scope, 404 for any other."""
    detail = await _detail(exchange, services, provider)
    if not services.prices.names(detail).allows_model(name):
        raise refuse(Code.NOT_FOUND, "no such model for this sandbox")
    await answer_json(exchange, 200, _model(name, provider))


async def _detail(exchange: Exchange, services: Services, provider: str) -> Detail:
    detail = await models_detail(exchange, services, provider)
    if not _QUERY.fullmatch(exchange.raw_query):
        raise refuse(Code.INVALID_REQUEST, "the query may hold client_version, limit and order")
    return detail


def _model(name: str, provider: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": provider}
