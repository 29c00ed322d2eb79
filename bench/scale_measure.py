"""`python -m bench.scale_measure`: what calls and tokens write into PostgreSQL, for the scale plan.

Bytes of WAL, transactions and bytes on disk for each call, by the number of callers that share a
transaction; the same with several ledgers on one database; and for each token a real broker issues.
Bytes do not depend on how busy the machine is, the rates beside them do.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg

from bench.install import say
from bench.ledger_stores import SANDBOXES, Ours, Store
from bench.process import cpu_seconds
from tests.servers.postgres import PostgresServer
from tests.servers.stack import Stack

SECONDS = 6.0
LEDGERS = ((1, 1), (1, 8), (1, 64), (2, 64), (4, 64))
"""Ledgers, each a process, and callers of each."""
TOKENS, ASKING = 400, 6


class Counters:
    """What the server has done so far."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)

    def read(self) -> tuple[int, int]:
        """WAL bytes since ever, and transactions of this database that were committed."""
        one = self._connection.execute
        wal = one("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')").fetchone()
        commits = one(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
        assert wal is not None
        assert commits is not None
        return int(wal[0]), int(commits[0])

    def size(self) -> int:
        """Bytes of the database on disk."""
        found = self._connection.execute("SELECT pg_database_size(current_database())").fetchone()
        assert found is not None
        return int(found[0])

    def close(self) -> None:
        self._connection.close()


async def _callers(url: str, callers: int, seconds: float, name: str) -> int:
    """Admit and settle in a closed loop; return the calls."""
    store = Store.__new__(Store)
    store.name, store.url, store.path = "postgres", url, None
    ours, end, done = await Ours.open(store), time.monotonic() + seconds, 0

    async def caller(number: int) -> None:
        nonlocal done
        turn = number
        while time.monotonic() < end:
            call, turn = f"{name}_{number}_{turn}", turn + callers
            assert await ours.admit(call, turn % SANDBOXES)
            await ours.settle(call, turn % SANDBOXES)
            done += 1

    await asyncio.gather(*(caller(number) for number in range(callers)))
    await ours.close()
    return done


def _pid(server: PostgresServer) -> int:
    return int(server._server.get_pid())


def ledgers(server: PostgresServer, count: int, callers: int) -> dict[str, Any]:
    """So many ledgers on one database, each with so many callers."""
    url = server.new_database()
    Store("postgres", url).close()
    counters = Counters(url)
    pid = _pid(server)
    size, (wal, commits), began = counters.size(), counters.read(), time.monotonic()
    cpu = cpu_seconds(pid)
    command = [sys.executable, "-m", "bench.scale_measure", "--ledger", url, "--callers"]
    running = [
        subprocess.Popen([*command, str(callers), "--name", f"l{n}"], stdout=subprocess.PIPE)
        for n in range(count)
    ]
    calls = sum(int(one.communicate()[0]) for one in running)
    seconds = time.monotonic() - began - 1.0  # what a process takes to start, about
    cpu = cpu_seconds(pid) - cpu
    time.sleep(1.5)  # the server's statistics are behind by up to a second
    wal_after, commits_after = counters.read()
    found = {
        "ledgers": count,
        "callers": callers,
        "calls_per_second": round(calls / min(seconds, SECONDS)),
        "calls_per_commit": round(calls / max(1, commits_after - commits), 2),
        "server_cpu_us_per_call": round(cpu / calls * 1e6),
        "server_cpu_us_per_commit": round(cpu / (commits_after - commits) * 1e6),
        "wal_bytes_per_call": round((wal_after - wal) / calls),
        "disk_bytes_per_call": round((counters.size() - size) / calls),
    }
    counters.close()
    return found


def tokens(server: PostgresServer, folder: Path) -> dict[str, Any]:
    """Exchanges at a real broker through a real proxy."""
    url = server.new_database()
    key = folder / "key.secret"
    key.write_text("sk-ant-real-0123456789abcdef")
    settings = {"DAYPASS_SHARED_KEYS": "1"}
    keys = f"*=file://{key}"
    with Stack(
        folder / "s", "http://127.0.0.1:9", keys, proxy_settings=settings, database_url=url
    ) as stack:
        boxes = [stack.sandbox() for _ in range(TOKENS)]
        counters, pid = Counters(url), stack.processes["broker"].pid
        (wal, commits), cpu, began = counters.read(), cpu_seconds(pid), time.monotonic()
        server_cpu = cpu_seconds(_pid(server))
        with ThreadPoolExecutor(ASKING) as asking:
            statuses = {answer.status for answer in asking.map(stack.exchange, boxes)}
        assert statuses == {200}, statuses
        seconds, cpu = time.monotonic() - began, cpu_seconds(pid) - cpu
        server_cpu = cpu_seconds(_pid(server)) - server_cpu
        time.sleep(1.5)
        wal_after, commits_after = counters.read()
        counters.close()
    return {
        "tokens_per_second": round(TOKENS / seconds),
        "wal_bytes_per_token": round((wal_after - wal) / TOKENS),
        "commits_per_token": round((commits_after - commits) / TOKENS, 2),
        "broker_cpu_us_per_token": round(cpu / TOKENS * 1e6),
        "server_cpu_us_per_token": round(server_cpu / TOKENS * 1e6),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale_measure", description=__doc__)
    parser.add_argument("--ledger", help=argparse.SUPPRESS)
    parser.add_argument("--callers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.ledger:
        print(asyncio.run(_callers(asked.ledger, asked.callers, SECONDS, asked.name)))
        return 0
    say(f"load average before: {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory(prefix="dp-scale-") as folder, PostgresServer() as server:
        for count, callers in LEDGERS:
            print(json.dumps(ledgers(server, count, callers)), flush=True)
        print(json.dumps(tokens(server, Path(folder))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
