"""One inference request, from its first header to its settlement, read aloud.

Each step is one file. Nothing is read of the body before the caller is known; nothing goes to the
provider before the call is admitted; and every call ends in one `call_closed` line.
"""

from __future__ import annotations

from daypass_core.claims import Claims
from daypass_core.problem import Code, Problem, Refusal, refuse
from daypass_core.scope import Detail
from daypass_proxy.admit import admit
from daypass_proxy.attempt import cut_problem
from daypass_proxy.body.spool import spool_above
from daypass_proxy.closing import CallRecord, close_call
from daypass_proxy.exchange import ClientGone, Exchange
from daypass_proxy.providers import Place
from daypass_proxy.relay import relay
from daypass_proxy.services import Services
from daypass_proxy.streams import CallCut, CutReason
from daypass_proxy.upstream import send


async def forward(
    exchange: Exchange, place: Place, services: Services, known: Claims | None = None
) -> None:
    """Serve one inference request for an endpoint of a provider.

    `known` are the caller's claims where it was authenticated before, for this very request.
    """
    record = CallRecord()
    try:
        await _serve(exchange, place, services, record, known)
    except Refusal as refusal:
        await _refuse(exchange, refusal.problem, place, services, record)
    except CallCut as cut:
        if cut.reason is not CutReason.CLIENT_GONE:
            await _refuse(exchange, cut_problem(cut.reason), place, services, record)
        else:
            record.outcome = "client_gone"
    except ClientGone:
        record.outcome = "client_gone"
    finally:
        close_call(exchange, place.endpoint, services, record)


async def _serve(
    exchange: Exchange,
    place: Place,
    services: Services,
    record: CallRecord,
    known: Claims | None,
) -> None:
    endpoint, limit = place.endpoint, services.settings.max_body_bytes
    provider = services.providers[place.provider]
    claims = record.claims = known or await services.authenticator.authenticate(exchange)
    detail = claims.scope.for_provider(place.provider)
    if detail is None or not detail.allows_endpoint(endpoint):
        raise refuse(Code.INSUFFICIENT_SCOPE, hint=_elsewhere(exchange, claims, detail, services))
    # A model is allowed under all its names (B40).
    detail = services.prices.names(detail)
    with services.body_room.enter(claims.sandbox, exchange.body_size(limit)) as took:
        asked = services.clock.monotonic()
        body = await exchange.read_body(limit, spool_above(limit))
        record.body_seconds = services.clock.monotonic() - asked
        took(len(body))
        call = await provider.read(exchange, endpoint, body, detail, claims.sandbox)
        async with admit(call, claims, exchange.request_id, services) as attempt:
            record.attempt = attempt
            exchange.when_gone(attempt.client_gone)
            reply = await send(attempt, services)
            await relay(reply, attempt, exchange, provider, services.clock)


def _elsewhere(
    exchange: Exchange, claims: Claims, detail: Detail | None, services: Services
) -> str:
    """Tell a client of one provider with a token for another where that one is (case B91)."""
    if detail is not None:
        return ""
    bases = [
        f"for {each.provider} the base URL is {exchange.origin}{provider.base}"
        for each in claims.scope.details
        if (provider := services.providers.get(each.provider)) is not None
    ]
    return "; ".join(bases)


async def _refuse(
    exchange: Exchange, problem: Problem, place: Place, services: Services, to: CallRecord
) -> None:
    """Answer with the problem; a subject we know has its refusals counted."""
    to.refused, to.outcome = problem.code, "refused"
    if to.claims is not None:
        services.count_refusal(to.claims.sandbox, problem)
    if exchange.started_response:
        await exchange.abort()
        return
    provider = services.providers[place.provider]
    rendered = provider.render(problem, exchange.request_id, place.endpoint)
    await exchange.respond(rendered.status, rendered.headers, rendered.body)
