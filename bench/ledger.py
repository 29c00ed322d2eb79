"""`python -m bench.ledger`: what admission and settlement cost, beside check-then-add.

Callers are tasks of one event loop, as in the proxy: each admits a call, settles it and begins
anew. Ways take turns; a figure is the median of its rounds. Every round ends with the books being
added up, so that nobody is fast by being wrong.
"""

import argparse
import asyncio
import inspect
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from bench.install import say
from bench.ledger_stores import (
    COST,
    SANDBOXES,
    WAYS,
    Store,
    Way,
    fdatasync_seconds,
    stores,
)
from bench.ledger_table import failures, render
from bench.process import BenchError
from bench.results import machine
from bench.site import CACHE

T = TypeVar("T")
CALLERS = (1, 8, 64, 512)
HOT_CALLERS = 64
RACE_CALLS = 100
"""Calls that the budget of the race has room for."""
RACE_SECONDS = 0.02
"""How long a call of the race takes upstream."""
IDLE_TIMES = 200
IDLE_PAUSE = 0.005


@dataclass
class Cell:
    """One measurement: medians over the rounds, times in milliseconds."""

    case: str  # spread, hot, race, idle
    store: str
    way: str
    callers: int
    per_second: float = 0.0
    range: tuple[float, float] = (0.0, 0.0)
    admit_p50: float = 0.0
    admit_p99: float = 0.0
    settle_p50: float = 0.0
    settle_p99: float = 0.0
    cpu_us: float = 0.0  # of this process, for each call: admission and settlement
    commit_p50: float = 0.0  # of one transaction made by itself, measured in turns with the calls
    fsync_p50: float = 0.0  # of the disk alone
    percent: float = 0.0  # of a ceiling that was spent
    load_avg: float = 0.0
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)


@dataclass
class Round:
    """What one round saw; times in seconds."""

    admits: list[float] = field(default_factory=list)
    settles: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.settles) / self.seconds


def main(words: Sequence[str] | None = None) -> int:
    """Measure and report; return the exit status."""
    asked = parser().parse_args(words)
    run_id = time.strftime("%Y%m%d-%H%M%S")
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ledger-", dir=CACHE))  # on a disk, not in memory
    book = CACHE / f"ledger-{run_id}.jsonl"
    about = {"run_id": run_id, **machine(platform.python_version())}
    cells: list[Cell] = []
    try:
        with stores(folder, asked.store.split(",")) as makers:
            for cell in measure(makers, asked, folder):
                cells.append(cell)
                line = json.dumps({**asdict(cell), **about})
                with book.open("a") as file:
                    file.write(line + "\n")
                if asked.json:
                    print(line)
    except BenchError as error:
        say(f"cannot run: {error}")
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say(f"rows: {book}")
    if not asked.json:
        print(render(cells, about), end="")
    failed = failures(cells)
    for goal in failed:
        say(f"failed: {goal}")
    return 1 if failed else 0


