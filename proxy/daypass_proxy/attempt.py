"""One upstream attempt of an admitted call: what became of it, and its settlement.

Place in the flow: `admit` makes it, `upstream` and `relay` note on it what happens, and whatever
happens it is settled once, when `admit` is left. Everything that may have been billed is booked,
as estimated where the provider did not say.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from daypass_core.claims import Claims
from daypass_core.problem import Code, Problem
from daypass_proxy.estimate import likely_input
from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.ledger import MAX_NANO, Ledger, Outcome, Settlement, Usage
from daypass_proxy.meter import Meter
from daypass_proxy.price import Price
from daypass_proxy.providers import Call
from daypass_proxy.streams import CutReason, LiveCall
from daypass_proxy.transport import Answer, UpstreamRequest

_CUTS = {
    CutReason.REVOKED: (Outcome.CUT_REVOKED, Code.TOKEN_REVOKED),
    CutReason.TOKEN_ENDED: (Outcome.CUT_REVOKED, Code.TOKEN_EXPIRED),
    CutReason.STALE: (Outcome.CUT_STALE, Code.VIEW_STALE),
    CutReason.TOO_LONG: (Outcome.CUT_TOO_LONG, Code.CALL_TOO_LONG),
    CutReason.CLIENT_GONE: (Outcome.CLIENT_GONE, Code.INTERNAL_ERROR),  # nobody is there to read it
    CutReason.SHUTDOWN: (Outcome.SHUTDOWN, Code.OVERLOADED),
}


@dataclass(frozen=True, slots=True)
class Reply:
    """The provider's answer: `answer` is a success to relay, else `body` is the whole error."""

    status: int
    headers: HeaderPairs
    answer: Answer | None
    body: bytes = field(default=b"", repr=False)


@dataclass(slots=True)
class Attempt:
    """The record of an attempt; `price` is None when the endpoint is not billed."""

    call: Call
    claims: Claims
    live: LiveCall
    usage_id: str
    ledger: Ledger
    price: Price | None
    request: UpstreamRequest | None = None
    meter: Meter | None = None
    outcome: Outcome | None = None
    http_status: int | None = None
    upstream_request_id: str | None = None
    sent_at: float | None = None
    """When the request was first handed to the transport, in monotonic seconds."""
    first_byte_at: float | None = None
    """When the first byte of the answer's body was there, in monotonic seconds."""
    settlement: Settlement | None = None

    @property
    def sent(self) -> bool:
        """Whether a byte of the request may have left for the upstream."""
        return self.request is not None and self.request.sent

    def note_cut(self, reason: CutReason) -> None:
        """Note that the call was cut, unless it had ended in another way before."""
        if self.outcome is None:
            self.outcome = _CUTS[reason][0]

    def bill(self) -> Settlement:
        """Return what is to be booked as things stand."""
        usage, estimated = self._usage()
        cost = 0 if self.price is None else min(self.price.cost(usage), MAX_NANO)
        outcome = self.outcome
        if outcome is None:
            outcome = Outcome.UPSTREAM_BROKEN if self.sent else Outcome.UNREACHABLE
        return Settlement(
            usage_id=self.usage_id,
            outcome=outcome,
            usage=usage,
            cost_nano=cost,
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
        self.settlement = self.bill()
        if self.price is not None:
            await self.ledger.settle(self.settlement)

    def _usage(self) -> tuple[Usage, bool]:
        """Return the usage to book, and whether a part of it is our estimate.

        An answer that came whole is booked as said. A torn one (case B05) is booked at the last
        figures said, at least what passed of its text; without any figures, at the likely input.
        """
        refused = self.http_status is not None and not 200 <= self.http_status < 300
        if self.price is None or not self.sent or refused:
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
            said = replace(said, input_tokens=likely_input(self.call, self.price))
        return replace(said, output_tokens=seen), True


def cut_problem(reason: CutReason) -> Problem:
    """Return what a client whose call was cut is told."""
    words = "proxy is restarting; send the request again" if reason is CutReason.SHUTDOWN else ""
    return Problem.of(_CUTS[reason][1], words)
