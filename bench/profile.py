"""Where the proxy's CPU goes: one case under cProfile, per request or per event.

cProfile makes every Python call dearer than it is, so the *shares* and the numbers of calls are to
be read; what a request really costs is in the bench's own table. Time outside the main thread (the
ledger's writer, the watcher of revocations) is not in it.
"""

import pstats
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from bench import cases
from bench.bodies import MODEL, write_body
from bench.install import compiled, say
from bench.interpreter import environment
from bench.load import Figures, Load, measure
from bench.process import BenchError, Process, free_port, thread_seconds
from bench.site import Site

TOP = 40
Function = tuple[str, int, str]
Timing = tuple[int, int, float, float, dict[Function, tuple[int, int, float, float]]]


def profile(name: str, site: Site, flags: list[str]) -> str:
    """Run the case `name` plainly for its threads, then against a profiled proxy; report both."""
    if name not in cases.CASES:
        raise BenchError(f"there is no case {name}; there is: {', '.join(cases.CASES)}")
    case = cases.CASES[name]
    say(f"running {name}, then once more profiled")
    process, port, figures, before = _run(site, case, flags)
    threads = thread_seconds(process.pid)
    used = {thread: seconds - before.get(thread, 0) for thread, seconds in threads.items()}
    told = _threads(used, process.pid, _count(figures, case), case.unit)
    if name == "json1k":
        told += "\n\n" + _steps(site, process, port)
    site.end(process)
    out = site.folder / "proxy.prof"
    process, _, figures, _ = _run(site, case, [*flags, "--profile", str(out)])
    site.end(process)
    stats: dict[Function, Timing] = pstats.Stats(str(out)).stats  # type: ignore[attr-defined]
    return told + "\n\n" + report(stats, name, case.unit, _count(figures, case))


def _run(
    site: Site, case: cases.Case, flags: list[str]
) -> tuple[Process, int, Figures, dict[int, float]]:
    """Start a proxy and run the case; its threads' CPU time is that of before the run."""
    port = free_port()
    process = site.start_proxy("profiled", port, flags, environment(site.python))
    site.take_token(port)
    before = thread_seconds(process.pid)
    load = replace(case.load(site.bodies), seconds=4)
    headers = [f"Authorization: Bearer {site.token}"]
    figures = measure(compiled("load"), load, port, headers, process.pid)
    return process, port, figures, before


def _count(figures: Figures, case: cases.Case) -> int:
    count = figures.all_done if case.unit == "request" else figures.all_events
    return max(count, 1)


def _threads(used: dict[int, float], main: int, count: int, unit: str) -> str:
    """CPU by thread, without a profiler in the way."""
    lines = [f"CPU µs/{unit} by thread, not profiled:"]
    for thread, seconds in sorted(used.items(), key=lambda item: -item[1]):
        name = "main" if thread == main else f"thread {thread - main:+d}"
        lines.append(f"  {name:12} {seconds / count * 1e6:8.1f}")
    return "\n".join(lines)


def _steps(site: Site, process: Process, port: int) -> str:
    """What a request costs that ends early: without a profiler, so absolute figures hold."""
    good = write_body(site.bodies, "json1k", 1000)
    foreign = site.bodies / "foreign.json"
    foreign.write_bytes(good.read_bytes().replace(MODEL.encode(), b"no-such-model"))
    bearer = [f"Authorization: Bearer {site.token}"]
    closed = Load(None, connections=16, seconds=1)
    steps: tuple[tuple[str, Load, list[str]], ...] = (
        ("GET /livez: server, guard, route", replace(closed, path="/livez"), []),
        ("refused for its token: and the body received", replace(closed, body=good), []),
        ("refused for its model: and token, body checked", replace(closed, body=foreign), bearer),
        ("served: and admitted, sent, relayed, closed", replace(closed, body=good), bearer),
    )
    seen: dict[str, list[float]] = {name: [] for name, _, _ in steps}
    for name, load, headers in (*steps, *reversed(steps)):
        figures = measure(compiled("load"), load, port, headers, process.pid)
        seen[name].append(figures.us_request or 0)
    lines = ["CPU µs of a 1 kB request by how far it gets, not profiled:"]
    lines += [f"  {name:48} {sum(costs) / len(costs):8.1f}" for name, costs in seen.items()]
    return "\n".join(lines)


def report(stats: dict[Function, Timing], name: str, unit: str, count: int) -> str:
    """The two tables of a profile that covers `count` requests or events."""
    own = own_times(stats)
    whole = sum(own.values())
    lines = [
        f"profile of {name}, {count:,} {unit}s; uvloop itself (C) is in its callers or not in it"
    ]
    lines.append("")
    lines.append(f"{'own time by file, with the C functions it calls':50} {'share':>7} µs/{unit}")
    for where, seconds in sorted(own.items(), key=lambda item: -item[1])[:TOP]:
        lines.append(f"{where:50} {seconds / whole:7.1%} {seconds / count * 1e6:10.1f}")
    lines += ["", f"{'function, by time with all it calls':62} {'calls':>7} {'own':>8} {'all':>8}"]
    ranked = sorted(stats.items(), key=lambda item: -item[1][3])
    for (path, line, function), (_, calls, self_time, all_time, _) in ranked[: TOP * 2]:
        where = f"{place(path)}:{line} {function}"
        per = [calls / count, self_time / count * 1e6, all_time / count * 1e6]
        lines.append(f"{where[:62]:62} {per[0]:7.1f} {per[1]:8.1f} {per[2]:8.1f}")
    return "\n".join(lines)


def own_times(stats: dict[Function, Timing]) -> dict[str, float]:
    """Seconds by file; what built-in functions take belongs to the file that called them."""
    own: dict[str, float] = defaultdict(float)
    for (path, _, _), (_, _, seconds, _, callers) in stats.items():
        if path != "~" or not callers:
            own[place(path)] += seconds
            continue
        for (caller, _, _), timing in callers.items():
            own[place(caller)] += timing[2]
    return own


def place(path: str) -> str:
    """A short name of a file: its package and its own name."""
    parts = Path(path).parts
    if path == "~":
        return "(built in)"
    if len(parts) < 2 or parts[-2].startswith("python3"):
        return parts[-1]
    return "/".join(parts[-2:])
