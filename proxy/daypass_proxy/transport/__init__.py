"""The transport: one HTTP request to an upstream and its raw answer.

Place in the flow: `upstream_request` builds the request, `relay` takes the answer's bytes. This
file holds the values and the seam; `transport.pool` is the client behind it. A transport adds
nothing (no headers beyond host and framing, no cookies), follows nothing, decodes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from daypass_proxy.exchange import HeaderPairs


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to a ready connection, to the first byte of the answer, between its bytes."""

    connect: float
    first_byte: float
    idle: float


@dataclass(slots=True)
class UpstreamRequest:
    """One request. `url` is absolute and sent as written; `headers` lack host and content-length,
    and the credential is the last of them.

    `sent` turns true as soon as a byte of the request may have left this machine: from then on
    the provider may bill it, whatever comes back. `before_send` is called just before that, with
    nothing to wait for in between; when it raises, nothing is sent and `send` raises the same.
    """

    method: str
    url: str
    headers: HeaderPairs = field(repr=False)
    body: bytes = field(repr=False)
    sent: bool = False
    before_send: Callable[[], None] | None = field(default=None, repr=False)


class TransportError(Exception):
    """The upstream let us down; the message names the kind of failure, never a URL or header."""


class UpstreamUnreachable(TransportError):
    """No answer began: not connected, or the connection ended or timed out before the headers."""


class UpstreamBroken(TransportError):
    """An answer began and did not end well; `stalled` when it fell silent for too long."""

    def __init__(self, message: str, *, stalled: bool = False) -> None:
        super().__init__(message)
        self.stalled = stalled


Onward = Callable[[bytes], bool]
"""Takes a piece of an answer's body at once, or says False and has done nothing with it."""


class Answer(Protocol):
    """An upstream's answer. Names of headers are lower-case; the body is read once."""

    @property
    def status(self) -> int:
        """The final status, 200 … 599."""
        ...

    @property
    def headers(self) -> HeaderPairs:
        """The header fields in the order they came."""
        ...

    async def read(self, within: float | None = None, onward: Onward | None = None) -> bytes | None:
        """Return the next bytes of the body, undecoded, as soon as there are any; b"" at its end.

        None, and nothing else changed, when `within` seconds passed with nothing to read; the
        limit between bytes runs on across such reads. The upstream is held back while nobody
        reads. Raises UpstreamBroken.

        What arrives while this waits is offered to `onward` first. What that takes is read: this
        waits on, and its times begin anew. What it raises comes out of here.
        """
        ...

    def rest(self) -> bytes | None:
        """Return all that was not read yet when the end of the body is here too, and be read.

        None, and nothing changed, while more is to come; of what goes wrong `read` tells.
        """
        ...

    def buffered(self) -> bytes:
        """Return what has arrived and was not read yet, without waiting; at most 64 KiB."""
        ...

    def close(self) -> None:
        """Let go: a connection whose answer was not read to its end is dropped. Idempotent."""
        ...


class Transport(Protocol):
    """A client for upstreams."""

    async def send(self, request: UpstreamRequest) -> Answer:
        """Send and return when the answer's headers are here.

        Raises UpstreamUnreachable, or UpstreamBroken for an answer that is not HTTP, and what
        `before_send` raises.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
