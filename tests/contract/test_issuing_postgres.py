"""Issuing on PostgreSQL: the same answers as on SQLite, with row locks doing the ordering."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

import daypass_migrations
from daypass_broker import db, revocation, schema
from daypass_broker.key_ring import KeyRing, open_ring, open_stores
from daypass_broker.keys import Purpose
from daypass_broker.settings import Settings
from daypass_core.ids import new_id
from tests.fakes.clock import FakeClock
from tests.servers.postgres import PostgresServer
from tests.servers.roles import BROKER, as_member
from tests.support import NOW, TENANT, eventually
from tests.unit.broker.key_time import Ring, agree_on_every_step
from tests.unit.broker.rig import Rig, make_settings

pytestmark = pytest.mark.postgres


@pytest.fixture
def settings(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Settings]:
    """Settings of a broker on a migrated database of its own."""
    url = postgres_server.new_database()
    daypass_migrations.upgrade(url)
    yield replace(make_settings(tmp_path), database_url=as_member(url, BROKER))
    postgres_server.drop_database(url)


@pytest.fixture
def rig(settings: Settings) -> Iterator[Rig]:
    """A broker's issuing half on PostgreSQL."""
    made = Rig(settings, FakeClock())
    yield made
    made.close()


def waiting_for_locks(rig: Rig) -> int:
    """How many connections of the database wait for a lock."""
    with db.read(rig.engine) as conn:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        return int(conn.execute(sa.text(query)).scalar_one())


async def test_a_sandbox_gets_renews_and_loses_its_tokens(rig: Rig) -> None:
    """Launch, renewal, clone and refusal are answered as on SQLite."""
    sandbox = rig.sandbox("single_use")
    first = await rig.launch(sandbox)
    assert rig.verify(first).sandbox == sandbox.id
    rig.clock.advance(480)
    assert rig.verify(await rig.renew(first.body["refresh_token"])).issued_at == NOW + 480
    rig.clock.advance(11)
    assert (await rig.renew(first.body["refresh_token"])).error == "invalid_grant"
    assert rig.counts(sandbox.id) == {"clone": 1, "token_refused:clone": 1}
    assert [row.state for row in rig.rows(schema.lineage)] == ["quarantined"]


async def test_b21_twenty_at_once_share_one_token(rig: Rig) -> None:
    """B21: twenty exchanges at one instant make one token row, in whatever order they lock."""
    sandbox = rig.sandbox()
    replies = await asyncio.gather(*(rig.launch(sandbox) for _ in range(20)))
    assert len({rig.verify(reply).token_id for reply in replies}) == 1
    assert len(rig.rows(schema.token)) == 1
    assert rig.row(sandbox).bucket_level == 40.0


async def test_two_first_uses_at_once(rig: Rig) -> None:
    """Of two simultaneous uses of a single-use credential exactly one is answered."""
    sandbox = rig.sandbox("single_use")
    replies = await asyncio.gather(rig.launch(sandbox), rig.launch(sandbox))
    assert sorted(reply.status for reply in replies) == [200, 400]


async def test_b21_twenty_renewals_at_once(rig: Rig) -> None:
    """B21: twenty simultaneous renewals of one generation all succeed and rotate once."""
    sandbox = rig.sandbox("single_use")
    token = (await rig.launch(sandbox)).body["refresh_token"]
    rig.clock.advance(480)
    replies = await asyncio.gather(*(rig.renew(token) for _ in range(20)))
    assert {reply.status for reply in replies} == {200}
    assert [row.generation for row in rig.rows(schema.lineage)] == [2]


async def test_nothing_is_issued_past_a_revocation_under_way(rig: Rig) -> None:
    """An exchange that meets an uncommitted revocation waits for it, and is then refused."""
    sandbox = rig.sandbox()
    with db.begin(rig.engine) as conn:
        revocation.lock_version(conn)
        asking = asyncio.create_task(rig.launch(sandbox))
        await asyncio.to_thread(eventually, lambda: waiting_for_locks(rig) == 1)
        assert not asking.done()
        conn.execute(
            sa.insert(schema.revocation).values(
                id="rev_1",
                scope="tenant",
                ident=TENANT,
                not_before=NOW,
                expires_at=NOW + 100,
                reason="",
                actor="test",
                created_at=0,
                version=1,
            )
        )
    reply = await asking
    assert (reply.error, reply.description[:15]) == ("invalid_grant", "sandbox revoked")
    assert rig.rows(schema.token) == []


def test_b16_brokers_that_start_at_once_agree(settings: Settings) -> None:
    """B16: four brokers starting together on one database end up with one set of keys."""
    engine = db.connect(settings.database_url)
    meeting, rings = threading.Barrier(4), list[KeyRing]()

    def start() -> None:
        meeting.wait(20)
        rings.append(open_ring(engine, settings.keys, new_id))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    engine.dispose()
    assert len(rings) == 4
    assert len({ring.active(Purpose.ACCESS).kid for ring in rings}) == 1
    assert settings.keys.directory is not None
    assert len(list(settings.keys.directory.iterdir())) == 3


def test_b16_brokers_agree_on_every_step(settings: Settings) -> None:
    """B16: four brokers that look at the same moment do each step of a rotation once."""
    engine = db.connect(settings.database_url)
    try:
        agree_on_every_step(Ring(engine, open_stores(settings.keys)).and_others(3))
    finally:
        engine.dispose()
