"""One upstream attempt of an admitted call: what became of it, and its settlement.

Place in the flow: `admit` makes it, `upstream` and `relay` note on it what happens, and whatever
happens it is settled once, when `admit` is left. Everything that may have been billed is booked,
as estimated where the provider did not say.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from daypass_core.claims import Claims
from daypass_core.problem import Code, Problem
from daypass_proxy.allowance import Allowance
from daypass_proxy.estimate import likely_input
from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.ledger import (
    MAX_NANO,
    Ledger,
    Outcome,
    Reservation,
    Reserved,
    Settlement,
    Usage,
)
from daypass_proxy.meter import Meter
from daypass_proxy.price import Tariff
from daypass_proxy.providers import Call
from daypass_proxy.streams import CutReason, LiveCall
from daypass_proxy.transport import Answer, UpstreamRequest
from daypass_proxy.upstream_time import UpstreamTime

_CUTS = {
    CutReason.REVOKED: (Outcome.CUT_REVOKED, Code.TOKEN_REVOKED),
    CutReason.TOKEN_ENDED: (Outcome.CUT_REVOKED, Code.TOKEN_EXPIRED),
    CutReason.STALE: (Outcome.CUT_STALE, Code.VIEW_STALE),
    CutReason.TOO_LONG: (Outcome.CUT_TOO_LONG, Code.CALL_TOO_LONG),
    CutReason.BUDGET: (Outcome.CUT_BUDGET, Code.BUDGET_EXHAUSTED),
    CutReason.STORE: (Outcome.CUT_BUDGET, Code.STORE_UNAVAILABLE),
    CutReason.CLIENT_GONE: (Outcome.CLIENT_GONE, Code.INTERNAL_ERROR),  # nobody is there to read it
    CutReason.SHUTDOWN: (Outcome.SHUTDOWN, Code.OVERLOADED),
}
_WORDS = {
    CutReason.BUDGET: "budget or token rate used up during the answer; it ends here, unfinished",
    CutReason.STORE: "store not reachable during the answer, so the rest cannot be paid for",
    CutReason.SHUTDOWN: "proxy is restarting; send the request again",
}


@dataclass(slots=True)
class Reply:
    """The provider's answer: `answer` is a success to relay, else `body` is the whole error."""

    status: int
    headers: HeaderPairs
    answer: Answer | None
    body: bytes = field(default=b"", repr=False)


class Held(msgspec.Struct, frozen=True):
    """A hold in the ledger: what was asked for and what was granted.

    `tariff` is None when the endpoint is not billed; its hold then is one of nothing.
    """

    reservation: Reservation
    reserved: Reserved
    tariff: Tariff | None