def parser() -> argparse.ArgumentParser:
    """What can be asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.ledger", description=__doc__)
    parser.add_argument("--store", default="sqlite,postgres", help="by commas: sqlite, postgres")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each case (3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round (2)")
    parser.add_argument("--json", action="store_true", help="print JSON lines, not tables")
    return parser


def measure(
    makers: Sequence[Callable[[], Store]], asked: argparse.Namespace, folder: Path
) -> Iterator[Cell]:
    """Yield the cells: spread over many sandboxes, one hot budget, the race, the idle ledger."""
    for make in makers:
        for callers in CALLERS:
            yield from take_turns("spread", make, callers, asked)
        yield from take_turns("hot", make, HOT_CALLERS, asked)
        for way in WAYS:
            yield alone(race, make, way)
        yield alone(idle, make, "daypass", folder)


def take_turns(
    case: str, make: Callable[[], Store], callers: int, asked: argparse.Namespace
) -> Iterator[Cell]:
    """Measure one case with both ways by turns."""
    rounds: dict[str, list[Round]] = {way: [] for way in WAYS}
    name = ""
    for number in range(asked.rounds):
        for way in list(WAYS)[:: 1 if number % 2 == 0 else -1]:
            store = make()
            name = store.name
            hot = case == "hot"
            rounds[way].append(run(drive(store, way, callers, asked.seconds, hot=hot)))
            store.check()
            store.close()
    for way, found in rounds.items():
        yield cell_of(case, name, way, callers, found)


def alone(
    measured: Callable[..., Coroutine[Any, Any, Cell]], make: Callable[[], Store], *values: object
) -> Cell:
    """Run what needs a store of its own and gives one cell."""
    store = make()
    try:
        return run(measured(store, *values))
    finally:
        store.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop that the proxy uses."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def opened(store: Store, way: str) -> Way:
    """Open one way to keep the books."""
    made = WAYS[way](store)
    found: Way = await made if inspect.isawaitable(made) else made
    return found


async def drive(store: Store, way: str, callers: int, seconds: float, *, hot: bool) -> Round:
    """Let so many callers go round for a while; what happens in the first fifth is not counted."""
    books = await opened(store, way)
    begins = time.perf_counter() + seconds / 5
    ends = begins + seconds
    seen = Round(seconds=seconds)

    async def caller(number: int) -> None:
        sandbox = 0 if hot else number % SANDBOXES
        turn = 0
        while (asked := time.perf_counter()) < ends:
            call = f"req_{number}_{turn}"
            turn += 1
            if not await books.admit(call, sandbox):
                raise BenchError(f"{store.name}, {way}: a call was refused")
            admitted = time.perf_counter()
            await books.settle(call, sandbox)
            settled = time.perf_counter()
            if begins <= settled < ends:
                seen.admits.append(admitted - asked)
                seen.settles.append(settled - admitted)

    async def clock() -> None:
        await asyncio.sleep(begins - time.perf_counter())
        used = time.process_time()
        await asyncio.sleep(ends - time.perf_counter())
        seen.cpu = time.process_time() - used

    try:
        await asyncio.gather(clock(), *map(caller, range(callers)))
    finally:
        await books.close()
    return seen


async def race(store: Store, way: str) -> Cell:
    """Let 64 callers spend one budget, each until refused; what was spent of it, in percent."""
    books = await opened(store, way)
    store.ceiling(0, RACE_CALLS * COST)

    async def caller(number: int) -> None:
        for turn in range(RACE_CALLS):
            call = f"req_{number}_{turn}"
            if not await books.admit(call, 0):
                return
            await asyncio.sleep(RACE_SECONDS)
            await books.settle(call, 0)

    try:
        await asyncio.gather(*map(caller, range(HOT_CALLERS)))
    finally:
        await books.close()
    store.check()
    percent = 100 * store.spent(0) / (RACE_CALLS * COST)
    return Cell("race", store.name, way, HOT_CALLERS, percent=percent, load_avg=load())


async def idle(store: Store, way: str, folder: Path) -> Cell:
    """One call now and then, in turns with one commit made by itself."""
    books = await opened(store, way)
    admits, settles, commits = [], [], []
    try:
        for turn in range(IDLE_TIMES):
            await asyncio.sleep(IDLE_PAUSE)
            commits.append(store.one_commit())
            await asyncio.sleep(IDLE_PAUSE)
            asked = time.perf_counter()
            await books.admit(f"req_{turn}", 1)
            admits.append(time.perf_counter() - asked)
            await asyncio.sleep(IDLE_PAUSE)
            asked = time.perf_counter()
            await books.settle(f"req_{turn}", 1)
            settles.append(time.perf_counter() - asked)
    finally:
        await books.close()
    cell = Cell("idle", store.name, way, 1, load_avg=load())
    cell.admit_p50, cell.admit_p99 = percentiles(admits)
    cell.settle_p50, cell.settle_p99 = percentiles(settles)
    cell.commit_p50 = percentiles(commits)[0]
    cell.fsync_p50 = percentiles(fdatasync_seconds(folder))[0]
    return cell


def cell_of(case: str, store: str, way: str, callers: int, rounds: Sequence[Round]) -> Cell:
    """The medians of some rounds."""
    cell = Cell(case, store, way, callers, load_avg=load())
    rates = [one.per_second for one in rounds]
    cell.per_second, cell.range = statistics.median(rates), (min(rates), max(rates))
    admits = [percentiles(one.admits) for one in rounds]
    settles = [percentiles(one.settles) for one in rounds]
    cell.admit_p50, cell.admit_p99 = (statistics.median(each) for each in zip(*admits, strict=True))
    cell.settle_p50, cell.settle_p99 = (
        statistics.median(each) for each in zip(*settles, strict=True)
    )
    cell.cpu_us = statistics.median(1e6 * one.cpu / len(one.settles) for one in rounds)
    return cell


def percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """p50 and p99 in milliseconds."""
    if not seconds:
        raise BenchError("a round saw no call to its end; give it more --seconds")
    ordered = sorted(seconds)
    p50, p99 = (1000 * ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.99))
    return p50, p99


def load() -> float:
    """The machine's load average of the last minute."""
    return round(os.getloadavg()[0], 2)


if __name__ == "__main__":
    sys.exit(main())
