"""`python -m bench.revocation`: how long something revoked is accepted, and what ending it takes.

Two brokers and two proxies over one PostgreSQL, each a process. A watcher at each proxy asks every
millisecond with one token; its sandbox is revoked at one broker, then the other. A figure is the
time from before the revocation was sent to the first refusal of the slower proxy, so the broker's
own transaction is in it; beside it stands the time from the broker's answer on. Three ways to hear
of it: with the notification; without any, as when it is lost; and with the connection that waits
for it ended just before. Then 200 streams of one tenant are cut, and last the database is stopped.
Beyond a promised bound it ends with 1.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.install import say
from tests.servers.client import RawStream
from tests.servers.fleet import Fleet, Watch, keys_below
from tests.servers.postgres import PostgresServer
from tests.servers.stub import Script, Send, Stall, StubUpstream, chunk
from tests.servers.wire import message_start, sse_answer, text_delta
from tests.support import eventually

MODEL = "claude-sonnet-4-5"
BODY: dict[str, object] = {
    "model": MODEL,
    "max_tokens": 64,
    "stream": True,
    "messages": [{"role": "user", "content": "x"}],
}
RUNNING: Script = [
    Send(sse_answer()),
    chunk(message_start(MODEL, {"input_tokens": 25, "output_tokens": 1})),
    chunk(text_delta("hello")),
    Stall(),
]
EDGES_MS = (2, 5, 10, 20, 50, 100, 200, 400, 800, 1600)
BAR = 50
POLL_SECONDS = 0.5
STREAMS = 200
STALE, STALE_STREAM, SLACK = 31.0, 61.0, 1.0


@dataclass
class Figures:
    """One way of hearing of a revocation: seconds, one a round, and the bound for p99."""

    way: str
    bound: float
    seconds: list[float] = field(default_factory=list)
    confirmed: list[float] = field(default_factory=list)
    """The same from the broker's answer on; below zero where a proxy was faster."""

    def at(self, share: float) -> float:
        """The smallest time that this share of the rounds did not pass."""
        return _at(self.seconds, share)

    @property
    def kept(self) -> bool:
        """Whether the bound holds."""
        return self.at(0.99) <= self.bound


