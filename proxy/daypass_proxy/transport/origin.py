"""An origin (scheme, host, port), and a request's head written for it.

Origins come from the settings and are few, so what depends on them alone is prepared once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from daypass_proxy.transport import UpstreamRequest

_TARGET = re.compile(r"/[!-\"$-~]*")
_METHOD = re.compile(r"[A-Z]+")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where requests go; `written` is as in the URL, `host` without brackets."""

    secure: bool
    host: str
    port: int
    written: str
    host_line: bytes = field(repr=False)

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
    if not _TARGET.fullmatch(target) or not _METHOD.fullmatch(method):
        raise ValueError("request cannot be written as HTTP")
    lines = 3 + len(headers)
    if through is None:
        parts = [f"{method} {target} HTTP/1.1\r\n".encode("ascii"), origin.host_line]
    else:
        first = f"{method} {origin.written}{target} HTTP/1.1\r\n"
        parts = [first.encode("ascii"), origin.host_line, through]
        lines += bool(through)
    if size or method not in ("GET", "HEAD"):
        parts.append(b"content-length: %d\r\n" % size)
        lines += 1
    parts += [b"%b: %b\r\n" % header for header in headers]
    parts.append(b"\r\n")
    head = b"".join(parts)
    # No header may hold a line's end: it would be a header, or a request, of somebody else's.
    if head.count(b"\n") != lines or head.count(b"\r") != lines or b"\0" in head:
        raise ValueError("request cannot be written as HTTP")
    return head
