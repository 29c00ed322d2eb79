"""What a child may spend: its slice and its limits, never more than its buyer has; and back again.

What is spent is written here by hand; that broker and ledger agree, `contract/trees` shows.
"""

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from daypass_broker import account, db, schema, slices
from daypass_broker.act import SYSTEM, Act
from tests.support import TENANT
from tests.unit.broker.rig import Reply, Rig, Sandbox

USD = 10**9
pytestmark = pytest.mark.unbooked


async def start(rig: Rig, budget: int = 5 * USD) -> tuple[Sandbox, str]:
    """A sandbox with that budget, and its access token."""
    sandbox = rig.sandbox(budget=budget)
    return sandbox, (await rig.launch(sandbox)).body["access_token"]


def write(rig: Rig, ident: str, **columns: object) -> None:
    """Write columns of an account."""
    table = schema.account
    with db.begin(rig.engine) as conn:
        changed = conn.execute(
            sa.update(table).where(table.c.id == ident).values(updated_at=0, **columns)
        )
    assert changed.rowcount == 1


def give_back(rig: Rig) -> int:
    """Give back what is over, as the reaper does."""
    with db.begin(rig.engine) as conn:
        now = rig.services.now_ms(conn)
        return slices.give_back(Act(conn, SYSTEM, now, rig.services.new_id))


def child_of(rig: Rig, reply: Reply) -> str:
    """The account of a child."""
    return rig.verify(reply).account


