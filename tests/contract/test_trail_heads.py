"""Heads of the audit trail: every event is in exactly one, whoever writes and seals meanwhile."""

import hashlib
import json
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from daypass_broker import db, schema
from daypass_broker.chain import sealing
from daypass_broker.keys import SigningUnavailable
from tests.contract.brokers import at_once
from tests.contract.sealed import MINUTE, Trail, append
from tests.unit.broker.desk import Store


def act_that_may_fail(trail: Trail, text: str, *, fails: bool) -> None:
    """Append an event, and fail after it or not."""
    with suppress(ZeroDivisionError), db.begin(trail.desk.engine) as conn:
        append(conn, text)
        if fails:
            raise ZeroDivisionError


@pytest.fixture
def trail(desk: Store, tmp_path: Path) -> Trail:
    """A trail with what the policy and the first keys have told."""
    return Trail(desk, tmp_path)


def test_every_event_is_in_one_head(trail: Trail) -> None:
    """The first head covers all there is, the next what came since; the events lie side by side."""
    first = trail.seal()
    assert first == len(trail.seqs())
    trail.write(3)
    assert trail.seal() == 3
    one, two = trail.heads()
    assert (one.first, one.previous) == (trail.seqs()[0], "0" * 64)
    assert (two.first, two.upto, two.events) == (trail.seqs()[-3], trail.seqs()[-1], 3)
    assert (two.previous, two.at - one.at) == (one.hash, MINUTE)
    found = trail.verify()
    assert (found.wrong, found.heads, found.events, found.unsealed) == ([], 2, first + 3, 0)
    assert (found.sealed_upto, found.sealed_at) == (two.upto, two.at)


def test_the_hash_is_the_one_that_the_docs_describe(trail: Trail) -> None:
    """Recomputed here with nothing of ours: SHA-256 of the hash so far and of nine fields."""
    trail.write(2)
    trail.seal()
    (head,) = trail.heads()
    names = ["actor", "at", "detail", "request_id", "sandbox", "seq", "subject", "tag", "tenant"]
    running = bytes(32)
    for row in trail.desk.rows(schema.audit):
        fields = {name: getattr(row, name) for name in names}
        line = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        running = hashlib.sha256(running + line.encode()).digest()
    assert running.hex() == head.hash


def test_nothing_new_makes_no_head(trail: Trail) -> None:
    """Without an event there is no head, and within half a minute of one there is none either:
    of several brokers one makes them. A clock that was set back does not stop that."""
    assert trail.seal() > 0
    assert trail.seal() == 0
    trail.write()
    trail.now = trail.heads()[-1].at + MINUTE // 2 - 1
    assert sealing.seal(trail.services) == 0
    trail.now += 1
    assert sealing.seal(trail.services) == 1
    trail.write()
    trail.now -= 10 * MINUTE
    assert sealing.seal(trail.services) == 1
    assert trail.verify().wrong == []


