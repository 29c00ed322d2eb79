"""The way out through an HTTP proxy, where the network lets nothing else out.

A TLS upstream is reached by CONNECT, so the egress proxy sees a name and nothing of the calls; a
plain one by requests in absolute form. Its credential goes to it alone, in its own header.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field

from daypass_proxy.transport.origin import Origin
from daypass_proxy.transport.response import NotHttp, Response

_READ_BYTES = 16 * 1024


class EgressRefused(Exception):
    """The egress proxy would not connect us; the message names the kind only."""


@dataclass(frozen=True, slots=True)
class Egress:
    """An egress proxy; `authorization` is the value of Proxy-Authorization, or empty."""

    host: str
    port: int
    authorization: bytes = field(default=b"", repr=False)

    @property
    def header(self) -> bytes:
        """The credential as a header line, or nothing."""
        if not self.authorization:
            return b""
        return b"proxy-authorization: %b\r\n" % self.authorization


async def tunnel(sock: socket.socket, egress: Egress, origin: Origin) -> None:
    """Ask over `sock` to be connected to `origin`; raises EgressRefused and OSError."""
    loop = asyncio.get_running_loop()
    authority = origin.authority.encode("ascii")
    line = b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n" % (authority, authority)
    await loop.sock_sendall(sock, line + egress.header + b"\r\n")
    answer = Response()
    try:
        while not answer.status:
            data = await loop.sock_recv(sock, _READ_BYTES)
            if not data:
                raise EgressRefused("egress proxy hung up")
            answer.feed(data)
    except NotHttp:
        raise EgressRefused("egress proxy did not answer in HTTP") from None
    finally:
        answer.forget()
    if not 200 <= answer.status < 300:
        raise EgressRefused(f"egress proxy refused with status {answer.status}")
    if answer.unread:
        # TLS begins with us; whatever came already is not from the upstream.
        raise EgressRefused("egress proxy sent more than its answer")
