"""`python -m bench.scale_plan`: what 1,000 to 1,000,000 sandboxes take, from measured figures.

The inputs stand in scale_plan.json: what was measured, with where, and what is assumed, with why.
Arithmetic gives calls, streams, proxies and bytes; two small simulations of discrete events give
what arithmetic cannot: how long a call waits for the ledger when many workers share a database, and
what a budget that everybody uses costs with and without leases. Seeded, so it always prints the
same, and docs/scale.md quotes it.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.scale_simulation import Budget, Database, simulate_admissions, simulate_leases

HERE = Path(__file__).resolve().parent
SANDBOXES = (1_000, 10_000, 100_000, 1_000_000)
WAITS_MS = (0.0, 2.0, 5.0, 10.0)
"""How long a ledger may wait for company before it commits."""
HOT_RATES = (100, 500, 2_000, 8_000)
LEASE_DOLLARS = (0.0, 0.5, 2.0, 10.0, 50.0)


class Inputs:
    """The figures of the inputs file, by name."""

    def __init__(self, path: Path = HERE / "scale_plan.json") -> None:
        parts = json.loads(path.read_text())
        self._values = {
            name: float(entry["value"]) for part in parts.values() for name, entry in part.items()
        }

    def __getattr__(self, name: str) -> float:
        return self._values[name]

    @property
    def calls(self) -> float:
        """Calls a second of one sandbox."""
        return self.calls_per_sandbox_minute / 60

    @property
    def worker_seconds(self) -> float:
        """Seconds of a proxy's core that one sandbox takes each second."""
        events = self.calls * self.call_seconds * self.events_per_second
        return (self.calls * self.proxy_cpu_us_call + events * self.proxy_cpu_us_event) / 1e6

    @property
    def tokens(self) -> float:
        """Tokens a second of one sandbox."""
        return 1 / (self.token_ttl_seconds * self.renew_at)

    def workers(self, sandboxes: int) -> int:
        """Proxy workers, at least two."""
        return max(2, math.ceil(sandboxes * self.worker_seconds / self.core_share))

    def cells(self, sandboxes: int) -> int:
        return math.ceil(sandboxes / self.cell_sandboxes)

    def database(self, cores: float | None = None) -> Database:
        return Database(
            cores=int(cores or self.database_cores),
            commit_cpu=self.database_cpu_us_commit / 1e6,
            operation_cpu=self.database_cpu_us_operation / 1e6,
            commit=self.ledger_commit_ms / 1e3,
            operation=self.ledger_operation_ms / 1e3,
        )


def fleet(inputs: Inputs) -> Iterator[list[str]]:
    """Proxies and what goes through them."""
    yield ["sandboxes", "calls/s", "open streams", "events/s", "proxy workers", "streams a worker",
           "MB a worker", "Gbit/s in", "Gbit/s out"]  # fmt: skip
    for count in SANDBOXES:
        calls, workers = count * inputs.calls, inputs.workers(count)
        streams = calls * inputs.call_seconds
        events = streams * inputs.events_per_second
        each = streams / workers
        yield [
            f"{count:,}", f"{calls:,.0f}", f"{streams:,.0f}", f"{events:,.0f}", f"{workers:,}",
            f"{each:,.0f}", f"{inputs.proxy_mb_base + each * inputs.proxy_kb_stream / 1000:,.0f}",
            f"{calls * inputs.request_kb * 8 / 1e6:.2f}",
            f"{events * inputs.event_bytes * 8 / 1e9:.2f}",
        ]  # fmt: skip


def brokers(inputs: Inputs) -> Iterator[list[str]]:
    """Brokers, keys and revocations; of each cell where it says so."""
    yield ["sandboxes", "cells", "tokens/s", "broker cores", "key set reads/s",
           "Vault reads/s", "revocation rows", "connections of a database"]  # fmt: skip
    for count in SANDBOXES:
        cells, tokens = inputs.cells(count), count * inputs.tokens
        workers, per_cell = inputs.workers(count), math.ceil(inputs.workers(count) / cells)
        tenants = max(1, count / 1000 * inputs.tenants_per_1000 / cells)
        cores = tokens * inputs.broker_cpu_us_token / 1e6 / inputs.core_share
        brokers_of_cell = max(2, math.ceil(cores / cells))
        yield [
            f"{count:,}", f"{cells}", f"{tokens:,.0f}", f"{max(cores, 0.1):,.1f}",
            f"{workers / 300:.1f}", f"{tenants * workers / 60:,.0f}",
            f"{count * inputs.revoked_share_day:,.0f}", f"{2 * per_cell + 20 * brokers_of_cell:,}",
        ]  # fmt: skip


