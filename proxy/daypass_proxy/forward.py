"""One inference request, from its first header to its settlement, read aloud.

Each step is one file. Nothing is read of the body before the caller is known; nothing goes to the
provider before the call is admitted; and every call ends in one `call_closed` line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daypass_core.claims import Claims
from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Problem, Refusal, refuse
from daypass_proxy.admit import admit
from daypass_proxy.attempt import Attempt, cut_problem
from daypass_proxy.exchange import ClientGone, Exchange
from daypass_proxy.relay import relay
from daypass_proxy.services import Services
from daypass_proxy.streams import CallCut, CutReason
from daypass_proxy.upstream import send

log = get_logger(__name__)


@dataclass(slots=True)
class _Record:
    """What the closing line tells, filled in as it becomes known."""

    claims: Claims | None = None
    attempt: Attempt | None = None
    refused: str | None = None
    outcome: str = "internal_error"


async def forward(exchange: Exchange, endpoint: str, services: Services) -> None:
    """Serve one inference request."""
    record = _Record()
    try:
        await _serve(exchange, endpoint, services, record)
    except Refusal as refusal:
        await _refuse(exchange, refusal.problem, services, record)
    except CallCut as cut:
        if cut.reason is not CutReason.CLIENT_GONE:
            await _refuse(exchange, cut_problem(cut.reason), services, record)
        else:
            record.outcome = "client_gone"
    except ClientGone:
        record.outcome = "client_gone"
    finally:
        _close(exchange, endpoint, services, record)


async def _serve(exchange: Exchange, endpoint: str, services: Services, record: _Record) -> None:
    provider, settings = services.provider, services.settings
    claims = record.claims = await services.authenticator.authenticate(exchange)
    detail = claims.scope.for_provider(provider.name)
    if detail is None or not detail.allows_endpoint(endpoint):
        raise refuse(Code.INSUFFICIENT_SCOPE)
    limit = settings.max_body_bytes
    with services.body_room.enter(claims.sandbox, exchange.body_size(limit)) as took:
        body = await exchange.read_body(limit)
        took(len(body))
        call = provider.read(exchange, endpoint, body, detail)
        usage_id, longest = exchange.request_id, settings.call_seconds
        async with admit(call, claims, usage_id, services, longest=longest) as attempt:
            record.attempt = attempt
            with attempt.live.cut_when(exchange.client_gone(), CutReason.CLIENT_GONE):
                reply = await send(attempt, services)
                await relay(reply, attempt, exchange, provider, services.clock)


async def _refuse(exchange: Exchange, problem: Problem, services: Services, to: _Record) -> None:
    """Answer with the problem; a subject we know has its refusals counted."""
    to.refused, to.outcome = problem.code, "refused"
    if to.claims is not None:
        services.count_refusal(to.claims.sandbox, problem)
    if exchange.started_response:
        await exchange.abort()
        return
    rendered = services.provider.render(problem, exchange.request_id)
    await exchange.respond(rendered.status, rendered.headers, rendered.body)


def _close(exchange: Exchange, endpoint: str, services: Services, record: _Record) -> None:
    claims, attempt = record.claims, record.attempt
    first = attempt.first_byte_at if attempt else None
    fields: dict[str, Any] = {"outcome": record.outcome}
    if claims is not None:
        fields |= {name: getattr(claims, name) for name in ("tenant", "sandbox", "token_id")}
    fields |= attempt.told() if attempt else {}
    fields |= {"endpoint": endpoint, "status": exchange.status, "refused": record.refused}
    fields["ms"] = round((services.clock.monotonic() - exchange.started) * 1000, 1)
    fields["first_byte_ms"] = first and round((first - exchange.started) * 1000, 1)
    event(log, "call_closed", request_id=exchange.request_id, **fields)
