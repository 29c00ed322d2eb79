"""Pruning beside calls that go on, killed with signal 9, and twice at the same time."""

import asyncio
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from daypass_broker import db, schema
from daypass_broker.retention import batches, usage_sqlite
from daypass_core.clock import SystemClock
from daypass_proxy.ledger import Reserved
from daypass_proxy.ledger.verify import verify
from tests.contract.ledgers import CENT, Backend, bill, reservation
from tests.contract.pruning import at, engine_of, months, prune
from tests.unit.broker.desk import usage_row

OLD_CALLS = 1_000
OLD = int(at(2025, 1, 10).now() * 1000)
MOST_SECONDS = 0.1
"""How long a batch may keep the ledger from SQLite's one lock."""


@pytest.fixture
def aged(store: Backend) -> Backend:
    """A store whose account `a` had 1,000 calls in January of 2025."""
    rows = [
        usage_row(
            0,
            id=f"req_old_{number}",
            account="a",
            accounts="a",
            sandbox="sbx_1",
            started_at=OLD + number,
            settled_at=OLD + number,
        )
        for number in range(OLD_CALLS)
    ]
    with engine_of(store) as engine, db.begin(engine) as conn:
        conn.execute(sa.insert(schema.usage), rows)
        sums = {"spent_nano": 7 * OLD_CALLS, "overdraft_nano": 2 * OLD_CALLS}
        conn.execute(sa.update(schema.account).values(**sums, tokens_spent=10 * OLD_CALLS))
    assert verify(store.address) == []
    return store


async def test_calls_go_on_while_a_month_is_pruned(
    aged: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call is refused or waits for long, and on SQLite a batch holds the lock less than 100 ms.

    The middle one of them: on a machine that is busy a single commit may take longer than that.
    """
    held: list[float] = []
    pace = batches.paced

    def paced(size: int, took: float) -> int:
        held.append(took)
        return pace(size, took)

    monkeypatch.setattr(usage_sqlite, "paced", paced)
    now_ms = int(SystemClock().now() * 1000)
    number, slowest = 0, 0.0
    async with aged.ledger(SystemClock()) as ledger:
        pruning = asyncio.create_task(asyncio.to_thread(prune, aged, tmp_path, now_ms=now_ms))
        while not pruning.done() or number < 5:
            began = SystemClock().monotonic()
            answer = await ledger.reserve(reservation(f"req_{number}", CENT))
            assert isinstance(answer, Reserved)
            await ledger.settle(bill(f"req_{number}", 3))
            slowest = max(slowest, SystemClock().monotonic() - began)
            number += 1
        done = await pruning
    assert [one.calls for one in done.usage] == [OLD_CALLS]
    assert slowest < 5
    assert list(months(aged).values()) == [number]
    assert verify(aged.address) == []
    if "://" not in aged.address:
        assert len(held) > 5
        assert statistics.median(held) < MOST_SECONDS


@pytest.fixture
def command(aged: Backend, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that prunes the store, as an operator gives it; its environment is set."""
    with engine_of(aged) as engine:
        url = engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("DAYPASS_DATABASE_URL", url)
    return [sys.executable, "-m", "daypass_broker"]


def test_killed_with_signal_9_and_run_twice_at_once(
    aged: Backend, command: list[str], tmp_path: Path
) -> None:
    """After the kill the books are right; two that go on at the same time end well, with one file.

    What was exported is then checked by the command for it.
    """
    words = ["prune", "--usage-months", "1", "--audit-months", "1", "--export", str(tmp_path)]
    with subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        assert "exported 1000 calls" in first.stderr.readline()
        first.kill()
    assert verify(aged.address) == []
    both = [
        subprocess.Popen(
            [*command, *words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    done = [json.loads(out) for out, _ in said]
    assert {"usage", "audit", "incidents", "sandboxes"} < set(done[0])
    assert sum(len(one["usage"]) for one in done) <= 1
    assert months(aged) == {}
    assert verify(aged.address) == []
    assert [path.name for path in tmp_path.glob("usage-*.gz")] == ["usage-2025-01.ndjson.gz"]
    checked = subprocess.run(
        [*command, "verify-export", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert checked.stdout == "1 exports, 0 problems\n"
