"""The hold of one upstream attempt: what it may cost, asked of the ledger, and the answer to a no.

Place in the flow: `admit` takes it before the upstream sees a byte, and `failover` once more for
each further attempt; both `recheck` that the caller still may. A call whose endpoint costs nothing
holds nothing, but passes here like any other: so it counts towards the requests and open calls of
its accounts, and has a row of its own.
"""

from __future__ import annotations

from logging import ERROR

from daypass_core.claims import Claims
from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Refusal, refuse
from daypass_core.revocation import Verdict
from daypass_core.verify import LEEWAY
from daypass_proxy import limits
from daypass_proxy.attempt import Attempt, Held
from daypass_proxy.estimate import Quote, Unpriced, quote
from daypass_proxy.ledger import (
    Hold,
    LedgerRefused,
    LedgerUnavailable,
    Outcome,
    Policy,
    Reservation,
)
from daypass_proxy.providers import Call, Provider
from daypass_proxy.services import Services

log = get_logger(__name__)


async def reserve(
    call: Call, claims: Claims, usage_id: str, services: Services, *, attempt: int = 1
) -> Held:
    """Hold `call` in all its accounts; `usage_id` is the attempt's own, `attempt` its number.

    Raises Refusal: unpriced_model, budget_exhausted, budget_held, rate_limited, store_unavailable.
    """
    if call.billable:
        quoted = _quote(call, services)
        tariff, base, whole = quoted.tariff, quoted.base, quoted.whole
        least, most, nano = quoted.output_least, quoted.output_most, quoted.output_nano
    else:
        tariff, base, whole = None, Hold(), False
        least = most = nano = 0
    reservation = Reservation(
        usage_id=usage_id,
        attempt=attempt,
        account=claims.account,
        tenant=claims.tenant,
        sandbox=claims.sandbox,
        grant_id=claims.grants[-1],
        token_id=claims.token_id,
        provider=call.provider,
        endpoint=call.endpoint,
        model=call.model,
        stream=call.stream,
        base=base,
        output_least=least,
        output_most=most,
        output_nano=nano,
        whole=whole,
    )
    try:
        answer = await services.ledger.reserve(reservation)
    except LedgerUnavailable:
        raise refuse(Code.STORE_UNAVAILABLE) from None
    if isinstance(answer, LedgerRefused):
        raise _refusal(answer, reservation, services)
    return Held(reservation, answer, tariff)


def fit(attempt: Attempt, provider: Provider) -> None:
    """Have the call ask for no more output than is held for it, where its hold will not grow.

    That is so for policy `clamp`, and for `cutoff` where the answer does not stream, since it comes
    too late to be cut, or may be thinking that nobody sees. Raises Refusal budget_exhausted where
    the request makes no sense with less.
    """
    held = attempt.held
    reservation, reserved = held.reservation, held.reserved
    call, most = attempt.call, reserved.output_tokens
    if most >= reservation.output_most:
        return
    if reservation.grows and reserved.terms.policy is Policy.CUTOFF:
        return
    if most <= (call.thinking_tokens or 0):
        raise refuse(
            Code.BUDGET_EXHAUSTED,
            "budget too low for this call",
            hint=f"it pays for {most} output tokens, and there is nothing to say after thinking",
        )
    try:
        attempt.call = provider.lower_output(call, most)
    except ValueError:
        hint = f"it pays for {most} output tokens, and its max_tokens is above that"
        raise refuse(Code.BUDGET_EXHAUSTED, "budget too low for this call", hint=hint) from None


def recheck(attempt: Attempt, services: Services) -> None:
    """Check once more that the call may go up: its token lives, and nobody revoked it meanwhile.

    Raises Refusal: view_stale, token_expired, token_revoked.
    """
    claims = attempt.claims
    try:
        services.revocations.check_fresh()
    except Refusal:
        attempt.outcome = Outcome.CUT_STALE
        raise
    verdict = services.revocations.verdict(claims)
    if verdict is Verdict.REVOKED:
        attempt.outcome = Outcome.CUT_REVOKED
        raise refuse(Code.TOKEN_REVOKED)
    expired = services.clock.now() >= claims.expires_at + LEEWAY
    if expired or verdict is Verdict.TOKEN_ENDED:
        attempt.outcome = Outcome.CUT_REVOKED
        raise refuse(Code.TOKEN_EXPIRED)


def _quote(call: Call, services: Services) -> Quote:
    try:
        return quote(call, services.prices, services.clock.now())
    except Unpriced as error:
        if error.field:
            hint = f"leave {error.field} out, or have an admin add it to the price overlay"
        else:
            line = services.prices.line_to_add(error.provider, error.model)
            hint = f"an admin can add it to the price overlay: {line}"
        raise refuse(Code.UNPRICED_MODEL, str(error), hint=hint) from None


def _refusal(refused: LedgerRefused, reservation: Reservation, services: Services) -> Refusal:
    if refused.reason == "unknown_account":
        # A token of a sandbox without an account: the store was restored or tampered with.
        event(log, "account_unknown", level=ERROR, account=reservation.account)
        return refuse(Code.STORE_UNAVAILABLE)
    services.metrics.hold_refused(limits.limit_of(refused), refused.reason)
    return limits.refusal(refused)
