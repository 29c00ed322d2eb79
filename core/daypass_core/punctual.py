"""A plain HTTP protocol with a deadline: whoever holds a connection must send its request in time.

uvicorn has no limit for the time a request takes to arrive, so idle connections could use up the
descriptors of a service and lock its administrators out (attacks row 18). Used by the broker's
listeners; the proxy has its own `guard`, which does this and much more.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""From the moment we begin to wait for a client to the end of its request's body."""


class PunctualProtocol(H11Protocol):
    """Closes a connection that keeps us waiting, before, within or between requests."""

    seconds = REQUEST_SECONDS
    _timer: asyncio.TimerHandle | None = None

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

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop()
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
        self.transport.close()
