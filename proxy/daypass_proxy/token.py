"""POST /v1/oauth/token: passed through to the broker, because clients know one base URL only.

One fixed target; nothing of the client's request goes along but its body, the kind of body, and
the peer address we saw ourselves, beside our id of the request, under which the broker logs it too.
Stock SDKs do not retry this path, so a broker that restarts is waited for here; but a request the
broker may have acted on is never sent again, since the second use of a `single_use` credential
quarantines its sandbox. Launch credentials pass through memory and are neither kept nor logged.
"""

from collections.abc import Mapping
from logging import ERROR

import msgspec

from daypass_core.log import event, get_logger
from daypass_core.problem import Refusal
from daypass_proxy.broker_link import BrokerAnswer, BrokerUnreachable
from daypass_proxy.exchange import Exchange
from daypass_proxy.services import Services

log = get_logger(__name__)

PATH = "/v1/oauth/token"
MAX_BYTES = 24 * 1024
RETRY_SECONDS = 10.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0
_NOT_DONE = (502, 503, 504)
_MEDIA = ("application/json", "application/x-www-form-urlencoded")
_PASSED = ("content-type", "cache-control", "pragma", "retry-after")


async def pass_token_request(exchange: Exchange, services: Services) -> None:
    """Answer one token request in the words of RFC 6749 §5.2."""
    if exchange.raw_query:
        await _refuse(exchange, 400, "invalid_request", "no query is accepted here")
        return
    try:
        media = _media(exchange)
        # Before a place is taken: whoever sends slowly holds nothing that others wait for.
        body = await exchange.read_body(MAX_BYTES)
    except Refusal as refusal:
        await _refuse(exchange, 400, "invalid_request", refusal.problem.title)
        return
    if media is None:
        await _refuse(
            exchange, 400, "invalid_request", f"content-type must be {' or '.join(_MEDIA)}"
        )
        return
    with services.token_gate.enter(exchange.peer) as admitted:
        if not admitted:
            await _unavailable(exchange, "too many token requests at once; try again")
            return
        headers = {
            "content-type": media,
            "x-daypass-peer": exchange.peer,
            "x-daypass-request-id": exchange.request_id,
        }
        try:
            answer = await _ask(services, headers, body)
        except BrokerUnreachable as error:
            event(log, "token_answer_lost", level=ERROR, reason=str(error))
            # Not 503: that tells clients that nothing was done, and that they may repeat it.
            lost = "the answer of the token service was lost; a token may have been issued"
            await _refuse(exchange, 500, "server_error", lost)
            return
    if answer is None:
        await _unavailable(exchange, "token service not reachable right now; try again")
        return
    passed = [
        (name.encode(), answer.headers[name].encode("latin-1"))
        for name in _PASSED
        if name in answer.headers
    ]
    await exchange.respond(answer.status, passed, answer.body)


async def _ask(services: Services, headers: Mapping[str, str], body: bytes) -> BrokerAnswer | None:
    """Ask until there is an answer or RETRY_SECONDS are over; the last refusal then, or None.

    Asked again is only what was not done: no byte has left, or the answer says so itself. Raises
    BrokerUnreachable when the request had left and no answer came.
    """
    last: BrokerAnswer | None = None
    began = services.clock.monotonic()
    pause = _FIRST_PAUSE
    noted = ""
    while True:
        try:
            answer = await services.broker.request("POST", PATH, headers, body, limit=MAX_BYTES)
            reason = f"status {answer.status}"
            if answer.status not in _NOT_DONE and not 300 <= answer.status < 400:
                return answer
            last = answer if answer.status == 503 else None
        except BrokerUnreachable as error:
            if error.sent:
                raise
            reason = str(error)
        if reason != noted:
            event(log, "token_exchange_retried", reason=reason)
            noted = reason
        if services.clock.monotonic() - began + pause > RETRY_SECONDS:
            event(log, "broker_unreachable", level=ERROR, reason=reason)
            return last
        await services.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _media(exchange: Exchange) -> str | None:
    value = exchange.header(b"content-type") or b""
    kind = value.partition(b";")[0].strip().lower().decode("latin-1")
    return kind if kind in _MEDIA else None


async def _unavailable(exchange: Exchange, description: str) -> None:
    await _refuse(exchange, 503, "temporarily_unavailable", description)


async def _refuse(exchange: Exchange, status: int, error: str, description: str) -> None:
    event(log, "token_request_refused", peer=exchange.peer, status=status, error=error)
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    if status == 503:
        headers.append((b"retry-after", b"2"))
    body = msgspec.json.encode({"error": error, "error_description": description})
    await exchange.respond(status, headers, body)
