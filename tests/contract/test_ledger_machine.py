"""A model of the ledger against the real one, over random interleavings of everything it can do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
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

from daypass_proxy.ledger import Hold, LedgerRefused, Reserved, Usage
from daypass_proxy.ledger.face import BatchedLedger
from daypass_proxy.ledger.operations import nothing_spent
from daypass_proxy.ledger.reaper import JUMP_SECONDS, Leases
from daypass_proxy.ledger.verify import verify
from tests.contract.ledger_model import DONE, Call, Model
from tests.contract.ledgers import FORGOTTEN, LEASE, Backend, bill, reservation
from tests.fakes.clock import FakeClock

WORKERS = ("w1", "w2")
DAY = 86_400.0
TENANT = "tenant:acme"
SUMMED = "spent_nano, reserved_nano, overdraft_nano, tokens_spent, tokens_reserved, open_calls"
MOST_ACCOUNTS = 8
CEILINGS = ("ceiling_nano", "token_ceiling", "day_ceiling_nano", "concurrency_limit")

amounts = st.integers(0, 60)
workers = st.sampled_from(WORKERS)
wants = st.tuples(amounts, amounts, st.integers(0, 40))


class LedgerMachine(RuleBasedStateMachine):
    """Two workers on one store; the model is a list of calls, and the limits of the accounts.

    `a` and `b` are sandboxes of one tenant; `a` cuts off, `b` clamps. Others are bought from them.
    """

    new_store: Callable[[], Backend]
    calls: Bundle[Call] = Bundle("calls")
    leaves: Bundle[str] = Bundle("leaves")
    bought: Bundle[str] = Bundle("bought")

    @initialize(target=leaves)
    def start(self) -> Any:
        """Open the store; `a` has a budget, `b` tokens, and their tenant a bit of each."""
        self.runner = asyncio.Runner()
        self.store = type(self).new_store()
        self.model = Model({"a": TENANT, "b": TENANT})
        self.limits = {
            name: dict[str, int | None].fromkeys(CEILINGS) for name in (TENANT, "a", "b")
        }
        for name in self.limits:
            self.store.account(name, None, parent=self.model.parents.get(name))
        self.store.query("UPDATE account SET policy = 'clamp' WHERE id = 'b'")
        self.change_limit("a", "ceiling_nano", 100)
        self.change_limit("b", "token_ceiling", 150)
        self.change_limit(TENANT, "day_ceiling_nano", 200)
        self.clock = FakeClock()
        self.open: dict[str, BatchedLedger] = {}
        self.ahead: dict[str, float] = {}
        self.not_before: dict[str, float] = {}
        for worker in WORKERS:
            self.restart(worker)
        return multiple("a", "b")

    def run(self, awaitable: Any) -> Any:
        """Run something on the machine's loop."""

        async def running() -> Any:
            return await awaitable

        return self.runner.run(running())

    def used(self, leaf: str) -> Iterable[tuple[int | None, int, int]]:
        """Yield each ceiling above a leaf with what is used and held of it, by the model.

        Which bills are in the day is the ledger's own word; `verify` recounts it.
        """
        windows = {
            name: self.store.query(
                "SELECT day_from, day_until, day_spent_nano, month_from FROM account WHERE id = ?",
                name,
            )[0]
            for name in self.model.chain(leaf)
        }
        now = int(self.clock.now() * 1000)
        moment = max(now, *(max(found[0], found[3]) for found in windows.values()))
        through = ""
        for name, (_, until, day_spent, _) in windows.items():
            held = [row for row in self.model.mine(name) if row.state == "open"]
            done = [row for row in self.model.mine(name) if row.state in DONE]
            nano = sum(row.hold.nano for row in held)
            aside = 0 if through in self.model.slices else self.model.set_aside(name)
            through, limits = name, self.limits[name]
            yield limits["ceiling_nano"], sum(row.cost for row in done), nano + aside
            tokens = sum(row.hold.tokens for row in held)
            yield limits["token_ceiling"], sum(row.tokens for row in done), tokens
            yield limits["day_ceiling_nano"], day_spent if moment < until else 0, nano
            yield limits["concurrency_limit"], 0, len(held)

    def fits(self, leaf: str, nano: int, tokens: int, calls: int) -> bool:
        """Whether every ceiling leaves room; that of calls matters to a new call alone."""
        for number, (ceiling, used, held) in enumerate(self.used(leaf)):
            more = (nano, tokens, nano, calls)[number % 4]
            if number % 4 == 3 and not calls:
                continue
            if ceiling is not None and used + held + more > ceiling:
                return False
        return True

    def admitted(self, name: str, leaf: str, worker: str, answer: object) -> Call:
        """Note the answer to a reservation; of an admitted one, what the row holds."""
        self.model.calls.append(
            Call(name, leaf, worker, Hold(), self.clock.now() + LEASE, "refused")
        )
        if isinstance(answer, Reserved):
            row = self.store.row(name)
            self.model.calls[-1].hold = Hold(row["reserved_nano"], row["reserved_tokens"])
            self.model.calls[-1].state = "open"
            assert all(state.used + state.held <= state.ceiling for state in answer.limits)
            assert self.fits(leaf, 0, 0, 0)
        return self.model.calls[-1]

    @rule(target=calls, worker=workers, leaf=leaves, wanted=wants)
    def reserve(self, worker: str, leaf: str, wanted: tuple[int, int, int]) -> Any:
        """A call is admitted exactly when the least that it needs fits everywhere."""
        self.clock.mono += FORGOTTEN
        nano, tokens, output = wanted
        name = f"req_{len(self.model.calls)}"
        fits = self.fits(leaf, nano, tokens, 1)
        call = reservation(name, nano, tokens=tokens, account=leaf, output=(0, output, 1))
        answer = self.run(self.open[worker].reserve(call))
        assert isinstance(answer, Reserved) == fits
        if isinstance(answer, LedgerRefused):
            assert answer.state is not None
            gone = answer.state.used + answer.wanted > answer.state.ceiling
            assert answer.reason == ("exhausted" if gone else "held")
        made = self.admitted(name, leaf, worker, answer)
        return multiple(*([made] if made.state == "open" else []))

    @rule(worker=workers, leaf=leaves, amounts=st.lists(amounts, min_size=2, max_size=5))
    def reserve_at_once(self, worker: str, leaf: str, amounts: list[int]) -> None:
        """Of several calls at once those are admitted that the model admits in this order."""
        self.clock.mono += FORGOTTEN
        names = [f"req_{len(self.model.calls) + n}" for n in range(len(amounts))]
        asked = [
            self.open[worker].reserve(reservation(name, nano, account=leaf))
            for name, nano in zip(names, amounts, strict=True)
        ]

        async def together() -> list[Any]:
            return await asyncio.gather(*asked)

        for name, nano, answer in zip(names, amounts, self.run(together()), strict=True):
            assert isinstance(answer, Reserved) == self.fits(leaf, nano, 0, 1)
            self.admitted(name, leaf, worker, answer)

    @rule(worker=workers, leaf=leaves, nano=amounts, turns=st.integers(0, 3))
    def abort(self, worker: str, leaf: str, nano: int, turns: int) -> None:
        """A call that is cancelled at any moment of its admission leaves no hold behind."""
        ledger, name = self.open[worker], f"req_{len(self.model.calls)}"

        async def cancelled() -> None:
            task = asyncio.ensure_future(ledger.reserve(reservation(name, nano, account=leaf)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():  # it was too late, so that the call goes on to its end
                await ledger.settle(nothing_spent(name))
            # After the first its batch is over, after the second what that batch left to undo.
            for _ in range(2):
                await ledger.balance(leaf)

        self.run(cancelled())
        self.model.calls.append(Call(name, leaf, worker, Hold(), 0.0, "refused"))
        row = self.store.row(name)
        assert (row.get("outcome"), row.get("cost_nano")) in ((None, None), ("client_gone", 0))
        assert row.get("state") in (None, "settled")

    @rule(call=calls, nano=amounts, tokens=amounts, worker=workers)
    def extend(self, call: Call, nano: int, tokens: int, worker: str) -> None:
        """An extension is granted when the call is open and every ceiling leaves room."""
        fits = self.fits(call.account, nano, tokens, 0)
        granted = self.run(self.open[worker].extend(call.usage_id, Hold(nano, tokens)))
        assert granted == (call.state == "open" and fits)
        if granted:
            call.hold = Hold(call.hold.nano + nano, call.hold.tokens + tokens)
            assert self.fits(call.account, 0, 0, 0)

    @rule(call=calls, nano=amounts, tokens=amounts, worker=workers)
    def release(self, call: Call, nano: int, tokens: int, worker: str) -> None:
        """What is given back is free with the next batch."""
        self.open[worker].release(call.usage_id, Hold(nano, tokens))
        self.run(self.open[worker].balance("a"))
        if call.state == "open":
            left = max(call.hold.nano - nano, 0), max(call.hold.tokens - tokens, 0)
            call.hold = Hold(*left)

    @rule(call=calls, costs=st.lists(amounts, min_size=1, max_size=3), worker=workers)
    def settle(self, call: Call, costs: list[int], worker: str) -> None:
        """The first bill of an open or crashed call counts, whatever else comes with it."""
        ledger = self.open[worker]

        async def together() -> None:
            bills = [bill(call.usage_id, cost, usage=Usage(2 * cost)) for cost in costs]
            await asyncio.gather(*map(ledger.settle, bills))

        self.run(together())
        self.billed(call, costs[0])

    @rule(call=calls, cost=amounts, nano=amounts, worker=workers)
    def settle_beside_a_reservation(self, call: Call, cost: int, nano: int, worker: str) -> None:
        """In whichever order the two are written, the sums are right and the ceiling held."""
        self.clock.mono += FORGOTTEN
        before = self.fits(call.account, nano, 0, 1)
        name, ledger = f"req_{len(self.model.calls)}", self.open[worker]

        async def together() -> Any:
            wanted = ledger.reserve(reservation(name, nano, account=call.account))
            paid = ledger.settle(bill(call.usage_id, cost, usage=Usage(2 * cost)))
            return (await asyncio.gather(wanted, paid))[0]

        answer = self.run(together())
        self.billed(call, cost)
        assert isinstance(answer, Reserved) in (before, self.fits(call.account, nano, 0, 1))
        self.admitted(name, call.account, worker, answer)

    def billed(self, call: Call, cost: int) -> None:
        """Do to the model what a bill does."""
        if call.state in ("open", "crashed"):
            call.state, call.cost, call.tokens = "settled", cost, 2 * cost

    @rule(targets=(leaves, bought), buyer=leaves, nano=amounts)
    def buy(self, buyer: str, nano: int) -> Any:
        """The broker sets a part of a budget aside exactly when it is free by the model."""
        child = f"c{len(self.limits)}"
        if len(self.limits) >= MOST_ACCOUNTS or len(self.model.chain(buyer)) > 3:
            return multiple()
        ceiling, used, held = next(iter(self.used(buyer)))
        bought = self.store.buy(buyer, child, nano)
        assert bought == (ceiling is None or used + held + nano <= ceiling)
        if not bought:
            return multiple()
        self.model.parents[child], self.model.slices[child] = buyer, nano
        self.limits[child] = dict.fromkeys(CEILINGS) | {"ceiling_nano": nano}
        return child

    @rule(child=bought)
    def give_back(self, child: str) -> None:
        """The broker gives a slice back, whatever is open in it; a second time changes nothing."""
        self.store.give_back(child)
        self.model.slices.pop(child, None)

    @rule(
        name=st.sampled_from(["a", "b", TENANT]),
        column=st.sampled_from(CEILINGS),
        ceiling=st.none() | st.integers(0, 200),
    )
    def change_limit(self, name: str, column: str, ceiling: int | None) -> None:
        """The broker changes a limit."""
        if column == "concurrency_limit" and ceiling is not None:
            ceiling //= 20
        self.limits[name][column] = ceiling
        self.store.query(f"UPDATE account SET {column} = ? WHERE id = ?", ceiling, name)

    @rule(
        name=st.sampled_from(["a", "b", TENANT]),
        zone=st.sampled_from(["UTC", "Asia/Tokyo", "America/St_Johns"]),
    )
    def change_zone(self, name: str, zone: str) -> None:
        """The broker moves a tenant to another time zone."""
        self.store.query("UPDATE account SET time_zone = ? WHERE id = ?", zone, name)

    @rule(seconds=st.sampled_from([-2 * DAY, -3_600.0, -1.0, 1.0, DAY / 2, DAY]))
    def step(self, seconds: float) -> None:
        """The clock steps, forwards or back."""
        self.clock.time += seconds

    @rule(worker=workers)
    def restart(self, worker: str) -> None:
        """A worker dies without a word for its open calls, and another of its name comes up."""
        if worker in self.open:
            self.run(self.open[worker].close())
            for row in self.model.calls:
                row.worker = "" if row.worker == worker else row.worker
        self.open[worker] = self.run(self.store.open(self.clock, worker))
        self.ahead[worker] = self.clock.now() - self.clock.monotonic()
        self.not_before[worker] = self.clock.monotonic()
        self.looked_after(worker)

    @rule(seconds=st.sampled_from([0.0, 1.0, LEASE / 3, LEASE / 2, LEASE]), worker=workers)
    def look_after(self, seconds: float, worker: str) -> None:
        """Time passes; one worker renews its own calls and reaps what has expired."""
        self.clock.advance(seconds)
        self.run(self.open[worker].look_after_leases())
        self.looked_after(worker)

    def looked_after(self, worker: str) -> None:
        """Do to the model what `look_after_leases` does to the rows.

        A worker that sees the clock jump ahead reaps nothing for as long as a lease lasts.
        """
        moment, ahead = self.clock.monotonic(), self.clock.now() - self.clock.monotonic()
        if ahead > self.ahead[worker] + JUMP_SECONDS:
            self.not_before[worker] = moment + LEASE
        self.ahead[worker] = ahead
        reaps = moment >= self.not_before[worker]
        for row in self.model.calls:
            if row.state == "open" and row.worker == worker:
                row.lease = self.clock.now() + LEASE
            if row.state == "open" and reaps and row.lease <= self.clock.now():
                row.state, row.cost, row.tokens = "crashed", row.hold.nano, row.hold.tokens

    @invariant()
    def sums_are_right(self) -> None:
        """The accounts are what the model says and what the rows add up to, after every step."""
        for name in getattr(self, "limits", ()):
            held = [row for row in self.model.mine(name) if row.state == "open"]
            done = [row for row in self.model.mine(name) if row.state in DONE]
            (found,) = self.store.query(f"SELECT {SUMMED} FROM account WHERE id = ?", name)
            assert found == (
                sum(row.cost for row in done),
                sum(row.hold.nano for row in held),
                sum(max(row.cost - row.hold.nano, 0) for row in done),
                sum(row.tokens for row in done),
                sum(row.hold.tokens for row in held),
                len(held),
            )
            (set_aside,) = self.store.query(
                "SELECT lent_nano - lent_used_nano FROM account WHERE id = ?", name
            )
            assert set_aside == (self.model.set_aside(name),)
        if hasattr(self, "store"):
            assert verify(self.store.address) == []

    def teardown(self) -> None:
        """Settle what is open: then nothing is held, and what is spent are the bills."""
        if not hasattr(self, "store"):
            return
        with self.runner:
            for number, row in enumerate(self.model.calls):
                if row.state in ("open", "crashed"):
                    self.run(self.open["w1"].settle(bill(row.usage_id, number)))
                    row.cost = number
            for ledger in self.open.values():
                self.run(ledger.close())
        for name in self.limits:
            billed = sum(row.cost for row in self.model.mine(name))
            assert self.store.sums(name)[:2] == (billed, 0)
            assert self.store.column("open_calls", name) == 0
        self.store.assert_right()


@pytest.mark.usefixtures("_explicit_leases")
def test_random_interleavings_agree_with_a_model(new_store: Callable[[], Backend]) -> None:
    """B06, B35: whatever the order of acts, no ceiling is passed and every sum is right."""
    machine = type("LedgerMachine", (LedgerMachine,), {"new_store": staticmethod(new_store)})
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
