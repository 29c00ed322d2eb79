"""Everybody who locks accounts, at once, on PostgreSQL: nobody waits in a ring, nothing is lost.

Two proxies admit and bill, holders of tokens buy below each other, slices come back, an admin
lowers and raises budgets and applies policies, grants are revoked and copies adopted.
"""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa

from daypass_broker import account, db, revocation, schema, slices
from daypass_broker.act import SYSTEM, Act
from daypass_broker.limits import Limits
from daypass_broker.policy import Tenant
from daypass_broker.revoke import Order, revoke
from daypass_proxy.ledger import Reserved
from daypass_proxy.ledger.face import BatchedLedger
from daypass_proxy.ledger.verify import verify
from tests.contract.ledgers import LEASE, bill, reservation
from tests.contract.ledgers_postgres import PostgresBackend
from tests.fakes.clock import FakeClock
from tests.servers.postgres import PostgresServer
from tests.support import TENANT
from tests.unit.broker.desk import ADMIN
from tests.unit.broker.rig import Rig, Sandbox, make_settings

pytestmark = pytest.mark.postgres

TURNS = 40
BUDGET = 100_000
_usage_ids = count(1)


@pytest.fixture
def url(postgres_server: PostgresServer, migrated_postgres: str) -> Iterator[str]:
    """A database of its own; whoever drops it looks for deadlocks that the server had to break."""
    made = postgres_server.new_database(migrated_postgres)
    yield made
    postgres_server.drop_database(made)


class Crowd:
    """Three sandboxes and what everybody does to them; what is raised ends the test."""

    def __init__(self, rig: Rig, ledgers: list[BatchedLedger]) -> None:
        self.rig, self.ledgers = rig, ledgers
        self.dice = random.Random(5)
        self.sandboxes: list[Sandbox] = []
        self.tokens: list[str] = []
        self.accounts: list[str] = []
        self.sold = self.admitted = 0
        self.returned: list[int] = []  # by several threads: a sum would lose some
        self.over = threading.Event()

    async def gather(self) -> None:
        """Register the sandboxes; of each the first token is there."""
        for _ in range(3):
            sandbox = self.rig.sandbox("single_use", budget=BUDGET, ttl=3600, level=10**6)
            self.rig.change(sandbox, on_clone="child")
            self.sandboxes.append(sandbox)
            self.tokens.append((await self.rig.launch(sandbox)).body["access_token"])

    async def buy(self) -> None:
        """Buy with any token there is, for a moment or for long; sometimes as a copy."""
        for _ in range(TURNS):
            if self.dice.random() < 0.1:
                reply = await self.rig.launch(self.dice.choice(self.sandboxes))
            else:
                nano = self.dice.randrange(1, BUDGET // 10)
                reply = await self.rig.buy(
                    self.dice.choice([*self.tokens[:3], *self.tokens[-3:]]),
                    daypass_limits={"budget_usd": f"0.{nano:09d}"},
                    daypass_lifetime_seconds=str(self.dice.choice((1, 2, 60))),
                )
            assert reply.status in (200, 400), reply.body
            if reply.status == 200:
                self.sold += 1
                self.tokens.append(reply.body["access_token"])
                self.accounts.append(self.rig.verify(reply).account)
            self.rig.clock.advance(0.75)

    async def call(self, ledger: BatchedLedger) -> None:
        """Call through any account there is, and bill it: too much, too little or nothing."""
        for _ in range(TURNS * 3):
            usage_id = f"crowd_{next(_usage_ids)}"
            own = [f"sandbox:{one.id}" for one in self.sandboxes]
            leaf = self.dice.choice([*own, *self.accounts[-8:]])
            held = self.dice.randrange(1, BUDGET // 50)
            answer = await ledger.reserve(reservation(usage_id, held, account=leaf))
            if isinstance(answer, Reserved):
                self.admitted += 1
                await ledger.settle(bill(usage_id, self.dice.randrange(0, held * 3 // 2 + 1)))
            await asyncio.sleep(0.01)

    def give_back(self) -> None:
        """Give back what is over, as a reaper does."""
        with db.begin(self.rig.engine) as conn:
            self.returned.append(slices.give_back(self._act(conn), most=3))

    def change_limits(self) -> None:
        """Lower or raise a sandbox's budget."""
        sandbox = random.choice(self.sandboxes)
        with db.begin(self.rig.engine) as conn:
            revocation.share_version(conn)
            table = schema.sandbox
            row = conn.execute(
                sa.select(table).where(table.c.id == sandbox.id).with_for_update()
            ).one()
            ceiling = random.choice((BUDGET // 2, BUDGET))
            account.change(self._act(conn), ADMIN, row, {"ceiling_nano": ceiling})

    def apply_policy(self) -> None:
        """Move the tenant to another time zone, which all its accounts follow."""
        zone = random.choice(("UTC", "Europe/Berlin"))
        with db.begin(self.rig.engine) as conn:
            revocation.lock_version(conn)
            tenant = Tenant(TENANT, ("coding",), limits=Limits(), time_zone=zone)
            account.put_tenants(self._act(conn), [tenant])

    def revoke(self) -> None:
        """Revoke a bought grant."""
        if not self.accounts:
            return
        grant = random.choice(self.accounts).removeprefix("grant:")
        with db.begin(self.rig.engine) as conn:
            revocation.lock_version(conn)
            revoke(self._act(conn), ADMIN, Order("grant", grant))

    def again_and_again(self, act: Callable[[], None]) -> None:
        """Do something until the others are through."""
        while not self.over.is_set():
            act()
            self.over.wait(0.01)

    def _act(self, conn: sa.Connection) -> Act:
        return Act(conn, SYSTEM, self.rig.services.now_ms(conn), self.rig.services.new_id)


async def test_nobody_waits_in_a_ring_and_nothing_is_lost(url: str, tmp_path: Path) -> None:
    """Purchases, calls, give-backs, changed limits, policies, revocations and copies at once: no
    deadlock, no answer but yes or no, and at the end every account is right to the nano-dollar.
    """
    rig = Rig(replace(make_settings(tmp_path), database_url=url), FakeClock())
    backend = PostgresBackend(url)
    ledgers = [
        await BatchedLedger.open(backend.open_store(5.0), name, FakeClock(), LEASE)
        for name in ("w1", "w2")
    ]
    crowd = Crowd(rig, ledgers)
    await crowd.gather()
    acts = crowd.give_back, crowd.give_back, crowd.change_limits, crowd.apply_policy, crowd.revoke
    # Threads of their own: the purchases need those of the loop.
    pool = ThreadPoolExecutor(len(acts))
    beside = [pool.submit(crowd.again_and_again, act) for act in acts]
    calls = [crowd.call(ledger) for ledger in ledgers]
    try:
        await asyncio.gather(*(crowd.buy() for _ in range(3)), *calls)
    finally:
        crowd.over.set()
        for one in beside:
            await asyncio.wrap_future(one)
        for ledger in ledgers:
            await ledger.close()
    rig.clock.advance(4_000)
    while slices_out(rig):
        crowd.give_back()
    assert min(crowd.sold, sum(crowd.returned), crowd.admitted) > 10
    for row in rig.rows(schema.account):
        assert (row.lent_nano, row.reserved_nano, row.open_calls) == (row.lent_used_nano, 0, 0)
    rig.close()
    assert verify(url) == []


def slices_out(rig: Rig) -> int:
    """How many slices have not come back."""
    return sum(row.sliced for row in rig.rows(schema.account))
