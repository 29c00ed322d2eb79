"""What the broker writes into accounts and reads out of bills, on both stores."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

import daypass_migrations
from daypass_broker import db, report, revocation, sandbox, schema
from daypass_broker.report import Grouping, UsageFilter
from daypass_core.problem import Refusal
from daypass_proxy.app import BUSY_SECONDS
from tests.contract.brokers import ACME, WORKERS, at_once, make
from tests.support import eventually
from tests.unit.broker.desk import ACME as OURS
from tests.unit.broker.desk import ADMIN, POLICY, Store, usage_row


def test_appliers_at_the_same_time_do_not_collide(desk: Store) -> None:
    """Eight appliers of one new policy all succeed and one of them creates it."""
    policy = "tenants: {initech: {profiles: [coding]}}"
    summaries = at_once(lambda _: desk.apply(policy))
    assert sum(summary.created == ["tenants.initech"] for summary in summaries) == 1
    assert sum(summary.unchanged == ["tenants.initech"] for summary in summaries) == WORKERS - 1


@pytest.mark.unbooked
def test_sums_are_exact_and_whole(desk: Store) -> None:
    """Sums per day are integers of nano-dollars, whatever the database makes of a SUM."""
    with db.begin(desk.owner) as conn:
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
    with db.begin(desk.owner) as conn:
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
                with db.begin(desk.owner) as conn:
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


def test_a_policy_may_name_thousands_of_tenants(desk: Store) -> None:
    """The largest policy that the API takes has as many, in several zones; all get accounts."""
    names = [f"t{number}" for number in range(3_000)]
    policy = "".join(f"  {name}: {{profiles: [coding]}}\n" for name in names)
    for text in (policy, policy.replace("0: {", "0: {time_zone: Europe/Berlin, ")):
        desk.apply(f"tenants:\n{text}")
    with db.read(desk.engine) as conn:
        query = sa.select(schema.account.c.time_zone, sa.func.count()).where(
            schema.account.c.id.startswith("tenant:t")
        )
        found = conn.execute(query.group_by(schema.account.c.time_zone)).all()
    assert sorted(tuple(row) for row in found) == [("Europe/Berlin", 300), ("UTC", 2_700)]


@pytest.mark.postgres
def test_an_act_that_is_stopped_in_the_middle_does_not_keep_its_locks(postgres_url: str) -> None:
    """The server ends a transaction in which nothing happens, before those who wait for its locks
    give up: the ledger needs the accounts."""
    engine = db.connect(postgres_url)
    with db.read(engine) as conn:
        shown = [
            conn.execute(sa.text(f"SHOW {name}")).scalar_one()
            for name in ("idle_in_transaction_session_timeout", "lock_timeout")
        ]
    engine.dispose()
    assert shown == ["4s", "5s"]
    assert BUSY_SECONDS == 5.0
