"""What the broker needs of its store, on SQLite and on PostgreSQL alike."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import daypass_migrations
from daypass_broker import audit, credential, db, idempotency, report, revocation, sandbox, schema
from daypass_broker.credential import Principal, Role
from daypass_broker.report import Grouping, UsageFilter
from daypass_broker.revoke import Order, revoke
from daypass_broker.sandbox_request import SandboxRequest
from daypass_core.ids import new_id
from daypass_core.problem import Code, Refusal
from tests.servers.postgres import PostgresServer
from tests.support import eventually
from tests.unit.broker.desk import ACME as OURS
from tests.unit.broker.desk import ADMIN, POLICY, Store, usage_row

WORKERS = 8
ACME = SandboxRequest(tenant="acme")
KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]

T = TypeVar("T")


@pytest.fixture(params=KINDS)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.new_database()
    yield url
    server.drop_database(url)


@pytest.fixture(params=KINDS)
def desk(request: pytest.FixtureRequest, tmp_path: Path, migrated: Path) -> Iterator[Store]:
    """A migrated database with a policy applied."""
    if request.param == "sqlite":
        shutil.copy(migrated, tmp_path / "daypass.db")
        store = Store(f"sqlite:///{tmp_path / 'daypass.db'}")
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.new_database()
        daypass_migrations.upgrade(url)
        store = Store(url)
    store.apply()
    yield store
    store.close()
    if request.param == "postgres":
        booked = request.node.get_closest_marker("unbooked") is None
        server.drop_database(store.url, booked=booked)


def at_once(work: Callable[[int], T], workers: int = WORKERS) -> list[T]:
    """Run `work(0…n-1)` in threads that start together; the results in order."""
    barrier = threading.Barrier(workers)

    def started(number: int) -> T:
        barrier.wait(10)
        return work(number)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(started, range(workers)))


def make(desk: Store, request: SandboxRequest = ACME, principal: Principal = ADMIN) -> list[Any]:
    """Make the sandboxes of a request."""
    with desk.acting(revocation.share_version) as act:
        return sandbox.create(act, principal, request, min_token_ttl=2)


def cut(desk: Store, scope: str, ident: str = "*") -> Any:
    """Revoke as admin; the effect."""
    with desk.acting(revocation.lock_version) as act:
        return revoke(act, ADMIN, Order(scope, ident))


def test_the_migrated_database_is_what_the_broker_expects(empty_url: str) -> None:
    """Alembic finds no difference between the migrated database and the broker's tables."""
    daypass_migrations.upgrade(empty_url)
    engine = db.connect(empty_url)
    with engine.connect() as conn:
        context = MigrationContext.configure(conn, opts={"compare_server_default": True})
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


def test_the_migrated_checks_and_indexes_are_the_broker_s(empty_url: str) -> None:
    """CHECK constraints and indexes, which Alembic compares in part only, have equal names."""
    daypass_migrations.upgrade(empty_url)
    engine = db.connect(empty_url)
    inspector = sa.inspect(engine)
    for table in schema.metadata.tables.values():
        checks = {str(c.name) for c in table.constraints if isinstance(c, sa.CheckConstraint)}
        assert {c["name"] for c in inspector.get_check_constraints(table.name)} == checks
        assert {i["name"] for i in inspector.get_indexes(table.name)} == {
            str(i.name) for i in table.indexes
        }
    engine.dispose()


def test_upgrading_again_changes_nothing(empty_url: str) -> None:
    """`current` is None, then HEAD, and a second upgrade leaves it there."""
    assert daypass_migrations.current(empty_url) is None
    for _ in range(2):
        daypass_migrations.upgrade(empty_url)
        assert daypass_migrations.current(empty_url) == daypass_migrations.HEAD


def test_upgrades_at_the_same_time_make_one_schema(empty_url: str) -> None:
    """Four processes may upgrade at once; every one of them returns, and the version row is one."""
    at_once(lambda _: daypass_migrations.upgrade(empty_url), 4)
    engine = db.connect(empty_url)
    with db.read(engine) as conn:
        assert conn.execute(sa.select(schema.revocation_version)).all() == [(1, 0)]
    engine.dispose()


def test_the_store_s_clock_is_in_milliseconds(desk: Store) -> None:
    """`now_ms` is the epoch in milliseconds and moves within one transaction."""
    with db.begin(desk.engine) as conn:
        first = db.now_ms(conn)
        assert abs(first - time.time() * 1000) < 5_000
        deadline = time.monotonic() + 5
        while db.now_ms(conn) == first:
            assert time.monotonic() < deadline


