"""Admission: a call gets a price, a hold on its budget, and a place among the live calls.

Place in the flow: `forward` enters this block with a checked Call and leaves it when the exchange
is over; the settlement happens on the way out, whatever came out. Expiry and revocation are
checked once more inside, because a body may have taken its time and a revocation may have come
between the authentication and the registry (after which it would have cut the call).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from daypass_core.claims import Claims
from daypass_proxy.attempt import Attempt
from daypass_proxy.ledger import Outcome
from daypass_proxy.providers import Call
from daypass_proxy.reserve import fit, recheck, reserve
from daypass_proxy.services import Services
from daypass_proxy.streams import CallCut

if TYPE_CHECKING:
    from types import TracebackType


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
        held = await reserve(call, claims, usage_id, services)
        # Nothing is awaited between the hold and the registry, so nothing can come between them.
        live = services.live_calls.enter(usage_id, claims)
        attempt = self._attempt = Attempt(call, claims, live, services.ledger, held)
        try:
            recheck(attempt, services)
            fit(attempt, services.providers[call.provider])
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
