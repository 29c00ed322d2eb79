"""One HTTP exchange over ASGI: the request as it came, and the ways to answer it.

Made by `app` from what `guard` let through, then handed down the whole request path. Headers are
frozen at creation, so nothing that arrives later (trailers) can change what was decided on.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol, overload

from daypass_core.problem import Code, refuse
from daypass_proxy.body.spool import Spool
from daypass_proxy.head import Head, HeaderPairs

__all__ = [
    "ABORT_EXTENSION", "DIRECT_EXTENSION", "GONE_EXTENSION", "HEAD_EXTENSION", "UNIX_PEER",
    "ClientGone", "Direct", "Exchange", "HeaderPairs", "Headers", "Message", "Receive", "Send",
    "header_text",
]  # fmt: skip

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

# The extensions under which guard hands out the way to cut the connection, and the way to be told,
# once, that the client has gone. ASGI itself has only a message that a task would have to wait for.
ABORT_EXTENSION = "daypass.abort"
GONE_EXTENSION = "daypass.gone"
# The Head and the content-length (empty without one), checked and taken apart by guard.
HEAD_EXTENSION = "daypass.head"
# A `Direct`. An ASGI server has only `send`, a coroutine and a dictionary for each piece.
DIRECT_EXTENSION = "daypass.direct"

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_OF_THE_BODY = frozenset({b"content-length", b"content-type", b"transfer-encoding"})
UNIX_PEER = "unix"
"""The peer of every client that came by the Unix socket; it has no address."""


class ClientGone(Exception):
    """The client closed the connection before the exchange was over."""


class Direct(Protocol):
    """What guard does at once where nothing has to be waited for; None or False tell that it has.

    Then nothing was done, and ASGI's own messages are the way.
    """

    def whole_body(self, most: int) -> bytes | None:
        """Return the body if all of it is here, at most `most` bytes, and none was taken yet."""
        ...

    def gather(self, most: int) -> None:
        """Let up to `most` bytes of the body come before the next message, or all there is."""
        ...

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Write a whole answer; adds content-length."""
        ...

    def write(self, chunk: bytes) -> bool:
        """Write a piece of the body of an answer that has begun."""
        ...


