"""An upstream in memory: each request gets the next scripted answer; breaks and stalls on cue."""

import asyncio
from collections import deque
from collections.abc import Iterable

from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.transport import (
    Onward,
    UpstreamBroken,
    UpstreamRequest,
    UpstreamUnreachable,
)

Step = bytes | asyncio.Event | UpstreamBroken | None
"""Bytes to hand out, an event to wait for first, the way the answer breaks, or silence for as long
as a reader says that it waits (none for one that waits without limit)."""

JSON: HeaderPairs = ((b"content-type", b"application/json"), (b"request-id", b"req_upstream"))
STREAM: HeaderPairs = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"request-id", b"req_upstream"),
)


class FakeAnswer:
    """An `Answer` that follows a script; `reading` is set while it waits for an event."""

    def __init__(
        self,
        steps: Iterable[Step],
        *,
        status: int = 200,
        headers: HeaderPairs = STREAM,
        in_buffer: bytes = b"",
    ) -> None:
        self.status = status
        self.headers = headers
        self.in_buffer = in_buffer
        self.closed = False
        self.waiting = asyncio.Event()
        self._steps = deque(steps)

    async def read(self, within: float | None = None, onward: Onward | None = None) -> bytes | None:
        """Carry out steps until there are bytes, or the end; None after `within` at an event.

        Bytes that come after an event were waited for, so `onward` is offered them.
        """
        waited = False
        assert not self.closed, "read after close"
        while self._steps:
            step = self._steps[0]
            if isinstance(step, asyncio.Event):
                self.waiting.set()
                waited = True
                try:
                    async with asyncio.timeout(within):
                        await step.wait()
                except TimeoutError:
                    return None
            self._steps.popleft()
            if step is None and within is not None:
                return None
            if isinstance(step, UpstreamBroken):
                raise step
            if isinstance(step, bytes) and not (waited and onward and onward(step)):
                return step
        return b""

    def rest(self) -> bytes | None:
        """Hand out what is left when it is all bytes: nothing to wait for, and nothing breaks."""
        left = [step for step in self._steps if isinstance(step, bytes)]
        if self.closed or len(left) < len(self._steps):
            return None
        self._steps.clear()
        return b"".join(left)

    def buffered(self) -> bytes:
        """Return what a test says has arrived unread."""
        data, self.in_buffer = self.in_buffer, b""
        return data

    def close(self) -> None:
        """Note it."""
        self.closed = True


class FakeTransport:
    """A `Transport`; `requests` is what was sent. what comes back is scripted."""

    def __init__(self, *script: FakeAnswer | Exception) -> None:
        self.script = deque(script)
        self.requests: list[UpstreamRequest] = []
        self.gate = asyncio.Event()
        """Cleared by a test that holds the answers' headers back."""
        self.gate.set()
        self.arrived = asyncio.Event()
        self.connects = True

    async def send(self, request: UpstreamRequest) -> FakeAnswer:
        """Answer with what is next in the script."""
        if not self.connects:
            raise UpstreamUnreachable("ClientConnectorError")
        if request.before_send is not None:
            request.before_send()
        self.requests.append(request)
        request.sent = True
        self.arrived.set()
        await self.gate.wait()
        answer = self.script.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        """Do nothing."""
