"""Cases of several steps: memory of open streams, and how cost grows with what comes in."""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench.bodies import write_body
from bench.install import say
from bench.load import Figures, Load, Running, measure
from bench.peers import Target, daypass
from bench.process import (
    BenchError,
    forget_peak,
    peak_bytes,
    resident_bytes,
    wait_settled,
)
from bench.results import Row, combine
from bench.run import Run

OPEN = Load(None, ramp=1000, settle=40, seconds=3)
SLOW_WORD = "paced600x1000"  # one event a second, for longer than any case runs
STREAMERS = ("daypass", "daypass, ledger on", "nginx", "haproxy+es256")
GROWERS = ("daypass", "nginx")
CONNECTIONS = (1, 10, 100, 1000, 5000)
BODY_SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 30_000_000)
SIP_RATE = 25e6  # bytes a second, as in upstream.c
MANY = 20  # bodies at once
ONE_BY_ONE = 2_000_000  # bodies of fewer bytes are checked one after the other
# One at a time, or what came behind a slow one would count the same wait again.
PING = Load(None, connections=1, rate=200, skips=True, warm=0.2, path="/livez")


def memory(run: Run, targets: Sequence[Target]) -> None:
    """What one more open stream costs: the slope of RSS between 100 and 1,000 of them."""
    body = write_body(run.site.bodies, SLOW_WORD, 1000)
    for target in (t for t in targets if t.name in STREAMERS):
        say(f"memory: {target.name}")
        few = run.measure(replace(OPEN, body=body, connections=100), target)
        many = run.measure(replace(OPEN, body=body, connections=1000), target)
        row = combine(_row("memory", target), [many])
        row.kb_per_stream = round((many.resident - few.resident) / 900 / 1000, 2)
        row.bad, row.errs = few.bad + many.bad, few.errors + many.errors
        run.book.add(row)


def streams5000(run: Run, targets: Sequence[Target]) -> None:
    """Five thousand streams on one worker, none lost."""
    body = write_body(run.site.bodies, SLOW_WORD, 1000)
    for target in (t for t in targets if t.name in STREAMERS[:3]):
        say(f"streams5000: {target.name}")
        figures = run.measure(
            replace(OPEN, body=body, connections=5000, ramp=500, seconds=5), target
        )
        run.book.add(combine(_row("streams5000", target), [figures]))


def connections(run: Run, targets: Sequence[Target]) -> None:
    """CPU per request with many connections open, all of them used in turn."""
    body = write_body(run.site.bodies, "json1k", 1000)
    for count in CONNECTIONS:
        load = Load(body, connections=count, active=min(count, 16), ramp=500, settle=30, warm=0.3)
        _take_turns(run, f"connections {count:,}", load, targets)


def events(run: Run, targets: Sequence[Target]) -> None:
    """CPU per event of answers with 50 and with 500 events."""
    for count in (50, 500):
        load = Load(write_body(run.site.bodies, f"burst{count}", 1000), connections=16)
        _take_turns(run, f"events {count}", load, targets)


def body_bytes(run: Run, targets: Sequence[Target]) -> None:
    """CPU per byte of the body, the memory it takes, and how long it holds others up."""
    target = next((t for t in targets if t.name == "daypass"), None)
    if target is None:
        return
    for size in BODY_SIZES:
        for kind in ("text", "base64") if size >= 1_000_000 else ("text",):
            say(f"bytes: {size:,} of {kind}")
            body = write_body(run.site.bodies, "json1k", size, kind)
            real = body.stat().st_size
            load = Load(body, connections=1, seconds=2.5, warm=0.3, settle=20)
            row = _row(f"bytes {size:,} {kind}", target)
            figures, longest = _with_pings(run, load, target)
            combine(row, [figures])
            row.blocked_ms = longest / 1000
            row.ns_byte = (row.us_req or 0) * 1000 / real
            if size >= 1_000_000:
                row.checked_x, row.sent_x = _memory_of_body(run, size, kind)
            run.book.add(row)


