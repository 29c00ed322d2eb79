"""A client in memory: it sends one request through the real `Exchange` and keeps the answer."""

import asyncio
from collections.abc import Callable
from typing import Any

from daypass_proxy.exchange import ABORT_EXTENSION, GONE_EXTENSION, Exchange, Message


class FakeClient:
    """The far end of an exchange. It hangs up when told to, and can be slow to read."""

    def __init__(
        self,
        body: bytes = b"",
        *,
        path: bytes = b"/v1/messages",
        query: bytes = b"",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        request_id: str = "req_test",
        started: float = 1_000.0,
    ) -> None:
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.chunks: list[bytes] = []
        self.finished = False
        self.aborted = False
        self.reads = asyncio.Event()
        """Cleared by a test whose client does not read."""
        self.reads.set()
        self.started = asyncio.Event()
        self.got_chunk = asyncio.Event()
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._when_gone: Callable[[], None] | None = None
        self.exchange = Exchange(
            {
                "method": "POST",
                "raw_path": path,
                "query_string": query,
                "headers": [(b"content-type", b"application/json"), *headers],
                "client": ("127.0.0.1", 40_000),
                "extensions": {ABORT_EXTENSION: self._abort, GONE_EXTENSION: self._tell_when_gone},
            },
            self._receive,
            self._send,
            request_id=request_id,
            started=started,
        )

    @property
    def body_was_read(self) -> bool:
        """Whether anybody has asked for the request's body."""
        return self._body is None

    @property
    def body(self) -> bytes:
        """All of the answer's body so far."""
        return b"".join(self.chunks)

    def tear(self) -> None:
        """Close the connection before the body was sent."""
        self._body = None
        self._gone.set()

    def hang_up(self) -> None:
        """Close the connection."""
        self._gone.set()
        if self._when_gone is not None:
            self._when_gone()

    def _tell_when_gone(self, act: Callable[[], None]) -> None:
        if self._gone.is_set():
            act()
        else:
            self._when_gone = act

    def _abort(self) -> None:
        self.aborted = True

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        assert not self.finished, "sent after the end"
        kind: Any = message["type"]
        if kind == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
            assert len(self.headers) == len(message["headers"]), "a header was sent twice"
            self.started.set()
            return
        if message["body"]:
            self.chunks.append(message["body"])
            self.got_chunk.set()
        self.finished = not message["more_body"]
        await self.reads.wait()
