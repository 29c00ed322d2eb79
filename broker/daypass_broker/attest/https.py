"""A small https client for what issuers and the cluster publish: bounded in every direction.

One request, one connection, no redirects, no proxies, no cookies; a total deadline, a cap on the
answer. The addresses a name stands for are looked at before one of them is dialled, and exactly
that one is dialled, so a rule cannot make the broker knock at machines of the inside (SSRF), not
by a name that changes its mind either.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from daypass_core.source import inside

SECONDS = 3.0
"""From looking the name up to the last byte of the answer: the proxy waits 8 s for two of them."""
MAX_BYTES = 256 * 1024
_MAX_HEAD = 16 * 1024
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# All of IPv6 that the internet uses. Outside of it Python takes for global what is not: site-local
# addresses, and IPv4 written in several more ways.
_UNICAST = ipaddress.IPv6Network("2000::/3")


class FetchError(Exception):
    """Nothing usable came; the message names the host and the kind of failure, no content."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came, whatever its status."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpsClient:
    """Fetches from public addresses, and from `networks` besides; `anywhere` drops that check.

    `ca_file` is trusted along with the system's authorities, or with `only_ca` instead of them. It
    is read again for every request: such files are replaced while the broker runs.
    """

    networks: tuple[str, ...] = ()
    ca_file: Path | None = None
    anywhere: bool = False
    only_ca: bool = False
    seconds: float = SECONDS

    async def get(self, url: str) -> bytes:
        """Return the body of a 200 answer; raises FetchError."""
        answer = await self.send("GET", url, {"accept": "application/json"})
        if answer.status != http.HTTPStatus.OK:
            raise FetchError(f"{urlsplit(url).hostname} answered {answer.status}")
        return answer.body

    async def send(
        self, method: str, url: str, headers: dict[str, str], body: bytes = b""
    ) -> Answer:
        """Send one request and return its answer; raises FetchError."""
        host = str(urlsplit(url).hostname)
        try:
            async with asyncio.timeout(self.seconds):
                return await self._exchange(method, url, headers, body)
        except TimeoutError:
            raise FetchError(f"{host} took longer than {self.seconds:g} s") from None
        except ssl.SSLError as error:
            raise FetchError(f"{host}: TLS failed: {error.reason or 'no trust'}") from None
        except (OSError, ValueError, http.client.HTTPException, asyncio.IncompleteReadError) as e:
            # The class only: texts may hold what the other side sent.
            raise FetchError(f"{host}: {type(e).__name__}") from None

    async def _exchange(
        self, method: str, url: str, headers: dict[str, str], body: bytes
    ) -> Answer:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc:
            raise FetchError("a URL must begin with https:// and name a host")
        context = await asyncio.to_thread(self._context)
        address = await self._address(parts.hostname, parts.port or 443)
        reader, writer = await asyncio.open_connection(
            address, parts.port or 443, ssl=context, server_hostname=parts.hostname
        )
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            writer.write(_head(method, target, parts.netloc, headers, len(body)) + body)
            await writer.drain()
            return _parse(method, await _read(reader, parts.hostname), parts.hostname)
        finally:
            # Not a polite close: the other side has said all we wanted, or too much.
            writer.transport.abort()

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(
            cafile=str(self.ca_file) if self.only_ca and self.ca_file else None
        )
        if self.ca_file is not None and not self.only_ca:
            context.load_verify_locations(self.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    async def _address(self, host: str, port: int) -> str:
        """Return one address of a host, all of which are allowed. Raises FetchError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in found]
        # All, not one: else a name with a public and a private address would get in half the time.
        if not addresses or not all(self._allowed(address) for address in addresses):
            raise FetchError(
                f"{host} is at a private address: add its network to DAYPASS_FEDERATION_NETWORKS"
            )
        return addresses[0]

    def _allowed(self, text: str) -> bool:
        if self.anywhere:
            return True
        if inside(self.networks, text):
            return True
        address = _reached(ipaddress.ip_address(text.partition("%")[0]))
        if isinstance(address, ipaddress.IPv6Address) and address not in _UNICAST:
            return False
        return address.is_global and not address.is_multicast


def _reached(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address that an IPv6 address stands for: mapped, 6to4 or NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


class _Received:
    """Bytes that http.client reads as if they came from a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._data)


def _head(method: str, target: str, host: str, headers: dict[str, str], length: int) -> bytes:
    lines = [
        f"{method} {target} HTTP/1.1",
        f"host: {host}",
        "user-agent: daypass",
        "accept-encoding: identity",
        "connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if length:
        lines.append(f"content-length: {length}")
    head = "\r\n".join(lines)
    if any(ord(character) < 32 for character in head.replace("\r\n", "")) or not head.isascii():
        raise FetchError("a URL or header holds characters that no request may have")
    return head.encode("ascii") + b"\r\n\r\n"


async def _read(reader: asyncio.StreamReader, host: str) -> bytes:
    data = bytearray()
    while chunk := await reader.read(65536):
        data += chunk
        if len(data) > MAX_BYTES + _MAX_HEAD:
            raise FetchError(f"{host} sent more than {MAX_BYTES} bytes")
    return bytes(data)


def _parse(method: str, data: bytes, host: str) -> Answer:
    response = http.client.HTTPResponse(cast(socket.socket, _Received(data)), method=method)
    response.begin()
    body = response.read()
    if len(body) > MAX_BYTES:
        raise FetchError(f"{host} sent more than {MAX_BYTES} bytes")
    return Answer(response.status, body)