def test_what_an_exception_leaves_is_rolled_back(desk: Store) -> None:
    """A write transaction that ends in an exception has written nothing."""

    def fail() -> None:
        with desk.acting() as act:
            audit.append(act.conn, audit.AuditTag.POLICY_APPLIED, "crd_x", at=act.at)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert desk.tags(actor="crd_x") == []


def test_foreign_keys_are_enforced(desk: Store) -> None:
    """A sandbox of a tenant that does not exist cannot be written."""
    (row,) = make(desk)
    with pytest.raises(sa.exc.IntegrityError):
        desk.change(schema.sandbox, row.id, tenant="nobody")


def test_a_sandbox_comes_with_its_root_grant_and_account(desk: Store) -> None:
    """One act writes the sandbox, one grant of its scope, an account of its budget, two events."""
    (row,) = make(desk)
    (grant,) = desk.rows(schema.grant_, sandbox=row.id)
    (account,) = desk.rows(schema.account, sandbox=row.id)
    assert (grant.parent, grant.scope, grant.expires_at) == (None, row.scope, row.deadline)
    assert account.id == f"sandbox:{row.id}"
    assert (account.ceiling_nano, account.spent_nano, account.tenant) == (5 * 10**9, 0, "acme")
    assert desk.tags(sandbox=row.id) == ["sandbox.created", "grant.issued"]


def test_a_hundred_sandboxes_are_one_act(desk: Store) -> None:
    """`count` makes that many, each with its own launch credential."""
    rows = make(desk, SandboxRequest(tenant="acme", count=100))
    assert len({row.id for row in rows}) == len({row.launch_jti for row in rows}) == 100


def test_sandboxes_are_listed_page_by_page(desk: Store) -> None:
    """Pages of any size, newest first, show every sandbox once."""
    made = {row.id for _ in range(3) for row in make(desk, SandboxRequest(tenant="acme", count=3))}
    seen: list[str] = []
    after = None
    with db.read(desk.engine) as conn:
        while page := sandbox.search(conn, ADMIN, after=after, limit=2):
            seen += [row.id for row in page]
            after = seen[-1]
        newest = sandbox.search(conn, ADMIN, limit=9)
    assert len(seen) == 9
    assert set(seen) == made
    moments = [row.created_at for row in newest]
    assert moments == sorted(moments, reverse=True)


def test_ending_is_absolute_and_happens_once(desk: Store) -> None:
    """Ended by eight at once, a sandbox has one absolute revocation and one event."""
    (row,) = make(desk)

    def end(_: int) -> str:
        with desk.acting(revocation.lock_version) as act:
            return str(sandbox.end(act, ADMIN, row.id).state)

    assert at_once(end) == ["ended"] * WORKERS
    (written,) = desk.rows(schema.revocation)
    assert (written.scope, written.ident, written.not_before) == ("sandbox", row.id, None)
    assert desk.tags(sandbox=row.id).count("sandbox.ended") == 1


def test_versions_of_revocations_have_no_gap_and_no_twin(desk: Store) -> None:
    """Eight writers at once get the versions 1 to 40, one each, and the counter says 40."""
    rows = make(desk, SandboxRequest(tenant="acme", count=WORKERS))

    def work(number: int) -> list[int]:
        return [cut(desk, "sandbox", rows[number].id).row.version for _ in range(5)]

    versions = at_once(work)
    assert all(mine == sorted(mine) for mine in versions)
    assert sorted(version for mine in versions for version in mine) == list(range(1, 41))
    with db.read(desk.engine) as conn:
        assert revocation.current_version(conn) == 40


def test_nothing_is_made_past_a_revocation_unseen(desk: Store) -> None:
    """Made and revoked at once: whatever is active was issued after every cut-off."""

    def work(number: int) -> None:
        for _ in range(5):
            if number % 2:
                cut(desk, "tenant", "acme")
            else:
                make(desk)

    at_once(work)
    latest = max(row.not_before for row in desk.rows(schema.revocation))
    for row in desk.rows(schema.sandbox):
        assert row.state == "revoked" or row.launch_iat > latest


