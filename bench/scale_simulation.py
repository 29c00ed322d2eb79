"""The simulations of the scale plan: discrete events on one heap, seeded, so they can be repeated.

Each worker has one ledger as in the product: operations queue while its transaction runs, and the
next takes all that wait. A transaction takes what was measured on an idle server; the part of it
that is the server's CPU waits for one of the server's cores. What makes it longer is thus modelled
(cores, and the lock of a hot account), what does not depend on load is taken as measured.
"""

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

MOST_OPERATIONS = 256
"""Operations of one transaction at most, as in the ledger's queue."""
WARM_UP = 1.0
BEHIND_SECONDS = 1.0
"""Waiting longer than this at the end means that it does not keep up."""


@dataclass(frozen=True)
class Database:
    """A server; times in seconds, measured on an idle machine."""

    cores: int
    commit_cpu: float
    operation_cpu: float
    commit: float
    operation: float

    def seconds(self, operations: int) -> float:
        """A transaction of so many operations with nobody else about."""
        return self.commit + self.operation * operations

    def cpu(self, operations: int) -> float:
        """The server's CPU in it; never longer than the whole."""
        cpu = self.commit_cpu + self.operation_cpu * operations
        return min(cpu, self.seconds(operations))


@dataclass(frozen=True)
class Admissions:
    """What a simulated database saw; `p50` and `p99` are seconds a call waits for admission."""

    commits: float
    operations: float
    utilization: float
    p50: float
    p99: float
    kept_up: bool


@dataclass
class _Worker:
    queue: deque[tuple[float, bool]] = field(default_factory=deque)
    busy: bool = False


class _Server:
    """Cores in turn of arrival, and the one lock of a hot account."""

    def __init__(self, database: Database, hot: bool) -> None:
        self._database, self._hot = database, hot
        self._free_at = [0.0] * database.cores
        self._unlocked_at = 0.0
        self.used = 0.0

    def run(self, now: float, operations: int) -> float:
        """When a transaction that comes now is durable."""
        cpu, whole = self._database.cpu(operations), self._database.seconds(operations)
        start = max(now, self._unlocked_at) if self._hot else now
        core = heapq.heappop(self._free_at)
        begun = max(start, core)
        heapq.heappush(self._free_at, begun + cpu)
        self.used += cpu
        done = begun + whole
        if self._hot:
            self._unlocked_at = done
        return done


class _Run:
    """One simulation: events in order of time, and what was seen of them after the warm-up."""

    def __init__(self, server: _Server, workers: int, rate: float, end: float, wait: float) -> None:
        self._choose = random.Random(1)
        self._server, self._rate, self._end, self._wait = server, rate, end, wait
        self._crew = [_Worker() for _ in range(workers)]
        self._events: list[tuple[float, int, int, str]] = []
        self._number = 0
        self.waits: list[float] = []
        self.commits = self.operations = 0
        self.now = 0.0

    def run(self) -> None:
        """Play everything that came until the end, but no longer than it is behind for certain."""
        self._plan_arrival(0.0)
        while self._events and self.now <= self._end + 2 * BEHIND_SECONDS:
            self.now, _, index, what = heapq.heappop(self._events)
            worker = self._crew[index]
            if what == "comes":
                self._comes(index, worker)
            elif what == "begins" or worker.queue:
                self._begin(index, worker)
            else:
                worker.busy = False

    def _comes(self, index: int, worker: _Worker) -> None:
        worker.queue.append((self.now, self._choose.random() < 0.5))
        if self.now < self._end:
            self._plan_arrival(self.now)
        if worker.busy:
            return
        worker.busy = True
        if self._wait:
            self._plan(self.now + self._wait, index, "begins")
        else:
            self._begin(index, worker)

    def _begin(self, index: int, worker: _Worker) -> None:
        batch = [worker.queue.popleft() for _ in range(min(len(worker.queue), MOST_OPERATIONS))]
        done = self._server.run(self.now, len(batch))
        if done > WARM_UP:
            self.commits, self.operations = self.commits + 1, self.operations + len(batch)
            self.waits += [done - came for came, admits in batch if admits and came >= WARM_UP]
        self._plan(done, index, "done")

    def _plan_arrival(self, now: float) -> None:
        # Two operations for each call: its hold, and some time later its bill.
        at = now + self._choose.expovariate(2 * self._rate)
        self._plan(at, self._choose.randrange(len(self._crew)), "comes")

    def _plan(self, at: float, worker: int, what: str) -> None:
        self._number += 1
        heapq.heappush(self._events, (at, self._number, worker, what))


def simulate_admissions(
    database: Database,
    workers: int,
    rate: float,
    seconds: float,
    wait: float,
    *,
    hot: bool = False,
) -> Admissions:
    """`rate` calls a second over so many workers, each admitted and settled; seed 1.

    A ledger that is idle waits `wait` seconds for company before it commits. With `hot` all calls
    are booked in one account, whose row is locked from a transaction's begin to its commit.
    """
    server, end = _Server(database, hot), WARM_UP + seconds
    run = _Run(server, workers, rate, end, wait)
    run.run()
    waits, elapsed = sorted(run.waits), max(run.now, end)
    return Admissions(
        commits=run.commits / (elapsed - WARM_UP),
        operations=run.operations / max(run.commits, 1),
        utilization=server.used / elapsed / database.cores,
        p50=waits[len(waits) // 2],
        p99=waits[int(len(waits) * 0.99)],
        kept_up=run.now <= end + BEHIND_SECONDS,
    )


@dataclass(frozen=True)
class Budget:
    """A budget that `workers` spend at `rate` calls a second in all."""

    dollars: float
    workers: int
    rate: float


@dataclass(frozen=True)
class Spending:
    """What came of it; `first_refusal` and `spent` are parts of the budget."""

    per_second: float
    first_refusal: float
    refused_early: int
    spent: float
    overspent: float


def simulate_leases(budget: Budget, lease: float) -> Spending:
    """Spend a budget to its end; seed 2. Calls cost 1 to 12 cents and come to any worker.

    With a lease of 0 each call is held in the budget itself. Else a worker takes a lease when its
    own is too small for a call, the rest of the budget when that is less, and gives nothing back
    until its own has held nothing for a call: then the call is refused although money is left with
    others. The end is when no worker and no budget has a cent for the smallest call.
    """
    choose = random.Random(2)
    # In cents: exact.
    left, have = round(budget.dollars * 100), [0] * budget.workers
    size, spent, leases, calls, refused = round(lease * 100), 0, 0, 0, 0
    first = None
    total = left
    while left + sum(have) >= 1 and calls < 20_000_000:
        calls += 1
        cost, worker = choose.randint(1, 12), choose.randrange(budget.workers)
        if not size:
            if left < cost:
                first = spent / total if first is None else first
                break
            left, spent = left - cost, spent + cost
            continue
        if have[worker] < cost and left > 0:
            taken = min(left, max(size, cost - have[worker]))
            left, leases = left - taken, leases + 1
            have[worker] += taken
        if have[worker] < cost:
            first = spent / total if first is None else first
            refused += 1
            if left == 0 and max(have) < 12:
                break
            continue
        have[worker] -= cost
        spent += cost
    seconds = calls / budget.rate
    return Spending(
        per_second=leases / seconds,
        first_refusal=1.0 if first is None else first,
        refused_early=refused,
        spent=spent / total,
        overspent=max(0, spent - total) / 100,
    )