class Exchange:
    """A request and its answer."""

    __slots__ = (
        "_client", "_direct", "_extensions", "_length", "_receive", "_send", "head", "headers",
        "method", "raw_path", "raw_query", "request_id", "scheme", "started", "started_response",
        "status",
    )  # fmt: skip

    def __init__(
        self,
        scope: MutableMapping[str, Any],
        receive: Receive,
        send: Send,
        *,
        request_id: str,
        started: float,
    ) -> None:
        """`started` is monotonic seconds, `request_id` our own ("req_…")."""
        self.method: str = scope["method"]
        self.raw_path: bytes = scope["raw_path"]
        self.raw_query: bytes = scope["query_string"]
        self.headers: HeaderPairs = tuple(scope["headers"])
        self.scheme: str = scope.get("scheme", "https")
        self._client: tuple[str, int] | None = scope.get("client")
        self.request_id = request_id
        self.started = started
        self.started_response = False
        extensions: dict[str, Any] = scope.get("extensions") or {}
        self._extensions = extensions
        self._direct: Direct | None = extensions.get(DIRECT_EXTENSION)
        self.head: Head
        self._length: bytes
        self.head, self._length = extensions.get(HEAD_EXTENSION) or (Head(self.headers), b"")
        self._receive = receive
        self._send = send
        self.status: int | None = None

    def within(self, body: bytes, media: tuple[bytes, bytes], send: Send) -> "Exchange":
        """Return an exchange of the same client with another body, whose answer goes to `send`.

        `media` is its content-type. It is told when the client goes as this one is.
        """
        kept = [pair for pair in self.headers if pair[0] not in _OF_THE_BODY]

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        scope = {
            "method": self.method,
            "raw_path": self.raw_path,
            "query_string": b"",
            "headers": (*kept, media, (b"content-length", b"%d" % len(body))),
            "scheme": self.scheme,
            "client": self._client,
            "extensions": {
                name: self._extensions[name]
                for name in (ABORT_EXTENSION, GONE_EXTENSION)
                if name in self._extensions
            },
        }
        return Exchange(scope, receive, send, request_id=self.request_id, started=self.started)

    @property
    def origin(self) -> str:
        """Where the client is, as the beginning of a base URL.

        Whoever speaks plain HTTP from elsewhere came through a proxy that has the certificate.
        """
        host = (self.header(b"host") or b"").decode("latin-1")
        loopback = host.rpartition(":")[0].strip("[]") in _LOOPBACK or host in _LOOPBACK
        return f"{self.scheme if loopback else 'https'}://{host}"

    @property
    def peer(self) -> str:
        """The client's address, or UNIX_PEER."""
        client = self._client
        return client[0] if client and client[0] else UNIX_PEER

    def values(self, name: bytes) -> list[bytes]:
        """Return every value of the header `name` (lower-case), in order."""
        return [value for key, value in self.headers if key == name]

    def header(self, name: bytes) -> bytes | None:
        """Return the single value of `name`; raises Refusal invalid_request when it came twice."""
        if self._length and name == b"content-length":
            return self._length
        return self.head.header(name)

    def body_size(self, limit: int) -> int:
        """Return how many bytes the body can have: what is announced, else `limit`.

        Raises Refusal request_too_large (413) when more than `limit` is announced.
        """
        announced = self._length or self.header(b"content-length")
        if announced is None:
            return limit
        size = int(announced)
        if size > limit:
            raise refuse(
                Code.REQUEST_TOO_LARGE, f"request body is larger than {limit} bytes; send less"
            )
        return size

    @overload
    async def read_body(self, limit: int) -> bytes: ...
    @overload
    async def read_body(self, limit: int, spool_above: int) -> bytes | Spool: ...
    async def read_body(self, limit: int, spool_above: int | None = None) -> bytes | Spool:
        """Return the whole body, at most `limit` bytes; one of over `spool_above` as a Spool.

        Raises Refusal request_too_large (413), before reading when content-length says so, and
        ClientGone. The deadline is guard's: it answers 408 itself and cuts the connection.
        """
        if self._direct is not None:
            most = limit if spool_above is None else min(limit, spool_above)
            body = self._direct.whole_body(most)
            if body is not None:
                return body
            if self.body_size(limit) <= most:
                # The caller has room for so much: nobody is woken, or held back, for each piece.
                self._direct.gather(most)
        else:
            self.body_size(limit)
        pieces: list[bytes] = []
        spool: Spool | None = None
        size = 0
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(piece)
            if size > limit:
                raise refuse(
                    Code.REQUEST_TOO_LARGE, f"request body is larger than {limit} bytes; send less"
                )
            if spool is not None:
                spool.write(piece)
            elif piece:
                pieces.append(piece)
                if spool_above is not None and size > spool_above:
                    # Never twice in memory: to join the pieces of a large body would need that.
                    spool = Spool()
                    for each in pieces:
                        spool.write(each)
                    pieces.clear()
        if spool is not None:
            return spool
        # One piece comes back as the same object: no copy of the common small body.
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer with a complete body; adds content-length."""
        sent = self._begin(status, headers)
        if self._direct is not None and self._direct.answer(status, sent, body):
            return
        sent.append((b"content-length", b"%d" % len(body)))
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers; adds our request-id unless the headers carry one."""
        sent = self._begin(status, headers)
        await self._send({"type": "http.response.start", "status": status, "headers": sent})

    def _begin(self, status: int, headers: Headers) -> list[tuple[bytes, bytes]]:
        sent = [*headers]
        if b"request-id" not in dict(sent):
            sent.append((b"request-id", self.request_id.encode()))
        self.started_response = True
        self.status = status
        return sent

    def write(self, chunk: bytes) -> bool:
        """Write a piece of the body at once; False, and it is not, when `send` has to wait."""
        return self._direct is not None and self._direct.write(chunk)

    async def send(self, chunk: bytes) -> None:
        """Send a piece of the body; waits while the client reads slowly."""
        if not self.write(chunk):
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def say(self, words: bytes) -> None:
        """Send words of ours in the midst of a body."""
        await self.send(words)

    async def finish(self) -> None:
        """End the body tidily."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def abort(self) -> None:
        """Cut the connection, so that the client cannot take a torn answer for a whole one."""
        cut: Callable[[], None] | None = self._extensions.get(ABORT_EXTENSION)
        if cut is not None:
            cut()

    def when_gone(self, act: Callable[[], None]) -> None:
        """Call `act` once the client is gone, at once if it is; never after a complete answer.

        Call only after the body has been read. Without the server's extension nothing is told;
        whoever sends to a client that is gone then finds out by itself.
        """
        tell: Callable[[Callable[[], None]], None] | None = self._extensions.get(GONE_EXTENSION)
        if tell is not None:
            tell(act)


def header_text(headers: HeaderPairs, name: bytes) -> str:
    """Return the (first) value of a header as text, empty without one."""
    for each, value in headers:
        if each == name:
            return value.decode("latin-1")
    return ""
