"""What else is pruned: the audit trail, export first; incidents; sandboxes that left nothing."""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from daypass_broker import audit, db, revocation, sandbox, schema
from daypass_broker.audit import AuditTag
from daypass_broker.report import UsageFilter, usage
from daypass_broker.retention import RetentionError, batches, command, exports, rest, trail
from daypass_broker.retention.command import Wish
from daypass_broker.retention.months import kept_from
from tests.contract.brokers import make
from tests.contract.pruning import LATER, at
from tests.unit.broker.desk import ADMIN, Store, usage_row

OLD = int(at(2027, 1, 5).now() * 1000)
RECENT = int(at(2027, 4, 2).now() * 1000)


@pytest.fixture
def owner(desk: Store) -> sa.Engine:
    """The desk's database, as its owner reaches it."""
    return desk.owner


def prune(engine: sa.Engine, directory: Path, *, now_ms: int = LATER) -> command.Done:
    """Prune usage and audit of all months but the present and the one before."""
    return command.prune(engine, Wish(1, 1, directory), lambda line: None, now_ms=now_ms)


def write_events(desk: Store, *moments: int) -> None:
    """Write an event at each of these moments."""
    with desk.acting() as act:
        for moment in moments:
            audit.append(
                act.conn, AuditTag.POLICY_APPLIED, "crd_x", at=moment, detail={"n": moment}
            )


@pytest.fixture
def aged(desk: Store, owner: sa.Engine) -> Store:
    """A desk whose own events are gone, so that a test's are all there is."""
    with db.begin(owner) as conn:
        conn.execute(sa.delete(schema.audit))
    return desk


def test_old_events_are_in_a_file_and_the_trail_says_so(
    aged: Store, owner: sa.Engine, tmp_path: Path
) -> None:
    """What is left begins without a gap, and names the file that what came before is in."""
    write_events(aged, OLD, OLD + 1, RECENT, OLD + 2)
    done = prune(owner, tmp_path)
    assert done.audit.events == 2
    left = aged.rows(schema.audit)
    assert [row.tag for row in left] == ["policy.applied", "policy.applied", "audit.pruned"]
    said = json.loads(left[-1].detail)
    assert (said["events"], said["upto"], said["previous"]) == (2, left[0].seq - 1, None)
    lines = gzip.decompress((tmp_path / said["file"]).read_bytes()).splitlines()
    assert [json.loads(line)["at"] for line in lines] == [OLD, OLD + 1]
    assert command.verify(owner, tmp_path) == (1, [])


def test_exports_of_the_trail_follow_one_another(
    aged: Store, owner: sa.Engine, tmp_path: Path
) -> None:
    """Each names the digest of the one before; one of another trail between them is found."""
    write_events(aged, OLD)
    prune(owner, tmp_path)
    write_events(aged, RECENT)
    later = int(at(2030, 1, 1).now() * 1000)
    done = prune(owner, tmp_path, now_ms=later)
    assert done.audit.events == 2
    first, second = sorted(
        (json.loads(path.read_text()) for path in tmp_path.glob("audit-*.manifest.json")),
        key=lambda found: int(found["last"]),
    )
    assert second["previous"] == first["sha256"]
    assert command.verify(owner, tmp_path) == (2, [])
    path = tmp_path / second["file"].replace(".ndjson.gz", ".manifest.json")
    path.write_text(json.dumps(second | {"previous": "0" * 64}))
    assert command.verify(owner, tmp_path)[1] == [
        f"{second['file']}: does not follow {first['file']}"
    ]


