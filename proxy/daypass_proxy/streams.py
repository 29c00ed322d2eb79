"""The live-call registry: every admitted call that is open, and the way to cut it.

Place in the flow: `admit` enters a call here after its reservation and before the upstream is
opened. A revocation, a stale view, the longest-call timer, a client that hung up or a shutdown
cuts it; `relay` sees the cut as `CallCut` and ends the exchange in the provider's words.
Expiry of the token alone never cuts a call (case B17): it is checked when a call is admitted.

All of this runs on the event loop; other threads post to the loop first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from daypass_core.claims import Claims
from daypass_core.revocation import RevocationSet, Verdict

if TYPE_CHECKING:
    from types import TracebackType


class CutReason(StrEnum):
    """Why an open call was ended from our side."""

    REVOKED = "revoked"
    TOKEN_ENDED = "token_ended"  # noqa: S105 - a word, not a password
    STALE = "stale"
    TOO_LONG = "too_long"
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
    """One open call. The first reason to cut it stays the reason."""

    __slots__ = ("_inside", "call_id", "claims", "reason")

    def __init__(self, call_id: str, claims: Claims) -> None:
        self.call_id = call_id
        self.claims = claims
        self.reason: CutReason | None = None
        self._inside: Interruptible | None = None

    def cut(self, reason: CutReason) -> bool:
        """End the call; False when it was cut before. Returns at once."""
        if self.reason is not None:
            return False
        self.reason = reason
        if self._inside is not None:
            self._inside.interrupt()
        return True

    @contextmanager
    def cut_when(self, happening: Coroutine[None, None, None], reason: CutReason) -> Iterator[None]:
        """Cut the call if `happening` ends while the block runs; it is cancelled after that."""
        watcher = asyncio.create_task(happening, name=f"cut when {reason}")
        watcher.add_done_callback(lambda ended: ended.cancelled() or self.cut(reason))
        try:
            yield
        finally:
            watcher.cancel()

    def interruptible(self) -> Interruptible:
        """Return a block to await in: a cut while inside surfaces as CallCut out of the block.

        Entering it after the cut raises CallCut at once. One block at a time per call.
        """
        return Interruptible(self)


class Interruptible:
    """The block of `LiveCall.interruptible()`; works as asyncio.timeout does.

    The cut cancels the waiting task once, and the exit turns exactly that cancellation into
    CallCut. A cancellation from elsewhere (the server stopping) passes through untouched, also
    when both arrive together.
    """

    __slots__ = ("_call", "_cancelling", "_interrupted", "_task")

    def __init__(self, call: LiveCall) -> None:
        self._call = call
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._interrupted = False

    async def __aenter__(self) -> None:
        call = self._call
        if call.reason is not None:
            raise CallCut(call.reason)
        if call._inside is not None:
            raise RuntimeError("a call is interruptible in one place at a time")
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("interruptible() must be entered inside a task")
        self._task = task
        self._cancelling = task.cancelling()
        call._inside = self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        call = self._call
        call._inside = None
        if not self._interrupted:
            return
        assert self._task is not None
        assert call.reason is not None
        others = self._task.uncancel() > self._cancelling
        if kind is asyncio.CancelledError and not others:
            raise CallCut(call.reason) from None

    def interrupt(self) -> None:
        """Wake the task inside. A task that cuts itself is awake: it meets the cut on re-entry."""
        assert self._task is not None
        if self._task is asyncio.current_task():
            return
        self._interrupted = True
        self._task.cancel()


class LiveCalls:
    """All open calls of this process."""

    def __init__(self) -> None:
        self._calls: dict[str, LiveCall] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def enter(
        self, call_id: str, claims: Claims, *, longest: float | None = None
    ) -> Iterator[LiveCall]:
        """Register a call for as long as the block runs.

        `longest` is in seconds; a call still open then is cut with TOO_LONG. A call id is used
        once at a time, else ValueError.
        """
        if call_id in self._calls:
            raise ValueError(f"call {call_id} is registered already")
        call = LiveCall(call_id, claims)
        self._calls[call_id] = call
        timer = None
        if longest is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(longest, call.cut, CutReason.TOO_LONG)
        try:
            yield call
        finally:
            if timer is not None:
                timer.cancel()
            del self._calls[call_id]

    def cut_where(self, matches: Callable[[Claims], bool], reason: CutReason) -> int:
        """Cut every open call whose claims match; returns how many were cut now."""
        return sum(call.cut(reason) for call in list(self._calls.values()) if matches(call.claims))

    def cut_all(self, reason: CutReason) -> int:
        """Cut every open call; returns how many were cut now."""
        return self.cut_where(lambda _claims: True, reason)

    def cut_stale(self) -> int:
        """Cut every open call because revocations are not known any more."""
        return self.cut_all(CutReason.STALE)

    def cut_revoked(self, revocations: RevocationSet) -> int:
        """Cut every open call that the set speaks against; returns how many were cut now."""
        count = 0
        for call in list(self._calls.values()):
            verdict = revocations.verdict(call.claims)
            if verdict is not None:
                count += call.cut(_CUT_BY_VERDICT[verdict])
        return count
