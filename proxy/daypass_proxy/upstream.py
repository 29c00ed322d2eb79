"""The request to the provider, and what of its answer concerns us rather than the sandbox.

Place in the flow: after admission. Has the request sent with the tenant's key (`upstream_request`),
and sorts the answer: a success is handed to `relay` unread, an error answer is read
whole and passes unmodified, unless it is about *our* account or holds our key. A request is sent
again only where nothing can have been billed: `failover`.
"""

from __future__ import annotations

import hashlib
import re
from logging import ERROR, WARNING
from typing import Any

import msgspec

from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Problem, Refusal, refuse
from daypass_proxy.attempt import Attempt, Reply
from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.failover import from_pool, with_newer_key
from daypass_proxy.keyring import Keyring
from daypass_proxy.ledger import Outcome
from daypass_proxy.services import Services
from daypass_proxy.transport import Answer, UpstreamBroken
from daypass_proxy.transport.inflate import coding_of, inflate
from daypass_proxy.upstream_request import request_id, send_once, without_key

log = get_logger(__name__)

ERROR_BODY_MAX = 1024 * 1024
# Looked into on the loop, so everybody waits for it; no error says so much.
_ERROR_PLAIN_MAX = 4 * 1024 * 1024
# Types and codes by which Anthropic and OpenAI speak of the account; LiteLLM's of the key's budget.
_ACCOUNT_CODES = frozenset(
    {
        "billing_error", "enforced_spend_limit_reached", "contract_spend_limit_reached",
        "ramp_limit_exceeded", "insufficient_quota", "billing_hard_limit_reached",
        "billing_not_active", "account_deactivated", "budget_exceeded",
    }
)  # fmt: skip
# The API says these as invalid_request_error; the words are at the beginning of its message.
_ACCOUNT_WORDS = re.compile(
    r"(?:your|this|you have reached)\b.{0,80}?(?:credit balance|usage limit|spend(?:ing)? limit)",
    re.IGNORECASE | re.DOTALL,
)


async def send(attempt: Attempt, services: Services) -> Reply:
    """Send the attempt's call to the provider and return the reply.

    Raises CallCut, and Refusal: key_unavailable, upstream_unreachable (529),
    upstream_refused_key, upstream_broken (502).
    """
    with attempt.live.interruptible():
        tenant, keyring = attempt.claims.tenant, services.keyring
        pool = keyring.pool(tenant, attempt.call.provider) if keyring.pooled else None
        if pool is None:
            provider = services.providers[attempt.call.provider]
            key = await keyring.header_for(tenant, provider)
            answer = await send_once(attempt, key, services)
            if answer.status == 401:
                answer = await with_newer_key(answer, key, attempt, services)
        else:
            answer = await from_pool(pool, attempt, services)
        headers = without_key(answer.headers, attempt, services.keyring)
        # Only now: it goes to the ledger and the log, where a key has no place either.
        attempt.upstream_request_id = request_id(headers)
        if answer.status == 200:
            return Reply(answer.status, headers, answer)
        try:
            if answer.status < 300:
                # No call of ours is answered so, and only errors are searched for the key.
                attempt.outcome = Outcome.UPSTREAM_BROKEN
                reason = f"success with status {answer.status}"
                event(log, "upstream_broken", level=WARNING, reason=reason)
                raise refuse(Code.UPSTREAM_BROKEN, "provider answered in an unknown form")
            attempt.outcome = Outcome.UPSTREAM_REFUSED
            return await _error_reply(answer, headers, attempt, services.keyring)
        finally:
            answer.close()


async def _error_reply(
    answer: Answer, headers: HeaderPairs, attempt: Attempt, keyring: Keyring
) -> Reply:
    """Return an error answer for the client; raises Refusal for one that is not for its eyes."""
    if answer.status < 400:
        # Never followed and never told: the target may be anybody's (attacks row 14, case B03).
        event(log, "upstream_redirected", level=ERROR, status=answer.status)
        raise refuse(Code.UPSTREAM_BROKEN, "provider answered with a redirect")
    body = await _read_whole(answer)
    plain = inflate(coding_of(answer.headers), body, _ERROR_PLAIN_MAX)
    if plain is None:
        event(log, "upstream_broken", level=WARNING, reason="error body cannot be looked into")
        raise refuse(Code.UPSTREAM_BROKEN)
    if _is_our_account(answer.status, plain):
        event(log, "upstream_refused_key", level=ERROR, status=answer.status,
              tenant=attempt.claims.tenant)  # fmt: skip
        raise refuse(Code.UPSTREAM_REFUSED_KEY)
    tenant, provider = attempt.claims.tenant, attempt.call.provider
    if keyring.leaks(tenant, provider, plain) or len(headers) < len(answer.headers):
        event(log, "upstream_leaked_key", level=ERROR, status=answer.status,
              sha256=hashlib.sha256(plain).hexdigest())  # fmt: skip
        problem = Problem.of(Code.UPSTREAM_BROKEN, "provider's answer was withheld")
        raise Refusal(problem)
    return Reply(answer.status, headers, None, body)


async def _read_whole(answer: Answer) -> bytes:
    pieces: list[bytes] = []
    size = 0
    try:
        while piece := await answer.read():
            pieces.append(piece)
            size += len(piece)
            if size > ERROR_BODY_MAX:
                raise UpstreamBroken("error body is too large")
    except UpstreamBroken as error:
        event(log, "upstream_broken", level=WARNING, reason=str(error))
        raise refuse(Code.UPSTREAM_BROKEN) from None
    return b"".join(pieces)


class _Details(msgspec.Struct):
    error_code: str | None = None


class _Error(msgspec.Struct):
    type: str | None = ""
    message: str | None = ""
    details: _Details | None = None
    code: Any = None


class _ErrorBody(msgspec.Struct):
    error: _Error | str


def _is_our_account(status: int, body: bytes) -> bool:
    """Say whether the provider speaks of our key or our bill, which is no business of a sandbox."""
    if status in (401, 402):
        return True
    if status not in (400, 403, 429):
        return False
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
    except (msgspec.DecodeError, RecursionError):
        return False
    if isinstance(error, str):
        error = _Error(type=error, message=error)
    said = {error.type, error.details.error_code if error.details else None}
    if type(error.code) is str:
        said.add(error.code)
    return (
        not _ACCOUNT_CODES.isdisjoint(said) or _ACCOUNT_WORDS.match(error.message or "") is not None
    )
