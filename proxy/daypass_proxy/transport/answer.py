"""An answer of the pool: what `Transport.send` hands out, read by one caller at a time.

It is also what the parser fills, so that a byte goes from the socket to its reader through one
list. A connection serves one answer; the answer gives it back when the body is read to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from daypass_proxy.transport import Onward, TransportError, UpstreamBroken, UpstreamUnreachable
from daypass_proxy.transport.response import Response

BUFFERED_MAX = 64 * 1024
# The clock of the loop ticks in milliseconds.
_TICK = 0.001


class Line(Protocol):
    """What an answer needs of the connection it comes over."""

    def wait(self, due: float) -> Awaitable[None]:
        """Await what this returns: something may have changed, or it is the loop's time `due`."""
        ...

    def drained(self) -> None:
        """Everything that had arrived was taken."""
        ...

    def release(self) -> None:
        """The answer is complete."""
        ...

    def abort(self) -> None:
        """The answer is not wanted any more."""
        ...


class PoolAnswer(Response):
    """An `Answer` over a pooled connection."""

    __slots__ = (
        "_failure", "_heard", "_idle", "_limit", "_line", "_loop", "_not_http", "_onward", "_raised"
    )  # fmt: skip

    def __init__(self, line: Line, loop: asyncio.AbstractEventLoop, idle: float) -> None:
        """`idle` is how many seconds a reader waits for a byte."""
        Response.__init__(self)
        self._line: Line | None = line
        self._loop = loop
        self._idle = idle
        self._limit = 0.0
        """When the reader that waits now will have waited too long; 0 while nobody waits."""
        self._onward: Onward | None = None
        self._heard = 0.0
        """When `onward` last took something."""
        self._raised: Exception | None = None
        """What `onward` raised; its reader has to hear of it."""
        self._failure: str | None = None
        self._not_http = False

    def fail(self, failure: str, *, not_http: bool = False) -> None:
        """Note that no more will come; a complete answer stays complete."""
        if not self.complete and self._failure is None:
            self._failure, self._not_http = failure, not_http
        self.forget()

    async def begun(self, seconds: float) -> None:
        """Wait for the head; raises UpstreamUnreachable and UpstreamBroken."""
        loop, line = self._loop, self._line
        assert line is not None
        due = loop.time() + seconds
        try:
            while not self.status:
                if self._failure is not None:
                    raise self._error(self._failure)
                if loop.time() >= due - _TICK:
                    raise UpstreamUnreachable("no answer in time")
                await line.wait(due)
        except BaseException:
            self.close()
            raise

    async def read(self, within: float | None = None, onward: Onward | None = None) -> bytes | None:
        """Return the next bytes, b"" at the end, None after `within`; raises UpstreamBroken."""
        if self.unread:
            return self._take()
        began = 0.0
        self._onward = onward
        try:
            while not self.complete:
                line = self._line
                if self._failure is not None or line is None:
                    self.close()
                    raise self._error(self._failure or "answer was let go of")
                now = self._loop.time()
                self._limit = limit = self._limit or now + self._idle
                if now >= limit - _TICK:
                    self.fail("upstream fell silent")
                    self.close()
                    raise UpstreamBroken("upstream fell silent", stalled=True)
                due = limit
                if within is not None:
                    began = max(began or now, self._heard)
                    due = min(began + within, limit)
                    if now >= due - _TICK:
                        return None
                await line.wait(due)
                if self._raised is not None:
                    self.close()
                    raise self._raised
                if self.unread:
                    return self._take()
        finally:
            self._onward = None
        self.close()
        return b""

    def rest(self) -> bytes | None:
        """Return the unread rest of a body that is here to its end, else None."""
        if not self.complete or self._line is None:
            return None
        return self._take()

    def handed_on(self) -> bool:
        """Offer what just came to `onward`; True when its reader can sleep on.

        For most events of a stream that saves the turn of the loop in which a task would be woken
        to do the same. An end, a failure and what `onward` leaves are for the reader.
        """
        onward = self._onward
        if onward is None or self.complete or self._failure is not None:
            return False
        if not self.unread:
            return True  # framing
        pieces = self.pieces
        if len(pieces) > 1:
            pieces[:] = [b"".join(pieces)]
        try:
            if not onward(pieces[0]):
                return False
        except Exception as error:
            # Half done perhaps, so nobody may read it again.
            self._onward, self._raised = None, error
            pieces.clear()
            self.unread = 0
            return False
        pieces.clear()
        self.unread = 0
        self._heard = now = self._loop.time()
        self._limit = now + self._idle
        return True

    def buffered(self) -> bytes:
        """Return what has arrived and was not read yet, at most 64 KiB."""
        if not self.unread:
            return b""
        data = b"".join(self.pieces)
        self.pieces = [data[BUFFERED_MAX:]] if len(data) > BUFFERED_MAX else []
        self.unread = max(0, len(data) - BUFFERED_MAX)
        return data[:BUFFERED_MAX]

    def close(self) -> None:
        """Give the connection back after a complete answer, drop it otherwise. Idempotent."""
        line, self._line = self._line, None
        if line is None:
            return
        self.forget()
        if self.complete:
            line.release()
        else:
            line.abort()

    def _take(self) -> bytes:
        pieces = self.pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.unread = 0
        self._limit = 0.0
        if self.complete:
            self.close()
        elif self._line is not None:
            self._line.drained()
        return data

    def _error(self, failure: str) -> TransportError:
        if self.status or self._not_http:
            return UpstreamBroken(failure)
        return UpstreamUnreachable(failure)
