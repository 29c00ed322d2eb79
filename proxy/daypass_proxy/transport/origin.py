"""An origin (scheme, host, port), and a request's head written for it.

Origins come from the settings and are few, so what depends on them alone is prepared once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.transport import UpstreamRequest

_TARGET = re.compile(r"/[!-\"$-~]*")
_METHOD = re.compile(r"[A-Z]+")
_OPENINGS_MAX = 64  # targets are constants of ours, far fewer


@dataclass(frozen=True, slots=True)
class Origin:
    """Where requests go; `written` is as in the URL, `host` without brackets."""

    secure: bool
    host: str
    port: int
    written: str
    host_line: bytes = field(repr=False)
    openings: dict[tuple[str, str, bytes | None], bytes] = field(
        default_factory=dict, repr=False, compare=False
    )
    """What heads of requests to here begin with, by method, target and egress header."""

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Read `https://host[:port]`; raises ValueError that repeats nothing of it."""
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError("origin must be http(s)://host[:port]")
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        host_line = b"host: %b\r\n" % parts.netloc.encode("ascii")
        return cls(secure, parts.hostname, port, text, host_line)

    @property
    def authority(self) -> str:
        """`host:port`, as a CONNECT names it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def split_url(url: str, known: dict[str, Origin]) -> tuple[Origin, str]:
    """Return the origin, from `known` or added to it, and the target as written.

    Raises ValueError for a URL that is no absolute one with a path.
    """
    slash = url.index("/", len("https://"))
    written = url[:slash]
    origin = known.get(written)
    if origin is None:
        origin = known[written] = Origin.parse(written)
    return origin, url[slash:]


def write_head(
    request: UpstreamRequest, origin: Origin, target: str, *, through: bytes | None = None
) -> bytes:
    """Return a request's head. `through` an egress proxy the target is absolute, and the header
    line given (or nothing) is the proxy's own.

    What would not arrive as one request with exactly these headers is not written: raises
    ValueError that repeats nothing of it.
    """
    method, headers, size = request.method, request.headers, len(request.body)
    opening = origin.openings.get((method, target, through))
    if opening is None:
        opening = _opening(method, origin, target, through)
    # The last one holds the key, which nothing but the keyring remembers.
    lines = _same_lines(headers[:-1]) + _lines(headers[-1:])
    if size or method not in ("GET", "HEAD"):
        return b"%bcontent-length: %d\r\n%b\r\n" % (opening, size, lines)
    return opening + lines + b"\r\n"


def _opening(method: str, origin: Origin, target: str, through: bytes | None) -> bytes:
    """Return what a head begins with, up to the egress proxy's own header."""
    where = target if through is None else origin.written + target
    if not _TARGET.fullmatch(target) or not _METHOD.fullmatch(method):
        raise ValueError("request cannot be written as HTTP")
    opening = f"{method} {where} HTTP/1.1\r\n".encode("ascii") + origin.host_line
    if through:
        opening += through
    _check(opening, 3 if through else 2)
    if len(origin.openings) < _OPENINGS_MAX:
        origin.openings[method, target, through] = opening
    return opening


def _lines(headers: HeaderPairs) -> bytes:
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    _check(lines, len(headers))
    return lines


_same_lines = lru_cache(maxsize=64)(_lines)
"""Of one client's connection the headers are the same, call for call."""


def _check(lines: bytes, count: int) -> None:
    """Raise ValueError unless these are so many lines.

    No header may hold a line's end: it would be a header, or a request, of somebody else's.
    """
    if lines.count(b"\n") != count or lines.count(b"\r") != count or b"\0" in lines:
        raise ValueError("request cannot be written as HTTP")
