"""`python -m bench.soak`: half an hour of everything at once, and what is left of it afterwards.

A real broker and a real proxy with the ledger on. 200 streams are open all the time, 50 short calls
a second come beside them, each on a connection of its own; tokens live a minute, so one is renewed
every second; every ten seconds a sandbox is revoked under its running streams. Some clients leave,
half of those with a reset; some streams break off upstream, some calls are answered 429 or 529, and
some bodies are large. Each minute prints what the processes hold. Then 5,000 streams on a fresh
proxy.

It ends with 1 when memory grows by 1 MB a minute or more after the warm-up (the slope by least
squares over the last two thirds), when descriptors or tasks do not come back to what they were,
when a client got what none should get, or when the books are wrong.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.bodies import write_body
from bench.install import compiled, say
from bench.load import Load, measure
from bench.process import (
    LOAD_CORE,
    BenchError,
    Process,
    allow_descriptors,
    cpu_seconds,
    free_port,
    resident_bytes,
    tree,
)
from bench.scale import SLOW_WORD
from bench.soak_clients import Clients, summary
from bench.soak_upstream import Provider
from tests.servers.books import assert_books_right
from tests.servers.stack import POLICY, Stack, call

KEY = "sk-ant-real-0123456789abcdef"
STREAMS, RATE, SANDBOXES, REVOKE_SECONDS, TTL_SECONDS = 200, 50.0, 40, 10.0, 60
MOST_MB_PER_MINUTE = 1.0
QUIET_SECONDS = 180
"""How long idle connections may take to close when the load is over."""
SLACK_FDS, SLACK_TASKS = 2, 2
MANY, FEW = 5000, 500
PARTS = ("core", "proxy", "broker", "migrations")


@dataclass(frozen=True)
class Sample:
    """What the processes hold at one moment; memory in MB, `minute` since the load began."""

    minute: float
    proxy_mb: float
    workers_mb: float
    broker_mb: float
    fds: int
    threads: int
    tasks: int
    open_calls: int
    wal_mb: float
    db_mb: float
    cpu_percent: float
    lag_ms: float
    p50_ms: float
    p99_ms: float


class Soak:
    """One run: `stack` under load, looked at every `pause` seconds."""

    def __init__(self, stack: Stack, metrics_url: str, clients: Clients) -> None:
        self._stack, self._metrics_url, self._clients = stack, metrics_url, clients
        self._proxy = stack.processes["proxy"].pid
        self._broker = stack.processes["broker"].pid
        self._cpu, self._at = cpu_seconds(self._proxy), time.monotonic()
        self.began = time.monotonic()
        self.samples: list[Sample] = []

    def look(self) -> Sample:
        """Take one sample."""
        figures = _figures(self._metrics_url)
        main = _own_bytes(self._proxy)
        cpu, now = cpu_seconds(self._proxy), time.monotonic()
        share = (cpu - self._cpu) / max(now - self._at, 0.001)
        self._cpu, self._at = cpu, now
        seconds, self._clients.latest = sorted(self._clients.latest), []
        folder = self._stack.folder
        return Sample(
            minute=round((now - self.began) / 60, 2),
            proxy_mb=_mb(main),
            workers_mb=_mb(resident_bytes(self._proxy) - main),
            broker_mb=_mb(resident_bytes(self._broker)),
            fds=len(os.listdir(f"/proc/{self._proxy}/fd")),
            threads=len(os.listdir(f"/proc/{self._proxy}/task")),
            tasks=int(figures["daypass_event_loop_tasks"]),
            open_calls=int(figures["daypass_open_calls"]),
            wal_mb=_mb(_size(folder / "daypass.db-wal")),
            db_mb=_mb(_size(folder / "daypass.db")),
            cpu_percent=round(share * 100, 1),
            lag_ms=round(figures["daypass_event_loop_lag_seconds"] * 1000, 1),
            p50_ms=_at(seconds, 0.5),
            p99_ms=_at(seconds, 0.99),
        )

    async def run(self, minutes: float, pause: float) -> None:
        """Drive the load and print a sample every `pause` seconds."""
        load = asyncio.create_task(self._clients.run(STREAMS, RATE, minutes * 60, REVOKE_SECONDS))
        print(_row(list(Sample.__annotations__)), flush=True)
        while not load.done():
            await asyncio.wait([load], timeout=pause)
            # What comes later is the end of the last streams, and no load any more.
            if not load.done() and time.monotonic() - self.began <= minutes * 60 + 1:
                self.samples.append(sample := await asyncio.to_thread(self.look))
                print(_row([str(value) for value in asdict(sample).values()]), flush=True)
        await load

    async def settled(self, before: Sample) -> Sample:
        """Wait until descriptors and tasks are back, and return what is held then."""
        end = time.monotonic() + QUIET_SECONDS
        while True:
            now = await asyncio.to_thread(self.look)
            if _back(before, now) or time.monotonic() > end:
                return now
            await asyncio.sleep(2)


def _back(before: Sample, now: Sample) -> bool:
    return now.fds <= before.fds + SLACK_FDS and now.tasks <= before.tasks + SLACK_TASKS


def slope(samples: Sequence[Sample], name: str) -> float:
    """MB a minute by least squares over the last two thirds of the samples."""
    late = samples[len(samples) // 3 :]
    if len(late) < 3:
        raise BenchError("too few samples for a slope; give it more minutes")
    xs = [one.minute for one in late]
    ys = [float(getattr(one, name)) for one in late]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True))
    return above / sum((x - middle_x) ** 2 for x in xs)


def verdicts(before: Sample, after: Sample, soak: Soak, clients: Clients) -> list[tuple[str, bool]]:
    """What was promised, and whether it held."""
    found = []
    for name in ("proxy_mb", "workers_mb", "broker_mb"):
        rate = slope(soak.samples, name)
        told = f"{name.removesuffix('_mb')}: {rate:+.3f} MB a minute, less than 1 allowed"
        found.append((told, rate < MOST_MB_PER_MINUTE))
    fds = f"descriptors {before.fds} before, {after.fds} after"
    tasks = f"tasks {before.tasks} before, {after.tasks} after"
    found.append((fds, after.fds <= before.fds + SLACK_FDS))
    found.append((tasks, after.tasks <= before.tasks + SLACK_TASKS))
    wrong = sum(count for word, count in clients.counts.items() if word.startswith("wrong"))
    found.append((f"{wrong} answers that no client should get", wrong == 0))
    return found


async def drive(stack: Stack, provider: Provider, metrics_url: str, minutes: float) -> bool:
    """The soak itself; whether all held."""
    pause = 60.0 if minutes >= 9 else max(minutes * 60 / 9, 2.0)
    clients = Clients(stack)
    await clients.make(SANDBOXES)
    first = await asyncio.to_thread(stack.access_token, await asyncio.to_thread(stack.sandbox))
    answer = await asyncio.to_thread(stack.message, first, system="bench:short")
    assert answer.status == 200, answer.body
    soak = Soak(stack, metrics_url, clients)
    before = await asyncio.to_thread(soak.look)
    await soak.run(minutes, pause)
    say(f"what clients got: {summary(clients.counts)}")
    after = await soak.settled(before)
    say(f"before: {json.dumps(asdict(before))}")
    say(f"after: {json.dumps(asdict(after))}")
    held = verdicts(before, after, soak, clients)
    for told, good in held:
        print(f"{'held  ' if good else 'BROKEN'} {told}", flush=True)
    provider.close()
    return all(good for _, good in held)


def many_streams(stack: Stack) -> bool:
    """Hold 5,000 streams open on a fresh proxy; print memory for each; whether none was lost."""
    folder = stack.folder
    port = free_port()
    upstream = Process(
        "upstream", [compiled("upstream"), str(port)], folder / "upstream.log", core=LOAD_CORE
    )
    try:
        upstream.wait_port(port)
        stack.proxy_settings = {
            **stack.proxy_settings,
            "DAYPASS_ANTHROPIC_URL": f"http://127.0.0.1:{port}",
            "DAYPASS_PROXY_METRICS_LISTEN": f"unix:{folder / 'many.metrics'}",
            # All of them are one sandbox's here, which may have a thousand by default.
            "DAYPASS_SANDBOX_CONNECTIONS": str(2 * MANY),
        }
        url = stack.another_proxy("many")
        bodies = folder / "bodies"
        bodies.mkdir(exist_ok=True)
        open_streams = Load(write_body(bodies, SLOW_WORD, 1000), ramp=500, settle=60, seconds=5)
        pid, rss, seen = stack.processes["many"].pid, {}, None
        for count in (FEW, MANY):
            load = replace(open_streams, connections=count)
            token = stack.access_token(stack.sandbox(budget_usd="1000.00"))
            headers = [f"authorization: Bearer {token}", "anthropic-version: 2023-06-01"]
            seen = measure(compiled("load"), load, int(url.rpartition(":")[2]), headers, pid)
            rss[count] = seen.resident
        assert seen is not None
        each = (rss[MANY] - rss[FEW]) / (MANY - FEW) / 1000
        lost = MANY - seen.active + seen.bad + seen.errors
        print(
            f"{MANY:,} streams on one worker: {seen.active:,} open to the end, {lost} lost,"
            f" {each:.1f} kB of memory for each, {_mb(rss[MANY])} MB in all,"
            f" {seen.us_event or 0:.0f} us of CPU an event",
            flush=True,
        )
        return lost == 0
    finally:
        upstream.stop()


def _figures(url: str) -> dict[str, float]:
    text = call(url, "GET", "/metrics").body.decode()
    return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE)}


def _own_bytes(pid: int) -> int:
    return resident_bytes(pid) - sum(resident_bytes(one) for one in tree(pid)[1:2])


def _mb(size: float) -> float:
    return round(size / 1e6, 2)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _at(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return 0.0
    return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1000, 1)


def _row(cells: Sequence[str]) -> str:
    return " | ".join(cell.rjust(8) for cell in cells)


def make_stack(folder: Path, provider_port: int, metrics_port: int, tree_of: Path) -> Stack:
    """Broker and proxy of a checkout, with tokens that live a minute."""
    place = {"PYTHONPATH": ":".join(str(tree_of / part) for part in PARTS)}
    key = folder / "key.secret"
    folder.mkdir(parents=True, exist_ok=True)
    key.write_text(KEY)
    key.chmod(0o600)
    return Stack(
        folder,
        f"http://127.0.0.1:{provider_port}",
        f"*=file://{key}",
        policy=POLICY.replace("token_ttl_seconds: 600", f"token_ttl_seconds: {TTL_SECONDS}"),
        broker_settings=place,
        proxy_settings=place
        | {
            "DAYPASS_SHARED_KEYS": "1",
            "DAYPASS_LOG_LEVEL": "info",
            "DAYPASS_PROXY_METRICS_LISTEN": f"127.0.0.1:{metrics_port}",
        },
    )


async def soak(folder: Path, minutes: float, tree_of: Path, streams: bool) -> bool:
    """All of it; whether all held."""
    provider = Provider(KEY)
    await provider.start()
    metrics_port = free_port()
    stack = make_stack(folder, provider.port, metrics_port, tree_of)
    await asyncio.to_thread(stack.__enter__)
    try:
        url = f"http://127.0.0.1:{metrics_port}"
        good = await drive(stack, provider, url, minutes)
        if streams:
            good = await asyncio.to_thread(many_streams, stack) and good
    finally:
        await asyncio.to_thread(stack.stop)
    await asyncio.to_thread(assert_books_right, stack.database_url)
    say("the books are right")
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 when all held, 1 when not."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--no-streams", action="store_true", help="without the 5,000 streams")
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--keep", type=Path, help="folder for database and logs; kept")
    asked = parser.parse_args(arguments)
    allow_descriptors()
    with tempfile.TemporaryDirectory(prefix="dp-soak-") as folder:
        place = asked.keep or Path(folder)
        return 0 if asyncio.run(soak(place, asked.minutes, asked.tree, not asked.no_streams)) else 1


if __name__ == "__main__":
    sys.exit(main())
