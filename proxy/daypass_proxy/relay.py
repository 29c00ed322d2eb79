"""The relay: the provider's answer to the client, byte for byte, and its end in plain words.

Place in the flow: the last step inside `admit`. A stream is passed on as it arrives and held back
by a client that reads slowly; a whole answer is collected first, so that one that breaks can still
be told as an error. The meter sees every byte. An answer that did not come whole never looks as if
it had (case B25): a stream gets an SSE `error` event, and where none fits, the connection is cut.
"""

from __future__ import annotations

import asyncio
from logging import WARNING

from daypass_core.clock import Clock
from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Problem, Refusal, refuse
from daypass_proxy.attempt import Attempt, Reply, cut_problem
from daypass_proxy.exchange import ClientGone, Exchange, HeaderPairs, header_text
from daypass_proxy.ledger import Outcome
from daypass_proxy.meter import Meter, is_event_stream, meter_for
from daypass_proxy.providers import Provider
from daypass_proxy.streams import CallCut, CutReason
from daypass_proxy.transport import Answer, UpstreamBroken
from daypass_proxy.transport.inflate import UnknownCoding

log = get_logger(__name__)

WHOLE_MAX = 64 * 1024 * 1024
"""Largest answer in bytes that is collected; no model writes that much in one message."""
LAST_WORDS_SECONDS = 2.0
"""How long a client that does not read holds up the end of its own cut call."""
_STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
_FRAMING = (b"content-length", b"content-encoding", b"transfer-encoding")


async def relay(
    reply: Reply, attempt: Attempt, exchange: Exchange, provider: Provider, clock: Clock
) -> None:
    """Answer the client with `reply` and note on the attempt how that ended.

    Raises CallCut while nothing was answered yet or when the client is gone, and Refusal
    upstream_broken or upstream_unreachable while nothing was answered yet.
    """
    if reply.answer is None:
        headers = _headers(reply, provider)
        await exchange.respond(reply.status, headers, reply.body)
        return
    try:
        content_type = header_text(reply.headers, b"content-type")
        meter = attempt.meter = _meter(content_type, reply, attempt)
        if is_event_stream(content_type):
            await _Stream(reply, meter, attempt, exchange, provider, clock).run()
        else:
            body = await _collect(reply.answer, meter, attempt, clock)
            await exchange.respond(reply.status, _headers(reply, provider), body)
    finally:
        reply.answer.close()


class _Stream:
    """One stream on its way to the client."""

    def __init__(
        self,
        reply: Reply,
        meter: Meter,
        attempt: Attempt,
        exchange: Exchange,
        provider: Provider,
        clock: Clock,
    ) -> None:
        assert reply.answer is not None
        self._reply = reply
        self._answer: Answer = reply.answer
        self._meter = meter
        self._attempt = attempt
        self._exchange = exchange
        self._provider = provider
        self._clock = clock
        self._told = False
        """The client has the provider's own last word, good or bad."""

    async def run(self) -> None:
        """Pass everything on, then end as the stream ended."""
        attempt, meter = self._attempt, self._meter
        headers = _stream_headers(_headers(self._reply, self._provider))
        try:
            async with attempt.live.interruptible():
                await self._exchange.start(self._reply.status, headers)
                await self._pump()
            problem = Problem.of(Code.UPSTREAM_BROKEN)
        except UpstreamBroken as broken:
            event(log, "upstream_broken", level=WARNING, reason=str(broken))
            problem = _broken_problem(broken)
        except CallCut as cut:
            meter.feed(self._answer.buffered())
            if not self._told:
                attempt.note_cut(cut.reason)
            if cut.reason is CutReason.CLIENT_GONE or not self._exchange.started_response:
                raise
            problem = _in_stream(cut.reason)
        finally:
            meter.end()
            if self._told and meter.finished:
                attempt.outcome = Outcome.COMPLETE
        await self._end(problem)

    async def _pump(self) -> None:
        answer, meter, exchange, attempt = self._answer, self._meter, self._exchange, self._attempt
        while chunk := await answer.read():
            if attempt.first_byte_at is None:
                attempt.first_byte_at = self._clock.monotonic()
            # Metered first: what waits in front of a slow client was received all the same.
            meter.feed(chunk)
            await exchange.send(chunk)
            self._told = meter.finished or meter.failed

    async def _end(self, problem: Problem) -> None:
        """End tidily what came whole or told its own failure; else tell `problem`, or cut."""
        self._answer.close()
        exchange = self._exchange
        self._attempt.outcome = self._attempt.outcome or Outcome.UPSTREAM_BROKEN
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                if not self._told and _coding(self._reply):
                    # Plain words inside a compressed stream would be noise.
                    await exchange.abort()
                    return
                if not self._told:
                    said = self._provider.stream_error(problem, exchange.request_id)
                    # The empty line closes an event that was cut off; elsewhere it says nothing.
                    await exchange.send(b"\n\n" + said)
                await exchange.finish()
        except (TimeoutError, ClientGone):
            await exchange.abort()


