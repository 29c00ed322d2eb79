"""What the transport's suites share: requests as `upstream` builds them, and answers in bytes."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from daypass_proxy.transport import Answer, Timeouts, UpstreamRequest
from daypass_proxy.transport.pool import Pool
from tests.canary import CANARY
from tests.servers.raw import RawServer
from tests.servers.stub import Send
from tests.servers.wire import head, sse_answer

KEY = f"sk-ant-{CANARY}-acme"
PATIENT = Timeouts(connect=10, first_byte=10, idle=10)
HASTY = Timeouts(connect=0.1, first_byte=0.1, idle=0.1)
OK = b"HTTP/1.1 200 OK\r\n"
END = Send(b"0\r\n\r\n")
STREAM = Send(sse_answer())


class Make(Protocol):
    """Makes a transport that is closed when the test ends; `options` are the pool's."""

    def __call__(self, timeouts: Timeouts, **options: object) -> Pool: ...


Serving = Callable[..., AbstractAsyncContextManager[tuple[RawServer, Pool]]]
"""Serves with a function, in plain or over TLS, and gives a transport that trusts the server."""


def idle(transport: Pool) -> int:
    """How many connections wait for a call."""
    return sum(len(shelf) for shelf in transport._shelves.values())


def request_to(url: str, body: bytes = b'{"a":1}', path: str = "/v1/messages") -> UpstreamRequest:
    """A request as `upstream` builds it."""
    headers = ((b"content-type", b"application/json"), (b"x-api-key", KEY.encode()))
    return UpstreamRequest("POST", url + path, headers, body)


def length(size: int, *headers: tuple[str, str], status: int = 200) -> Send:
    """The head of an answer with a body of `size` bytes."""
    return Send(head(status, [("content-length", str(size)), *headers]))


def whole(body: bytes, *headers: tuple[str, str], status: int = 200) -> bytes:
    """A whole answer with its length."""
    return length(len(body), *headers, status=status).data + body


def chunk(data: bytes) -> Send:
    """One HTTP chunk."""
    return Send(b"%x\r\n%s\r\n" % (len(data), data))


async def read_all(answer: Answer) -> bytes:
    """Read an answer to its end."""
    pieces = []
    while piece := await answer.read():
        pieces.append(piece)
    return b"".join(pieces)
