"""Refusals remembered for a moment, so that a sandbox that hammers costs the store nothing.

Place in the flow: the ledger's face asks here before a reservation joins the queue. What changes
meanwhile without this process's doing is seen after `REMEMBERED_SECONDS`.
"""

from __future__ import annotations

from typing import Final

from daypass_proxy.ledger import LedgerRefused, Reservation

REMEMBERED_SECONDS: Final = 0.25
MOST_REMEMBERED: Final = 4_096
"""Accounts with a refusal in memory at most."""

_Wanted = tuple[int, int, int, int]


class Refusals:
    """The last refusal of each leaf account that waiting would not have helped soon."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, _Wanted, LedgerRefused]] = {}

    def find(self, wanted: Reservation, monotonic: float) -> LedgerRefused | None:
        """Return the refusal of a call of the same account that wanted no more than this one."""
        known = self._known.get(wanted.account)
        if known is None:
            return None
        until, least, refused = known
        if monotonic >= until:
            del self._known[wanted.account]
            return None
        more = all(mine >= theirs for mine, theirs in zip(_wanted(wanted), least, strict=True))
        return refused if more else None

    def remember(self, wanted: Reservation, refused: LedgerRefused, monotonic: float) -> None:
        """Keep an answer of the ledger if it is one that the next call would get, too.

        Never for longer than it says itself: what comes back at a moment is there at that moment.
        """
        if refused.reason not in ("exhausted", "rate"):
            return
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        seconds = REMEMBERED_SECONDS
        if refused.retry_ms is not None:
            seconds = min(seconds, refused.retry_ms / 1000)
        until = monotonic + seconds
        self._known[wanted.account] = (until, _wanted(wanted), refused)

    def forget(self, account: str) -> None:
        """Ask again: something of this account was settled or given back."""
        self._known.pop(account, None)


def _wanted(call: Reservation) -> _Wanted:
    """Return what a call wants under any policy, each figure the larger the more it wants."""
    least, most = call.hold(call.output_least), call.hold(call.output_most)
    return least.nano, least.tokens, most.nano, most.tokens
