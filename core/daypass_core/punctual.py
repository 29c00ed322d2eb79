"""A plain HTTP protocol with deadlines: whoever holds a connection must send its request in time,
and read the answer.

uvicorn has no limit for the time that either takes, so idle connections could use up the
descriptors of a service and lock its administrators out (attacks row 18). Used by the broker's
listeners and for metrics; the proxy has its own `guard`, which does this and much more.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""From the moment we begin to wait for a client to the end of its request's body."""
LEAST_READ = 64 * 1024
"""Bytes that a client has to read in so long of what waits for it."""
LINGER_SECONDS = 1.0
"""For a client that had its time: to agree to the end, as it may over TLS."""


class PunctualProtocol(H11Protocol):
    """Closes a connection that keeps us waiting, before, within or between requests."""

    seconds = REQUEST_SECONDS
    _timer: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None
    _unread = 0

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take bytes; more of them do not extend the deadline."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()
        if self.transport.is_closing():
            self._hang_up(self.seconds)

    def shutdown(self) -> None:
        """End what rests or has said nothing; what is being served is closed after its answer."""
        if self.transport.is_closing():
            return
        super().shutdown()
        if self.transport.is_closing():
            owed = self.transport.get_write_buffer_size()
            self._hang_up(self.seconds if owed else LINGER_SECONDS)

    def eof_received(self) -> None:
        """Take the end of what a client sends for its own; it may read what it is owed."""
        self._hang_up(self.seconds)

    def pause_writing(self) -> None:
        """Give a client that does not read a bounded time."""
        super().pause_writing()
        self._watch_reader(self.seconds)

    def resume_writing(self) -> None:
        """The client has read most of what waited for it."""
        if not self.transport.is_closing():
            self._stop_reader()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop()
        self._stop_reader()
        super().connection_lost(exc)

    def _watch(self) -> None:
        cycle = self.cycle
        waiting = cycle is None or cycle.response_complete or cycle.more_body
        if not waiting or self.transport.is_closing():
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self._hang_up(LINGER_SECONDS)

    def _hang_up(self, seconds: float) -> None:
        """Close, and wait no longer than that for a client that does not read what it is owed."""
        if not self.transport.is_closing():
            self.transport.close()
        if self._reader is None:
            self._watch_reader(seconds)

    def _watch_reader(self, seconds: float) -> None:
        self._stop_reader()
        self._unread = self.transport.get_write_buffer_size()
        self._reader = self.loop.call_later(seconds, self._look_at_reader)

    def _look_at_reader(self) -> None:
        if self._unread - self.transport.get_write_buffer_size() >= LEAST_READ:
            self._watch_reader(self.seconds)
        else:
            self.transport.abort()

    def _stop_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
