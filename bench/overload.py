"""`python -m bench.overload`: what is left of a proxy that is asked for more than it can do.

One proxy on a core of its own, as it ships, ledger on SQLite; generator, provider and broker on the
other core. First what it can do: answers a second, 256 in flight over all connections in a closed
loop, and streams at once. Then twice as many requests a second for a minute, in an open loop, and
four times as many streams at once, whose clients wait as `retry-after` says. Goodput is what was
served whole, as a share of what it can do. Last, when the load is gone, how long it takes until
everybody is served again.
"""

import argparse
import json
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import interpreter
from bench.bodies import write_body
from bench.install import compiled, say
from bench.load import Figures, Load, measure
from bench.outcome import outcome
from bench.process import Process, free_port
from bench.site import Site

SANDBOXES = 16
CONNECTIONS, ACTIVE, CALM = 2000, 256, 64
BACK_OFF_MS = 2000
GOODPUT, STREAM_GOODPUT = 0.6, 0.8
SHED_US, RECOVERY_SECONDS = 50_000, 5


@dataclass
class Bench:
    """One proxy and what is asked of it."""

    load: Path
    port: int
    process: Process
    metrics: Path
    tokens: Path
    message: Path
    stream: Path

    def ask(self, body: Path, **more: Any) -> Figures:
        """One run of the generator."""
        wanted = Load(body, tokens=self.tokens, **more)
        return measure(self.load, wanted, self.port, [], self.process.pid)

    def requests(self, seconds: float) -> dict[str, Any]:
        """Twice what it can do, for so long; then 0.8 of it, until all goes well."""
        wanted = {"connections": CONNECTIONS, "active": ACTIVE, "seconds": 3, "warm": 2}
        runs = [self.ask(self.message, **wanted) for _ in range(3)]
        full = median([self._served(one) for one in runs])
        say(f"it can do {full:.0f} answers a second")
        calm = self.ask(self.message, connections=CALM, seconds=4, rate=0.5 * full, warm=1)
        with Watch(self.metrics):
            over = self.ask(
                self.message, connections=CONNECTIONS, seconds=seconds, rate=2 * full, warm=1
            )
        recovered = self._recovered(calm, rate=0.5 * full)
        return _told(full, calm, over, recovered) | {"goodput": self._served(over) / full}

    def streams(self, seconds: float) -> dict[str, Any]:
        """Four times as many streams at once as it can do, for so long."""
        some = self.ask(self.stream, connections=100, seconds=4, ramp=100, warm=3)
        count, full = self._most_streams()
        ramp = count
        with Watch(self.metrics):
            over = self.ask(
                self.stream,
                connections=4 * count,
                seconds=seconds,
                ramp=ramp,
                warm=10,
                back_off_ms=BACK_OFF_MS,
            )
        served = self._served(full)
        recovered = self._recovered(some, connections=100, body=self.stream, seconds=2.5)
        told = _told(served, full, over, recovered)
        return told | {"at_once": count, "goodput": self._served(over) / served}

    def _most_streams(self) -> tuple[int, Figures]:
        """How many streams at once give the most that are served whole in a second, all of them."""
        count, best, most = 200, 0, None
        while True:
            now = self.ask(self.stream, connections=count, seconds=4, ramp=count / 2, warm=4)
            say(f"{count} streams at once: {self._served(now):.0f} a second, p50"
                f" {now.latency[0] / 1000:.0f} ms, CPU {now.cpu:.2f} of the core")  # fmt: skip
            if most is not None and (now.bad or self._served(now) < 1.05 * self._served(most)):
                return best, most
            best, most = count, now
            count = int(count * 1.4)

    def _recovered(self, before: Figures, body: Path | None = None, **more: Any) -> float:
        """Seconds until a while in which nobody was turned away and all were as fast as before."""
        wanted = {"connections": CALM, "seconds": 1, "warm": 0} | more
        began = time.monotonic()
        for _ in range(30):
            at = time.monotonic() - began
            now = self.ask(body or self.message, **wanted)
            served = now.latency and now.latency[0] <= 2 * before.latency[0] + 5000
            if served and not now.bad and not now.errors:
                return at
        return time.monotonic() - began

    @staticmethod
    def _served(figures: Figures) -> float:
        """Whole good answers a second."""
        return figures.statuses.get("200", 0) / figures.seconds