def test_a_cut_off_marks_each_sandbox_and_tells_it(desk: Store) -> None:
    """A tenant's cut-off revokes its sandboxes, not those of others, with one event each."""
    mine = make(desk, SandboxRequest(tenant="acme", count=3))
    (other,) = make(desk, SandboxRequest(tenant="globex", profile="coding"))
    effect = cut(desk, "tenant", "acme")
    assert effect.sandboxes == 3
    for row in mine:
        assert desk.rows(schema.sandbox, id=row.id)[0].state == "revoked"
        assert desk.tags(sandbox=row.id)[-1] == "sandbox.revoked"
    assert desk.rows(schema.sandbox, id=other.id)[0].state == "active"


def test_a_replaced_launch_credential_can_be_revoked(desk: Store) -> None:
    """Its id is known while it lives its last minute, and listed for its tenant."""
    (row,) = make(desk)
    with desk.acting(revocation.share_version) as act:
        sandbox.replace_launch(act, ADMIN, row.id)
    written = cut(desk, "jti", row.launch_jti).row
    with db.read(desk.engine) as conn:
        assert [found.id for found in revocation.newest(conn, "acme", limit=9)] == [written.id]


def test_one_key_at_the_same_time_makes_one_sandbox(desk: Store) -> None:
    """Eight requests with one Idempotency-Key get the same sandbox, and only that one exists."""
    key = idempotency.Key.of("once", {"tenant": "acme"})

    def work(_: int) -> tuple[str, str, int]:
        with desk.acting(revocation.share_version) as act:
            (row,) = sandbox.create(act, ADMIN, ACME, min_token_ttl=2, key=key)
            return row.id, row.launch_jti, row.launch_iat

    assert len(set(at_once(work))) == 1
    assert len(desk.rows(schema.sandbox)) == len(desk.rows(schema.account, kind="sandbox")) == 1


def test_a_key_with_another_request_is_refused(desk: Store) -> None:
    """The same Idempotency-Key with another body is a mismatch and makes nothing."""
    for number, request in enumerate((ACME, SandboxRequest(tenant="acme", count=2))):
        key = idempotency.Key.of("once", number)
        with desk.acting(revocation.share_version) as act:
            if number == 0:
                sandbox.create(act, ADMIN, request, min_token_ttl=2, key=key)
                continue
            with pytest.raises(Refusal) as refused:
                sandbox.create(act, ADMIN, request, min_token_ttl=2, key=key)
            assert refused.value.problem.code is Code.IDEMPOTENCY_MISMATCH
    assert len(desk.rows(schema.sandbox)) == 1


def test_a_refused_request_gives_its_key_back(desk: Store) -> None:
    """A key whose request was refused can be used for the corrected one."""
    bad, corrected = idempotency.Key.of("k", "bad"), idempotency.Key.of("k", "corrected")
    with pytest.raises(Refusal), desk.acting(revocation.share_version) as act:
        sandbox.create(act, ADMIN, SandboxRequest("nobody"), min_token_ttl=2, key=bad)
    with desk.acting(revocation.share_version) as act:
        assert sandbox.create(act, ADMIN, ACME, min_token_ttl=2, key=corrected)


def test_a_credential_is_known_until_it_is_revoked(desk: Store) -> None:
    """A credential authenticates, revoking it by eight at once ends it with one event."""
    issued = desk.credential(Role.ORCHESTRATOR, "acme-ci")

    def known() -> Principal | None:
        with db.read(desk.engine) as conn:
            return credential.authenticate(conn, f"Bearer {issued.text}")

    assert known() == Principal(issued.id, Role.ORCHESTRATOR, "acme-ci", "acme")

    def end(_: int) -> bool:
        with desk.acting() as act:
            return credential.revoke(act, issued.id)

    assert sorted(at_once(end)) == [False] * (WORKERS - 1) + [True]
    assert known() is None
    assert desk.tags(subject=issued.id) == ["credential.issued", "credential.revoked"]


def test_a_count_loses_nothing(desk: Store) -> None:
    """Eight counting the same refusal five times each are one row of 40."""

    def work(_: int) -> None:
        for _ in range(5):
            with db.begin(desk.engine) as conn:
                audit.count(conn, "sbx_a", "clone", 120_001)

    at_once(work)
    assert [tuple(row) for row in desk.rows(schema.incident)] == [("sbx_a", "clone", 2, 40)]


def test_appliers_at_the_same_time_do_not_collide(desk: Store) -> None:
    """Eight appliers of one new policy all succeed and one of them creates it."""
    policy = "tenants: {initech: {profiles: [coding]}}"
    summaries = at_once(lambda _: desk.apply(policy))
    assert sum(summary.created == ["tenants.initech"] for summary in summaries) == 1
    assert sum(summary.unchanged == ["tenants.initech"] for summary in summaries) == WORKERS - 1


