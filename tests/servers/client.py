"""A bare HTTP/1.1 client for tests: it sees every byte, and whether the end was tidy."""

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.servers.record import record


@dataclass
class RawStream:
    """One request on a socket of its own, and what came back so far."""

    sock: socket.socket
    received: bytes = b""
    ended: bool = False  # the peer closed in the ordinary way
    broken: bool = False  # the connection was reset
    arrivals: list[tuple[float, bytes]] = field(default_factory=list)

    @classmethod
    def send(cls, url: str, request: bytes, timeout: float = 20.0) -> "RawStream":
        """Connect to an origin and send raw bytes."""
        parts = urlsplit(url)
        sock = socket.create_connection((parts.hostname or "", parts.port or 80), timeout)
        try:
            sock.sendall(request)
        except OSError:
            sock.close()
            raise
        return cls(sock)

    @classmethod
    def post(
        cls, url: str, token: str, body: dict[str, object], path: str = "/v1/messages"
    ) -> "RawStream":
        """Send one Messages request with a bearer token."""
        data = json.dumps(body).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: Bearer {token}",
            "Content-Type: application/json",
            "anthropic-version: 2023-06-01",
            "Accept-Encoding: gzip, deflate, br, zstd",
            f"Content-Length: {len(data)}",
        ]
        return cls.send(url, "\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    def read_some(self) -> bytes:
        """Wait for more bytes; empty when nothing more comes."""
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            self.broken = True
            return b""
        self.ended = not data
        if data:
            self.received += data
            self.arrivals.append((time.monotonic(), data))
        return data

    def until(self, found: bytes | Callable[[bytes], bool]) -> bytes:
        """Read until something was received; fails when the connection ends before."""
        test = (lambda data: found in data) if isinstance(found, bytes) else found
        while not test(self.received):
            assert self.read_some(), f"ended without {found!r}: {self.received[-500:]!r}"
        return self.received

    def rest(self) -> bytes:
        """Read until the answer is whole or the connection ends, then close."""
        while not self.complete and self.read_some():
            pass
        self.close()
        record(self.received)
        return self.received

    @property
    def status(self) -> int:
        """Status of the answer."""
        return int(self.received.split(b" ", 2)[1])

    @property
    def head(self) -> bytes:
        """Status line and headers."""
        return self.received.partition(b"\r\n\r\n")[0]

    def header(self, name: str) -> str:
        """One header of the answer; empty without it."""
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return ""

    @property
    def complete(self) -> bool:
        """The answer ended as HTTP says: last chunk seen, or all of its Content-Length."""
        head, mark, body = self.received.partition(b"\r\n\r\n")
        if not mark:
            return False
        lower = head.lower()
        if b"transfer-encoding: chunked" in lower:
            return body.endswith(b"0\r\n\r\n")
        if b"content-length:" in lower:
            length = lower.split(b"content-length:")[1].split(b"\r\n")[0]
            return len(body) >= int(length)
        return False

    @property
    def body(self) -> bytes:
        """The body so far, without the framing of chunks."""
        head, _, body = self.received.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" not in head.lower():
            return body
        whole = b""
        while body:
            size, mark, rest = body.partition(b"\r\n")
            if not mark:
                break
            length = int(size, 16)
            whole += rest[:length]
            body = rest[length + 2 :]
        return whole

    def close(self) -> None:
        """Hang up."""
        self.sock.close()