@dataclass(slots=True)
class Attempt:
    """The record of an attempt. `call` is what goes up."""

    call: Call
    claims: Claims
    live: LiveCall
    ledger: Ledger
    held: Held
    request: UpstreamRequest | None = None
    meter: Meter | None = None
    allowance: Allowance | None = None
    outcome: Outcome | None = None
    http_status: int | None = None
    upstream_request_id: str | None = None
    sent_at: float | None = None
    """When the request was first handed to the transport, in monotonic seconds."""
    first_byte_at: float | None = None
    """When the first byte of the answer's body was there, in monotonic seconds."""
    time: UpstreamTime | None = None
    """What the upstream's time is measured with, where it costs something."""
    settlement: Settlement | None = None
    deserted: bool = False
    """The client has gone, and its answer is read on so that the bill is known."""
    seen_before: int = 0
    """The output tokens that had passed when the client went."""
    _end_of_drain: asyncio.TimerHandle | None = None

    @property
    def sent(self) -> bool:
        """Whether a byte of the request may have left for the upstream."""
        return self.request is not None and self.request.sent

    @property
    def output_seen(self) -> int:
        """A low estimate of the output tokens that passed."""
        return 0 if self.meter is None else self.meter.output_seen

    def answered(self) -> None:
        """Take note that the last byte of the answer is here: the upstream's time is over."""
        if self.time is not None:
            self.time.over()

    def note_cut(self, reason: CutReason) -> None:
        """Note that the call was cut, unless it had ended in another way before."""
        if self.outcome is None:
            self.outcome = _CUTS[reason][0]

    def again(self, held: Held) -> None:
        """Begin the call's next attempt, under a hold of its own; the last one is settled."""
        self.held = held
        self.request = self.outcome = self.settlement = self.time = None
        self.http_status = self.upstream_request_id = None

    def allow(self) -> Allowance:
        """Return the allowance of an answer that begins to stream."""
        call, held = self.call, self.held
        allowance = self.allowance = Allowance(
            self.ledger,
            held.reservation,
            held.reserved,
            hidden=call.thinking_tokens or 0,
            shrinks=_is_one_pass(call) and self.time is None,
        )
        if self.deserted:
            allowance.stop()
        return allowance

    # -- the client leaves

    def client_gone(self) -> None:
        """Take note that nobody is there to read the answer.

        What may be billed is read on for as long as the account's terms say, so that the provider's
        own last figures are booked; then, or at once where nothing was sent, the call is cut.
        """
        terms, live = self.held.reserved.terms, self.live
        drains = terms.drain_ms and terms.drain_tokens and self.held.tariff is not None
        over = live.reason is not None or self.settlement is not None
        if over or not drains or not self.sent:
            live.client_gone()
            return
        self.deserted = True
        self.seen_before = self.output_seen
        if self.allowance is not None:
            self.allowance.stop()
        loop = asyncio.get_running_loop()
        self._end_of_drain = loop.call_later(terms.drain_ms / 1000, live.client_gone)

    def check_drain(self) -> None:
        """Raise CallCut when an answer without a client has been read on for long enough.

        That is: for as many tokens as the terms say, or as far as it was paid for in advance.
        """
        drained = self.output_seen - self.seen_before
        meter, allowance = self.meter, self.allowance
        unpaid = meter is not None and allowance is not None and not allowance.covers(meter)
        if drained > self.held.reserved.terms.drain_tokens or unpaid:
            self.check_client()

    def check_client(self) -> None:
        """Raise CallCut when the client has gone: there is nothing left to read for the bill."""
        if self.deserted:
            self.live.client_gone()
            self.live.check()

    # -- the bill

    def bill(self) -> Settlement:
        """Return what is to be booked as things stand."""
        usage, estimated = self._usage()
        cost = 0
        if self.held.tariff is not None:
            cost, guessed = self.held.tariff.cost(usage)
            estimated = estimated or guessed
            if self.time is not None:
                cost += self.held.tariff.time(self.time.milliseconds)
        outcome = self.outcome
        if outcome is None:
            outcome = Outcome.UPSTREAM_BROKEN if self.sent else Outcome.UNREACHABLE
        return Settlement(
            usage_id=self.held.reservation.usage_id,
            outcome=outcome,
            usage=usage,
            cost_nano=min(cost, MAX_NANO),
            estimated=estimated,
            http_status=self.http_status,
            upstream_request_id=self.upstream_request_id,
        )

    async def settle(self) -> None:
        """Book it; exactly once, and to the end even when the task is cancelled meanwhile.

        The ledger takes the bill over at once; whoever waits here only waits to see it written.
        """
        if self.settlement is not None:
            return
        if self._end_of_drain is not None:
            self._end_of_drain.cancel()
        if self.allowance is not None:
            self.allowance.stop()
        if self.time is not None:
            self.time.over()
        self.settlement = self.bill()
        await self.ledger.settle(self.settlement)

    def _usage(self) -> tuple[Usage, bool]:
        """Return the usage to book, and whether a part of it is our estimate.

        An answer that came whole is booked as said. A torn one (case B05) is booked at the last
        figures said, at least what passed of its text; without any figures, at the likely input.
        """
        tariff = self.held.tariff
        refused = self.http_status is not None and not 200 <= self.http_status < 300
        if tariff is None or not self.sent or refused:
            return Usage(), False
        meter = self.meter or Meter()
        said = meter.usage
        silent = said.input_tokens is None or said.output_tokens is None
        if meter.final and not meter.unreadable and not silent:
            return said, False
        seen = said.output_tokens
        if meter.output_seen:
            seen = max(seen or 0, meter.output_seen)
        if said.input_tokens is None:
            said = replace(said, input_tokens=likely_input(self.call, tariff))
        return replace(said, output_tokens=seen), True


def _is_one_pass(call: Call) -> bool:
    """Say whether the input of `call` is read once, by one model, and nothing comes beside it."""
    return len(call.models) == 1 and not (call.loops or call.beside or call.searches)


def cut_problem(reason: CutReason) -> Problem:
    """Return what a client whose call was cut is told."""
    return Problem.of(_CUTS[reason][1], _WORDS.get(reason, ""))