@pytest.mark.unbooked
def test_sums_are_exact_and_whole(desk: Store) -> None:
    """Sums per day are integers of nano-dollars, whatever the database makes of a SUM."""
    with db.begin(desk.engine) as conn:
        for number, cost in enumerate((1, 10**15, 333_333_333)):
            conn.execute(sa.insert(schema.usage).values(**usage_row(number, cost_nano=cost)))
    with db.read(desk.engine) as conn:
        answer: Any = report.grouped(conn, UsageFilter(), Grouping.of("day"), limit=100)
    assert [row["day"] for row in answer["rows"]] == ["1970-01-01", "1970-01-02", "1970-01-03"]
    assert answer["totals"]["cost_usd"] == "1000000.333333334"
    assert answer["totals"]["input_tokens"] == 30
    with db.read(desk.engine) as conn:
        rest: Any = report.grouped(
            conn, UsageFilter(), Grouping.of("day"), limit=1, after="1970-01-01"
        )
    assert (rest["rows"][0]["day"], rest["next"]) == ("1970-01-02", "1970-01-02")


@pytest.mark.unbooked
def test_labels_and_passes_are_read_in_the_database(desk: Store) -> None:
    """Calls are summed by what JSON columns hold, page by page: labels, and passes."""
    labels: list[dict[str, str]] = [{"a/b.c": "x"}, {"a/b.c": "y"}, {"a": "x"}]
    made = [make(desk, replace(ACME, labels=each))[0] for each in labels]
    passes = [{"kind": "advisor_message", "input_tokens": 5}, {"kind": "compaction"}]
    with db.begin(desk.engine) as conn:
        for number, row in enumerate(made):
            values = {"sandbox": row.id, "tokens": 15, "passes": db.to_json(passes)}
            conn.execute(sa.insert(schema.usage).values(**usage_row(number, **values)))
    pages: list[Any] = []
    by = Grouping.of("label:a/b.c")
    with db.read(desk.engine) as conn:
        while not pages or pages[-1]["next"] is not None:
            after = pages[-1]["next"] if pages else None
            pages.append(report.grouped(conn, UsageFilter(), by, limit=1, after=after))
    assert [row["label"] for page in pages for row in page["rows"]] == ["x", "y", None]
    assert [row["pass_tokens"] for page in pages for row in page["rows"]] == [5, 5, 5]
    assert (pages[0]["totals"]["passes"], pages[0]["totals"]["tokens"]) == (6, 45)


ZONED = POLICY.replace(
    "acme: {profiles: [coding]}",
    "acme: {profiles: [coding], time_zone: Europe/Berlin, budget_usd: 100}",
)


def test_a_policy_reaches_every_account_of_its_tenant(desk: Store) -> None:
    """The tenant's account gets its limits, all accounts of the tenant its zone, nobody else's."""
    (mine,) = make(desk)
    (other,) = make(desk, replace(ACME, tenant="globex", profile="coding"))
    desk.apply(ZONED)
    found = {row.id: row for row in desk.rows(schema.account)}
    assert {ident: row.time_zone for ident, row in found.items()} == {
        f"sandbox:{mine.id}": "Europe/Berlin",
        f"sandbox:{other.id}": "UTC",
        "tenant:acme": "Europe/Berlin",
        "tenant:globex": "UTC",
    }
    assert found["tenant:acme"].ceiling_nano == 100 * 10**9
    assert found[f"sandbox:{mine.id}"].parent == "tenant:acme"


