"""`python -m bench.hostile`: who is slow or silent on purpose, and what the others notice of it.

One proxy on a core of its own, as it ships. At its door: 500 connections that say nothing, 200 that
send a head a byte a second, 200 with a good token that send a body so, and 100 that ask for an
answer of 3 MB and do not read it; whoever is thrown out comes back at once. How long each lasts is
held to its deadline. Beside them a good client asks 100 times a second, before and meanwhile. Three
rounds; of their figures the median counts.
"""

import argparse
import json
import os
import random
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import interpreter
from bench.bodies import write_body
from bench.install import compiled, say
from bench.load import Figures, Load, measure
from bench.outcome import outcome
from bench.process import LOAD_CORE, free_port
from bench.site import Site

RATE, CONNECTIONS = 100, 16
MEANWHILE_SECONDS = 45.0
P50_FACTOR, P99_MORE_US = 1.5, 50_000
SLACK_SECONDS = 2.0
_ENDED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


@dataclass(frozen=True)
class Kind:
    """One way to be hostile: how many, and after how many seconds each has to be thrown out."""

    name: str
    count: int
    seconds: float
    reads: bool = True
    drips: bool = False


KINDS = (
    Kind("says nothing", 500, 10.0),
    Kind("drips a head", 200, 10.0, drips=True),
    Kind("drips a body", 200, 30.0, drips=True),
    Kind("does not read", 100, 30.0, reads=False),
)


@dataclass
class Lives:
    """How long connections of one kind lasted, in seconds."""

    ended: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    oldest: float = 0.0
    """Of those that were open when it was over."""

    @property
    def longest(self) -> float:
        return max([*self.ended, self.oldest])


def _mixed(_: Kind) -> float:
    return random.random()


