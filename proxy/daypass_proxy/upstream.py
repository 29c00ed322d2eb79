"""The request to the provider, and what of its answer concerns us rather than the sandbox.

Place in the flow: after admission. Builds the request from the Call's constants and the tenant's
key, sends it, and sorts the answer: a success is handed to `relay` unread, an error answer is read
whole and passes unmodified, unless it is about *our* account or holds our key.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from logging import ERROR, WARNING

import msgspec

from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Problem, Refusal, refuse
from daypass_proxy.attempt import Attempt, Reply
from daypass_proxy.exchange import HeaderPairs, header_text
from daypass_proxy.keyring import Keyring
from daypass_proxy.ledger import Outcome
from daypass_proxy.providers import Provider
from daypass_proxy.reserve import fit, reserve
from daypass_proxy.services import Services
from daypass_proxy.transport import (
    Answer,
    UpstreamBroken,
    UpstreamRequest,
    UpstreamUnreachable,
)
from daypass_proxy.transport.inflate import coding_of, inflate

log = get_logger(__name__)

ERROR_BODY_MAX = 1024 * 1024
# Looked into on the loop, so everybody waits for it; no error says so much.
_ERROR_PLAIN_MAX = 4 * 1024 * 1024
# Whatever a provider module lets through, these are ours to say.
_OURS = frozenset(
    {
        b"accept-encoding", b"api-key", b"authorization", b"connection", b"content-length",
        b"cookie", b"host", b"proxy-authorization", b"transfer-encoding", b"x-api-key",
    }
)  # fmt: skip
_ACCOUNT_CODES = frozenset(
    {"enforced_spend_limit_reached", "contract_spend_limit_reached", "ramp_limit_exceeded"}
)
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
        key = await services.keyring.header_for(attempt.claims.tenant, services.provider)
        answer = await _send_once(attempt, key, services)
        if answer.status == 401:
            answer = await _with_newer_key(answer, key, attempt, services)
        headers = _without_key(answer.headers, attempt, services.keyring)
        # Only now: it goes to the ledger and the log, where a key has no place either.
        attempt.upstream_request_id = _request_id(headers)
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


async def _with_newer_key(
    answer: Answer, refused: tuple[bytes, bytes], attempt: Attempt, services: Services
) -> Answer:
    """Send once again when a newer key is found than the one that was refused.

    This is the only second request we make by ourselves (B51), since nothing is billed to a key
    that was refused; it is an attempt of its own. Whatever else fails after a byte went up may have
    been billed: 429, 5xx, a reset, silence are told to the client, who decides. The transport alone
    may send again what never left: on a kept connection that turned out closed before the first
    byte was written.
    """
    tenant, provider, keyring = attempt.claims.tenant, services.provider, services.keyring
    if not await _newer_key(answer, tenant, provider, refused, keyring):
        return answer
    await _begin_again(attempt, services)
    return await _send_once(attempt, await keyring.header_for(tenant, provider), services)


async def _begin_again(attempt: Attempt, services: Services) -> None:
    """Make it a second attempt, with a row and a hold of its own; raises Refusal as `reserve`.

    The first one's row is settled before, so that the call never holds twice what it needs.
    """
    attempt.check_client()
    attempt.outcome = Outcome.UPSTREAM_REFUSED
    await attempt.settle()
    first = attempt.held.reservation
    held = await reserve(
        attempt.call, attempt.claims, f"{first.usage_id}-2", services, attempt=first.attempt + 1
    )
    attempt.again(held)
    fit(attempt, services.provider)


async def _newer_key(
    answer: Answer, tenant: str, provider: Provider, key: tuple[bytes, bytes], keyring: Keyring
) -> bool:
    try:
        newer = await keyring.refresh(tenant, provider, key)
    except BaseException:
        answer.close()
        raise
    if newer:
        answer.close()
    return newer


async def _send_once(attempt: Attempt, key: tuple[bytes, bytes], services: Services) -> Answer:
    call = attempt.call
    request = UpstreamRequest(
        method=call.method,
        url=_url(services.settings.anthropic_url, call.upstream_path, call.query),
        headers=(*_theirs(call.headers), (b"accept-encoding", b"identity"), key),
        body=call.body,
        # Of a tenant's many calls that are revoked at once, most are marked before their tasks are
        # woken; one whose key or connection is ready just then must not send any more.
        before_send=attempt.live.check,
    )
    attempt.request, attempt.http_status = request, None
    try:
        if attempt.sent_at is None:
            attempt.sent_at = services.clock.monotonic()
        answer = await services.transport.send(request)
    except UpstreamUnreachable as error:
        # Once sent it may be billed, answered or not; `attempt` books it as estimated then.
        attempt.outcome = Outcome.UPSTREAM_BROKEN if request.sent else Outcome.UNREACHABLE
        event(log, "upstream_unreachable", level=WARNING, reason=str(error), sent=request.sent)
        raise refuse(Code.UPSTREAM_UNREACHABLE) from None
    except UpstreamBroken as error:
        attempt.outcome = Outcome.UPSTREAM_BROKEN
        event(log, "upstream_broken", level=WARNING, reason=str(error))
        raise refuse(Code.UPSTREAM_BROKEN) from None
    attempt.http_status = answer.status
    return answer


@lru_cache(maxsize=64)
def _theirs(headers: HeaderPairs) -> HeaderPairs:
    """Return a call's headers without those that are ours; one connection's are all alike."""
    return tuple([(name, value) for name, value in headers if name not in _OURS])


@lru_cache(maxsize=16)
def _url(origin: str, path: bytes, query: bytes) -> str:
    """Return where a call goes; path and query are constants of the provider module."""
    target = path + b"?" + query if query else path
    return origin + target.decode("ascii")


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
    if keyring.leaks(attempt.claims.tenant, plain) or len(headers) < len(answer.headers):
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
    type: str = ""
    message: str = ""
    details: _Details | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


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
    code = error.details.error_code if error.details else None
    return (
        error.type == "billing_error"
        or code in _ACCOUNT_CODES
        or _ACCOUNT_WORDS.match(error.message) is not None
    )


def _without_key(headers: HeaderPairs, attempt: Attempt, keyring: Keyring) -> HeaderPairs:
    """Return the headers in which our key does not appear (attacks row 15)."""
    tenant = attempt.claims.tenant
    if not keyring.leaks(tenant, b"\n".join([value for _, value in headers])):
        return headers
    event(log, "upstream_leaked_key", level=ERROR, status=attempt.http_status, where="header")
    return tuple(
        (name, value) for name, value in headers if not keyring.leaks(tenant, name + b" " + value)
    )


def _request_id(headers: HeaderPairs) -> str | None:
    value = header_text(headers, b"request-id")
    return value[:128] if value.isascii() and value.isprintable() and value else None
