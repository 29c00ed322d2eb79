"""A model of the ledger against the real one, over random interleavings of everything it can do."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from daypass_proxy.ledger import LedgerRefused, Reserved
from daypass_proxy.ledger.reaper import Leases
from daypass_proxy.ledger.sqlite import SqliteLedger
from daypass_proxy.ledger.verify import verify
from tests.contract.ledgers import LEASE, SqliteStore, bill, reservation
from tests.fakes.clock import FakeClock

WORKERS = ("w1", "w2")
amounts = st.integers(0, 60)
accounts = st.sampled_from(["a", "b"])
workers = st.sampled_from(WORKERS)


@dataclass
class Call:
    """What the model knows of a usage row."""

    usage_id: str
    account: str
    worker: str
    hold: int
    lease: float
    state: str = "open"  # open, settled or crashed
    cost: int = 0


class LedgerMachine(RuleBasedStateMachine):
    """Two workers on one store; the model is a list of calls and two ceilings."""

    migrated: Path
    calls: Bundle[Call] = Bundle("calls")

    @initialize()
    def start(self) -> None:
        """Open the store with the accounts `a` (ceiling 100) and `b` (none)."""
        self.runner = asyncio.Runner()
        folder = Path(tempfile.mkdtemp(dir=self.migrated.parent))
        self.store = SqliteStore(folder / "daypass.db", self.migrated)
        self.ceilings: dict[str, int | None] = {"a": 100, "b": None}
        for name, ceiling in self.ceilings.items():
            self.store.account(name, ceiling)
        self.clock = FakeClock()
        self.rows: list[Call] = []
        self.open: dict[str, SqliteLedger] = {}
        for worker in WORKERS:
            self.restart(worker)

    def run(self, awaitable: Any) -> Any:
        """Run something on the machine's loop."""

        async def running() -> Any:
            return await awaitable

        return self.runner.run(running())

    def total(self, account: str) -> int:
        """Spent and reserved of an account by the model."""
        mine = (row for row in self.rows if row.account == account)
        return sum(row.hold if row.state == "open" else row.cost for row in mine)

    def fits(self, account: str, amount: int) -> bool:
        """Whether the ceiling leaves room."""
        ceiling = self.ceilings[account]
        return ceiling is None or self.total(account) + amount <= ceiling

    @rule(target=calls, worker=workers, account=accounts, amounts=st.lists(amounts, max_size=4))
    def reserve(self, worker: str, account: str, amounts: list[int]) -> Any:
        """Of several calls at once those are admitted that the model admits in this order."""
        ledger = self.open[worker]
        names = [f"req_{len(self.rows) + n}" for n in range(len(amounts))]
        asked = [
            ledger.reserve(reservation(name, amount, account=account))
            for name, amount in zip(names, amounts, strict=True)
        ]

        async def together() -> list[Reserved | LedgerRefused]:
            return await asyncio.gather(*asked)

        made = []
        for name, amount, answer in zip(names, amounts, self.run(together()), strict=True):
            assert isinstance(answer, Reserved) == self.fits(account, amount)
            state = "open" if isinstance(answer, Reserved) else "refused"
            if isinstance(answer, LedgerRefused):
                spent = sum(
                    row.cost for row in self.rows if row.account == account and row.state != "open"
                )
                fits = spent + amount <= (self.ceilings[account] or 0)
                assert answer.reason == ("held" if fits else "exhausted")
            lease = self.clock.now() + LEASE
            call = Call(name, account, worker, amount if state == "open" else 0, lease, state)
            self.rows.append(call)
            if isinstance(answer, Reserved):
                ceiling = self.ceilings[account]
                left = None if ceiling is None else ceiling - self.total(account)
                assert answer.remaining_nano == left
            made.append(call)
        return multiple(*(call for call in made if call.state == "open"))

    @rule(call=calls, amount=st.integers(-60, 60), worker=workers)
    def extend(self, call: Call, amount: int, worker: str) -> None:
        """An extension is granted when the call is open and the ceiling leaves room."""
        granted = self.run(self.open[worker].extend(call.usage_id, amount))
        room = amount <= 0 or self.fits(call.account, amount)
        assert granted == (call.state == "open" and room)
        if granted:
            call.hold += max(amount, -call.hold)

    @rule(call=calls, costs=st.lists(amounts, min_size=1, max_size=3), worker=workers)
    def settle(self, call: Call, costs: list[int], worker: str) -> None:
        """The first bill of an open or crashed call counts, whatever else comes with it."""
        ledger = self.open[worker]

        async def together() -> None:
            await asyncio.gather(*(ledger.settle(bill(call.usage_id, cost)) for cost in costs))

        self.run(together())
        if call.state in ("open", "crashed"):
            call.state, call.cost = "settled", costs[0]

    @rule(call=calls, cost=amounts, amount=amounts, worker=workers)
    def settle_beside_a_reservation(self, call: Call, cost: int, amount: int, worker: str) -> None:
        """In whichever order the two are written, the sums are right and the ceiling held."""
        before = self.fits(call.account, amount)
        name = f"req_{len(self.rows)}"
        ledger = self.open[worker]

        async def together() -> Any:
            wanted = ledger.reserve(reservation(name, amount, account=call.account))
            return (await asyncio.gather(wanted, ledger.settle(bill(call.usage_id, cost))))[0]

        answer = self.run(together())
        if call.state in ("open", "crashed"):
            call.state, call.cost = "settled", cost
        admitted = isinstance(answer, Reserved)
        assert admitted in (before, self.fits(call.account, amount))
        lease = self.clock.now() + LEASE
        state = "open" if admitted else "refused"
        hold = amount if admitted else 0
        self.rows.append(Call(name, call.account, worker, hold, lease, state))

    @rule(ceiling=st.integers(0, 200))
    def change_ceiling(self, ceiling: int) -> None:
        """The broker changes a ceiling."""
        self.ceilings["a"] = ceiling
        self.store.account("a", ceiling)

    @rule(worker=workers)
    def restart(self, worker: str) -> None:
        """A worker dies without a word for its open calls, and another of its name comes up."""
        if worker in self.open:
            self.run(self.open[worker].close())
            for row in self.rows:
                row.worker = "" if row.worker == worker else row.worker
        opening = SqliteLedger.open(self.store.path, worker, self.clock, LEASE)
        self.open[worker] = self.run(opening)
        self.looked_after(worker)

    @rule(seconds=st.sampled_from([0.0, 1.0, LEASE / 3, LEASE / 2, LEASE]), worker=workers)
    def look_after(self, seconds: float, worker: str) -> None:
        """Time passes; one worker renews its own calls and reaps what has expired."""
        self.clock.advance(seconds)
        self.run(self.open[worker].look_after_leases())
        self.looked_after(worker)

    def looked_after(self, worker: str) -> None:
        """Do to the model what `look_after_leases` does to the rows."""
        for row in self.rows:
            if row.state == "open" and row.worker == worker:
                row.lease = self.clock.now() + LEASE
            if row.state == "open" and row.lease <= self.clock.now():
                row.state, row.cost = "crashed", row.hold

    @invariant()
    def sums_are_right(self) -> None:
        """The accounts are what the model says and what the rows add up to, after every step."""
        for account in getattr(self, "ceilings", ()):
            mine = [row for row in self.rows if row.account == account]
            done = [row for row in mine if row.state != "open"]
            assert self.store.sums(account) == (
                sum(row.cost for row in done),
                sum(row.hold for row in mine if row.state == "open"),
                sum(max(row.cost - row.hold, 0) for row in done),
            )
            assert verify(self.store.path) == []

    def teardown(self) -> None:
        """Settle what is open: then nothing is held any more."""
        if not hasattr(self, "store"):
            return
        with self.runner:
            for row in self.rows:
                if row.state == "open":
                    self.run(self.open["w1"].settle(bill(row.usage_id, 0)))
            for ledger in self.open.values():
                self.run(ledger.close())
        assert [self.store.sums(account)[1] for account in self.ceilings] == [0, 0]
        self.store.assert_right()


@pytest.mark.usefixtures("_explicit_leases")
def test_random_interleavings_agree_with_a_model(migrated: Path) -> None:
    """B06, B35: whatever the order of acts, no ceiling is passed and every sum is right."""
    machine = type("LedgerMachine", (LedgerMachine,), {"migrated": migrated})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def _explicit_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are looked after when the machine says so, not when a writer happens to wake."""
    monkeypatch.setattr(Leases, "due", lambda self: False)