class Hostile:
    """All of them, in one thread; use as a context manager. What they did is in `lives`."""

    def __init__(self, port: int, begin: Callable[[Kind], bytes]) -> None:
        self._port = port
        self._begin = begin
        self._poll = select.epoll()
        self._open: dict[int, tuple[Kind, socket.socket, float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.lives = {kind.name: Lives() for kind in KINDS}

    def __enter__(self) -> "Hostile":
        everybody = [kind for kind in KINDS for _ in range(kind.count)]
        for kind in sorted(everybody, key=_mixed):
            self._connect(kind)
            time.sleep(0.003)  # so that their deadlines are not all the same moment either
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        now = time.monotonic()
        for kind, sock, born in self._open.values():
            lives = self.lives[kind.name]
            lives.oldest = max(lives.oldest, now - born)
            sock.close()
        self._poll.close()

    def _connect(self, kind: Kind) -> None:
        sock = socket.socket()
        if not kind.reads:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        born = time.monotonic()
        sock.connect(("127.0.0.1", self._port))
        sock.sendall(self._begin(kind))
        sock.setblocking(False)
        self._poll.register(sock, _ENDED | (select.EPOLLIN if kind.reads else 0))
        self._open[sock.fileno()] = (kind, sock, born)

    def _run(self) -> None:
        drip_at = time.monotonic() + 1.0
        while not self._over.is_set():
            for descriptor, _ in self._poll.poll(0.1):
                self._ended(descriptor)
            if time.monotonic() >= drip_at:
                drip_at += 1.0
                self._drip()

    def _ended(self, descriptor: int) -> None:
        """Something came: an answer, which is the end here too, or the end."""
        kind, sock, born = self._open.pop(descriptor)
        lives = self.lives[kind.name]
        lives.ended.append(time.monotonic() - born)
        if kind.reads:
            try:
                lives.statuses[sock.recv(4096)[9:12].decode("latin-1") or "closed"] += 1
            except OSError:
                lives.statuses["reset"] += 1
        self._poll.unregister(sock)
        sock.close()
        self._connect(kind)

    def _drip(self) -> None:
        for kind, sock, _ in list(self._open.values()):
            if kind.drips:
                try:
                    sock.send(b"x")
                except OSError:
                    continue


def openings(token: str, large: bytes) -> Callable[[Kind], bytes]:
    """Return what each kind says first."""
    head = f"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    head += "Content-Type: application/json\r\n"
    said = {
        "says nothing": b"",
        "drips a head": head.encode(),
        "drips a body": f"{head}Content-Length: 100000\r\n\r\n{{".encode(),
        "does not read": f"{head}Content-Length: {len(large)}\r\n\r\n".encode() + large,
    }
    return lambda kind: said[kind.name]


def one_round(
    load: Path, port: int, token: str, body: Path, begin: Callable[[Kind], bytes]
) -> tuple[Figures, Figures, dict[str, Lives]]:
    """The good client alone, then with the others at the door."""
    headers = [f"Authorization: Bearer {token}"]
    good = {"connections": CONNECTIONS, "rate": RATE}
    before = measure(load, Load(body, seconds=10, **good), port, headers, None)
    with Hostile(port, begin) as hostile:
        during = measure(load, Load(body, seconds=MEANWHILE_SECONDS, **good), port, headers, None)
    return before, during, hostile.lives


def median(values: list[float]) -> float:
    """The middle one."""
    return sorted(values)[len(values) // 2]


def report(
    rounds: list[tuple[Figures, Figures, dict[str, Lives]]], python: str
) -> tuple[str, bool, dict[str, Any]]:
    """The figures in words, whether all was kept, and as JSON."""
    lines, kept = [], []
    figures: dict[str, Any] = {"kinds": {}, "good": []}
    for kind in KINDS:
        longest = max(lives[kind.name].longest for _, _, lives in rounds)
        ended = sum(len(lives[kind.name].ended) for _, _, lives in rounds)
        answers = sum((lives[kind.name].statuses for _, _, lives in rounds), Counter())
        kept.append(ended > 0 and longest <= kind.seconds + SLACK_SECONDS)
        lines.append(
            f"{kind.count} connections, each {kind.name}: {ended} thrown out, the last after"
            f" {longest:.1f} s (deadline {kind.seconds:.0f} s: {_word(kept[-1])})"
            f" {json.dumps(answers) if answers else ''}".rstrip()
        )
        figures["kinds"][kind.name] = {"longest": longest, "ended": ended, "answers": answers}
    for before, during, _ in rounds:
        pair = {"before": before.latency, "during": during.latency, "bad": during.bad,
                "errors": during.errors}  # fmt: skip
        figures["good"].append(pair)
    p50 = median([one["during"][0] / one["before"][0] for one in figures["good"]])
    p99 = median([one["during"][2] - one["before"][2] for one in figures["good"]])
    bad = sum(one["bad"] + one["errors"] for one in figures["good"])
    was = [median([one["before"][at] for one in figures["good"]]) / 1000 for at in (0, 2)]
    kept += [p50 < P50_FACTOR, p99 <= P99_MORE_US, not bad]
    lines += [
        f"a good client alone: p50 {was[0]:.2f} ms, p99 {was[1]:.2f} ms",
        f"with all of them: p50 {p50:.2f} times that (below {P50_FACTOR}: {_word(kept[-3])}), p99"
        f" {p99 / 1000:+.2f} ms (at most +50 ms: {_word(kept[-2])}), {bad} failed"
        f" ({_word(kept[-1])})",
        f"median of {len(rounds)}; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores;"
        f" Python {python}",
    ]
    return "\n".join(lines), all(kept), figures


def _word(kept: bool) -> str:
    return "kept" if kept else "BROKEN"


def run(rounds: int, folder: Path) -> tuple[str, bool, dict[str, Any]]:
    """Do it all."""
    load, upstream = compiled("load"), compiled("upstream")
    python = interpreter.chosen(None)
    with Site(folder, upstream, python) as site:
        port = free_port()
        site.start_proxy("daypass", port, None, interpreter.environment(python))
        site.take_token(port)
        begin = openings(site.token, write_body(site.bodies, "burst20000", 1000).read_bytes())
        site.take_token(port)  # the good client is another sandbox
        body = write_body(site.bodies, "json1k", 1000)
        found = []
        for number in range(rounds):
            found.append(one_round(load, port, site.token, body, begin))
            say(f"round {number + 1} of {rounds}")
    return report(found, python.version)


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="bench.hostile", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    asked = parser.parse_args()
    os.sched_setaffinity(0, {LOAD_CORE})
    return outcome(lambda folder: run(asked.rounds, folder), asked.json)


if __name__ == "__main__":
    sys.exit(main())
