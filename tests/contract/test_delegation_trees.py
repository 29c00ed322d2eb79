"""Random delegation trees on real stores: bought from the broker, spent in the ledger.

No child exceeds its parent in any dimension, and budgets add up to the nano-dollar after purchases,
calls, revocations and give-backs, in whatever order they come.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import daypass_migrations
from daypass_core.scope import Scope
from daypass_proxy.ledger import Reserved
from daypass_proxy.ledger.face import BatchedLedger
from tests.contract.conftest import BACKENDS
from tests.contract.ledgers import LEASE, SqliteBackend, bill, reservation
from tests.contract.ledgers_postgres import PostgresBackend
from tests.contract.trees import BUDGET, DOMAINS, ENDPOINTS, FEATURES, MODELS, Tree
from tests.fakes.clock import FakeClock
from tests.servers.postgres import PostgresServer
from tests.servers.roles import BROKER, as_member
from tests.support import make_scope
from tests.unit.broker.rig import Rig, make_settings


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a migrated database."""
    if request.param == "sqlite":
        made = make_settings(tmp_path).database_url
        daypass_migrations.upgrade(made)
        yield made
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    made = server.new_database(request.getfixturevalue("migrated_postgres"))
    yield made
    server.drop_database(made)


@pytest.fixture
def rig(url: str, tmp_path: Path) -> Iterator[Rig]:
    """A broker on it."""
    made = Rig(replace(make_settings(tmp_path), database_url=as_member(url, BROKER)), FakeClock())
    yield made
    made.close()


@pytest.fixture
async def ledger(url: str, rig: Rig) -> AsyncIterator[BatchedLedger]:
    """A ledger beside the broker."""
    backend: Any = PostgresBackend(url)
    if url.startswith("sqlite"):
        backend = SqliteBackend.__new__(SqliteBackend)
        backend.path = Path(url.removeprefix("sqlite:///"))
    opened = await BatchedLedger.open(backend.open_store(5.0), "w1", FakeClock(), LEASE)
    yield opened
    await opened.close()


def some(items: tuple[str, ...], least: int = 0) -> st.SearchStrategy[tuple[str, ...]]:
    """A few of these."""
    return st.lists(st.sampled_from(items), min_size=least, unique=True).map(tuple)


scopes: st.SearchStrategy[Scope] = st.builds(
    make_scope,
    endpoints=some(ENDPOINTS, 1),
    models=some(MODELS, 1),
    features=some(FEATURES),
    allowed_domains=some(DOMAINS),
    max_output_tokens=st.none() | st.sampled_from((50, 100, 101)),
    body=st.sampled_from(("strict", "compat", "open")),
)
amounts = st.integers(0, BUDGET // 3) | st.integers(0, BUDGET + 1)
nodes = st.integers(0, 1_000)
steps = st.one_of(
    st.tuples(st.just("buy"), nodes, st.none() | scopes, st.none() | amounts),
    st.tuples(st.just("buy"), nodes, st.none(), amounts),
    st.tuples(st.just("call"), nodes, amounts),
    st.tuples(st.just("settle"), nodes, amounts),
    st.tuples(st.just("revoke"), nodes),
    st.tuples(st.just("give back")),
    st.tuples(st.just("wait"), st.integers(1, 900)),
)


async def walk(tree: Tree, step: tuple[Any, ...]) -> None:
    """Take one step."""
    verb, *more = step
    if verb == "give back":
        tree.give_back()
    elif verb == "wait":
        tree.rig.clock.advance(more[0])
    else:
        node = tree.nodes[more[0] % len(tree.nodes)]
        if verb == "buy":
            await tree.buy(node, more[1], more[2], 300 + more[0])
        elif verb == "call":
            await tree.call(node, more[1])
        elif verb == "settle":
            await tree.settle(node, more[1])
        else:
            tree.revoke(node)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(taken=st.lists(steps, min_size=5, max_size=40))
async def test_no_child_exceeds_its_parent_and_budgets_add_up(
    rig: Rig, ledger: BatchedLedger, taken: list[tuple[Any, ...]]
) -> None:
    """Every answer of broker and ledger is the model's, and at the end nothing is lost or made."""
    tree = Tree(rig, ledger)
    await tree.plant()
    for step in taken:
        await walk(tree, step)
        tree.check()
    spent = tree.root.spent
    held = sum(sum(node.open.values()) for node in tree.nodes)
    assert await tree.fell() == BUDGET - spent - held


async def test_purchases_at_once_never_sell_more_than_there_is(
    rig: Rig, ledger: BatchedLedger
) -> None:
    """B05: twelve purchases and calls that start together share one budget to the nano-dollar."""
    tree = Tree(rig, ledger)
    await tree.plant()
    account = tree.root.claims.account
    buying = [
        rig.buy(tree.root.token, daypass_limits={"budget_usd": "0.000000150"}) for _ in range(8)
    ]
    calling = [
        ledger.reserve(reservation(f"race_{number}", 150, account=account, sandbox="sbx"))
        for number in range(4)
    ]
    bought, called = await asyncio.gather(asyncio.gather(*buying), asyncio.gather(*calling))
    sold = [one for one in bought if one.status == 200]
    held = [one for one in called if isinstance(one, Reserved)]
    assert len(sold) + len(held) == BUDGET // 150
    row = rig.account(account)
    assert (row.lent_nano, row.reserved_nano) == (150 * len(sold), 150 * len(held))
    for number in range(4):
        await ledger.settle(bill(f"race_{number}", 0))
