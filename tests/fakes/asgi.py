"""Both ends of ASGI in memory: any request as an `Exchange`, and what was answered to it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from daypass_proxy.exchange import ABORT_EXTENSION, GONE_EXTENSION, Exchange, Message


@dataclass
class Wire:
    """Feeds body messages to an exchange and keeps what it sends."""

    messages: list[Message]
    sent: list[Message] = field(default_factory=list)
    aborted: int = 0
    when_gone: list[Callable[[], None]] = field(default_factory=list)

    async def receive(self) -> Message:
        """Give the next message; after the last one, the client is gone."""
        return self.messages.pop(0) if self.messages else {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Keep a message of the answer."""
        self.sent.append(message)

    def abort(self) -> None:
        """Note that the connection was cut."""
        self.aborted += 1

    @property
    def status(self) -> int | None:
        """The status that was sent."""
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers that were sent."""
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        """The body that was sent."""
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


def scope(
    method: str,
    path: bytes,
    query: bytes = b"",
    headers: Sequence[tuple[bytes, bytes]] = (),
    *,
    peer: str | None = "10.0.0.7",
) -> dict[str, Any]:
    """Return an ASGI scope as the guard makes it; `peer` None is a Unix socket."""
    return {
        "type": "http",
        "method": method,
        "raw_path": path,
        "query_string": query,
        "headers": list(headers),
        "client": None if peer is None else (peer, 40000),
        "extensions": {},
    }


def make_exchange(
    method: str = "POST",
    path: bytes = b"/v1/messages",
    query: bytes = b"",
    headers: Sequence[tuple[bytes, bytes]] = (),
    body: bytes | Sequence[bytes] = b"",
    *,
    peer: str | None = "10.0.0.7",
    whole: bool = True,
) -> tuple[Exchange, Wire]:
    """Return an exchange and its wire. Several pieces are several messages.

    Without `whole` the client hangs up after the last piece.
    """
    pieces = [body] if isinstance(body, bytes) else list(body)
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": not whole or i + 1 < len(pieces)}
        for i, piece in enumerate(pieces)
    ]
    wire = Wire(messages)
    asgi = scope(method, path, query, headers, peer=peer)
    asgi["extensions"][ABORT_EXTENSION] = wire.abort
    asgi["extensions"][GONE_EXTENSION] = wire.when_gone.append
    exchange = Exchange(asgi, wire.receive, wire.send, request_id="req_test", started=0.0)
    return exchange, wire
