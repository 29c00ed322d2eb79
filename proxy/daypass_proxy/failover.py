"""Sending again, with a newer key or with another of the pool: the only requests made twice.

Place in the flow: `upstream` comes here with an answer that is about the key, or at once where the
tenant has a pool. It is done only before anything went to the client and only where nothing can
have been billed, and each time it is an attempt of its own: settled, authorised, priced and held
as the first one was.
"""

from __future__ import annotations

from contextlib import suppress
from logging import ERROR, WARNING

from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Refusal
from daypass_proxy.attempt import Attempt
from daypass_proxy.keyring import KeyUnavailable
from daypass_proxy.keyring_pool import CAUSES, Cause, KeyPool, PoolKey, cool_seconds
from daypass_proxy.ledger import Outcome
from daypass_proxy.reserve import fit, recheck, reserve
from daypass_proxy.services import Services
from daypass_proxy.transport import Answer
from daypass_proxy.upstream_request import Header, request_id, send_once, without_key

log = get_logger(__name__)

MOST_ATTEMPTS = 4
"""Of one call: a provider that is overloaded is not asked with every key there is."""
# What ends a call between two of its attempts, whatever the first one was answered.
_NOT_ANY_MORE = frozenset({Code.VIEW_STALE, Code.TOKEN_EXPIRED, Code.TOKEN_REVOKED})


async def with_newer_key(
    answer: Answer,
    refused: Header,
    attempt: Attempt,
    services: Services,
    pooled: PoolKey | None = None,
) -> Answer:
    """Send once again when a newer key is found than the one that was refused.

    With one key this is the only second request we make by ourselves (B51), since nothing is billed
    to a key that was refused; it is an attempt of its own. Whatever else fails after a byte went up
    may have been billed: 5xx, a reset, silence are told to the client, who decides. The transport
    alone may send again what never left: on a kept connection that turned out closed before the
    first byte was written.
    """
    tenant, keyring = attempt.claims.tenant, services.keyring
    provider = services.providers[attempt.call.provider]
    try:
        newer = await keyring.refresh(tenant, provider, refused, pooled)
    except BaseException:
        answer.close()
        raise
    if not newer:
        return answer
    answer.close()
    await _begin_again(answer, attempt, services)
    if pooled is not None:
        pooled.sent(attempt.call.model, attempt.claims.sandbox, services.clock.monotonic())
    return await send_once(attempt, await keyring.header_for(tenant, provider, pooled), services)


async def from_pool(pool: KeyPool, attempt: Attempt, services: Services) -> Answer:
    """Send with a key of the pool, and with another after an answer that is about the key.

    Only 401, 429 and 529 are: nothing is billed for them. Each key has its turn once, in an attempt
    of its own. What passes in the end is the provider's last answer, as it is. A provider that
    cannot be reached is not asked again: that is no matter of the key.
    """
    call, sandbox, clock = attempt.call, attempt.claims.sandbox, services.clock
    tried: list[PoolKey] = []
    await services.keyring.read_new(pool)
    key, header = await _first_of(pool, tried, attempt, services)
    while True:
        key.sent(call.model, sandbox, clock.monotonic())
        answer = await send_once(attempt, header, services)
        if answer.status == 401 and attempt.held.reservation.attempt < MOST_ATTEMPTS:
            answer = await with_newer_key(answer, header, attempt, services, key)
        goes_on = _cool(pool, key, answer, attempt, clock.monotonic())
        if not goes_on or attempt.held.reservation.attempt >= MOST_ATTEMPTS:
            return answer
        left = key
        try:
            found = await _another_of(pool, tried, attempt, services)
            if found is None or not await _may_go_on(answer, attempt, services):
                return answer
        except BaseException:
            answer.close()
            raise
        answer.close()
        left.use.failovers += 1
        key, header = found


async def _first_of(
    pool: KeyPool, tried: list[PoolKey], attempt: Attempt, services: Services
) -> tuple[PoolKey, Header]:
    """Return the key that the call begins with, added to `tried`; raises KeyUnavailable."""
    model, sandbox = attempt.call.model, attempt.claims.sandbox
    unread: KeyUnavailable | None = None
    while (key := pool.first(model, sandbox, services.clock.monotonic(), tried)) is not None:
        tried.append(key)
        try:
            return key, await _header(key, attempt, services)
        except KeyUnavailable as error:
            unread = error
    raise unread or KeyUnavailable


async def _another_of(
    pool: KeyPool, tried: list[PoolKey], attempt: Attempt, services: Services
) -> tuple[PoolKey, Header] | None:
    """Return a key that the call can go on with, added to `tried`; None when there is none."""
    model = attempt.call.model
    while (key := pool.another(model, services.clock.monotonic(), tried)) is not None:
        tried.append(key)
        with suppress(KeyUnavailable):
            return key, await _header(key, attempt, services)
    return None


async def _header(key: PoolKey, attempt: Attempt, services: Services) -> Header:
    provider = services.providers[attempt.call.provider]
    return await services.keyring.header_for(attempt.claims.tenant, provider, key)


def _cool(pool: KeyPool, key: PoolKey, answer: Answer, attempt: Attempt, now: float) -> bool:
    """Have the key cool down if the answer is about it; say whether the call may go on."""
    cause = CAUSES.get(answer.status)
    if cause is None:
        return False
    seconds = cool_seconds(cause, answer.headers)
    model, sandbox, tenant = attempt.call.model, attempt.claims.sandbox, attempt.claims.tenant
    before = key.use.cooled.total()
    goes_on = pool.cool(key, cause, seconds, model, sandbox, now)
    if key.use.cooled.total() == before:
        return goes_on
    if cause is Cause.REFUSED:
        event(log, "pool_key_refused", level=ERROR, reference=str(key.reference), tenant=tenant)
    else:
        event(log, "pool_key_cooled", level=WARNING, reference=str(key.reference), tenant=tenant,
              sandbox=sandbox, model=model, cause=cause, seconds=seconds,
              own_rate=not goes_on)  # fmt: skip
    return goes_on


async def _may_go_on(answer: Answer, attempt: Attempt, services: Services) -> bool:
    """Begin the next attempt; False when no hold is to be had, and the answer stands.

    Raises Refusal when the caller may not go on: view_stale, token_expired, token_revoked.
    """
    try:
        await _begin_again(answer, attempt, services)
    except Refusal as refusal:
        if refusal.problem.code in _NOT_ANY_MORE:
            raise
        attempt.http_status = answer.status
        return False
    return True


async def _begin_again(answer: Answer, attempt: Attempt, services: Services) -> None:
    """Make it a further attempt, with a row and a hold of its own.

    The row of the last one is settled before, so that the call never holds twice what it needs.
    Raises Refusal as `recheck`, `reserve` and `fit`.
    """
    attempt.check_client()
    attempt.outcome = Outcome.UPSTREAM_REFUSED
    attempt.upstream_request_id = request_id(without_key(answer.headers, attempt, services.keyring))
    await attempt.settle()
    recheck(attempt, services)
    number = attempt.held.reservation.attempt + 1
    usage_id = f"{attempt.live.call_id}-{number}"
    held = await reserve(attempt.call, attempt.claims, usage_id, services, attempt=number)
    attempt.again(held)
    fit(attempt, services.providers[attempt.call.provider])
