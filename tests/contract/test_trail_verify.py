"""Verifying the audit trail: whatever is changed in it later is found, and where."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from daypass_broker import schema
from daypass_broker.audit import AuditTag
from daypass_broker.chain import sealing
from daypass_broker.retention import RetentionError, command, exports
from daypass_broker.retention.command import Wish
from tests.contract.sealed import Trail
from tests.unit.broker.desk import Store

EVENTS = schema.audit.c


@pytest.fixture
def trail(desk: Store, tmp_path: Path) -> Trail:
    """A trail with three heads, the second of three events."""
    made = Trail(desk, tmp_path)
    for _ in range(3):
        made.write(3)
        made.seal()
    assert made.verify().wrong == []
    return made


Tamper = Callable[[sa.Connection, int], object]


def rewritten(name: str, value: object) -> Tamper:
    """Write another value into one column of an event."""

    def tamper(conn: sa.Connection, seq: int) -> None:
        changing = sa.update(schema.audit).where(EVENTS.seq == seq).values({name: value})
        conn.execute(changing)

    return tamper


def deleted(conn: sa.Connection, seq: int) -> None:
    """Delete an event."""
    conn.execute(sa.delete(schema.audit).where(EVENTS.seq == seq))


def swapped(conn: sa.Connection, seq: int) -> None:
    """Let two events change places."""
    for old, new in ((seq, -1), (seq + 1, seq), (-1, seq + 1)):
        conn.execute(sa.update(schema.audit).where(EVENTS.seq == old).values(seq=new))


@pytest.mark.parametrize(
    "tamper",
    [
        *(rewritten("at", 5), rewritten("tag", "policy.applied2"), rewritten("actor", "crd_y")),
        *(rewritten("tenant", None), rewritten("sandbox", "sbx_a"), rewritten("subject", "")),
        *(rewritten("detail", "{}"), rewritten("request_id", "req_a"), deleted, swapped),
    ],
    ids=[
        "at",
        "tag",
        "actor",
        "tenant",
        "sandbox",
        "subject",
        "detail",
        "request_id",
        "gone",
        "swap",
    ],
)
def test_an_event_that_was_tampered_with_is_found(trail: Trail, tamper: Tamper) -> None:
    """Any field of an event, its place, or that there was one: the head of its minute says so, and
    the heads before and after it stand."""
    middle = trail.heads()[1]
    with trail.tampering() as conn:
        tamper(conn, middle.first + 1)
    found = trail.verify()
    (said,) = found.wrong
    assert said.startswith(
        f"events {middle.first} to {middle.upto}: are not what was sealed at 2027"
    )
    assert found.events == len(trail.seqs()) - (2 if tamper is deleted else 3)


def test_an_event_that_is_put_in_is_found(trail: Trail) -> None:
    """Into a gap that an act which failed has left: among the events of a head, and between two."""
    for gap in ("between", "inside"):
        trail.write()
        lost = _number_of_a_failed_act(trail)
        if gap == "between":
            trail.seal()
        trail.write()
        trail.seal()
        with trail.tampering() as conn:
            values = {"at": 1, "tag": "x.y", "actor": "system", "detail": "{}", "seq": lost}
            conn.execute(sa.insert(schema.audit).values(values))
        assert len(trail.verify().wrong) == 1, gap
        with trail.tampering() as conn:
            deleted(conn, lost)


def _number_of_a_failed_act(trail: Trail) -> int:
    """Leave a gap in the numbers, as on PostgreSQL every act does that fails; return it."""
    trail.write()
    lost = trail.seqs()[-1]
    with trail.tampering() as conn:
        deleted(conn, lost)
    return lost


@pytest.mark.parametrize(
    ("name", "value", "problems"),
    [
        ("hash", "ab" * 32, 3),  # its events, its signature, and that the next one follows
        ("previous", "cd" * 32, 3),
        ("previous", "no hash", 3),
        ("events", 2, 2),
        ("at", 7, 1),
        ("signature", "00" * 64, 1),
        ("signature", "ff", 1),
        ("signature", "no hex", 1),
        ("kid", "nobody", 1),
    ],
)
def test_a_head_that_was_tampered_with_is_found(
    trail: Trail, name: str, value: object, problems: int
) -> None:
    """Nothing of a head can be changed: it is signed, followed by the next, and recomputed."""
    middle = trail.heads()[1]
    with trail.tampering() as conn:
        head = schema.audit_head
        conn.execute(sa.update(head).where(head.c.upto == middle.upto).values({name: value}))
    assert len(trail.verify().wrong) == problems


def test_a_head_that_was_deleted_is_found(trail: Trail) -> None:
    """The next one does not follow the one before, and the events of the lost one are in none."""
    middle = trail.heads()[1]
    with trail.tampering() as conn:
        head = schema.audit_head
        conn.execute(sa.delete(head).where(head.c.upto == middle.upto))
    said = trail.verify().wrong
    assert [one for one in said if "does not follow the head before it" in one]
    assert len([one for one in said if "is in no head, and was put in later" in one]) == 3


def test_an_end_that_was_cut_off_is_found_by_heads_kept_elsewhere(trail: Trail) -> None:
    """Without its last events and their head a trail is whole; the log remembers more."""
    kept = trail.kept()
    last = trail.heads()[-1]
    with trail.tampering() as conn:
        conn.execute(sa.delete(schema.audit).where(EVENTS.seq >= last.first))
        conn.execute(sa.delete(schema.audit_head).where(schema.audit_head.c.upto == last.upto))
    assert trail.verify().wrong == []
    found = trail.verify(kept=kept)
    assert found.wrong == [
        f"head of event {last.upto}: was kept elsewhere and is not in the database"
    ]
    assert found.compared == 3


def test_a_chain_that_was_made_anew_is_found_by_heads_kept_elsewhere(
    trail: Trail, tmp_path: Path
) -> None:
    """Who can write the database makes a chain that looks right, with the broker's key or one of
    his own that he puts there; it is not the one that the log has told."""
    kept = trail.kept()
    missing = "was kept elsewhere and is not in the database"
    for own, said in (
        (False, ["is another than was kept elsewhere", missing, missing]),
        (True, [missing, missing, missing]),
    ):
        forger = trail.with_keys(tmp_path / "own") if own else trail
        with trail.tampering() as conn:
            conn.execute(sa.delete(schema.audit_head))
            rewritten("actor", "crd_somebody_else")(conn, trail.seqs()[0])
        forger.seal()
        assert trail.verify().wrong == []
        assert [one.partition(": ")[2] for one in trail.verify(kept=kept).wrong] == said
    one = replace(kept[0], signature="00" * 64)
    assert "kept elsewhere: its signature is not ours" in trail.verify(kept=(one,)).wrong[0]
    other = replace(kept[0], head=replace(kept[0].head, at=1))
    assert "its signature is not ours" in trail.verify(kept=(other,)).wrong[0]


def test_what_is_not_sealed_yet_is_counted(trail: Trail) -> None:
    """Events after the last head are no problem, and no part of what was verified."""
    before = len(trail.seqs())
    trail.write(2)
    found = trail.verify()
    assert (found.wrong, found.events, found.unsealed) == ([], before, 2)
    assert "2 events are in no head yet" in found.lines()


def prune(trail: Trail, directory: Path) -> None:
    """Export and delete what the trail has so far, as if years had passed."""
    later = trail.now + 400 * 86_400_000
    command.prune(trail.desk.owner, Wish(None, 1, directory), lambda line: None, now_ms=later)


@pytest.fixture
def exported(trail: Trail, tmp_path: Path) -> Path:
    """The directory that the trail was pruned to, the events of a head half and half."""
    directory = tmp_path / "export"
    directory.mkdir()
    keep = trail.heads()[1].first + 1
    with trail.tampering() as conn:
        conn.execute(sa.delete(schema.audit_head))
        conn.execute(sa.update(schema.audit).values(at=1_000))
        far = trail.now + 800 * 86_400_000
        conn.execute(sa.update(schema.audit).where(EVENTS.seq >= keep).values(at=far))
    trail.seal()
    prune(trail, directory)
    assert trail.seqs()[0] == keep
    return directory


def test_pruned_events_are_verified_in_their_exports(trail: Trail, exported: Path) -> None:
    """A head whose events were pruned, or some of them, is recomputed from files and table; without
    the files it is said how many events were not verified."""
    trail.seal()
    events = sum(row.events for row in trail.heads())
    found = trail.verify(exported)
    assert (found.wrong, found.events, found.elsewhere) == ([], events, 0)
    found = trail.verify()
    assert found.wrong == []
    assert (found.events + found.elsewhere, found.elsewhere > 0) == (events, True)
    assert (
        f"{found.elsewhere} events were pruned: name their exports with --export" in found.lines()
    )
    # A second export over the first: each event counts once.
    trail.write()
    prune(trail, exported)
    assert trail.verify(exported).wrong == []


def test_an_export_that_was_tampered_with_is_found(trail: Trail, exported: Path) -> None:
    """Also one whose manifest was made to fit; one that cannot be read is named."""
    (file,) = exported.glob("*.ndjson.gz")
    lines = gzip.decompress(file.read_bytes()).splitlines()
    first = json.loads(lines[0]) | {"actor": "crd_somebody_else"}
    file.write_bytes(gzip.compress(b"\n".join([json.dumps(first).encode(), *lines[1:]])))
    assert len(trail.verify(exported).wrong) == 1
    file.write_bytes(gzip.compress(b"\n".join(lines[1:])))
    assert len(trail.verify(exported).wrong) == 1
    del first["tenant"]
    for damaged in (
        gzip.compress(b"not JSON"),
        gzip.compress(b"[" * 100_000),
        gzip.compress(json.dumps(first).encode()),
        gzip.compress(b"".join(lines))[:-9],
        b"no gzip",
    ):
        file.write_bytes(damaged)
        with pytest.raises(RetentionError, match="is damaged"):
            trail.verify(exported)


def test_a_manifest_without_numbers_is_named(trail: Trail, exported: Path) -> None:
    """It is a file that anybody may have written to."""
    (file,) = exported.glob("*.manifest.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"last": "9"}))
    with pytest.raises(RetentionError, match="is damaged"):
        trail.verify(exported)


def foreign(directory: Path, rows: list[dict[str, object]]) -> None:
    """Put an export into a directory of which the database knows nothing."""
    export = exports.write(directory, "audit-1-2", rows)
    about = {"kind": "audit", "first": 1, "last": 2, "previous": None}
    exports.write_manifest(directory, export, about)


def test_an_export_of_another_database_is_no_finding(trail: Trail, exported: Path) -> None:
    """Several may be pruned into one directory: what the trail names, and what that follows, is
    read, and nothing else."""
    event = {"at": 1, "tag": "x.y", "actor": "crd_z", "detail": "{}", "tenant": None}
    event |= {"sandbox": None, "subject": None, "request_id": None}
    foreign(exported, [{"seq": seq, **event} for seq in (1, 2)])
    assert trail.verify(exported).wrong == []


def test_an_exported_event_that_no_head_covers_is_counted(trail: Trail, exported: Path) -> None:
    """It was pruned before there were heads, or put in later: nothing says which, so neither is
    claimed."""
    trail.write()
    with trail.tampering() as conn:
        first = trail.heads()[0]
        conn.execute(sa.delete(schema.audit_head))
        conn.execute(sa.update(schema.audit).values(at=trail.now))
    trail.seal()
    found = trail.verify(exported)
    assert found.wrong == []
    assert found.uncovered == trail.seqs()[0] - first.first
    assert f"{found.uncovered} exported events are in no head, and were not verified" in (
        found.lines()
    )


def test_whatever_a_head_holds_can_be_told(trail: Trail) -> None:
    """A time that no calendar has is found like any other change."""
    for at in (2**62, -(2**62)):
        with trail.tampering() as conn:
            conn.execute(sa.update(schema.audit_head).values(at=at))
            rewritten("actor", "crd_y")(conn, trail.heads()[0].first)
        found = trail.verify()
        assert len(found.wrong) == 4  # three signatures, and the events of the first
        assert f"at {at} ms" in "\n".join(found.lines())
        assert found.as_dict()["sealed_at"] == f"{at} ms"


@pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", ["first", "events", "at", "previous", "hash", "signature"])
def test_a_head_of_another_type_is_found(trail: Trail, column: str) -> None:
    """SQLite keeps anything in any column."""
    middle = trail.heads()[1].upto
    with trail.tampering() as conn:
        changing = f"UPDATE audit_head SET {column} = x'00ff' WHERE upto = {middle}"
        conn.exec_driver_sql(changing)
    kind = "int" if column in ("first", "events", "at") else "str"
    told = f"head of event {middle}: is no whole head: {column} is no {kind}"
    assert told in trail.verify().wrong


@pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
def test_an_event_of_another_type_is_found(trail: Trail) -> None:
    """Also where the last that was said of pruning can be read by nobody."""
    middle = trail.heads()[1]
    for detail in ("x'00ff'", f"'{'[' * 100_000}'"):
        with trail.tampering() as conn:
            changing = f"UPDATE audit SET tag = 'audit.pruned', detail = {detail} WHERE seq = "
            conn.exec_driver_sql(f"{changing}{middle.upto}")
        (said,) = trail.verify().wrong
        assert said.startswith(f"events {middle.first} to {middle.upto}: are not what was sealed")


def test_deleting_is_no_pruning(trail: Trail) -> None:
    """Events that are gone without a word are missed; that they were pruned is not believed when
    the exports are asked for."""
    first = trail.heads()[0]
    with trail.tampering() as conn:
        conn.execute(sa.delete(schema.audit).where(EVENTS.seq <= first.upto))
    assert len(trail.verify().wrong) == 1
    with trail.desk.acting() as act:
        detail = {"upto": first.upto, "file": "audit-1-9.ndjson.gz", "sha256": "00"}
        act.tell(AuditTag.AUDIT_PRUNED, subject="x", detail=detail)
    assert trail.verify().elsewhere == first.events
    empty = trail.services.settings.keys.directory
    assert empty is not None
    assert len(trail.verify(empty).wrong) == 1
    with pytest.raises(RetentionError, match="is no directory"):
        trail.verify(empty / "nowhere")


def test_a_trail_without_heads_has_nothing_to_verify(desk: Store, tmp_path: Path) -> None:
    """Right after the migration there is none; nothing is claimed then."""
    trail = Trail(desk, tmp_path)
    found = trail.verify()
    assert (found.wrong, found.heads, found.events, found.sealed_upto) == ([], 0, 0, None)
    assert found.unsealed == len(trail.seqs())
    assert sealing.seal(trail.services) == found.unsealed
