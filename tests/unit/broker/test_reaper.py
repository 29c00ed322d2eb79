"""What ends by itself: sandboxes whose time is over, rows that decide nothing any more."""

import json
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from daypass_broker import db, reaper, schema
from daypass_broker.app import _tasks
from daypass_broker.census import Census
from daypass_core.clock import StoreClock
from tests.unit.broker.desk import Desk

DAY_MS = 24 * 3600 * 1000


def reap(desk: Desk, seconds: float = 0) -> int:
    """Reap, so much later."""
    return reaper.reap(later(desk, seconds))


def later(desk: Desk, seconds: float) -> Any:
    """The services of a broker whose store's clock is ahead."""
    return replace(desk.services, now_ms=lambda conn: db.now_ms(conn) + int(seconds * 1000))


@pytest.mark.parametrize(
    ("fields", "seconds", "cause"),
    [
        ({"lifetime_seconds": 60}, 62, "deadline"),
        ({"lifetime_seconds": 600, "heartbeat_seconds": 30}, 31, "heartbeat"),
        ({"idle": True}, 24 * 3600 + 1, "idle"),
    ],
)
def test_a_sandbox_is_ended_when_its_time_is_over(
    desk: Desk, fields: dict[str, Any], seconds: int, cause: str
) -> None:
    """Not before; then it is ended, revoked for good, and told once with its cause."""
    made = desk.sandbox(**fields)
    assert reap(desk, seconds - 20) == 0
    assert reap(desk, seconds) == 1
    assert reap(desk, seconds) == 0
    (row,) = desk.rows(schema.sandbox)
    assert (row.state, row.ended_at is None) == ("ended", False)
    (revoked,) = desk.rows(schema.revocation)
    assert (revoked.scope, revoked.ident, revoked.not_before) == ("sandbox", made["id"], None)
    # What it ends has ended by itself; the row is there for calls that run, and not for a day.
    assert 300 <= revoked.expires_at - row.ended_at // 1000 <= 302 + (cause != "deadline") * 86_400
    (told,) = desk.rows(schema.audit, tag="sandbox.ended")
    assert (told.actor, json.loads(told.detail)["cause"]) == ("system", cause)


def test_a_heartbeat_keeps_the_reaper_away(desk: Desk) -> None:
    """A sandbox that was said to live is looked at from that moment on; others are not touched."""
    made = desk.sandbox(heartbeat_seconds=30)
    desk.sandbox()
    (before,) = [row for row in desk.rows(schema.sandbox) if row.heartbeat_s]
    desk.change(schema.sandbox, made["id"], heartbeat_at=before.heartbeat_at + 20_000)
    assert reap(desk, 45) == 0
    assert reap(desk, 51) == 1
    states = {row.id: row.state for row in desk.rows(schema.sandbox)}
    assert states.pop(made["id"]) == "ended"
    assert set(states.values()) == {"active"}


def test_what_is_over_is_over_once(desk: Desk) -> None:
    """A revoked sandbox stays revoked, and an ended one ended, whatever their deadlines."""
    for state in ("ended", "revoked"):
        made = desk.sandbox(lifetime_seconds=60)
        desk.change(schema.sandbox, made["id"], state=state)
    assert reap(desk, 100) == 0


def test_more_than_a_batch_is_ended_in_several(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are held for one batch at a time."""
    monkeypatch.setattr(reaper, "_BATCH", 2)
    desk.call("POST", "/v1/sandboxes", {"tenant": "acme", "lifetime_seconds": 60, "count": 5})
    assert reap(desk, 62) == 5
    assert {row.state for row in desk.rows(schema.sandbox)} == {"ended"}


def test_nothing_is_locked_while_nothing_is_due(desk: Desk) -> None:
    """With a write transaction open elsewhere, a round that finds nothing does not wait for it."""
    desk.sandbox()
    with db.begin(desk.engine):
        assert reap(desk) == 0


def test_rows_that_are_over_are_deleted(desk: Desk) -> None:
    """Assertions that could not be used again, events that would be refused as too old, keys of a
    day ago, tokens that ended a day ago; younger ones stay.
    """
    made = desk.sandbox()
    with desk.acting() as act:
        for name, second in (("old", act.second - 61), ("new", act.second - 1)):
            row: dict[str, Any] = {"id": name, "rule": "r", "sandbox": "s"}
            row |= {"expires_at": second, "created_at": 0}
            act.conn.execute(schema.assertion.insert().values(**row))
        for name, at in (("old", act.at - 2 * DAY_MS - 1), ("new", act.at - DAY_MS)):
            row = {"vendor": "e2b", "event": name, "received_at": at}
            act.conn.execute(schema.vendor_event.insert().values(**row))
        for name, at in (("old", act.at - DAY_MS - 1), ("new", act.at - DAY_MS // 2)):
            row = {"credential": "c", "key_hash": name, "request_hash": "", "sandboxes": "[]"}
            act.conn.execute(schema.idempotency.insert().values(**row, created_at=at))
        grant = sa.select(schema.grant_.c.id)
        for name, exp in (("old", act.second - 25 * 3600 - 1), ("new", act.second - 25 * 3600 + 9)):
            row = {"jti": name, "sandbox": made["id"], "tenant": "acme", "kid": "k", "iat": 0}
            row |= {"grant_id": act.conn.execute(grant).scalar_one(), "exp": exp, "created_at": 0}
            act.conn.execute(schema.token.insert().values(**row))
    assert reaper.prune(desk.services) == 4
    assert [row.jti for row in desk.rows(schema.token)] == ["new"]
    assert [row.id for row in desk.rows(schema.assertion)] == ["new"]
    assert [row.event for row in desk.rows(schema.vendor_event)] == ["new"]
    assert [row.key_hash for row in desk.rows(schema.idempotency)] == ["new"]
    assert reaper.prune(desk.services) == 0


def test_every_broker_reaps_and_prunes(desk: Desk) -> None:
    """They are among the things a broker does by itself, as often as the documents say."""
    census = Census(desk.services.engine, StoreClock().monotonic)
    tasks = {task.name: task.seconds for task in _tasks(desk.services, StoreClock(), census)}
    assert (tasks["reaper"], tasks["pruner"]) == (5.0, 60.0)