async def test_a_slice_is_set_aside(rig: Rig) -> None:
    """The slice is the child's ceiling, and is lent in the buyer's account."""
    sandbox, parent = await start(rig)
    bought = await rig.buy(parent, daypass_limits={"budget_usd": "1.25"})
    child, own = rig.account(child_of(rig, bought)), rig.account(f"sandbox:{sandbox.id}")
    assert (child.ceiling_nano, child.sliced, own.lent_nano) == (5 * USD // 4, 1, 5 * USD // 4)
    shown = account.figures(own, 0)["budget_usd"]
    assert (shown["used"], shown["held"], shown["left"]) == ("0.00", "1.25", "3.75")


@pytest.mark.parametrize(
    ("columns", "free"),
    [
        ({}, 5 * USD),
        ({"spent_nano": USD}, 4 * USD),
        ({"reserved_nano": USD}, 4 * USD),
        ({"lent_nano": USD}, 4 * USD),
        ({"lent_nano": USD, "spent_nano": USD, "lent_used_nano": USD}, 4 * USD),
        ({"spent_nano": 6 * USD}, 0),
        ({"ceiling_nano": USD, "lent_nano": 2 * USD}, 0),
    ],
)
async def test_no_more_is_sold_than_is_free(rig: Rig, columns: dict[str, int], free: int) -> None:
    """To the nano-dollar: what is neither spent, held nor set aside."""
    sandbox, parent = await start(rig)
    write(rig, f"sandbox:{sandbox.id}", **columns)
    one_more = f"{(free + 1) // USD}.{(free + 1) % USD:09d}"
    reply = await rig.buy(parent, daypass_limits={"budget_usd": one_more})
    assert (reply.status, reply.error) == (400, "insufficient_budget")
    assert "is free" in reply.description
    assert len(rig.rows(schema.grant_, sandbox=sandbox.id)) == 1
    if free:
        whole = await rig.buy(parent, daypass_limits={"budget_usd": f"{free // USD}"})
        assert whole.status == 200


async def test_a_child_without_a_slice_uses_its_buyers_budget(rig: Rig) -> None:
    """Nothing is set aside for it, and it has no budget of its own to sell from."""
    sandbox, parent = await start(rig)
    bought = await rig.buy(parent)
    child = rig.account(child_of(rig, bought))
    assert (child.ceiling_nano, child.sliced) == (None, 0)
    assert rig.account(f"sandbox:{sandbox.id}").lent_nano == 0
    token = bought.body["access_token"]
    reply = await rig.buy(token, daypass_limits={"budget_usd": "0.01"})
    assert (reply.error, "no budget of its own" in reply.description) == ("invalid_request", True)
    assert (await rig.buy(token)).status == 200


@pytest.mark.parametrize(
    ("own", "wanted", "sold"),
    [
        ({"rpm_limit": 10}, {"requests_per_minute": 10}, True),
        ({"rpm_limit": 10}, {"requests_per_minute": 11}, False),
        ({}, {"requests_per_minute": 11}, True),
        ({"token_ceiling": 10}, {"token_budget": 11}, False),
        ({"day_ceiling_nano": USD}, {"budget_per_day_usd": "1.01"}, False),
        ({"month_ceiling_nano": USD}, {"budget_per_month_usd": "1.01"}, False),
        ({"tpm_limit": 10}, {"tokens_per_minute": 11}, False),
        ({"concurrency_limit": 1}, {"concurrency": 2}, False),
        ({"policy": "reject"}, {"over_budget": "cutoff"}, False),
        ({}, {"over_budget": "reject"}, True),
        ({"drain_ms": 0}, {"drain_seconds": 1}, False),
        ({}, {"drain_tokens": 501}, False),
        ({}, {"nonsense": 1}, False),
        ({}, {"budget_usd": None}, False),
        ({}, [], False),
    ],
)
async def test_limits_are_at_most_the_buyers(
    rig: Rig, own: dict[str, Any], wanted: object, sold: bool
) -> None:
    """Each limit asked for is at most what the buyer, or who is above it, has."""
    sandbox, parent = await start(rig)
    write(rig, f"sandbox:{sandbox.id}", **own)
    reply = await rig.buy(parent, daypass_limits=wanted)
    assert (reply.status == 200) is sold, reply.body
    if not sold:
        assert (reply.error, "daypass_limits" in reply.description) == ("invalid_request", True)


async def test_limits_of_those_above_bound_too(rig: Rig) -> None:
    """Where the buyer has no limit, its buyer's holds, and the tenant's behind that."""
    _, parent = await start(rig)
    child = (await rig.buy(parent, daypass_limits={"concurrency": 3})).body["access_token"]
    grandchild = (await rig.buy(child)).body["access_token"]
    assert (await rig.buy(grandchild, daypass_limits={"concurrency": 4})).status == 400
    write(rig, f"tenant:{TENANT}", rpm_limit=7)
    assert (await rig.buy(grandchild, daypass_limits={"requests_per_minute": 8})).status == 400
    assert (await rig.buy(grandchild, daypass_limits={"requests_per_minute": 7})).status == 200


async def test_what_is_left_comes_back_when_the_child_is_over(rig: Rig) -> None:
    """After its end, and the moment that proxies still take it for, once and told once."""
    sandbox, parent = await start(rig)
    bought = await rig.buy(
        parent, daypass_limits={"budget_usd": "2"}, daypass_lifetime_seconds="60"
    )
    child, own = child_of(rig, bought), f"sandbox:{sandbox.id}"
    write(rig, child, spent_nano=USD // 2)
    write(rig, own, spent_nano=USD // 2, lent_used_nano=USD // 2)
    rig.clock.advance(64)
    assert give_back(rig) == 0
    rig.clock.advance(1)
    assert (give_back(rig), give_back(rig)) == (1, 0)
    row = rig.account(own)
    assert (row.lent_nano, slices.free_nano(row)) == (USD // 2, 9 * USD // 2)
    (told,) = rig.rows(schema.audit, tag="grant.returned")
    assert db.from_json(told.detail) == {
        "slice_nano": 2 * USD,
        "returned_nano": 3 * USD // 2,
        "to": own,
    }


async def test_nothing_is_spent_from_a_slice_that_came_back(rig: Rig) -> None:
    """The child keeps what it used as its ceiling: a token that is still taken buys nothing."""
    _, parent = await start(rig)
    bought = await rig.buy(parent, daypass_limits={"budget_usd": "2"})
    child = child_of(rig, bought)
    write(rig, child, spent_nano=7)
    rig.clock.advance(700)
    give_back(rig)
    row = rig.account(child)
    assert (row.ceiling_nano, row.sliced, slices.free_nano(row)) == (7, 0, 0)


async def test_an_overdraft_brings_nothing_back(rig: Rig) -> None:
    """A child that was billed more than its slice has none of it left, and owes nothing twice."""
    sandbox, parent = await start(rig)
    child = child_of(rig, await rig.buy(parent, daypass_limits={"budget_usd": "1"}))
    write(rig, child, spent_nano=USD + 5)
    rig.clock.advance(700)
    assert give_back(rig) == 1
    assert rig.account(f"sandbox:{sandbox.id}").lent_nano == USD
    assert rig.account(child).ceiling_nano == USD


async def test_an_open_call_keeps_the_slice(rig: Rig) -> None:
    """The bill of a call in flight is paid from the slice, so it is waited for."""
    _, parent = await start(rig)
    child = child_of(rig, await rig.buy(parent, daypass_limits={"budget_usd": "1"}))
    write(rig, child, open_calls=1, reserved_nano=5)
    rig.clock.advance(700)
    assert give_back(rig) == 0
    write(rig, child, open_calls=0, reserved_nano=0)
    assert give_back(rig) == 1


@pytest.mark.parametrize("over", ["grant", "sandbox ended", "sandbox revoked"])
async def test_a_revoked_child_is_over_at_once(rig: Rig, over: str) -> None:
    """A revoked grant, and a sandbox that is over, are not waited out."""
    sandbox, parent = await start(rig)
    bought = await rig.buy(parent, daypass_limits={"budget_usd": "1"})
    assert give_back(rig) == 0
    if over == "grant":
        table = schema.grant_
        with db.begin(rig.engine) as conn:
            grant = rig.verify(bought).grants[1]
            conn.execute(sa.update(table).where(table.c.id == grant).values(state="revoked"))
    else:
        rig.change(sandbox, state=over.removeprefix("sandbox "))
    assert give_back(rig) == 1
    assert rig.account(f"sandbox:{sandbox.id}").lent_nano == 0


async def test_many_come_back_in_batches(rig: Rig) -> None:
    """The ledger waits for the locks, so one transaction gives a bounded number back."""
    _, parent = await start(rig)
    for _ in range(3):
        await rig.buy(parent, daypass_limits={"budget_usd": "0.1"})
    rig.clock.advance(700)
    with db.begin(rig.engine) as conn:
        act = Act(conn, SYSTEM, rig.services.now_ms(conn), rig.services.new_id)
        assert slices.give_back(act, most=2) == 2
    assert give_back(rig) == 1


async def test_two_brokers_give_a_slice_back_once(rig: Rig) -> None:
    """Decided under the account's lock: two at once return it once, and both do well."""
    sandbox, parent = await start(rig)
    await rig.buy(parent, daypass_limits={"budget_usd": "1"})
    rig.clock.advance(700)
    returned: list[int] = []
    threads = [threading.Thread(target=lambda: returned.append(give_back(rig))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(returned) == [0, 1]
    assert rig.account(f"sandbox:{sandbox.id}").lent_nano == 0