def databases(inputs: Inputs, seconds: float) -> Iterator[list[str]]:
    """One cell's database under its calls: simulated."""
    yield ["sandboxes of the cell", "workers", "calls/s", "commits/s", "operations a commit",
           "database CPU", "tokens' part", "WAL MB/s", "GB of rows a day",
           "admission p50 ms", "p99 ms"]  # fmt: skip
    for count in (1_000, 10_000, 50_000, 100_000, 200_000, 400_000):
        calls, workers = count * inputs.calls, inputs.workers(count)
        database = inputs.database()
        seen = simulate_admissions(database, workers, calls, seconds, wait=0.0)
        tokens = count * inputs.tokens * inputs.database_cpu_us_token / 1e6 / database.cores
        wal = calls * inputs.wal_bytes_call + count * inputs.tokens * inputs.wal_bytes_token
        yield [
            f"{count:,}", f"{workers}", f"{calls:,.0f}", f"{seen.commits:,.0f}",
            f"{seen.operations:.1f}", f"{seen.utilization + tokens:.0%}", f"{tokens:.0%}",
            f"{wal / 1e6:.1f}", f"{calls * 86400 * inputs.disk_bytes_call / 1e9:,.0f}",
            f"{seen.p50 * 1e3:.1f}", f"{seen.p99 * 1e3:.1f}",
        ]  # fmt: skip


def company(inputs: Inputs, seconds: float) -> Iterator[list[str]]:
    """The same cell when each ledger waits a moment for company."""
    yield ["ledger waits ms", "commits/s", "operations a commit", "ledger's database CPU",
           "admission p50 ms", "p99 ms"]  # fmt: skip
    count = int(inputs.cell_sandboxes)
    for wait in WAITS_MS:
        seen = simulate_admissions(
            inputs.database(), inputs.workers(count), count * inputs.calls, seconds, wait / 1e3
        )
        yield [
            f"{wait:.0f}", f"{seen.commits:,.0f}", f"{seen.operations:.1f}",
            f"{seen.utilization:.0%}", f"{seen.p50 * 1e3:.1f}", f"{seen.p99 * 1e3:.1f}",
        ]  # fmt: skip


def hot(inputs: Inputs, seconds: float) -> Iterator[list[str]]:
    """One budget that every worker books in, whose row one transaction locks at a time."""
    yield ["calls/s of one budget", "workers", "p50 ms", "p99 ms", "with leases: p50 ms", "p99 ms"]
    for rate in HOT_RATES:
        workers = max(2, math.ceil(rate / inputs.calls * inputs.worker_seconds / inputs.core_share))
        row = [f"{rate:,}", f"{workers}"]
        for locked in (True, False):
            seen = simulate_admissions(inputs.database(), workers, rate, seconds, 0.0, hot=locked)
            row += [_ms(seen.p50), _ms(seen.p99)] if seen.kept_up else ["not served", "not served"]
        yield row


def leases(inputs: Inputs) -> Iterator[list[str]]:
    """A budget of $ 10,000 that 40 workers spend to its end, by the size of a lease."""
    yield ["lease $", "leases a second", "spent at the first refusal", "refused before the end",
           "spent in the end", "overspent"]  # fmt: skip
    for dollars in LEASE_DOLLARS:
        seen = simulate_leases(Budget(dollars=10_000.0, workers=40, rate=2_000.0), dollars)
        yield [
            f"{dollars:g}" if dollars else "none", f"{seen.per_second:,.1f}",
            f"{seen.first_refusal:.2%}", f"{seen.refused_early:,}", f"{seen.spent:.2%}",
            f"{seen.overspent:.2f}",
        ]  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def render(rows: Iterator[list[str]]) -> str:
    """A Markdown table, the first column left, the others right."""
    head, *body = rows
    rule = "|---|" + "--:|" * (len(head) - 1)
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *body)]
    return "\n".join([lines[0], rule, *lines[1:]])


def tables(seconds: float = 4.0) -> dict[str, str]:
    """Every table by its title; `seconds` are simulated, after a warm-up."""
    inputs = Inputs()
    return {
        "The fleet": render(fleet(inputs)),
        "Brokers, keys, revocations": render(brokers(inputs)),
        "One cell's database": render(databases(inputs, seconds)),
        "A ledger that waits for company": render(company(inputs, seconds)),
        "A hot budget": render(hot(inputs, seconds)),
        "Leases": render(leases(inputs)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    argparse.ArgumentParser(prog="python -m bench.scale_plan", description=__doc__).parse_args(
        arguments
    )
    for title, table in tables().items():
        print(f"### {title}\n{table}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
