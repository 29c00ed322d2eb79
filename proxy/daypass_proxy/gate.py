"""The gate: how much one worker takes at once, and what is turned away beyond it.

Asked by `guard` before a byte of a body is read and before anything is checked or stored, fed by
`loop_lag`. For a request that is let in it costs one comparison: of the requests in flight with
`look_from`. Turned away are calls alone (`routes.is_call`), never a probe, a token or a figure.

The limit moves. While the event loop keeps up, it is the setting; while the loop is late for longer
than a moment, it follows what is in flight downwards, a few percent at each tick, and rises again
as slowly, so that what is let in is served and the rest is told at once instead of late. A count
does not flap: calls that wait and calls that last are in it, so it answers at once to what it does.
A loop that is late though this process is not busy waits for a core that others have: fewer calls
would hardly make it punctual, so it may be much later (ADR 28).
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from logging import WARNING

from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Problem
from daypass_proxy.providers import Rendered

log = get_logger(__name__)

LEAST = 32
"""Calls in flight that are let in however late the loop is: of fewer no overload is made."""
PATIENCE = 3
"""Ticks in a row that the loop has to be late: a single pause is nobody's overload."""
STARVED_SECONDS = 0.25
"""How late the loop may be at least while this process has less than a core to itself."""
BUSY = 0.8
"""Share of a core from which on the process itself is what makes its loop late."""
_WEIGHT = 0.3  # of the newest figure in the smoothed one
_SHRINK, _GROW, _GROW_FAST = 0.15, 0.01, 0.05  # parts of the limit, at one tick
_FULL_SPEED = 1.0  # times the bound beyond the bound, from which on it shrinks fastest
_RETRY_SECONDS = 2


class Shed(StrEnum):
    """Why a call was turned away here; a label of metrics."""

    CALLS = "calls"  # as many in flight as the setting allows
    LAG = "lag"  # the event loop does not keep up
    CONNECTIONS = "connections"  # as many connections as the setting allows


class Gate:
    """The gate of one worker. Times in seconds."""

    __slots__ = (
        "_busy", "_late_ticks", "_limit", "_smooth", "closing", "crowded", "lag_seconds",
        "look_again", "look_from", "most_calls", "most_connections", "requests", "shed", "words",
    )  # fmt: skip

    def __init__(
        self, most_calls: int = 8_000, most_connections: int = 10_000, lag_seconds: float = 0.0
    ) -> None:
        self.most_calls = most_calls
        self.most_connections = most_connections
        self.lag_seconds = lag_seconds
        self.requests: Collection[object] = ()
        """Those in flight; the server's own set, given by the first connection."""
        self.look_from = most_calls
        """Requests in flight from which on `turns_away` has to be asked; the hot path's bound."""
        self.look_again = 0.0
        """When connections may be looked through again for those that rest; the loop's time."""
        self.closing = False
        self.crowded = False
        self.shed = dict.fromkeys(Shed, 0)
        self.words: dict[bytes, Rendered] = {}
        """What is said to a call that is turned away, by its path."""
        self._limit = most_calls
        self._smooth = self._busy = 0.0
        self._late_ticks = 0

    @property
    def limit(self) -> int:
        """How many calls may be in flight now."""
        return self._limit

    def turns_away(self) -> Shed | None:
        """Say whether and why one more call is not let in."""
        if self.crowded:
            return Shed.CONNECTIONS
        if len(self.requests) < self._limit:
            return None
        return Shed.CALLS if self._limit == self.most_calls else Shed.LAG

    def beside(self) -> "Gate":
        """Return the gate for a connection beyond the limit: no call, and nothing after one."""
        found = Gate(self.most_calls, self.most_connections)
        found.requests, found.shed, found.crowded = self.requests, self.shed, True
        found.close()
        return found

    def close(self) -> None:
        """Begin the end: each connection is closed after the answer to its next request."""
        self.closing = True
        self.look_from = 0

    def heed(self, lag: float, busy: float) -> None:
        """Take note how late the loop is. Call at each tick of the clock that measures it.

        `busy` is how many cores the process had since the last tick.
        """
        if not self.lag_seconds:
            return
        self._smooth += (lag - self._smooth) * _WEIGHT
        self._busy += (busy - self._busy) * _WEIGHT
        bound = self.lag_seconds
        if self._busy < BUSY:
            bound = max(bound, STARVED_SECONDS)
        over = self._smooth / bound
        if over <= 1.0 or lag * 2 < bound:
            # Or it was a pause that is over, of which only the smoothed figure still tells.
            self._late_ticks = 0
            if self._limit < self.most_calls:
                share = _GROW_FAST if over < 0.5 else _GROW
                self._move(int(self._limit * (1.0 + share)) + 1)
            return
        self._late_ticks += 1
        # With so few in flight it is not they that make the loop late.
        if self._late_ticks >= PATIENCE and len(self.requests) > LEAST:
            share = _SHRINK * min(over - 1.0, _FULL_SPEED) / _FULL_SPEED
            self._move(max(int(min(self._limit, len(self.requests)) * (1.0 - share)), LEAST))

    def _move(self, limit: int) -> None:
        limit = min(limit, self.most_calls)
        if (limit == self.most_calls) is not (self._limit == self.most_calls):
            shed = dict(self.shed)
            if limit < self.most_calls:
                event(log, "calls_limited", level=WARNING, in_flight=len(self.requests), shed=shed)
            else:
                event(log, "calls_not_limited", in_flight=len(self.requests), shed=shed)
        self._limit = limit
        if not self.closing:
            self.look_from = limit


def busy() -> Problem:
    """Return what is said to whom is turned away."""
    return Problem.of(
        Code.OVERLOADED, "too many calls at once; try again", retry_after=_RETRY_SECONDS
    )


def counts(gate: Gate) -> Mapping[tuple[str, ...], float]:
    """Return how many calls were turned away so far, by reason, for the metrics."""
    return {(reason.value,): float(count) for reason, count in gate.shed.items()}
