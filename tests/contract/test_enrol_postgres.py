"""Enrolling on PostgreSQL: two brokers meet one new workload at the same moment."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import daypass_migrations
from daypass_broker import schema
from daypass_broker.rule import Rule, State
from daypass_broker.settings import Settings
from tests.fakes.clock import FakeClock
from tests.servers.ca import Authority
from tests.servers.issuer import Issuer
from tests.servers.postgres import PostgresServer
from tests.servers.roles import BROKER, as_member
from tests.unit.broker.rig import Reply, Rig, make_settings
from tests.unit.broker.workloads import Gate

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    """An issuer whose keys stand in the rules."""
    with Issuer(Authority(tmp_path_factory.mktemp("ca"))) as made:
        yield made


@pytest.fixture
def settings(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Settings]:
    """Settings of a broker on a migrated database of its own."""
    url = postgres_server.new_database()
    daypass_migrations.upgrade(url)
    yield replace(make_settings(tmp_path), database_url=as_member(url, BROKER))
    postgres_server.drop_database(url)


@pytest.fixture
def gate(settings: Settings, issuer: Issuer, tmp_path: Path) -> Iterator[Gate]:
    """A token endpoint on PostgreSQL that takes assertions."""
    rig = Rig(settings, FakeClock())
    made = Gate(rig, issuer, Authority(tmp_path), ())
    made.serve()
    yield made
    rig.close()


def make_rule(gate: Gate, **fields: object) -> Rule:
    """A rule with the issuer's keys in it."""
    return gate.rule(keys={"inline": {"keys": gate.issuer.keys}}, **fields)


async def test_many_at_once_are_one_sandbox(gate: Gate) -> None:
    """B21: whoever is first makes it, the others wait and find it; nobody sees an error."""
    rule = make_rule(gate)
    shown = [gate.token(jti=str(number)) for number in range(8)]
    replies = await asyncio.gather(*(gate.exchange(token, rule) for token in shown))
    assert len({gate.rig.verify(reply).sandbox for reply in replies}) == 1
    assert len(gate.rig.rows(schema.sandbox)) == 1
    assert len(gate.rig.rows(schema.grant_)) == 1
    assert len(gate.rig.rows(schema.assertion)) == 8


async def test_many_workloads_at_once_are_as_many(gate: Gate) -> None:
    """New ones wait for each other and not for ever; the rule's limit holds among them."""
    names = [f"workload-{number}" for number in range(8)]
    rule = make_rule(gate, conditions={"sub": names}, max_sandboxes=5)
    replies = await asyncio.gather(*(gate.exchange(gate.token(sub=one), rule) for one in names))
    assert sorted(reply.status for reply in replies) == [200] * 5 + [400] * 3
    assert len(gate.rig.rows(schema.sandbox)) == 5


async def test_once_at_once_is_once(gate: Gate) -> None:
    """The same proof at two brokers at the same moment gives one token."""
    rule = make_rule(gate, replay="once")
    shown = gate.token()
    replies = await asyncio.gather(*(gate.exchange(shown, rule) for _ in range(6)))
    assert sorted(reply.status for reply in replies) == [200] + [400] * 5


async def test_one_proof_by_two_rules_at_once_is_one_sandbox(gate: Gate) -> None:
    """Two transactions that note the same digest do not break on each other."""
    rules = [make_rule(gate), make_rule(gate)]
    shown = gate.token()
    replies = await asyncio.gather(*(gate.exchange(shown, rule) for rule in rules * 3))
    good = [gate.rig.verify(reply).sandbox for reply in replies if reply.status == 200]
    assert len(good) == 3
    assert len(set(good)) == 1
    assert {reply.status for reply in replies} == {200, 400}


async def test_disabling_waits_for_what_is_under_way(gate: Gate) -> None:
    """When disabling has answered, no later exchange has got through."""
    rule = make_rule(gate)

    async def exchanges() -> list[Reply]:
        return [await gate.exchange(gate.token(jti=str(number)), rule) for number in range(10)]

    running = asyncio.ensure_future(exchanges())
    await asyncio.sleep(0)
    await asyncio.to_thread(gate.set_state, rule, State.DISABLED)
    after = await gate.exchange(gate.token(jti="after"), rule)
    assert after.status == 400
    await running