def test_what_has_piled_up_gets_several_heads(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other in portions, none of which is larger than its bound."""
    monkeypatch.setattr(sealing, "PORTION", 4)
    trail.write(11)
    events = len(trail.seqs())
    assert trail.seal() == events
    sizes = [row.events for row in trail.heads()]
    assert sum(sizes) == events
    assert set(sizes[:-1]) == {4}
    assert trail.verify().wrong == []


def test_a_broker_that_is_to_stop_leaves_what_has_piled_up(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the head that it is at; the next broker goes on from there."""
    monkeypatch.setattr(sealing, "PORTION", 4)
    trail.write(11)
    sign = trail.services.signer.sign_head

    def stopped_meanwhile(text: bytes) -> tuple[str, bytes]:
        trail.services.ending.begin()
        return sign(text)

    monkeypatch.setattr(trail.services.signer, "sign_head", stopped_meanwhile)
    assert trail.seal() == 4
    trail.services.ending.begun = False
    monkeypatch.undo()
    assert trail.seal() == len(trail.seqs()) - 4
    assert trail.verify().wrong == []


def test_many_brokers_make_one_chain(trail: Trail) -> None:
    """Eight that seal at the same moment: each event is sealed by one of them, in one chain."""
    expected = len(trail.seqs())
    for _ in range(5):
        trail.now += MINUTE
        assert sum(at_once(lambda _: sealing.seal(trail.services))) == expected
        trail.write(3)
        expected = 3
    trail.seal()
    found = trail.verify()
    assert (found.wrong, found.events) == ([], len(trail.seqs()))


def test_sealing_beside_writers_leaves_no_event_out(trail: Trail) -> None:
    """Writers append and roll back while heads are made all the time: all of it adds up, also where
    numbers are missing because their acts failed."""
    ended = threading.Event()

    def write(number: int) -> None:
        for turn in range(20):
            act_that_may_fail(trail, f"{number} {turn}", fails=turn % 4 > 0)

    def seal() -> None:
        while not ended.is_set():
            trail.seal()

    sealer = threading.Thread(target=seal)
    sealer.start()
    try:
        at_once(write, workers=4)
    finally:
        ended.set()
        sealer.join()
    trail.seal()
    found = trail.verify()
    assert (found.wrong, found.unsealed) == ([], 0)
    assert found.events == len(trail.seqs())


on_postgres = pytest.mark.parametrize(
    "desk", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


@on_postgres
def test_an_event_that_is_being_written_is_waited_for(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL a later number may be there before an earlier one: while that lasts no head is
    made; once all have ended the next head has them all. On SQLite one writes at a time."""
    monkeypatch.setattr(sealing, "WAIT_SECONDS", 0.0)
    with db.begin(trail.desk.engine) as slow:
        append(slow, "slow")
        trail.write()
        assert trail.seal() == 0
        assert trail.heads() == []
    assert trail.seal() == len(trail.seqs())
    assert trail.verify().wrong == []


@on_postgres
def test_nobody_is_held_up_by_waiting(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a slow act is waited for others go on appending, and are not waited for in their turn:
    a head comes as soon as the slow one has ended, however busy the table is."""
    with ExitStack() as slow, ExitStack() as busy:
        append(slow.enter_context(db.begin(trail.desk.engine)), "slow")
        trail.write()

        def pause(_: float) -> None:
            trail.write()
            append(busy.enter_context(db.begin(trail.desk.engine)), "still there at the end")
            slow.close()

        patient = SimpleNamespace(sleep=pause, monotonic=lambda: 0.0)
        monkeypatch.setattr(sealing, "time", patient)
        assert trail.seal() == len(trail.seqs()) - 1
    monkeypatch.undo()
    assert trail.seal() == 2
    assert trail.verify().wrong == []


@on_postgres
def test_a_vacuum_is_not_waited_for(trail: Trail) -> None:
    """It appends nothing, and of a large table it may last for hours: heads are made beside it."""
    with db.begin(trail.desk.owner) as conn:
        conn.exec_driver_sql("LOCK TABLE audit IN SHARE UPDATE EXCLUSIVE MODE")  # as VACUUM does
        assert trail.seal() == len(trail.seqs())


def test_what_cannot_be_signed_is_in_the_next_head(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the vault that signs is sealed no head is made; nothing is lost by that."""

    def unavailable(text: bytes) -> tuple[str, bytes]:
        raise SigningUnavailable("the vault is sealed")

    with monkeypatch.context() as patched:
        patched.setattr(trail.services.signer, "sign_head", unavailable)
        assert trail.seal() == 0
    trail.write()
    assert trail.seal() == len(trail.seqs())
    assert trail.verify().wrong == []


def test_heads_are_only_appended(trail: Trail) -> None:
    """Not even the owner of the database changes or deletes one without taking a trigger away."""
    trail.seal()
    for statement in (sa.update(schema.audit_head).values(at=1), sa.delete(schema.audit_head)):
        with pytest.raises(sa.exc.DatabaseError, match="only appended"):  # noqa: SIM117
            with db.begin(trail.desk.owner) as conn:
                conn.execute(statement)