@pytest.mark.unbooked
def test_the_broker_and_the_ledger_write_accounts_at_the_same_time(desk: Store) -> None:
    """Policies, changed limits and batches that lock accounts in the order of their ids never wait
    for each other in a ring, and no count is lost."""
    made = [row.id for row in make(desk, replace(ACME, count=4))]
    ids = sorted([f"sandbox:{ident}" for ident in made] + ["tenant:acme"])
    table = schema.account

    def work(number: int) -> None:
        for turn in range(10):
            if number % 4 == 0:
                desk.apply(ZONED if turn % 2 else POLICY)
            elif number % 4 == 1:
                with desk.acting(revocation.share_version) as act:
                    sandbox.limit(act, ADMIN, made[turn % 4], {"rpm_limit": number * 100 + turn})
            else:
                with db.begin(desk.engine) as conn:
                    locked = sa.select(table.c.id).where(table.c.id.in_(ids)).order_by(table.c.id)
                    conn.execute(locked.with_for_update()).all()
                    counted = table.c.spent_nano + 1
                    conn.execute(
                        sa.update(table).where(table.c.id.in_(ids)).values(spent_nano=counted)
                    )

    at_once(work)
    rows = [row for row in desk.rows(schema.account) if row.id in ids]
    assert [row.spent_nano for row in rows] == [WORKERS // 2 * 10] * 5


@pytest.mark.postgres
def test_a_policy_locks_accounts_in_the_order_of_their_ids(postgres_url: str) -> None:
    """While it waits for a sandbox's account, which a batch of the ledger has, the tenant's, which
    that batch takes next, is free."""
    daypass_migrations.upgrade(postgres_url)
    desk = Store(postgres_url)
    desk.apply()
    (row,) = make(desk)
    table = schema.account

    def lock(conn: sa.Connection, ident: str) -> None:
        query = sa.select(table.c.id).where(table.c.id == ident).with_for_update(nowait=True)
        conn.execute(query).one()

    with ThreadPoolExecutor(1) as pool:
        with db.begin(desk.engine) as conn:
            lock(conn, f"sandbox:{row.id}")
            applying = pool.submit(desk.apply, ZONED)
            eventually(lambda: waiting_for_locks(desk.engine) == 1)
            lock(conn, "tenant:acme")
        assert applying.result(10).updated == ["tenants.acme"]
    desk.close()


def waiting_for_locks(engine: sa.Engine) -> int:
    """How many connections of the database wait for a lock."""
    with engine.connect() as conn:
        return int(conn.scalar(sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")) or 0)


def test_a_limit_is_lowered_by_one_orchestrator_at_a_time(desk: Store) -> None:
    """Who wants more than another has just left is refused: the last word is the lowest."""
    (row,) = make(desk)

    def lower(number: int) -> bool:
        try:
            with desk.acting(revocation.share_version) as act:
                sandbox.limit(act, OURS, row.id, {"ceiling_nano": number + 1})
        except Refusal:
            return False
        return True

    done = at_once(lower)
    assert any(done)
    (found,) = desk.rows(schema.account, id=f"sandbox:{row.id}")
    assert found.ceiling_nano == 1


def write(desk: Store, statement: sa.Executable) -> None:
    """Run one statement in its own transaction."""
    with db.begin(desk.engine) as conn:
        conn.execute(statement)


@pytest.mark.unbooked
def test_a_settled_bill_is_final(desk: Store) -> None:
    """A settled usage row takes no change and no deletion, whoever asks."""
    table = schema.usage
    write(desk, sa.insert(table).values(**usage_row(0)))
    for change in ({"cost_nano": 0}, {"state": "open"}, {"tenant": "globex"}):
        with pytest.raises(sa.exc.IntegrityError):
            write(desk, sa.update(table).values(**change))
    with pytest.raises(sa.exc.IntegrityError):
        write(desk, sa.delete(table))


@pytest.mark.unbooked
def test_a_crashed_call_is_corrected_once(desk: Store) -> None:
    """An estimated bill of a crashed call may become the real one, once, and nothing else of it."""
    table = schema.usage
    crashed = usage_row(0, outcome="crashed", estimated=1)
    write(desk, sa.insert(table).values(**crashed))
    real = {"outcome": "complete", "estimated": 0, "cost_nano": 3}
    with pytest.raises(sa.exc.IntegrityError):
        write(desk, sa.update(table).values(cost_nano=3))
    with pytest.raises(sa.exc.IntegrityError):
        write(desk, sa.update(table).values(**real, account="sandbox:sbx_b"))
    write(desk, sa.update(table).values(**real))
    with pytest.raises(sa.exc.IntegrityError):
        write(desk, sa.update(table).values(outcome="crashed", estimated=1))


def test_an_id_is_never_given_out_twice(desk: Store) -> None:
    """Audit numbers go on after the newest event is gone."""
    with desk.acting() as act:
        for _ in range(2):
            audit.append(act.conn, audit.AuditTag.POLICY_APPLIED, new_id("crd"), at=act.at)
    newest = desk.rows(schema.audit)[-1].seq
    write(desk, sa.delete(schema.audit).where(schema.audit.c.seq == newest))
    with desk.acting() as act:
        audit.append(act.conn, audit.AuditTag.POLICY_APPLIED, new_id("crd"), at=act.at)
    assert desk.rows(schema.audit)[-1].seq > newest
