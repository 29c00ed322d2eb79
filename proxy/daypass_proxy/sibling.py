"""The workers of one proxy among each other: whoever is asked for figures asks the others too.

Each has a socket without a file, which its parent made and named. Figures of a worker get its
number as a label; one that does not answer is missing from the answer, and nobody waits for it.
"""

import asyncio
import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from daypass_core.punctual import PunctualProtocol

ANSWER_SECONDS = 2.0
_MOST = 8 * 1024 * 1024
_COMMENT = re.compile(r"# (?:HELP|TYPE|UNIT) (\S+)")
_LABEL = "worker"


@dataclass(frozen=True, slots=True)
class Siblings:
    """All workers of one proxy, as one of them sees them: itself by `number`."""

    number: int
    sockets: tuple[socket.socket, ...]

    @property
    def own(self) -> socket.socket:
        """Where this one is asked."""
        return self.sockets[self.number]

    async def figures(self, own: str, accept: str) -> str:
        """Return the figures of all in one text; `own` are those of this one."""
        others = [n for n in range(len(self.sockets)) if n != self.number]
        names = [self.sockets[n].getsockname() for n in others]
        asked = [asyncio.to_thread(_ask, name, accept) for name in names]
        texts = dict(zip(others, await asyncio.gather(*asked), strict=True)) | {self.number: own}
        return merged((number, texts[number]) for number in sorted(texts))


@contextmanager
def sibling_socket() -> Iterator[socket.socket]:
    """Hold a listening socket with a name of the kernel's choice, and without a file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind("")
        sock.listen(16)
        sock.setblocking(False)
        yield sock


class SiblingProtocol(PunctualProtocol):
    """Answers processes of the same user alone: the name of the socket guards nothing."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request, or hang up."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", found)[1] != os.getuid():
            transport.abort()


def merged(texts: Iterable[tuple[int, str]]) -> str:
    """Return several expositions as one: each family once, each sample with its worker's label."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    end = ""
    for number, text in texts:
        family = ""
        fresh: set[str] = set()
        for line in text.splitlines():
            comment = _COMMENT.match(line)
            if comment is not None:
                family = comment[1]
                if family not in heads:
                    heads[family], samples[family] = [], []
                    fresh.add(family)
                if family in fresh:
                    heads[family].append(line)
            elif line == "# EOF":
                end = line + "\n"
            elif line:
                samples.setdefault(family, []).append(_labelled(line, number))
                heads.setdefault(family, [])
    lines = [line for family in heads for line in (*heads[family], *samples[family])]
    return "".join(f"{line}\n" for line in lines) + end


def _labelled(sample: str, number: int) -> str:
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{{_LABEL}="{number}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{{_LABEL}="{number}"}} {value}'


def _ask(name: bytes | str, accept: str) -> str:
    """Return the figures of one other worker; nothing when it does not answer in time."""
    request = f"GET /metrics HTTP/1.1\r\nhost: sibling\r\naccept: {accept}\r\nconnection: close\r\n"
    answer = bytearray()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(ANSWER_SECONDS)
            sock.connect(name)
            sock.sendall(request.encode("latin-1") + b"\r\n")
            while piece := sock.recv(65536):
                answer += piece
                if len(answer) > _MOST:
                    return ""
    except OSError:
        return ""
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    return body.decode() if head.startswith(b"HTTP/1.1 200 ") else ""
