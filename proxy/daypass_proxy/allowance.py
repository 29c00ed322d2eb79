"""The allowance: how far a streamed answer may go on what is held, and how its hold moves with it.

Place in the flow: `reserve` makes it with the hold, `relay` compares `heed_at` with the meter for
each piece of the answer and comes here when it is reached. A stream of policy `cutoff` begins with
little held, if what it uses shows. More is asked for while the relay goes on, some time before what
is held runs out; only where it has run out does the relay wait, and an answer that can get no more
is cut.

What counts is what the answer has used *at most*: each byte of its text may be a token, and
thinking is paid for in advance, since little of it is seen. So no answer gets ahead of its hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from msgspec.structs import replace

from daypass_proxy.ledger import (
    Hold,
    Ledger,
    LedgerUnavailable,
    LimitState,
    Policy,
    Reservation,
    Reserved,
)
from daypass_proxy.limits import TOKEN_LIMITS, USD_LIMITS
from daypass_proxy.meter import Meter
from daypass_proxy.price import Tariff

NEVER = 1 << 62
"""Further than any answer goes."""
FIRST_SLICE = 2_048
LARGEST_SLICE = 8_192
SMALLEST_SLICE = 256
"""A slice that is refused is asked for in quarters, down to this or to what is needed."""
WORTH = 100
"""A part of a hold is given back early when it is at least 1/100 of what is left of a limit."""


class Unpaid(Exception):
    """No more can be held for the answer; `unknown` when the ledger could not say."""

    def __init__(self, *, unknown: bool) -> None:
        super().__init__("no more can be held for this answer")
        self.unknown = unknown


class Allowance:
    """The hold of one attempt while its answer streams.

    `heed_at` is how many tokens, at most, of text and blocks have passed when the relay has to
    come here; `granted` and `refused` count the extensions.
    """

    __slots__ = (
        "_ask_at", "_asking", "_covered", "_held", "_hidden", "_ledger", "_reservation",
        "_shrinks", "_slice", "_states", "_stopped", "_unknown", "granted", "heed_at", "refused",
    )  # fmt: skip

    def __init__(
        self,
        ledger: Ledger,
        reservation: Reservation,
        reserved: Reserved,
        *,
        hidden: int = 0,
        shrinks: bool = False,
    ) -> None:
        """`hidden` are the output tokens that may be used without being seen: for thinking.

        `shrinks` says that the first input figures of the answer are the last word on what the
        base is held for, so that the rest of it can be given back then.
        """
        self._ledger = ledger
        self._reservation = reservation
        self._states = reserved.limits
        self._hidden = hidden
        self._held = reserved.output_tokens
        self._covered = self._ask_at = NEVER
        if reservation.grows and reserved.terms.policy is Policy.CUTOFF:
            self._cover(self._held - hidden)
        self._slice = FIRST_SLICE
        self._asking: asyncio.Task[int] | None = None
        self._unknown = self._stopped = False
        self._shrinks = shrinks and is_worth(reservation.base, self._states)
        self.heed_at = 0 if self._shrinks else self._ask_at
        self.granted = self.refused = 0

    def covers(self, meter: Meter) -> bool:
        """Say whether what the answer has used so far, at most, is held."""
        return meter.output_bound <= self._covered

    async def heed(self, meter: Meter, tariff: Tariff) -> None:
        """Give back, ask for more, wait for it: whatever is due. What came is paid for then.

        Raises Unpaid when it cannot be.
        """
        if self._shrinks:
            self._shrink(meter, tariff)
        used = meter.output_bound
        # Once the last figures are said nothing more will be used, whatever its text looks like.
        while used >= self._ask_at and not (meter.final or self._stopped):
            ahead = self._asking is not None
            asking = self._asking or self._ask(used)
            if used <= self._covered:
                self._heed_at(self._covered + 1)
                return
            before = self._covered
            await asyncio.wait((asking,))
            if not ahead and self._covered == before:
                raise Unpaid(unknown=self._unknown)
        self._heed_at(NEVER if meter.final else self._ask_at)

    def stop(self) -> None:
        """Ask for nothing more, and have every piece of the answer brought here."""
        self._stopped = True
        self.heed_at = 0
        if self._asking is not None:
            self._asking.cancel()

    # -- growing

    def _ask(self, used: int) -> asyncio.Task[int]:
        """Begin to ask for the next slice, at least for what is used and not held."""
        room = self._reservation.output_most - self._held
        need = max(used - self._covered, 0)
        size = min(max(self._slice, need + self._slice // 4), room)
        least = min(max(need, SMALLEST_SLICE), room)
        self._asking = task = asyncio.ensure_future(self._extend(size, least))
        task.add_done_callback(self._answered)
        return task

    async def _extend(self, size: int, least: int) -> int:
        """Return how many output tokens more are held: `size`, or as many as fit, or none."""
        usage_id, nano = self._reservation.usage_id, self._reservation.output_nano
        while not await self._ledger.extend(usage_id, Hold(size * nano, size)):
            self.refused += 1
            if size <= least:
                return 0
            size = max(size // 4, least)
        self.granted += 1
        return size

    def _answered(self, task: asyncio.Task[int]) -> None:
        self._asking = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, LedgerUnavailable):
            raise error
        self._unknown = error is not None
        got = 0 if error is not None else task.result()
        if got:
            self._held += got
            self._cover(self._covered + got, got)
            self._slice = min(self._slice * 2, LARGEST_SLICE)
        else:
            # Others may give back what is missing: it is asked for once more when it is needed.
            self._ask_at = self._covered + 1
        self._heed_at(self._ask_at)

    def _cover(self, tokens: int, latest: int | None = None) -> None:
        """Take note of how far the answer may go; the next slice is due a quarter before that."""
        if self._held >= self._reservation.output_most:
            self._covered = self._ask_at = NEVER
            return
        self._covered = max(tokens, 0)
        self._ask_at = max(self._covered - (self._covered if latest is None else latest) // 4, 1)

    def _heed_at(self, used: int) -> None:
        if not self._stopped:
            self.heed_at = 0 if self._shrinks else used

    # -- shrinking

    def _shrink(self, meter: Meter, tariff: Tariff) -> None:
        """Give back what was held for more input than there was, once the provider has said it."""
        said = meter.usage
        if said.input_tokens is None:
            self._shrinks = meter.output_bound == 0  # where text has come, it was not said
            return
        self._shrinks = False
        said = replace(said, output_tokens=None, thinking_tokens=None)
        base = self._reservation.base
        part = Hold(max(base.nano - tariff.cost(said).nano, 0), max(base.tokens - said.tokens, 0))
        if is_worth(part, self._states):
            self._ledger.release(self._reservation.usage_id, part)


def is_worth(part: Hold, states: Iterable[LimitState]) -> bool:
    """Say whether giving `part` back early makes a difference to one of the limits."""
    for state in states:
        if state.limit in USD_LIMITS:
            amount = part.nano
        elif state.limit in TOKEN_LIMITS:
            amount = part.tokens
        else:
            continue
        if amount and amount * WORTH >= state.left:
            return True
    return False
