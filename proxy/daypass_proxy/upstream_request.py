"""One request to the provider, built from the Call's constants and a key.

Place in the flow: `upstream` and `failover` send with it. What the answer says to us is not sorted
here; but whatever is kept of it was searched for our key.
"""

from __future__ import annotations

from functools import lru_cache
from logging import ERROR, WARNING

from daypass_core.log import event, get_logger
from daypass_core.problem import Code, refuse
from daypass_proxy.attempt import Attempt
from daypass_proxy.exchange import HeaderPairs, header_text
from daypass_proxy.federation import with_bearer_beta
from daypass_proxy.keyring import Keyring
from daypass_proxy.ledger import Outcome
from daypass_proxy.services import Services
from daypass_proxy.transport import (
    Answer,
    UpstreamBroken,
    UpstreamRequest,
    UpstreamUnreachable,
)
from daypass_proxy.upstream_time import UpstreamTime

log = get_logger(__name__)

Header = tuple[bytes, bytes]
_BEARER = b"authorization"
# Whatever a provider module lets through, these are ours to say.
_OURS = frozenset(
    {
        b"accept-encoding", b"api-key", b"authorization", b"connection", b"content-length",
        b"cookie", b"host", b"proxy-authorization", b"transfer-encoding", b"x-api-key",
    }
)  # fmt: skip


async def send_once(attempt: Attempt, key: Header, services: Services) -> Answer:
    """Send the attempt's call with this credential; return the answer when its head is here.

    Raises Refusal: upstream_unreachable (529), upstream_broken (502).
    """
    call = attempt.call
    headers, before_send = _theirs(call.headers), attempt.live.check
    if attempt.held.tariff is not None and attempt.held.tariff.max_seconds:
        most = attempt.held.tariff.max_seconds
        attempt.time = UpstreamTime(services.clock, attempt.live, most)
        before_send = attempt.time.begin
    if key[0] == _BEARER and call.dialect == "anthropic":
        headers = with_bearer_beta(headers)
    request = UpstreamRequest(
        method=call.method,
        url=_url(services.settings.origin(call.provider), call.upstream_path, call.query),
        headers=(*headers, (b"accept-encoding", b"identity"), key),
        body=call.body,
        # Of a tenant's many calls that are revoked at once, most are marked before their tasks are
        # woken; one whose key or connection is ready just then must not send any more.
        before_send=before_send,
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


def without_key(headers: HeaderPairs, attempt: Attempt, keyring: Keyring) -> HeaderPairs:
    """Return the headers in which our key does not appear (attacks row 15)."""
    tenant, provider = attempt.claims.tenant, attempt.call.provider
    if not keyring.leaks(tenant, provider, b"\n".join([value for _, value in headers])):
        return headers
    event(log, "upstream_leaked_key", level=ERROR, status=attempt.http_status, where="header")
    return tuple(
        (name, value)
        for name, value in headers
        if not keyring.leaks(tenant, provider, name + b" " + value)
    )


def request_id(headers: HeaderPairs) -> str | None:
    """Return the provider's id of the request, if it is one that can be shown."""
    value = header_text(headers, b"request-id") or header_text(headers, b"x-request-id")
    return value[:128] if value.isascii() and value.isprintable() and value else None
