"""Whose request it is, where another proxy stands before this one.

Only a proxy that the settings name is believed about whom it speaks for: anybody can write
`X-Forwarded-For`. Its entries are read from the right, each written by the proxy behind it, up to
the first one that is not trusted: that is the client, whatever stands to its left.
"""

from collections.abc import Iterable, Iterator, Sequence

from daypass_core.source import inside, network_of

UNKNOWN_PEER = "unknown"
"""The peer of a request of which a trusted proxy told what cannot be read; it is in no network."""


def client_behind(
    trusted: tuple[str, ...], peer: str, headers: Iterable[tuple[bytes, bytes]]
) -> str:
    """Return the address of the client: the peer's own, or what trusted proxies say it is.

    `peer` is who is connected, empty for a Unix socket, which is never trusted. A trusted proxy
    that forwards for nobody is a client itself.
    """
    if not inside(trusted, peer):
        return peer
    told = [value for name, value in headers if name == b"x-forwarded-for"]
    client = peer
    for hop in _from_right(told):
        if network_of(hop) is None:
            return UNKNOWN_PEER
        client = hop
        if not inside(trusted, hop):
            break
    return client


def _from_right(values: Sequence[bytes]) -> Iterator[str]:
    for value in reversed(values):
        for hop in reversed(value.split(b",")):
            yield _address(hop.decode("latin-1").strip())


def _address(hop: str) -> str:
    """Return an entry without the port that some proxies add."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
