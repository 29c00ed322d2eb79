"""One connection to an upstream: bytes up in slices, bytes down into the answer, one alarm.

There is no task and no timer per read: whoever waits sets a time, and the connection keeps one
alarm that is moved only when it would ring too late (for an event a microsecond, not twenty).
Both directions are held back: the body goes up as fast as the socket takes it, the socket is read
as fast as the answer is taken.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import ssl
import termios
from collections.abc import Awaitable
from typing import Protocol, cast

from daypass_proxy.transport.answer import PoolAnswer
from daypass_proxy.transport.response import NotHttp

KEEP_ALIVE_SECONDS = 30
"""An idle connection kept longer than the server keeps it is one call lost (case B44)."""
# Let go a second before the server does: its goodbye takes its time to get here.
_MARGIN_SECONDS = 1
UNREAD_MAX = 64 * 1024
# Of a body that is written as it lies there; each write wakes the other end.
_SLICE = 512 * 1024
# Under TLS what is written is copied, and the loop has to wait for it to be encrypted.
_SLICE_TLS = 256 * 1024
_SMALL = 16 * 1024  # copying so much is cheaper than a second write
_TICK = 0.001
_NONE_HELD = bytes(4)  # an int of C
_INPUT = select.POLLIN | select.POLLPRI | select.POLLRDHUP


class Owner(Protocol):
    """Who holds connections."""

    def keep(self, connection: Connection) -> bool:
        """Keep an idle connection, or say that there are enough."""
        ...

    def gone(self, connection: Connection) -> None:
        """A connection serves no more; may be said twice."""
        ...


class Connection(asyncio.Protocol):
    """A connection: idle, or busy with one answer."""

    __slots__ = (
        "_alarm",
        "_alarm_at",
        "_answer",
        "_body",
        "_due",
        "_loop",
        "_owner",
        "_poll",
        "_read_paused",
        "_slice",
        "_tls",
        "_transport",
        "_waiter",
        "_write_paused",
        "lost",
        "shelf",
    )

    def __init__(
        self, owner: Owner, shelf: list[Connection], loop: asyncio.AbstractEventLoop
    ) -> None:
        """`shelf` is the owner's place for it when idle."""
        self.shelf = shelf
        self.lost = False
        """The transport under it has ended, and with it everything here."""
        self._owner = owner
        self._loop = loop
        self._answer: PoolAnswer | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._due = 0.0
        self._body: memoryview | None = None
        self._read_paused = False
        self._write_paused = False
        self._poll: select.poll | None = None

    # What the pool and the answer call.

    def usable(self) -> bool:
        """Say whether an idle connection is open and silent, asking the system itself.

        The server's close may lie in the socket while the loop is busy elsewhere. Found now, not
        a byte was sent and a fresh connection takes the call; found later, the call is lost.
        """
        if self._transport.is_closing() or self._loop.time() >= self._due:
            return False
        return self._poll is None or not self._poll.poll(0)

    @property
    def closing(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._transport.is_closing()

    def begin(self, answer: PoolAnswer, head: bytes, body: bytes) -> None:
        """Start to send a request whose answer goes into `answer`."""
        self._answer = answer
        if len(body) <= _SMALL:
            self._transport.write(head + body if body else head)
            return
        view, size = memoryview(body), self._slice
        self._transport.writelines((head, view[:size]))
        self._body = view[size:] if size < len(body) else None
        self._send_more()

    def wait(self, due: float) -> Awaitable[None]:
        """Await what this returns: something may have changed, or it is the loop's time `due`."""
        waiter = self._waiter = self._loop.create_future()
        self._due = due
        if self._alarm is None or self._alarm_at > due:
            self._arm(due)
        return waiter

    def drained(self) -> None:
        """Read on, now that everything was taken."""
        if self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()

    def release(self) -> None:
        """Become idle after a complete answer, or end when that would not be clean."""
        answer, self._answer = self._answer, None
        seconds = self._clean_for(answer) if answer is not None else 0
        if seconds <= 0 or not self._owner.keep(self):
            self.abort()
            return
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket").fileno(), _INPUT)
        self._due = self._loop.time() + seconds
        if self._alarm is None or self._alarm_at > self._due:
            self._arm(self._due)

    def abort(self) -> None:
        """End at once; what was not sent yet is dropped."""
        self._body = None
        self._transport.abort()
        self._owner.gone(self)

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport, over which TLS has been agreed already."""
        self._transport = cast(asyncio.Transport, transport)
        self._tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self._slice = _SLICE if self._tls is None else _SLICE_TLS

    def data_received(self, data: bytes) -> None:
        """Parse; an upstream that speaks without being asked is not spoken to again."""
        answer = self._answer
        if answer is None:
            self.abort()
            return
        try:
            answer.feed(data)
        except NotHttp:
            answer.reusable = False
            answer.fail("answer is not HTTP", not_http=True)
            self._transport.abort()
        if self._body is not None and answer.status >= 300:
            # Refused before it was read: the rest of the body is of no use to anybody.
            self._body = None
            answer.reusable = False
        if answer.handed_on():
            if self._read_paused:
                self.drained()
            return
        # What comes behind a whole answer has to be seen, see `_clean_for`.
        full = answer.unread > UNREAD_MAX and not answer.complete
        if full and not self._read_paused and not self.closing:
            self._read_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """End an answer that only this can end; None closes our side, too."""
        answer = self._answer
        if answer is None:
            self.abort()
            return
        if answer.status and answer.until_end and self._ended_cleanly():
            answer.complete = True
        answer.fail("connection ended early")
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        self.lost = True
        self._body = None
        self._poll = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._answer is not None:
            self._answer.fail("connection ended early" if exc is None else type(exc).__name__)
        self._owner.gone(self)
        self._wake()

    def pause_writing(self) -> None:
        """Hold the body back."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """Send more of the body."""
        self._write_paused = False
        self._send_more()

    # Inside.

    def _send_more(self) -> None:
        body, transport = self._body, self._transport
        if body is None:
            return
        sent, size, most = 0, len(body), self._slice
        while sent < size and not self._write_paused and not transport.is_closing():
            transport.write(body[sent : sent + most])
            sent += most
        # Empty or not, the view is of the caller's bytes: nothing was copied.
        self._body = body[sent:] if sent < size else None

    def _clean_for(self, answer: PoolAnswer) -> int:
        """Return how many seconds it may be kept, 0 when something is under way on it."""
        transport = self._transport
        if not answer.reusable or self._body is not None or transport.is_closing():
            return 0
        # While reading is paused, bytes that nobody asked for wait out of sight: TLS takes them
        # from the socket into a buffer of its own. The next call would read them as its answer.
        if self._read_paused:
            return 0
        # The next request would stand behind a body that its reader may never take.
        if transport.get_write_buffer_size() or (self._tls is not None and _unsent(transport)):
            return 0
        if answer.keep_seconds is None:
            return KEEP_ALIVE_SECONDS
        return min(KEEP_ALIVE_SECONDS, answer.keep_seconds - _MARGIN_SECONDS)

    def _ended_cleanly(self) -> bool:
        """Say whether the end is the server's word: under TLS anybody can cut a connection.

        Without its close_notify a body that ends with the connection may have been cut short
        (RFC 8446 §6.1). A read tells: nothing after close_notify, "wants more" otherwise.
        """
        if self._tls is None:
            return True
        try:
            return self._tls.read(1) == b""
        except ssl.SSLError:
            return False

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _arm(self, due: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = due
        self._alarm = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self.lost:
            return
        if self._loop.time() < self._due - _TICK:
            self._arm(self._due)
        elif self._answer is None:
            self.abort()
        else:
            self._wake()


def _unsent(transport: asyncio.Transport) -> bool:
    """Say whether the peer's system has not taken all that was written.

    Under TLS the transport counts its own buffer only, not the one of the transport below, which
    is not empty while the system's is full.
    """
    held = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, _NONE_HELD)
    return held != _NONE_HELD