ALL: dict[str, Callable[[Run, Sequence[Target]], None]] = {
    "memory": memory,
    "streams5000": streams5000,
    "connections": connections,
    "events": events,
    "bytes": body_bytes,
}


def _row(case: str, target: Target) -> Row:
    return Row(case, target.name, target.version, target.does)


def _take_turns(run: Run, case: str, load: Load, targets: Sequence[Target]) -> None:
    say(case)
    growing = [t for t in targets if t.name in GROWERS]
    seen = {t.name: [run.measure(load, t)] for t in growing}
    for target in reversed(growing):
        seen[target.name].append(run.measure(load, target))
    for target in growing:
        run.book.add(combine(_row(case, target), seen[target.name]))


def _with_pings(run: Run, load: Load, target: Target) -> tuple[Figures, float]:
    """Run the load while another connection pings; return its figures and the longest ping."""
    pings = Running(run.program, replace(PING, seconds=load.seconds + 1), target.port, [])
    try:
        figures = measure(run.program, load, target.port, target.headers, target.pid)
        pings.begun()
        pings.stopped()
        told = pings.figures()
    except BaseException:
        pings.kill()
        raise
    if told["bad"] or told["errors"] or not told["latency"]:
        raise BenchError(f"pings to {target.name} failed: {told}")
    return figures, told["latency"][3]


def _memory_of_body(run: Run, size: int, kind: str) -> tuple[float, float]:
    """Most memory of one body while it is checked, and while it is sent, as multiples of it.

    On a proxy of its own, because what an earlier body left behind would hide the growth.
    """
    target = daypass.start(run.site, "daypass")
    assert target.process is not None
    pid = target.process.pid
    try:
        # What is set up once is no part of what a body costs: the processes that check large
        # bodies, and what the first body of its kind needs.
        wait_settled(pid)
        first = write_body(run.site.bodies, "json1k", size // 10, kind)
        run.measure(Load(first, connections=1, warm=0, seconds=30, answers=5), target)
        body = write_body(run.site.bodies, "sip", size, kind)
        before, real = resident_bytes(pid), body.stat().st_size
        checked, sent = _while_one_passes(run, target, body)
        if size < ONE_BY_ONE:
            # Freed memory is kept for the next body, so one alone shows what its check took. Of
            # many at once each is held while it is sent, and one at a time is checked.
            forget_peak(pid)
            load = Load(body, connections=MANY, warm=0, seconds=30, answers=MANY)
            if run.measure(load, target).bad:
                raise BenchError(f"a bad answer to {MANY} bodies of {size} bytes")
            sent = before + (peak_bytes(pid) - before) / MANY
        return round((checked - before) / real, 2), round((sent - before) / real, 2)
    finally:
        run.site.end(target.process)


def _while_one_passes(run: Run, target: Target, body: Path) -> tuple[int, float]:
    """Resident bytes at most, and while the body is sent, which is at the end of its call.

    The upstream reads slowly, so that the last part of the call is certainly the sending.
    """
    assert target.pid is not None
    size = body.stat().st_size
    samples: list[tuple[float, int]] = []
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(target.pid, samples, over))
    forget_peak(target.pid)
    watcher.start()
    started = time.monotonic()
    try:
        load = Load(body, connections=1, warm=0, seconds=30, answers=1)
        figures = run.measure(load, target)
    finally:
        over.set()
        watcher.join()
    if not figures.latency or figures.bad:
        raise BenchError(f"no good answer to a body of {size} bytes")
    ended = started + figures.latency[0] / 1e6
    sending = [rss for at, rss in samples if ended - size / SIP_RATE * 0.6 < at < ended]
    if not sending:
        raise BenchError(f"a body of {size} bytes was sent too fast to be looked at")
    return peak_bytes(target.pid), statistics.median(sending)


def _watch(pid: int, samples: list[tuple[float, int]], over: threading.Event) -> None:
    while not over.is_set():
        samples.append((time.monotonic(), resident_bytes(pid)))
        time.sleep(0.001)
