"""`Hosts`: which URLs a tool of an agent may reach, for lists like ALLOWED_DOMAINS.

    ALLOWED = Hosts(["docs.python.org", "internal.example:8443"])
    if not ALLOWED.allows(url): ...

An entry means the host itself and what lies below it, as `allowed_domains` of a scope does. A URL
is taken apart strictly: what two readers could take for two hosts is allowed by no list. It
says nothing of where a name leads, so a sandbox still needs a network that lets nothing else out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from daypass._errors import SettingsError

USUAL_PORTS = {"https": 443, "http": 80}
LONGEST_URL = 8192
_LONGEST_NAME = 253
# ASCII without blanks, quotes, controls, backslash, "^", "`", "{", "|" and "}": the first part of a
# URL, of which every reader must find the same host.
_ORIGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([/?#].*)?", re.DOTALL)
_PLAIN = re.compile(r"[\x21\x23-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7e]*")
_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}|\*))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# A last label like these makes browsers and libc read the whole as an IPv4 address.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True)
class Target:
    """Where a URL leads: `host` in lower case without a final dot, an IPv6 address unbracketed."""

    scheme: str
    host: str
    port: int
    is_address: bool


def target(url: str) -> Target:
    """Take a URL apart; raises ValueError in words for whatever readers could disagree about."""
    if len(url) > LONGEST_URL:
        raise ValueError(f"longer than {LONGEST_URL} characters")
    if not _PLAIN.fullmatch(url):
        raise ValueError("has characters that belong percent-encoded, or a host as xn--…")
    found = _ORIGIN.fullmatch(url)
    if found is None:
        raise ValueError("is not of the form scheme://host/…")
    scheme, place = found[1].lower(), found[2]
    if "@" in place:
        raise ValueError("has a user in front of its host")
    if scheme not in USUAL_PORTS:
        raise ValueError(f"is not {' or '.join(USUAL_PORTS)}")
    host, port, is_address = _place(place)
    if port == "*":
        raise ValueError("has no number for its port")
    number = int(port) if port else USUAL_PORTS[scheme]
    if not 0 < number < 65_536:
        raise ValueError("has no port of that number")
    return Target(scheme, host, number, is_address)


class Hosts:
    """A list of hosts, and a test of URLs against it.

    An entry is a name (`example.com`: also everything below it), or an address as it is written in
    a URL; with `:PORT` that port alone, with `:*` any, else the usual one of the scheme. Names of
    other alphabets are written as `xn--…`. `schemes` are those a URL may have. Raises
    `SettingsError` naming an entry that is none of these.
    """

    def __init__(self, entries: Iterable[str], *, schemes: Iterable[str] = ("https",)) -> None:
        self._schemes = frozenset(schemes)
        self._entries = tuple(_entry(each) for each in entries)

    def allows(self, url: str) -> bool:
        """Whether a URL leads to a host of the list; never raises."""
        try:
            found = target(url)
        except ValueError:
            return False
        if found.scheme not in self._schemes:
            return False
        return any(
            _covers(host, found)
            and (port == "*" or int(port or USUAL_PORTS[found.scheme]) == found.port)
            for host, port in self._entries
        )


def _covers(host: str, found: Target) -> bool:
    if found.is_address:
        return host == found.host
    return f".{found.host}".endswith(f".{host}")


def _entry(text: str) -> tuple[str, str | None]:
    try:
        host, port, _ = _place(text)
    except ValueError as error:
        raise SettingsError(
            f"{text!r} is not a host: it {error}",
            hint="write example.com, 192.0.2.1 or [2001:db8::1]",
        ) from None
    return host, port


def _place(text: str) -> tuple[str, str | None, bool]:
    """Read `host[:port]`: the host, the port as it is written, and whether it is an address."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise ValueError("is no host with or without a port")
    written, port = found[1].lower(), found[2]
    if written.startswith("["):
        return _address(written[1:-1]), port, True
    name = written.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        if written != name or ":" in name:
            raise ValueError("is no address")
        return _address(name), port, True
    if len(name) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("is no name of a host")
    return name, port, False


def _address(text: str) -> str:
    from ipaddress import ip_address

    try:
        return str(ip_address(text))  # strict: no 127.1, no 0x7f.0.0.1, no leading zeros
    except ValueError:
        raise ValueError("is no address in its usual form") from None
