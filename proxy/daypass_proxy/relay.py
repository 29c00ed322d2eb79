"""The relay: the provider's answer to the client, byte for byte, and its end in plain words.

Place in the flow: the last step inside `admit`. A stream is passed on as it arrives and held back
by a client that reads slowly; a whole answer is collected first, so that one that breaks can still
be told as an error. The meter sees every byte, and a stream never gets ahead of what is held for it
(`allowance`). An answer that did not come whole never looks as if it had (case B25): a stream gets
an SSE `error` event, and where none fits, the connection is cut. What goes on without its client
(`Attempt.deserted`) is read and metered, and written nowhere.
"""

from __future__ import annotations

import asyncio
from logging import WARNING

from daypass_core.clock import Clock
from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Problem, Refusal, refuse
from daypass_proxy.allowance import Unpaid
from daypass_proxy.attempt import Attempt, Reply, cut_problem
from daypass_proxy.exchange import ClientGone, Exchange, HeaderPairs, header_text
from daypass_proxy.hidden import HidesUsage
from daypass_proxy.ledger import Outcome
from daypass_proxy.limits import told
from daypass_proxy.meter import EVENT_STREAM, Meter, media_type, meter_for
from daypass_proxy.meter.base import BLOCK_TOKENS
from daypass_proxy.providers import Provider
from daypass_proxy.streams import CallCut, CutReason
from daypass_proxy.transport import Answer, Onward, UpstreamBroken
from daypass_proxy.transport.inflate import UnknownCoding, coding_of

log = get_logger(__name__)

WHOLE_MAX = 64 * 1024 * 1024
"""Largest answer in bytes that is collected; no model writes that much in one message."""
LAST_WORDS_SECONDS = 2.0
"""How long a client that does not read holds up the end of its own cut call."""
KEEP_ALIVE_SECONDS = 15.0
"""How long a stream is silent before we say something: balancers cut at 60 s or less (B29).

Only a stream whose headers came can be kept alive. Before them nothing may be sent, for we do not
know the status yet: a 200 of ours could not be taken back when the provider answers 429. For an
answer that does not stream nothing fits in at any time; its client waits in silence.
"""
KEEP_ALIVE = b": keep-alive\n\n"
_UNFINISHED = Problem.of(Code.UPSTREAM_BROKEN)
_STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
_FRAMING = (b"content-length", b"content-encoding", b"transfer-encoding")


async def relay(
    reply: Reply, attempt: Attempt, exchange: Exchange, provider: Provider, clock: Clock
) -> None:
    """Answer the client with `reply` and note on the attempt how that ended.

    Raises CallCut while nothing was answered yet, when the client is gone or does not take a whole
    answer, and Refusal upstream_broken or upstream_unreachable while nothing was answered yet.
    """
    answer, coding = reply.answer, coding_of(reply.headers)
    if answer is None:
        with attempt.live.interruptible():
            headers = _headers(reply, coding, provider, attempt)
            await exchange.respond(reply.status, headers, reply.body)
        return
    try:
        media = media_type(header_text(reply.headers, b"content-type"))
        meter = attempt.meter = _meter(media, coding, attempt)
        headers = _headers(reply, coding, provider, attempt)
        if media == EVENT_STREAM:
            stream = _Stream(answer, coding, meter, attempt, exchange, provider, clock)
            await stream.run(reply.status, headers)
            return
        try:
            with attempt.live.interruptible():
                body = await _collect(answer, meter, attempt, clock)
                attempt.answered()
                attempt.check_client()
                attempt.live.check()
                await exchange.respond(reply.status, headers, body)
        except CallCut as cut:
            if attempt.outcome is None:  # it was still coming
                meter.feed(answer.buffered())
                meter.end()
            elif attempt.deserted:
                attempt.outcome = None  # whole, but nobody had it
                attempt.note_cut(cut.reason)
            raise
    finally:
        answer.close()