def test_a_trail_that_was_exported_and_not_deleted_is_deleted_by_the_next_run(
    aged: Store, owner: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the event that names the file and the last delete, it exports nothing anew."""
    write_events(aged, OLD, OLD + 1, RECENT)
    with monkeypatch.context() as patched:
        patched.setattr(trail, "_finish", lambda *_: None)
        prune(owner, tmp_path)
    assert len(aged.rows(schema.audit)) == 4
    done = prune(owner, tmp_path)
    assert done.audit.events == 0
    assert len(aged.rows(schema.audit)) == 2
    assert command.verify(owner, tmp_path) == (1, [])


def test_an_export_of_the_trail_that_was_left_behind_breaks_no_chain(
    aged: Store, owner: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the file and the event that names it, and run again a month later, the next
    export begins at the same event and follows the same one: nothing is wrong."""

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    write_events(aged, OLD)
    prune(owner, tmp_path)
    write_events(aged, RECENT)
    later, month = int(at(2030, 1, 1).now() * 1000), 31 * 86_400_000
    with monkeypatch.context() as patched:
        patched.setattr(audit, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            prune(owner, tmp_path, now_ms=later)
    write_events(aged, later)
    prune(owner, tmp_path, now_ms=later + 3 * month)
    assert command.verify(owner, tmp_path) == (3, [])


def forge(desk: Store, detail: str) -> None:
    """Append an `audit.pruned` that no prune wrote, as whoever takes over a broker can."""
    row = {"at": RECENT, "tag": AuditTag.AUDIT_PRUNED.value, "actor": "system", "detail": detail}
    with db.begin(desk.engine) as conn:
        conn.execute(sa.insert(schema.audit).values(**row))


@pytest.mark.parametrize(
    "forged",
    [
        {"file": "audit-1-9.ndjson.gz", "sha256": "0" * 64},
        {"file": "../audit-1-9.ndjson.gz"},
        {"sha256": None},
        {},
        None,
    ],
    ids=["a file nobody has", "another directory", "no digest", "more than it holds", "no JSON"],
)
def test_no_word_of_a_broker_deletes_an_event(
    aged: Store, owner: sa.Engine, tmp_path: Path, forged: dict[str, object] | None
) -> None:
    """An `audit.pruned` that no export in the directory bears out deletes nothing: a broker that
    was taken over may write one, and every event is still in the trail or in a file."""
    write_events(aged, OLD)
    prune(owner, tmp_path)
    write_events(aged, RECENT)
    said = json.loads(aged.rows(schema.audit, tag="audit.pruned")[-1].detail)
    forge(aged, "?" if forged is None else json.dumps(said | {"upto": 10**9} | forged))
    before = {row.seq for row in aged.rows(schema.audit)}
    for now_ms in (LATER, int(at(2030, 1, 1).now() * 1000)):
        prune(owner, tmp_path, now_ms=now_ms)
        files = [path.read_bytes() for path in tmp_path.glob("audit-*.gz")]
        lines = [line for file in files for line in gzip.decompress(file).splitlines()]
        exported = {json.loads(line)["seq"] for line in lines}
        assert exported | {row.seq for row in aged.rows(schema.audit)} >= before
    assert exported >= before


def test_a_trail_that_was_exported_elsewhere_is_exported_again(
    aged: Store, owner: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its events went, and run again with another directory, it deletes nothing that
    is not in a file of that one."""
    write_events(aged, OLD, OLD + 1, RECENT)
    other = tmp_path / "other"
    other.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(trail, "_finish", lambda *_: None)
        prune(owner, tmp_path)
    done = prune(owner, other)
    assert done.audit.events == 2
    lines = gzip.decompress((other / str(done.audit.file)).read_bytes()).splitlines()
    assert [json.loads(line)["at"] for line in lines] == [OLD, OLD + 1]
    assert command.verify(owner, other) == (1, [])


def test_what_cannot_be_verified_is_no_success(tmp_path: Path) -> None:
    """A directory that is not there is refused, not found free of problems; so is a manifest that
    does not say what it should."""
    with pytest.raises(RetentionError, match="is no directory"):
        command.verify(None, tmp_path / "exprot")
    (tmp_path / "a.manifest.json").write_text(
        '{"format": 1, "kind": "usage", "file": "a", "rows": 1}'
    )
    with pytest.raises(ValueError, match=r"a\.manifest\.json: does not say sha256"):
        command.verify(None, tmp_path)


def test_two_databases_that_share_a_directory_take_no_name_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two exports of one name that end at the same moment are two files, each with its own rows,
    and readable by their owner alone."""
    place, others = exports._place, []

    def race(directory: Path, stem: str, sha256: str) -> Path:
        mine = place(directory, stem, sha256)
        with monkeypatch.context() as patched:
            patched.setattr(exports, "_place", place)
            others.append(exports.write(directory, stem, [{"of": "another"}]))
        return mine

    with monkeypatch.context() as patched:
        patched.setattr(exports, "_place", race)
        ours = exports.write(tmp_path, "usage-2027-01", [{"of": "us"}])
    for one in (ours, *others):
        path = tmp_path / one.file
        assert exports.is_there(tmp_path, one.file, one.sha256)
        assert path.stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.iterdir())) == 2


def test_old_incidents_go(desk: Store, owner: sa.Engine, tmp_path: Path) -> None:
    """Counters of minutes before the months that are kept are gone, later ones are not."""
    until = kept_from(LATER, 1)
    with db.begin(owner) as conn:
        for moment in (OLD, until - 60_000, until, RECENT):
            audit.count(conn, "sbx_a", "clone", moment)
    assert prune(owner, tmp_path).incidents == 2
    left = [row.minute for row in desk.rows(schema.incident)]
    assert left == [until // 60_000, RECENT // 60_000]


@pytest.mark.unbooked
def test_a_sandbox_goes_when_nothing_of_it_is_left(
    desk: Store, owner: sa.Engine, tmp_path: Path
) -> None:
    """One that ended long ago goes with its grant and account; with a call, or alive, it stays."""
    gone, used, alive, came_by_rule = (make(desk)[0].id for _ in range(4))
    with desk.acting(revocation.lock_version) as act:
        for ident in (gone, used, came_by_rule):
            sandbox.end(act, ADMIN, ident)
    old = {"deadline": OLD // 1000, "created_at": OLD}
    with db.begin(owner) as conn:
        conn.execute(sa.update(schema.sandbox).values(**old))
        row = usage_row(0, sandbox=used, started_at=RECENT, settled_at=RECENT)
        conn.execute(sa.insert(schema.usage).values(**row))
        conn.execute(sa.insert(schema.federation_rule).values(**RULE))
        by_rule = sa.update(schema.sandbox).where(schema.sandbox.c.id == came_by_rule)
        conn.execute(by_rule.values(rule="fdrl_x", identity="me"))
    assert prune(owner, tmp_path).sandboxes == 1
    assert {row.id for row in desk.rows(schema.sandbox)} == {used, alive, came_by_rule}
    assert desk.rows(schema.grant_, sandbox=gone) == []
    assert desk.rows(schema.account, sandbox=gone) == []
    assert [row.id for row in desk.rows(schema.account, id="tenant:acme")] == ["tenant:acme"]


RULE = {
    "id": "fdrl_x", "name": "x", "tenant": "acme", "profile": "coding", "kind": "oidc",
    "issuer": "https://i.test", "audience": "a", "document": "{}", "state": "active",
    "created_by": "crd_x", "created_at": 1, "updated_at": 1,
}  # fmt: skip


def test_a_sandbox_that_is_restored_at_this_moment_stays(
    desk: Store, owner: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that goes back to the pool after it was found, and before it is deleted, is kept."""
    pooled = make(desk)[0].id
    old = {"deadline": OLD // 1000, "created_at": OLD, "state": "revoked"}
    with db.begin(owner) as conn:
        conn.execute(sa.update(schema.sandbox).values(**old))
    reading = batches.reading

    @contextmanager
    def restored_after(engine: sa.Engine) -> Iterator[sa.Connection]:
        with reading(engine) as conn:
            yield conn
        with db.begin(engine) as conn:
            conn.execute(sa.update(schema.sandbox).values(state="idle"))

    monkeypatch.setattr(rest, "reading", restored_after)
    assert prune(owner, tmp_path).sandboxes == 0
    assert [row.id for row in desk.rows(schema.sandbox)] == [pooled]


def test_dead_revocations_go_and_a_key_s_does_not(
    desk: Store, owner: sa.Engine, tmp_path: Path
) -> None:
    """B22: what can end nothing any more is deleted; that of a key that is published stays."""
    with db.begin(owner) as conn:
        kid = {"kid": "k1", "purpose": "access", "state": "retired", "public_jwk": "{}"}
        conn.execute(sa.insert(schema.signing_key).values(**kid, created_at=1))
    with desk.acting(revocation.lock_version) as act:
        revocation.append(act, "kid", "k1", None, "stolen")
        revocation.append(act, "sandbox", "sbx_a", 5, "asked", until=6)
        revocation.append(act, "sandbox", "sbx_b", act.second, "asked")
    assert prune(owner, tmp_path).revocations == 0  # the next append had deleted it already
    with db.begin(owner) as conn:
        conn.execute(sa.update(schema.revocation).where(_of("sbx_b")).values(expires_at=6))
    assert prune(owner, tmp_path).revocations == 1
    assert [row.ident for row in desk.rows(schema.revocation)] == ["k1"]


def _of(ident: str) -> sa.ColumnElement[bool]:
    return schema.revocation.c.ident == ident


@pytest.mark.unbooked
def test_a_report_of_pruned_time_says_so(desk: Store, owner: sa.Engine, tmp_path: Path) -> None:
    """Only where a part of what is asked for is gone, with the moment and the files' names."""
    with db.begin(owner) as conn:
        for number, moment in enumerate((OLD, RECENT)):
            row = usage_row(number, started_at=moment, settled_at=moment)
            conn.execute(sa.insert(schema.usage).values(**row))
    prune(owner, tmp_path)
    pruned = {"before": "2027-02-01T00:00:00Z", "exports": ["usage-2027-01.ndjson.gz"]}
    with db.read(desk.engine) as conn:
        for since, until, said in (
            (None, None, pruned),
            (OLD // 1000, None, pruned),
            (None, at(2026, 12, 31).now(), None),
            (at(2027, 2, 1).now(), None, None),
        ):
            wanted = UsageFilter(
                since=None if since is None else int(since),
                until=None if until is None else int(until),
            )
            assert usage(conn, wanted, limit=9).get("pruned") == said
