"""The live-call registry: every admitted call that is open, and the way to cut it.

Place in the flow: `admit` enters a call here after its reservation and before the upstream is
opened. A revocation, a stale view, the longest-call timer, a budget that is used up, a client that
hung up or a shutdown cuts it; `relay` sees the cut as `CallCut` and ends the exchange in the
provider's words.
Expiry of the token alone never cuts a call (case B17): it is checked when a call is admitted.

All of this runs on the event loop; other threads post to the loop first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from daypass_core.claims import Claims
from daypass_core.revocation import RevocationSet, Verdict

if TYPE_CHECKING:
    from types import TracebackType


CUT_AT_ONCE = 50
"""Calls that are ended in one turn of the loop: some 10 ms of work."""


class CutReason(StrEnum):
    """Why an open call was ended from our side."""

    REVOKED = "revoked"
    TOKEN_ENDED = "token_ended"  # noqa: S105 - a word, not a password
    STALE = "stale"
    TOO_LONG = "too_long"
    BUDGET = "budget"  # no more can be held for it
    STORE = "store"  # whether more can be held is not known
    CLIENT_GONE = "client_gone"
    SHUTDOWN = "shutdown"


_CUT_BY_VERDICT = {
    Verdict.REVOKED: CutReason.REVOKED,
    Verdict.TOKEN_ENDED: CutReason.TOKEN_ENDED,
}


class CallCut(Exception):
    """The call was cut; comes out of `LiveCall.interruptible()`."""

    def __init__(self, reason: CutReason) -> None:
        super().__init__(f"call was cut: {reason}")
        self.reason = reason


class LiveCall:
    """One open call. The first reason to cut it stays the reason.

    Also the block of `interruptible()`, which works as asyncio.timeout does: a cut cancels the
    task that waits inside once, and the exit turns exactly that cancellation into CallCut. A
    cancellation from elsewhere (the server stopping) passes through untouched, also when both
    arrive together.
    """

    __slots__ = (
        "_cancelling", "_interrupted", "_server", "_task", "call_id", "claims", "due", "reason",
    )  # fmt: skip

    def __init__(self, call_id: str, claims: Claims, due: float | None = None) -> None:
        """`due` is when the call has run too long, in the loop's time."""
        self.call_id = call_id
        self.claims = claims
        self.due = due
        self.reason: CutReason | None = None
        self._task: asyncio.Task[object] | None = None
        self._server: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._interrupted = False

    def cut(self, reason: CutReason) -> bool:
        """End the call; False when it was cut before. Returns at once."""
        if self.reason is not None:
            return False
        self.reason = reason
        self.interrupt()
        return True

    def client_gone(self) -> None:
        """End the call because nobody is there to read its answer."""
        self.cut(CutReason.CLIENT_GONE)

    def check(self) -> None:
        """Raise CallCut if the call was cut, though its task may not have been woken yet."""
        if self.reason is not None:
            raise CallCut(self.reason)

    def interruptible(self) -> LiveCall:
        """Return a block to await in: a cut while inside surfaces as CallCut out of the block.

        Entering it after the cut raises CallCut at once. One block at a time per call.
        """
        return self

    def __enter__(self) -> None:
        self.check()
        if self._task is not None:
            raise RuntimeError("a call is interruptible in one place at a time")
        task = self._server
        if task is None:
            # Once: a call is served by one task, and to ask for it takes a call of the system.
            task = self._server = asyncio.current_task()
            if task is None:
                raise RuntimeError("interruptible() must be entered inside a task")
        self._task = task
        self._cancelling = task.cancelling()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if not self._interrupted:
            return
        self._interrupted = False
        assert task is not None
        assert self.reason is not None
        others = task.uncancel() > self._cancelling
        if kind is asyncio.CancelledError and not others:
            raise CallCut(self.reason) from None

    def interrupt(self) -> None:
        """Wake the task inside a call that was cut; does nothing while none is inside.

        A task that cuts itself is awake: it meets the cut when it enters the next block.
        """
        task = self._task
        if task is None or self._interrupted or task is asyncio.current_task():
            return
        self._interrupted = True
        task.cancel()


class LiveCalls:
    """All open calls of this process, oldest first."""

    def __init__(self, longest: float | None = None) -> None:
        """`longest` is in seconds; a call still open then is cut with TOO_LONG."""
        self._longest = longest
        self._calls: dict[str, LiveCall] = {}
        self._ended: CutReason | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def enter(self, call_id: str, claims: Claims) -> LiveCall:
        """Register a call, until `leave`. An id is used once at a time, else ValueError."""
        if call_id in self._calls:
            raise ValueError(f"call {call_id} is registered already")
        due = None
        if self._longest is not None:
            loop = asyncio.get_running_loop()
            due = loop.time() + self._longest
            if self._timer is None:
                self._timer = loop.call_at(due, self._cut_long_ones)
        call = self._calls[call_id] = LiveCall(call_id, claims, due)
        call.reason = self._ended
        return call

    def leave(self, call: LiveCall) -> None:
        """Forget a call that is over. The timer stays: it looks for itself who is still there."""
        del self._calls[call.call_id]

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cut_where(self, matches: Callable[[Claims], bool], reason: CutReason) -> int:
        """Cut every open call whose claims match; returns how many were cut now."""
        return self._cut([(call, reason) for call in self._calls.values() if matches(call.claims)])

    def cut_all(self, reason: CutReason) -> int:
        """Cut every open call; returns how many were cut now."""
        return self.cut_where(lambda _claims: True, reason)

    def end(self, reason: CutReason) -> None:
        """Cut every open call, and from now on each one as it enters."""
        self._ended = reason
        self.cut_all(reason)

    def cut_stale(self) -> int:
        """Cut every open call because revocations are not known any more."""
        return self.cut_all(CutReason.STALE)

    def cut_revoked(self, revocations: RevocationSet) -> int:
        """Cut every open call that the set speaks against; returns how many were cut now."""
        return self._cut(
            [
                (call, _CUT_BY_VERDICT[verdict])
                for call in self._calls.values()
                if (verdict := revocations.verdict(call.claims)) is not None
            ]
        )

    def _cut_long_ones(self) -> None:
        """Cut what is due, and set the timer for the oldest call that is not."""
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        found = []
        # All calls may take equally long, so the first that is not due ends the search.
        for call in self._calls.values():
            if call.due is not None and call.due > now:
                self._timer = loop.call_at(call.due, self._cut_long_ones)
                break
            found.append((call, CutReason.TOO_LONG))
        self._cut(found)

    def _cut(self, found: list[tuple[LiveCall, CutReason]]) -> int:
        """Cut these calls: all are marked now and send nothing more; returns how many."""
        marked = []
        for call, reason in found:
            if call.reason is None:
                call.reason = reason
                marked.append(call)
        self._interrupt(marked)
        return len(marked)

    def _interrupt(self, calls: list[LiveCall], start: int = 0) -> None:
        """Wake the tasks of these calls, a few in each turn of the loop.

        To end a call takes its last words and its settlement. Thousands at once, as after the
        revocation of a tenant, would keep the loop from everybody else until the last was done.
        """
        end = start + CUT_AT_ONCE
        for call in calls[start:end]:
            call.interrupt()
        if end < len(calls):
            asyncio.get_running_loop().call_soon(self._interrupt, calls, end)