def _at(seconds: Sequence[float], share: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def measure(
    fleet: Fleet, rounds: int, way: str, bound: float, revoke: Callable[..., Any]
) -> Figures:
    """Revoke `rounds` sandboxes one after the other."""
    figures = Figures(way, bound)
    for number, sandbox in enumerate(fleet.sandboxes(rounds)):
        token = fleet.access_token(sandbox)
        with Watch(fleet.proxies[0], token) as one, Watch(fleet.proxies[1], token) as two:
            time.sleep(random.uniform(0.0, POLL_SECONDS / 5))  # at any moment of a poll
            began = time.perf_counter()
            revoke(sandbox, number)
            answered = time.perf_counter()
            for watch in (one, two):
                watch.wait(10)
            refused_at = max(one.refused_at, two.refused_at)
            figures.seconds.append(refused_at - began)
            figures.confirmed.append(refused_at - answered)
    return figures


def ways(fleet: Fleet, rounds: int) -> list[Figures]:
    """Measure the three ways."""

    def told(sandbox: dict[str, Any], number: int) -> None:
        fleet.revoke("sandbox", sandbox["id"], broker=number % 2)

    def silent(sandbox: dict[str, Any], _: int) -> None:
        fleet.revoke_silently(sandbox)

    def deaf(sandbox: dict[str, Any], number: int) -> None:
        fleet.end_listeners()
        told(sandbox, number)

    return [
        measure(fleet, rounds, "told by NOTIFY", 0.1, told),
        measure(fleet, rounds // 2, "no notification", 0.8, silent),
        measure(fleet, rounds // 2, "listener killed", 0.8, deaf),
    ]


def cut_streams(fleet: Fleet, stub: StubUpstream) -> tuple[float, float]:
    """Revoke a tenant with open streams; seconds until all have ended, and until all are booked."""
    stub.always(RUNNING)
    tokens = [fleet.access_token(one) for one in fleet.sandboxes(10, budget_usd="100.00")]
    streams = [
        RawStream.post(fleet.proxies[n % 2], tokens[n % len(tokens)], BODY) for n in range(STREAMS)
    ]
    for stream in streams:
        stream.until(b"hello")
    began = time.perf_counter()
    fleet.revoke("tenant", "acme", not_before="now")
    with ThreadPoolExecutor(8) as readers:
        list(readers.map(RawStream.rest, streams))
    ended = time.perf_counter() - began

    def open_rows() -> int:
        (row,) = fleet.rows("SELECT count(*) AS n FROM usage WHERE state = 'open'")
        return int(row["n"])

    eventually(lambda: open_rows() == 0, timeout=30)
    return ended, time.perf_counter() - began


def stop_database(
    fleet: Fleet, stub: StubUpstream, server: PostgresServer
) -> tuple[list[float], list[float]]:
    """Stop the database; seconds until new calls were refused at each proxy, and streams cut."""
    stub.always(RUNNING)
    token = fleet.access_token(fleet.sandbox(budget_usd="100.00"))
    streams = [RawStream.post(url, token, BODY) for url in fleet.proxies]
    for stream in streams:
        stream.sock.settimeout(120)
        stream.until(b"hello")
    ends = [threading.Thread(target=stream.rest) for stream in streams]
    with Watch(fleet.proxies[0], token) as one, Watch(fleet.proxies[1], token) as two:
        # Before, not after: its processes end one by one, those of the views among the first.
        stopped = time.perf_counter()
        server.kill()
        for thread in ends:
            thread.start()
        say("the database is stopped; waiting for a minute")
        for watch in (one, two):
            watch.wait(60)
    offset = time.monotonic() - time.perf_counter()
    for thread in ends:
        thread.join()
    refused = [watch.refused_at - stopped for watch in (one, two)]
    cut = [stream.arrivals[-1][0] - offset - stopped for stream in streams]
    server.start()
    return refused, cut


def histogram(figures: Figures) -> str:
    """How often it took how long, in milliseconds."""
    lines, below = [], 0.0
    for edge in (*EDGES_MS, None):
        most = float("inf") if edge is None else edge
        count = sum(below < 1000 * one <= most for one in figures.seconds)
        name = f"> {int(below)}" if edge is None else f"<= {edge}"
        bar = "#" * round(BAR * count / len(figures.seconds))
        lines.append(f"  {name:>8} ms {count:5} {bar}".rstrip())
        below = most
    shown = {name: 1000 * figures.at(share) for name, share in (("p50", 0.5), ("p99", 0.99))}
    tail = ", ".join(f"{name} {value:.1f} ms" for name, value in shown.items())
    worst = 1000 * max(figures.seconds)
    verdict = "kept" if figures.kept else "BROKEN"
    return "\n".join(
        [
            f"{figures.way}: {len(figures.seconds)} revocations, {tail}, max {worst:.1f} ms"
            f" (bound {1000 * figures.bound:.0f} ms at p99: {verdict})",
            f"  from the broker's answer on: p50 {1000 * _at(figures.confirmed, 0.5):.1f} ms,"
            f" p99 {1000 * _at(figures.confirmed, 0.99):.1f} ms",
            *lines,
        ]
    )


def run(rounds: int, *, stop: bool) -> tuple[str, bool, dict[str, Any]]:
    """Do it all; the text, whether every bound was kept, and the figures."""
    with (
        tempfile.TemporaryDirectory(prefix="daypass-bench-") as folder,
        StubUpstream(["sk-bench-acme", "sk-bench-globex"]) as stub,
        PostgresServer() as server,
    ):
        url, where = server.new_database(), Path(folder)
        with Fleet(where / "fleet", stub.url, keys_below(where, stub), database_url=url) as fleet:
            found = ways(fleet, rounds)
            ended, booked = cut_streams(fleet, stub)
            refused, cut = stop_database(fleet, stub, server) if stop else ([], [])
    return _report(found, (ended, booked), refused, cut)


def _report(
    found: Sequence[Figures], streams: tuple[float, float], refused: list[float], cut: list[float]
) -> tuple[str, bool, dict[str, Any]]:
    kept = [one.kept for one in found]
    parts = [histogram(one) for one in found]
    ended, booked = streams
    kept.append(booked <= 2.0)
    parts.append(
        f"{STREAMS} open streams of one tenant: all ended after {ended:.2f} s, all booked after"
        f" {booked:.2f} s (bound 2 s: {_word(kept[-1])})"
    )
    if refused:
        for what, seconds, bound in (
            ("new calls", refused, STALE),
            ("open calls", cut, STALE_STREAM),
        ):
            kept.append(all(abs(one - bound) <= SLACK for one in seconds))
            shown = " and ".join(f"{one:.1f} s" for one in seconds)
            parts.append(f"database stopped: {what} refused or cut after {shown} ({bound:.0f} s)")
    load = os.getloadavg()[0]
    parts.append(f"load average {load:.1f} on {os.cpu_count()} cores")
    figures = {
        "ways": [asdict(one) for one in found],
        "streams": {"ended": ended, "booked": booked},
        "stopped": {"refused": refused, "cut": cut},
        "load": load,
    }
    return "\n\n".join(parts), all(kept), figures


def _word(kept: bool) -> str:
    return "kept" if kept else "BROKEN"


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="bench.revocation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="revocations of the first way")
    parser.add_argument("--no-stop", action="store_true", help="leave the database running")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    say(f"{2 * options.rounds} revocations at two brokers, watched at two proxies")
    text, kept, figures = run(options.rounds, stop=not options.no_stop)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(figures), encoding="utf-8")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