class Watch:
    """Says now and then how the gate stands; use as a context manager."""

    WANTED = ("daypass_call_limit", "daypass_requests_in_flight", "daypass_event_loop_lag_seconds")

    def __init__(self, metrics: Path) -> None:
        self._metrics = metrics
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(5.0):
            lines = figures_of(self._metrics).splitlines()
            say("  ".join(line for line in lines if line.startswith(self.WANTED)))


def figures_of(metrics: Path) -> str:
    """The proxy's figures, of its Unix socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(metrics))
        sock.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        pieces = []
        while piece := sock.recv(65536):
            pieces.append(piece)
    return b"".join(pieces).decode()


def median(values: list[float]) -> float:
    """The middle one."""
    return sorted(values)[len(values) // 2]


def _told(full: float, before: Figures, over: Figures, recovered: float) -> dict[str, Any]:
    return {
        "full": full,
        "statuses": over.statuses,
        "errors": over.errors,
        "shed_us": over.turned_away,
        "latency_us": over.latency,
        "latency_before_us": before.latency,
        "event_delay_us": over.event_delay,
        "cpu": over.cpu,
        "recovered": recovered,
    }


def tokens(site: Site, port: int, file: Path) -> Path:
    """Write the tokens of several sandboxes, so that the limits of one are not what is measured."""
    lines = []
    for _ in range(SANDBOXES):
        site.take_token(port)
        lines.append(site.token)
    file.write_text("\n".join(lines) + "\n")
    return file


def verdicts(found: dict[str, Any], least: float) -> list[tuple[str, bool]]:
    """Each promise in words, and whether it was kept."""
    shed = found["shed_us"][0] if found["shed_us"] else 0
    return [
        (f"goodput {found['goodput']:.0%} (at least {least:.0%})", found["goodput"] >= least),
        (f"turned away in {shed / 1000:.1f} ms at p50 (below 50 ms)", shed < SHED_US),
        (f"recovered within {found['recovered']:.1f} s (below 5 s)",
         found["recovered"] < RECOVERY_SECONDS),
        (f"{found['errors']} connections lost (none)", not found["errors"]),
    ]  # fmt: skip


def show(name: str, found: dict[str, Any], least: float) -> tuple[str, bool]:
    """The figures of one kind of overload in words."""
    lines = [f"{name}: {json.dumps(found['statuses'])}, CPU {found['cpu']:.2f} of the core"]
    for what in ("latency_before_us", "latency_us", "shed_us", "event_delay_us"):
        if found[what]:
            p50, _, p99, most = (value / 1000 for value in found[what])
            lines.append(f"  {what:18} p50 {p50:8.1f} ms  p99 {p99:8.1f} ms  max {most:8.1f} ms")
    kept = verdicts(found, least)
    lines += [f"  {'kept  ' if good else 'BROKEN'} {words}" for words, good in kept]
    return "\n".join(lines), all(good for _, good in kept)


def run(seconds: float, which: list[str], folder: Path) -> tuple[str, bool, dict[str, Any]]:
    """Do it; the text, whether all was kept, and the figures."""
    load, upstream = compiled("load"), compiled("upstream")
    python = interpreter.chosen(None)
    with Site(folder, upstream, python) as site:
        port = free_port()
        program = interpreter.environment(python)
        process = site.start_proxy("daypass", port, None, program)
        bench = Bench(
            load, port, process, folder / f"{port}.metrics", tokens(site, port, folder / "tokens"),
            write_body(site.bodies, "json1k", 1000),
            write_body(site.bodies, "paced50x20", 1000),
        )  # fmt: skip
        texts, good, figures = [], True, {}
        for name, least in (("requests", GOODPUT), ("streams", STREAM_GOODPUT)):
            if name in which:
                figures[name] = getattr(bench, name)(seconds)
                text, kept = show(name, figures[name], least)
                texts.append(text)
                good = good and kept
    load_average = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    texts.append(f"{load_average}; Python {python.version}")
    return "\n\n".join(texts), good, figures


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="bench.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long each overload lasts")
    parser.add_argument("--only", choices=("requests", "streams"), help="one of the two")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    asked = parser.parse_args()
    which = [asked.only] if asked.only else ["requests", "streams"]
    return outcome(lambda folder: run(asked.seconds, which, folder), asked.json)


if __name__ == "__main__":
    sys.exit(main())
