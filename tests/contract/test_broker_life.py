"""Ends that come by themselves and from vendors, on both stores, with several brokers at once."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

from daypass_broker import db, life, reaper, revocation, schema, vendor
from daypass_broker.act import SYSTEM, acting
from daypass_broker.policy import Wish
from daypass_broker.sandbox_request import Activation, SandboxRequest, Vendor
from daypass_broker.webhook import VendorEvent
from daypass_core.ids import new_id
from daypass_core.problem import Refusal
from tests.contract.brokers import WORKERS, at_once, make
from tests.unit.broker.desk import ADMIN, Store


def services(desk: Store, seconds: int = 0) -> Any:
    """What the reaper needs of a broker, so much later."""
    made = SimpleNamespace(
        engine=desk.engine,
        new_id=new_id,
        now_ms=lambda conn: db.now_ms(conn) + seconds * 1000,
    )
    return cast(Any, made)


def test_eight_reapers_end_each_sandbox_once(desk: Store) -> None:
    """Together they end all that is over, each once, with one revocation and one event."""
    request = SandboxRequest(tenant="acme", count=30, wish=Wish(lifetime_s=60))
    over = {row.id for row in make(desk, request)}
    (alive,) = make(desk)
    ended = at_once(lambda _: reaper.reap(services(desk, 62)))
    assert sum(ended) == 30
    states = {row.id: row.state for row in desk.rows(schema.sandbox)}
    assert {name for name, state in states.items() if state == "ended"} == over
    assert states[alive.id] == "active"
    assert sorted(row.ident for row in desk.rows(schema.revocation)) == sorted(over)
    assert len(desk.rows(schema.audit, tag="sandbox.ended")) == 30


def test_a_heartbeat_and_a_reaper_agree(desk: Store) -> None:
    """At the moment it is due, a sandbox is either ended or said to live, never both."""
    request = SandboxRequest(tenant="acme", count=4, wish=Wish(heartbeat_s=60))
    rows = make(desk, request)

    def beat(sandbox: str) -> None:
        with suppress(Refusal), desk.acting() as act:
            life.beat(act, ADMIN, sandbox)

    def work(number: int) -> None:
        if number % 2:
            reaper.reap(services(desk, 60))
            return
        for row in rows:
            beat(row.id)

    at_once(work)
    for row in desk.rows(schema.sandbox):
        assert row.heartbeat_at >= row.created_at
        ends = [
            one for one in desk.rows(schema.audit, tag="sandbox.ended") if one.sandbox == row.id
        ]
        assert len(ends) == (row.state == "ended")


def test_an_event_counts_once_whoever_gets_it(desk: Store) -> None:
    """Delivered to eight brokers at once it ends its sandbox once; the others know it already."""
    request = SandboxRequest(tenant="acme", vendor=Vendor("e2b", "i4x"))
    (row,) = make(desk, request)
    event = VendorEvent("evt-1", "ended", "i4x")

    def deliver(_: int) -> str:
        with acting(desk.engine, "webhook:e2b", new_id, lock=revocation.lock_version) as act:
            return vendor.note(act, "e2b", event)

    assert sorted(at_once(deliver)) == ["ended"] + ["repeated"] * (WORKERS - 1)
    assert [one.state for one in desk.rows(schema.sandbox, id=row.id)] == ["ended"]
    assert len(desk.rows(schema.revocation)) == 1


def test_an_idle_sandbox_is_given_out_once(desk: Store) -> None:
    """Of eight that ask at once one gets it, and no launch credential is given out twice."""
    (row,) = make(desk, SandboxRequest(tenant="acme", idle=True))

    def give(_: int) -> str | None:
        try:
            with desk.acting(revocation.share_version) as act:
                return str(life.activate(act, ADMIN, row.id, Activation()).launch_jti)
        except Refusal:
            return None

    given = [one for one in at_once(give) if one is not None]
    assert len(given) == 1
    assert [one.launch_jti for one in desk.rows(schema.sandbox)] == given


def test_old_rows_are_deleted_in_both_stores(desk: Store) -> None:
    """A key of two columns is a key too."""
    with acting(desk.engine, SYSTEM, new_id) as act:
        for name in ("a", "b"):
            row: dict[str, Any] = {"vendor": "e2b", "event": name, "received_at": 0}
            act.conn.execute(schema.vendor_event.insert().values(**row))
        keep: dict[str, Any] = {"vendor": "modal", "event": "a", "received_at": act.at}
        act.conn.execute(schema.vendor_event.insert().values(**keep))
    assert reaper.prune(services(desk)) == 2
    assert [row.vendor for row in desk.rows(schema.vendor_event)] == ["modal"]
