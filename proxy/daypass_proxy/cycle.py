"""How a request is read: the receiving half of uvicorn's request cycle, at a fraction of its cost.

`guard` feeds it what the parser says, `guard_answer` adds the half that answers. It differs in two
things: no object is made to wait with until something waits, and whoever wants to know when the
client is gone leaves a function here, so that no task has to wait for it beside each call.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Self

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_GONE = {"type": "http.disconnect"}
_SHORT = 4 * 1024
"""A piece shorter than this joins the one before it: an object for each byte takes forty times its
size."""


class ReadingCycle(RequestResponseCycle):
    """One request as it arrives. `more_body` is true until all of it is here."""

    # How every request begins; set on the class, for there are many requests.
    disconnected = False
    body: bytes | list[bytes | bytearray] = b""  # type: ignore[assignment]  # one is not copied
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding: bool | None = None
    expected_content_length = 0
    _held = 0  # bytes in `body`
    _wanted = 0  # so many the app does not need to hear of
    _taken = False  # the app has had some of the body
    _told_whole = False  # the app has had all of it
    _waiter: asyncio.Future[None] | None = None
    _when_gone: Callable[[], None] | None = None
    task: asyncio.Task[None] | None = None
    """What serves it."""

    def __init__(
        self,
        *,
        scope: Any,
        transport: asyncio.Transport,
        flow: FlowControl,
        logger: Any,
        default_headers: list[tuple[bytes, bytes]],
        expect_100_continue: bool,
        keep_alive: bool,
        on_response: Callable[[], None],
    ) -> None:
        """Take the place of uvicorn's constructor, which makes an event for every request."""
        self.scope: Any = scope
        self.transport = transport
        self.flow = flow
        self.logger = logger
        self.default_headers = default_headers
        self.on_response = on_response
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = expect_100_continue

    # -- what the connection says

    @property
    def message_event(self) -> Self:  # type: ignore[override]
        """Where uvicorn has an `asyncio.Event`, of which only `set` is called from outside."""
        return self

    def set(self) -> None:
        """Take note that something changed: more of the body, its end, the client's, the answer's.

        Whoever asked to be told that the client is gone is told here, once, and never after the
        answer was complete.
        """
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if self._when_gone is not None and (self.disconnected or self.response_complete):
            act, self._when_gone = self._when_gone, None
            if not self.response_complete:
                act()

    def take(self, piece: bytes) -> None:
        """Keep a piece of the body for the app; hold the client back when it has too much."""
        if self._held:
            self._add(piece)
        else:
            self.body = piece
        self._held += len(piece)
        if self._held > self._wanted:
            if self._held > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            self.set()

    def _add(self, piece: bytes) -> None:
        pieces = self.body
        if isinstance(pieces, bytes):
            self.body = pieces = [pieces]
        if len(piece) >= _SHORT:
            pieces.append(piece)
        elif type(last := pieces[-1]) is bytearray:
            last += piece
        else:
            pieces.append(bytearray(piece))

    def _give(self) -> bytes:
        """Return what is held, and hold it no more; here alone is a body copied."""
        body, self.body, self._held = self.body, b"", 0
        return body if isinstance(body, bytes) else b"".join(body)

    # -- what the app asks

    def when_gone(self, act: Callable[[], None]) -> None:
        """Call `act` when the client is gone before its answer is complete; at once if it is."""
        if self.response_complete:
            return
        if self.disconnected:
            act()
            return
        self._when_gone = act
        self.flow.resume_reading()  # an end that is not read is not noticed

    def whole_body(self, most: int) -> bytes | None:
        """Return a body of at most `most` bytes if all of it is here and none was taken before.

        None says to ask `receive`, which waits, tells of a client that has gone, and invites.
        """
        if (
            self.more_body
            or self._told_whole
            or self.disconnected
            or self.response_complete
            or self.waiting_for_100_continue
            or self._taken
            or self._held > most
        ):
            return None
        self._told_whole = True
        self.flow.resume_reading()
        return self._give()

    def gather(self, most: int) -> None:
        """Let up to `most` bytes come before the next message tells of them, or all there is.

        The client is not held back meanwhile, so ask only when there is room for so many.
        """
        self._wanted = most

    async def receive(self) -> Any:
        """Return the next ASGI message; after the body's last one, wait for the client's end."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        while not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            if self._held > self._wanted or not (self.more_body or self._told_whole):
                self._told_whole, self._taken, self._wanted = not self.more_body, True, 0
                return {"type": "http.request", "body": self._give(), "more_body": self.more_body}
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return _GONE
