"""A proxy's ledger in a process of its own, for tests that need a second one or must kill it.

ledger_worker.py ADDRESS lock             hold the write lock until standard input ends
ledger_worker.py ADDRESS hammer W N NANO  N parallel reservations, then settle those admitted
ledger_worker.py ADDRESS endless W        reserve, extend and settle for ever, say what was durable
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
import sys

from daypass_core.clock import SystemClock
from daypass_proxy.ledger import Hold, Outcome, Reservation, Reserved, Settlement, Usage
from daypass_proxy.ledger.face import BatchedLedger
from daypass_proxy.ledger.sqlite import SqliteStore
from daypass_proxy.ledger.store import Store


def say(**fields: object) -> None:
    """Write one JSON line, at once."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def wanted(usage_id: str, worker: str, amount_nano: int) -> Reservation:
    """Return a reservation on account `a`."""
    fixed = ("grt", "tok", "anthropic", "messages", "claude-opus-5", True)
    return Reservation(usage_id, 1, "a", "acme", f"sbx_{worker}", *fixed, Hold(amount_nano, 10))


async def opened(address: str, worker: str) -> BatchedLedger:
    """Open a ledger on a SQLite file or a PostgreSQL URL."""

    def connect() -> Store:
        if not address.startswith("postgresql"):
            return SqliteStore(address)
        from daypass_proxy.ledger.postgres import open_store

        return open_store(address, 5.0)

    return await BatchedLedger.open(connect, worker, SystemClock(), 60.0)


def bill(usage_id: str, cost_nano: int) -> Settlement:
    """Return the settlement of a completed call."""
    usage = Usage(1, 1, 0, None, 0)
    return Settlement(usage_id, Outcome.COMPLETE, usage, cost_nano, False, 200, None)


def lock(address: str) -> None:
    """Hold the write lock of a SQLite file as a broker in a long transaction would."""
    connection = sqlite3.connect(address, timeout=5.0, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say(locked=True)
    sys.stdin.read()
    connection.execute("ROLLBACK")
    connection.close()


async def hammer(address: str, worker: str, calls: int, amount_nano: int) -> None:
    """Reserve in parallel once told to go, settle what was admitted at 1 nano below the hold."""
    ledger = await opened(address, worker)
    say(ready=True)
    await asyncio.to_thread(sys.stdin.readline)
    answers = await asyncio.gather(
        *(ledger.reserve(wanted(f"{worker}_{n}", worker, amount_nano)) for n in range(calls))
    )
    admitted = [answer.usage_id for answer in answers if isinstance(answer, Reserved)]
    say(admitted=len(admitted))
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(ledger.settle(bill(one, amount_nano - 1)) for one in admitted))
    await ledger.close()


async def endless(address: str, worker: str) -> None:
    """Keep 20 calls going; a line follows each answer of the ledger."""
    ledger = await opened(address, worker)
    await ledger.reserve(wanted(f"{worker}_kept", worker, 1000))
    numbers = itertools.count()

    async def calls() -> None:
        for number in numbers:
            usage_id = f"{worker}_{number}"
            if isinstance(await ledger.reserve(wanted(usage_id, worker, 1000)), Reserved):
                say(reserved=usage_id)
            await ledger.extend(usage_id, Hold(500, 5))
            await ledger.settle(bill(usage_id, 1 + number % 2000))
            say(settled=usage_id, cost=1 + number % 2000)

    await asyncio.gather(*(calls() for _ in range(20)))


if __name__ == "__main__":
    address, act, *rest = sys.argv[1:]
    if act == "lock":
        lock(address)
    elif act == "hammer":
        asyncio.run(hammer(address, rest[0], int(rest[1]), int(rest[2])))
    else:
        asyncio.run(endless(address, rest[0]))
