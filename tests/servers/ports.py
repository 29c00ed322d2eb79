"""TCP ports for the servers of tests: `free_port`.

A port that the system gives to whoever asks for any (a server at port 0, the near end of a
connection) can be given away again before the server is up, or while it is down for a restart. So
those from here lie below that range, and none is given twice in a run.
"""

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

_LOWEST = 10_000  # what has a port of its own is below
_LEAST = 5_000
_GIVEN_BY_SYSTEM = Path("/proc/sys/net/ipv4/ip_local_port_range")


def _places() -> range:
    first = int(_GIVEN_BY_SYSTEM.read_text().split()[0])
    return range(_LOWEST, first if first - _LOWEST >= _LEAST else 65_536)


def _round() -> Iterator[int]:
    """Every place once, from any of them on: several runs may share a machine."""
    places = _places()
    begin = secrets.randbelow(len(places))
    yield from places[begin:]
    yield from places[:begin]


_untried = _round()
_one_at_a_time = threading.Lock()


def free_port() -> int:
    """A TCP port of the loopback address that nobody uses, and that nobody else is given."""
    with _one_at_a_time:
        for port in _untried:
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise AssertionError("every port has been given")
