"""Admission: a call gets a price, a hold on its budget, and a place among the live calls.

Place in the flow: `forward` enters this block with a checked Call and leaves it when the exchange
is over; the settlement happens on the way out, whatever came out. Expiry and revocation are
checked once more inside, because a body may have taken its time and a revocation may have come
between the authentication and the registry (after which it would have cut the call).
"""

from __future__ import annotations

import asyncio
from logging import ERROR
from typing import TYPE_CHECKING

from daypass_core.claims import Claims, account_id
from daypass_core.log import event, get_logger
from daypass_core.money import format_usd
from daypass_core.problem import Code, Refusal, refuse
from daypass_core.revocation import Verdict
from daypass_core.verify import LEEWAY
from daypass_proxy.attempt import Attempt
from daypass_proxy.estimate import ceiling
from daypass_proxy.ledger import (
    MAX_NANO,
    LedgerRefused,
    LedgerUnavailable,
    Outcome,
    Reservation,
)
from daypass_proxy.price import Price, PriceTable
from daypass_proxy.providers import Call
from daypass_proxy.services import Services
from daypass_proxy.streams import CallCut

if TYPE_CHECKING:
    from types import TracebackType

log = get_logger(__name__)


class admit:
    """Admit `call` for as long as the block runs.

    Raises Refusal: unpriced_model, budget_exhausted, budget_held, rate_limited,
    store_unavailable, view_stale, token_expired, token_revoked.
    """

    __slots__ = ("_attempt", "_call", "_claims", "_services", "_usage_id")
    _attempt: Attempt

    def __init__(self, call: Call, claims: Claims, usage_id: str, services: Services) -> None:
        self._call = call
        self._claims = claims
        self._usage_id = usage_id
        self._services = services

    async def __aenter__(self) -> Attempt:
        call, claims, usage_id, services = self._call, self._claims, self._usage_id, self._services
        services.revocations.check_fresh()
        price = await _reserve(call, claims, usage_id, services) if call.billable else None
        # Nothing is awaited between the hold and the registry, so nothing can come between them.
        live = services.live_calls.enter(usage_id, claims)
        attempt = self._attempt = Attempt(call, claims, live, usage_id, services.ledger, price)
        try:
            _recheck(claims, attempt, services)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return attempt

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        attempt = self._attempt
        if isinstance(error, CallCut):
            attempt.note_cut(error.reason)
        elif isinstance(error, asyncio.CancelledError):
            attempt.outcome = attempt.outcome or Outcome.SHUTDOWN
        try:
            await attempt.settle()
        finally:
            self._services.live_calls.leave(attempt.live)


async def _reserve(call: Call, claims: Claims, usage_id: str, services: Services) -> Price:
    price = _price(call.provider, call.model, services.prices)
    amount = ceiling(call, price)
    if len(call.models) > 1:
        # Each model the request names may be asked in turn, and each may be billed.
        for model in set(call.models) - {call.model}:
            amount += ceiling(call, _price(call.provider, model, services.prices))
    reservation = Reservation(
        usage_id=usage_id,
        attempt=1,
        account=account_id(claims.sandbox),
        tenant=claims.tenant,
        sandbox=claims.sandbox,
        grant_id=claims.grants[-1],
        token_id=claims.token_id,
        provider=call.provider,
        endpoint=call.endpoint,
        model=call.model,
        stream=call.stream,
        amount_nano=min(amount, MAX_NANO),
    )
    try:
        answer = await services.ledger.reserve(reservation)
    except LedgerUnavailable:
        raise refuse(Code.STORE_UNAVAILABLE) from None
    if isinstance(answer, LedgerRefused):
        raise _refusal(answer, reservation)
    return price


def _price(provider: str, model: str, prices: PriceTable) -> Price:
    price = prices.find(provider, model)
    if price is None:
        line = prices.line_to_add(provider, model)
        raise refuse(
            Code.UNPRICED_MODEL,
            f"model {model[:128]} has no price here",
            hint=f"an admin can add it to the price overlay: {line}",
        )
    return price


def _refusal(refused: LedgerRefused, reservation: Reservation) -> Refusal:
    if refused.reason == "exhausted":
        left = max(refused.ceiling_nano - refused.spent_nano, 0)
        return refuse(
            Code.BUDGET_EXHAUSTED,
            hint=f"this call may cost {format_usd(reservation.amount_nano)} USD,"
            f" {format_usd(left)} of {format_usd(refused.ceiling_nano)} USD are left;"
            " lower max_tokens or ask for more budget",
        )
    if refused.reason == "held":
        return refuse(Code.BUDGET_HELD)
    if refused.reason == "overloaded":
        return refuse(Code.RATE_LIMITED, "too many calls of this sandbox wait for admission")
    # A token of a sandbox without an account: the store was restored or tampered with.
    event(log, "account_unknown", level=ERROR, account=reservation.account)
    return refuse(Code.STORE_UNAVAILABLE)


def _recheck(claims: Claims, attempt: Attempt, services: Services) -> None:
    verdict = services.revocations.verdict(claims)
    if verdict is Verdict.REVOKED:
        attempt.outcome = Outcome.CUT_REVOKED
        raise refuse(Code.TOKEN_REVOKED)
    expired = services.clock.now() >= claims.expires_at + LEEWAY
    if expired or verdict is Verdict.TOKEN_ENDED:
        attempt.outcome = Outcome.CUT_REVOKED
        raise refuse(Code.TOKEN_EXPIRED)
