"""A new connection: look up, connect, tunnel, agree on TLS, all within one limit.

Before it is ready not a byte of a request has been sent, so every failure here is
UpstreamUnreachable, with the kind of the failure for a message and nothing else.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from daypass_proxy.transport import UpstreamUnreachable
from daypass_proxy.transport.addresses import Address, AddressRefused, resolve
from daypass_proxy.transport.connection import Connection
from daypass_proxy.transport.egress import Egress, EgressRefused, tunnel
from daypass_proxy.transport.origin import Origin


def trust(ca_file: Path | None = None) -> ssl.SSLContext:
    """Return what upstreams' certificates are checked with: the system's CAs, and one more file.

    Raises OSError for a file that cannot be used. Made by hand: the standard library's default
    would write every session's keys to a file that the environment names.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if ca_file is not None:
        context.load_verify_locations(cafile=ca_file)
    # HTTP/2 would bring no gain here, and this client does not speak it.
    context.set_alpn_protocols(["http/1.1"])
    return context


class Dialer:
    """Makes connections."""

    def __init__(
        self, seconds: float, *, tls: ssl.SSLContext, egress: Egress | None, inside: bool
    ) -> None:
        """`seconds` for one connection in all; `inside` allows private addresses."""
        self._seconds = seconds
        self._tls = tls
        self._egress = egress
        self._inside = inside

    async def connect(self, origin: Origin, make: Callable[[], Connection]) -> Connection:
        """Return a ready connection; raises UpstreamUnreachable."""
        try:
            async with asyncio.timeout(self._seconds):
                sock = await self._reach(origin)
                try:
                    if self._egress is not None and origin.secure:
                        await tunnel(sock, self._egress, origin)
                    return await self._attach(sock, origin, make)
                except BaseException:
                    sock.close()
                    raise
        except TimeoutError:
            raise UpstreamUnreachable("connection was not ready in time") from None
        except (AddressRefused, EgressRefused) as error:
            raise UpstreamUnreachable(str(error)) from None
        except (OSError, RuntimeError, ValueError) as error:
            # ValueError is a name that cannot be looked up or verified; uvloop says RuntimeError
            # of a connection that ends while it is being set up.
            raise UpstreamUnreachable(type(error).__name__) from None

    async def _reach(self, origin: Origin) -> socket.socket:
        """Return a connected socket: the addresses in turn, each with its share of the time."""
        egress = self._egress
        if egress is not None:
            # The egress proxy is named in the settings, and looks the upstream up itself.
            addresses = await resolve(egress.host, egress.port, inside=True)
        else:
            addresses = await resolve(origin.host, origin.port, inside=self._inside)
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        for left in range(len(addresses), 1, -1):
            address = addresses[-left]
            try:
                async with asyncio.timeout((end - loop.time()) / left):
                    return await _open(address)
            except OSError:
                continue
        return await _open(addresses[-1])

    async def _attach(
        self, sock: socket.socket, origin: Origin, make: Callable[[], Connection]
    ) -> Connection:
        loop = asyncio.get_running_loop()
        if not origin.secure:
            _, connection = await loop.create_connection(make, sock=sock)
            return connection
        _, connection = await loop.create_connection(
            make, sock=sock, ssl=self._tls, server_hostname=origin.host
        )
        return connection


async def _open(address: Address) -> socket.socket:
    """Return a socket connected to one address; raises OSError."""
    family, sockaddr = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Answers may take minutes to begin; networks forget silent connections earlier.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 30)
        await asyncio.get_running_loop().sock_connect(sock, sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock
