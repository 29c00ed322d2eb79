"""Where a token may be used from: reading such networks, and whether an address lies in one.

The broker writes them into a sandbox and its tokens, the proxy asks at every call, so both use this
file. An address stands for itself in IPv4 and for its /64 in IPv6, where a host has all of that and
changes within it at will.
"""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

ANY = "any"
"""From anywhere."""
FIRST = "first"
"""From the address of the first exchange."""

MAX_LISTED = 32
_HOST_BITS = {4: 32, 6: 64}
_MAPPED = IPv6Network("::ffff:0:0/96")
_REMEMBERED = 16_384

_Network = IPv4Network | IPv6Network


def read_network(text: str) -> str:
    """Return a network as tokens have it, such as 10.2.0.0/16; raises ValueError saying what to do.

    An IPv4 address alone is the network of that address.
    """
    try:
        network = ip_network(text)
    except ValueError as error:
        raise ValueError(
            "must be a network such as 10.2.0.0/16, without bits behind its length"
        ) from error
    if isinstance(network, IPv6Network):
        if network.network_address.scope_id is not None:
            raise ValueError("must not name an interface")
        if network.subnet_of(_MAPPED):
            raise ValueError("is an IPv4 network in IPv6: write it as IPv4")
        if network.prefixlen > _HOST_BITS[6]:
            raise ValueError("IPv6 is told apart by /64: write a network of /64 or wider")
    return str(network)


def read_networks(text: str) -> tuple[str, ...]:
    """Read networks with commas between, as settings have them; raises ValueError.

    Its message repeats none of them.
    """
    entries = text.split(",")
    if len(entries) > MAX_LISTED:
        raise ValueError(f"must be at most {MAX_LISTED} networks")
    return tuple(_read_entry(number, entry.strip()) for number, entry in enumerate(entries, 1))


def network_of(peer: str) -> str | None:
    """Return the network that this address stands for, None when it is no address."""
    address = _address(peer)
    if address is None:
        return None
    bits = _HOST_BITS[address.version]
    return str(ip_network((int(address).to_bytes(address.max_prefixlen // 8), bits), strict=False))


def is_host(network: str) -> bool:
    """Say whether a network is that of one address alone."""
    read = ip_network(network)
    return read.prefixlen >= _HOST_BITS[read.version]


def within(networks: Sequence[str], wider: Sequence[str]) -> bool:
    """Say whether each of the networks lies in one of the wider ones."""
    around = [ip_network(each) for each in wider]
    return all(any(_in(ip_network(each), one) for one in around) for each in networks)


@lru_cache(maxsize=_REMEMBERED)
def inside(networks: tuple[str, ...], peer: str) -> bool:
    """Say whether an address lies in one of the networks; what is no address lies in none."""
    address = _address(peer)
    return address is not None and any(address in ip_network(each) for each in networks)


def _read_entry(number: int, text: str) -> str:
    try:
        return read_network(text)
    except ValueError as error:
        raise ValueError(f"entry {number} {error}") from None


def _in(network: _Network, wider: _Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(wider, IPv4Network) and network.subnet_of(wider)
    return isinstance(wider, IPv6Network) and network.subnet_of(wider)


def _address(peer: str) -> IPv4Address | IPv6Address | None:
    """Read an address: IPv4 in IPv6, as a socket for both tells it, is IPv4."""
    try:
        address = ip_address(peer)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