class _Stream:
    """One stream on its way to the client."""

    __slots__ = (
        "_allowance", "_answer", "_attempt", "_clock", "_coding", "_exchange", "_meter",
        "_out", "_provider", "_told",
    )  # fmt: skip

    def __init__(
        self,
        answer: Answer,
        coding: str,
        meter: Meter,
        attempt: Attempt,
        exchange: Exchange,
        provider: Provider,
        clock: Clock,
    ) -> None:
        self._allowance = attempt.allow()
        self._answer = answer
        self._coding = coding
        self._meter = meter
        self._attempt = attempt
        self._exchange = exchange
        hides = attempt.call.hides_usage and not coding
        self._out: Exchange | HidesUsage = HidesUsage(exchange) if hides else exchange
        self._provider = provider
        self._clock = clock
        self._told = False
        """The client has the provider's own last word, good or bad."""

    async def run(self, status: int, headers: HeaderPairs) -> None:
        """Pass everything on, then end as the stream ended."""
        attempt, meter = self._attempt, self._meter
        problem = _UNFINISHED
        try:
            with attempt.live.interruptible():
                await self._exchange.start(status, _stream_headers(headers))
                await self._pump()
                attempt.check_client()
            if not self._told:
                event(log, "upstream_broken", level=WARNING, reason="ended without its last event")
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
        """Pass on what comes, as it comes: events that wait together leave together."""
        attempt, meter, check = self._attempt, self._meter, self._attempt.live.check
        allowance = self._allowance
        read, send, onward = self._answer.read, self._out.send, self._onward()
        # Plain words inside a compressed stream would be noise.
        within = None if self._coding else KEEP_ALIVE_SECONDS
        while True:
            chunk = await read(within, onward)
            if chunk:
                if attempt.first_byte_at is None:
                    attempt.first_byte_at = self._clock.monotonic()
                # Metered first: what waits in front of a slow client was received all the same.
                meter.feed(chunk)
                # One of thousands that are cut together may not have been woken yet.
                check()
                # This is `output_bound`, but for figures said, which text has nothing to do with.
                if meter.text_bytes + meter.blocks * BLOCK_TOKENS >= allowance.heed_at:
                    await self._heed()
                    if attempt.deserted:
                        continue
                await send(chunk)
                # A client that went while it was waited for has not got it.
                self._told = (meter.finished or meter.failed) and not attempt.deserted
            elif chunk is None:
                # A comment is seen by no client, but only between two events is it one.
                if meter.between_events and not self._told:
                    await send(KEEP_ALIVE)
            else:
                return

    def _onward(self) -> Onward:
        """Return what passes a piece on while the pump sleeps: nearly all events of a stream.

        It does as the pump does. What needs more than that, it leaves to the pump: the first byte,
        a call that was cut, a client that has to be waited for or is gone, a hold that has to grow.
        """
        attempt, live, allowance = self._attempt, self._attempt.live, self._allowance
        meter, write = self._meter, self._out.write

        def onward(chunk: bytes) -> bool:
            if (
                live.reason is not None
                or attempt.first_byte_at is None
                or meter.text_bytes + meter.blocks * BLOCK_TOKENS >= allowance.heed_at
                or not write(chunk)
            ):
                return False
            meter.feed(chunk)
            self._told = meter.finished or meter.failed
            return True

        return onward

    async def _heed(self) -> None:
        """Do what the allowance, or a client that has gone, asks for; raises CallCut."""
        attempt, tariff = self._attempt, self._attempt.held.tariff
        if attempt.deserted:
            attempt.check_drain()
        elif tariff is not None:
            try:
                await self._allowance.heed(self._meter, tariff)
            except Unpaid as unpaid:
                attempt.live.cut(CutReason.STORE if unpaid.unknown else CutReason.BUDGET)
            attempt.live.check()

    async def _end(self, problem: Problem) -> None:
        """End tidily what came whole or told its own failure; else tell `problem`, or cut."""
        self._answer.close()
        self._attempt.answered()
        self._attempt.check_client()
        exchange = self._exchange
        self._attempt.outcome = self._attempt.outcome or Outcome.UPSTREAM_BROKEN
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                if not self._told and self._coding:
                    await exchange.abort()
                    return
                if not self._told:
                    endpoint = self._attempt.call.endpoint
                    said = self._provider.stream_error(problem, exchange.request_id, endpoint)
                    # The empty line closes an event that was cut off; elsewhere it says nothing.
                    await self._out.say(b"\n\n" + said)
                await self._out.finish()
        except (TimeoutError, ClientGone):
            await exchange.abort()


async def _collect(answer: Answer, meter: Meter, attempt: Attempt, clock: Clock) -> bytes:
    """Return a whole answer; raises Refusal for one that is not whole."""
    pieces: list[bytes] = []
    # Most answers of a kilobyte or two are here as soon as their head is.
    rest = answer.rest()
    try:
        while piece := (await answer.read() if rest is None else rest):
            if rest:
                rest = b""
            if attempt.first_byte_at is None:
                attempt.first_byte_at = clock.monotonic()
            meter.feed(piece)
            pieces.append(piece)
            if meter.fed > WHOLE_MAX:
                raise UpstreamBroken("answer is too large")
        meter.end()
        if meter.torn:
            raise UpstreamBroken("answer is not the JSON that it should be")
    except UpstreamBroken as broken:
        if not meter.torn:
            meter.end()
        attempt.outcome = Outcome.UPSTREAM_BROKEN
        event(log, "upstream_broken", level=WARNING, reason=str(broken))
        raise Refusal(_broken_problem(broken)) from None
    # An error under a 200 passes like any other, but nothing was completed.
    attempt.outcome = Outcome.UPSTREAM_BROKEN if meter.failed else Outcome.COMPLETE
    # One piece comes out as the same object: no copy of the common small answer.
    return b"".join(pieces)


def _meter(media: str, coding: str, attempt: Attempt) -> Meter:
    """Return the meter for the answer; raises Refusal for one that could not be metered."""
    try:
        call = attempt.call
        return meter_for(media, coding, billable=call.billable, dialect=call.dialect)
    except UnknownCoding as error:
        attempt.outcome = Outcome.UPSTREAM_BROKEN
        event(log, "upstream_broken", level=WARNING, reason=str(error))
        raise refuse(Code.UPSTREAM_BROKEN, "provider answered in an unknown form") from None


def _headers(reply: Reply, coding: str, provider: Provider, attempt: Attempt) -> HeaderPairs:
    """Return the headers for the client: what the provider module lets through, the coding, and
    what is left of the limits that a billable call counts towards.

    Framing is said anew for the bytes that go down (B47), so the two cannot disagree.
    """
    passed = provider.response_headers(reply.headers)
    kept = tuple([pair for pair in passed if pair[0] not in _FRAMING])
    if attempt.held.tariff is not None:
        kept += told(attempt.held.reserved.limits)
    return (*kept, (b"content-encoding", coding.encode("latin-1"))) if coding else kept


def _stream_headers(headers: HeaderPairs) -> HeaderPairs:
    """Add what keeps proxies in front of us from holding events back (case B28)."""
    names = {name for name, _ in headers}
    return (*headers, *(pair for pair in _STREAM_HEADERS if pair[0] not in names))


def _in_stream(reason: CutReason) -> Problem:
    if reason is CutReason.REVOKED:
        return Problem.of(Code.CALL_REVOKED)
    return cut_problem(reason)


def _broken_problem(broken: UpstreamBroken) -> Problem:
    return Problem.of(Code.UPSTREAM_UNREACHABLE if broken.stalled else Code.UPSTREAM_BROKEN)
