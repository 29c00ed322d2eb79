"""Addresses of a host, looked up for each new connection, and which of them may be connected to.

The upstream is fixed by the settings, but its name is looked up in a DNS that others may answer
for. An answer that leads into our own network (the metadata service of a cloud, a database) is
not followed: a sandbox would be talking to it through us (attacks row 13).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = tuple[socket.AddressFamily, tuple[object, ...]]
"""A family and what `connect` takes for it."""

_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
# Global by the registry, and yet of the inside: the wire server of one cloud, IETF's own block
# (which holds the metadata service of another), relays that nobody runs any more.
_INSIDE = (
    IPv4Network("168.63.129.16/32"),
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
)


class AddressRefused(Exception):
    """A name leads nowhere but inside; the message holds no name and no address."""


async def resolve(host: str, port: int, *, inside: bool) -> list[Address]:
    """Return the addresses of `host` to try, in the system's order, never an empty list.

    `inside` allows private ones, as does a host that is an address or localhost: that was
    written into the settings by somebody who meant it. Raises OSError and AddressRefused.
    """
    literal = _literal(host, port)
    if literal is not None:
        return [literal]
    addresses = await look_up(host, port)
    if not inside and host != "localhost":
        addresses = [address for address in addresses if is_outside(str(address[1][0]))]
    if not addresses:
        raise AddressRefused(
            "name leads to private addresses only; DAYPASS_UPSTREAM_PRIVATE=1 allows them"
        )
    return addresses


async def look_up(host: str, port: int) -> list[Address]:
    """Ask the system, in a thread of the loop's; raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]


def is_outside(text: str) -> bool:
    """Say whether an address is one of the public internet, whatever it is wrapped in."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return _is_outside_v4(address)
    if address.ipv4_mapped is not None:
        return _is_outside_v4(address.ipv4_mapped)
    if address in _NAT64:
        return _is_outside_v4(IPv4Address(int(address) & 0xFFFFFFFF))
    if address.sixtofour is not None:
        return _is_outside_v4(address.sixtofour)
    return address in _UNICAST and _is_global(address)


def _is_outside_v4(address: IPv4Address) -> bool:
    return _is_global(address) and not any(address in network for network in _INSIDE)


def _is_global(address: IPv4Address | IPv6Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
    )


def _literal(host: str, port: int) -> Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return socket.AF_INET, (host, port)
    return socket.AF_INET6, (host, port, 0, 0)