async def _collect(answer: Answer, meter: Meter, attempt: Attempt, clock: Clock) -> bytes:
    """Return a whole answer; raises CallCut and Refusal."""
    pieces: list[bytes] = []
    try:
        async with attempt.live.interruptible():
            while piece := await answer.read():
                if attempt.first_byte_at is None:
                    attempt.first_byte_at = clock.monotonic()
                meter.feed(piece)
                pieces.append(piece)
                if meter.fed > WHOLE_MAX:
                    raise UpstreamBroken("answer is too large")
    except CallCut:
        meter.feed(answer.buffered())
        raise
    except UpstreamBroken as broken:
        attempt.outcome = Outcome.UPSTREAM_BROKEN
        event(log, "upstream_broken", level=WARNING, reason=str(broken))
        raise Refusal(_broken_problem(broken)) from None
    finally:
        meter.end()
    attempt.outcome = Outcome.COMPLETE
    return b"".join(pieces)


def _meter(content_type: str, reply: Reply, attempt: Attempt) -> Meter:
    """Return the meter for the reply; raises Refusal for one that could not be metered."""
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind not in ("application/json", "text/event-stream"):
            raise UnknownCoding("answer is neither JSON nor a stream of events")
        return meter_for(content_type, _coding(reply), billable=attempt.call.billable)
    except UnknownCoding as error:
        attempt.outcome = Outcome.UPSTREAM_BROKEN
        event(log, "upstream_broken", level=WARNING, reason=str(error))
        raise refuse(Code.UPSTREAM_BROKEN, "provider answered in an unknown form") from None


def _headers(reply: Reply, provider: Provider) -> HeaderPairs:
    """Return the headers for the client: what the provider module lets through, and the coding."""
    passed = provider.response_headers(reply.headers)
    kept = tuple((name, value) for name, value in passed if name not in _FRAMING)
    coding = _coding(reply)
    return (*kept, (b"content-encoding", coding.encode("latin-1"))) if coding else kept


def _stream_headers(headers: HeaderPairs) -> HeaderPairs:
    """Add what keeps proxies in front of us from holding events back (case B28)."""
    names = {name for name, _ in headers}
    return (*headers, *(pair for pair in _STREAM_HEADERS if pair[0] not in names))


def _coding(reply: Reply) -> str:
    coding = header_text(reply.headers, b"content-encoding").strip().lower()
    return "" if coding == "identity" else coding


def _in_stream(reason: CutReason) -> Problem:
    if reason is CutReason.REVOKED:
        return Problem.of(Code.CALL_REVOKED)
    return cut_problem(reason)


def _broken_problem(broken: UpstreamBroken) -> Problem:
    return Problem.of(Code.UPSTREAM_UNREACHABLE if broken.stalled else Code.UPSTREAM_BROKEN)
