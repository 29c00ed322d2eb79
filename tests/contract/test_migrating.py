"""Migrating a database that is in use, and one that has a past."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import daypass_migrations
from daypass_broker import db, schema
from tests.servers.postgres import PostgresServer

KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]

# Of the first schema; only the columns that have no default.
_TENANT = "INSERT INTO tenant VALUES (:id, '[]', 'active', 1, 5)"
_ACCOUNT = """
INSERT INTO account (id, kind, tenant, sandbox, ceiling_nano, spent_nano, reserved_nano,
    overdraft_nano, updated_at)
VALUES (:id, 'sandbox', :tenant, :sandbox, 900, :spent, :reserved, :overdraft, 7)
"""
_USAGE = """
INSERT INTO usage (id, attempt, state, account, tenant, sandbox, grant_id, token_id, provider,
    endpoint, model, reserved_nano, cost_nano, input_tokens, output_tokens,
    cache_creation_input_tokens, cache_creation_1h_input_tokens, cache_read_input_tokens, outcome,
    estimated, worker, lease_until, started_at, settled_at)
VALUES (:id, 1, :state, :account, 'acme', :sandbox, 'grt_a', 'tok_a', 'anthropic', 'messages', 'm',
    :reserved, :cost, :input, :output, :created, :hour, :read, :outcome, :estimated, 'w', 9, 3,
    :settled)
"""


@pytest.fixture(params=KINDS)
def old_url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of a database of schema 0001 with two tenants, two sandboxes and five calls."""
    server: PostgresServer | None = None
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
    url = server.new_database() if server else f"sqlite:///{tmp_path / 'old.db'}"
    with monkeypatch.context() as patched:
        patched.setattr(daypass_migrations, "HEAD", "0001")
        daypass_migrations.upgrade(url)
    _fill(url)
    yield url
    if server:
        server.drop_database(url, booked=request.node.get_closest_marker("unbooked") is None)


def _fill(url: str) -> None:
    with _writing(url) as conn:
        for tenant in ("acme", "quiet"):
            conn.execute(sa.text(_TENANT), {"id": tenant})
        for sandbox, sums in (("sbx_a", (27, 40, 2)), ("sbx_b", (30, 0, 0))):
            spent, reserved, overdraft = sums
            row = {"id": f"sandbox:{sandbox}", "tenant": "acme", "sandbox": sandbox}
            row |= {"spent": spent, "reserved": reserved, "overdraft": overdraft}  # type: ignore[dict-item]
            conn.execute(sa.text(_ACCOUNT), row)
        for call in (
            _call("req_1", reserved=5, cost=7, input=10, output=3, created=2, hour=1, read=4),
            _call("req_2", reserved=50, cost=20, output=1),
            _call("req_3", reserved=40, state="open", cost=None, outcome=None, settled=None),
            _call("req_4", "sbx_b", reserved=10, cost=10, outcome="crashed", estimated=1),
            _call("req_5", "sbx_b", reserved=20, cost=20, input=6),
        ):
            conn.execute(sa.text(_USAGE), call)


def _call(ident: str, sandbox: str = "sbx_a", **values: object) -> dict[str, object]:
    tokens = dict.fromkeys(("input", "output", "created", "hour", "read"))
    shared = {"state": "settled", "outcome": "complete", "estimated": 0, "settled": 4}
    where = {"id": ident, "account": f"sandbox:{sandbox}", "sandbox": sandbox}
    return {**tokens, **shared, **where, **values}


@contextmanager
def _writing(url: str) -> Iterator[sa.Connection]:
    engine = db.connect(url)
    try:
        with db.begin(engine) as conn:
            yield conn
    finally:
        engine.dispose()


def _rows(url: str, query: sa.Executable) -> dict[str, sa.Row[Any]]:
    engine = db.connect(url)
    with db.read(engine) as conn:
        found = {row.id: row for row in conn.execute(query)}
    engine.dispose()
    return found


def _accounts(url: str) -> dict[str, sa.Row[Any]]:
    return _rows(url, sa.select(schema.account))


def _calls(url: str) -> dict[str, sa.Row[Any]]:
    return _rows(url, sa.select(schema.usage))


def test_an_upgrade_waits_for_a_writer_of_the_new_file(tmp_path: Path) -> None:
    """SQLite: a file somebody else has just begun to write is waited for, not refused."""
    path = tmp_path / "new.db"
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    done = threading.Timer(0.3, writer.rollback)
    done.start()
    daypass_migrations.upgrade(f"sqlite:///{path}")
    done.join()
    writer.close()
    assert daypass_migrations.current(f"sqlite:///{path}") == daypass_migrations.HEAD


def test_old_accounts_are_the_sums_of_their_calls(old_url: str) -> None:
    """After 0002 every account, the new ones of tenants too, is what the usage rows sum to."""
    old = _rows(old_url, sa.text("SELECT * FROM account"))
    daypass_migrations.upgrade(old_url)
    accounts, calls = _accounts(old_url), _calls(old_url).values()
    assert set(accounts) == {"sandbox:sbx_a", "sandbox:sbx_b", "tenant:acme", "tenant:quiet"}
    for ident, account in accounts.items():
        booked = [call for call in calls if ident in call.accounts.split(" ")]
        settled = [call for call in booked if call.state == "settled"]
        still_open = [call for call in booked if call.state == "open"]
        assert account.spent_nano == sum(call.cost_nano for call in settled)
        assert account.reserved_nano == sum(call.reserved_nano for call in still_open)
        assert account.overdraft_nano == sum(
            max(call.cost_nano - call.reserved_nano, 0) for call in settled
        )
        assert account.tokens_spent == sum(call.tokens for call in settled)
        assert account.tokens_reserved == sum(call.reserved_tokens for call in still_open) == 0
        assert account.open_calls == len(still_open)
    assert {ident: tuple(accounts[ident])[:9] for ident in old} == {
        ident: tuple(row) for ident, row in old.items()
    }
    assert accounts["tenant:acme"].spent_nano == 57
    assert accounts["tenant:quiet"].spent_nano == 0


def test_old_accounts_hang_together(old_url: str) -> None:
    """A sandbox's account gets its tenant's as parent; a tenant's has none, no limit, no window."""
    daypass_migrations.upgrade(old_url)
    accounts = _accounts(old_url)
    assert accounts["sandbox:sbx_a"].parent == accounts["sandbox:sbx_b"].parent == "tenant:acme"
    tenant = accounts["tenant:acme"]
    assert (tenant.kind, tenant.tenant, tenant.sandbox, tenant.parent) == (
        "tenant", "acme", None, None
    )  # fmt: skip
    assert (tenant.ceiling_nano, tenant.time_zone, tenant.minute) == (None, "UTC", "[]")
    assert (tenant.day_until, tenant.month_until) == (0, 0)
    assert accounts["sandbox:sbx_a"].ceiling_nano == 900


def test_old_calls_are_kept_and_completed(old_url: str) -> None:
    """No old call loses anything; it gains the accounts it is in and the tokens it used."""
    old = _rows(old_url, sa.text("SELECT * FROM usage"))
    daypass_migrations.upgrade(old_url)
    calls = _calls(old_url)
    for ident, row in old.items():
        assert tuple(calls[ident])[: len(row)] == tuple(row)
    assert {ident: (call.accounts, call.tokens) for ident, call in calls.items()} == {
        "req_1": ("sandbox:sbx_a tenant:acme", 19),
        "req_2": ("sandbox:sbx_a tenant:acme", 1),
        "req_3": ("sandbox:sbx_a tenant:acme", None),
        "req_4": ("sandbox:sbx_b tenant:acme", 0),
        "req_5": ("sandbox:sbx_b tenant:acme", 6),
    }


@pytest.mark.parametrize(
    "change",
    [
        {"accounts": "sandbox:sbx_b"},
        {"reserved_tokens": 1},
        {"tokens": 1},
        {"thinking_tokens": 1},
        {"web_search_requests": 1},
        {"service_tier": "batch"},
        {"speed": "fast"},
        {"inference_geo": "us"},
        {"passes": "[]"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_settled_call_is_final_in_its_new_columns_too(
    old_url: str, change: dict[str, object]
) -> None:
    """None of the new columns of a settled row can be changed any more."""
    daypass_migrations.upgrade(old_url)
    update = sa.update(schema.usage).where(schema.usage.c.id == "req_1").values(**change)
    with (
        pytest.raises(sa.exc.IntegrityError, match="settled usage is final"),
        _writing(old_url) as c,
    ):
        c.execute(update)


@pytest.mark.unbooked
def test_a_crashed_call_is_corrected_once_and_stays_where_it_was_booked(old_url: str) -> None:
    """The late bill replaces the guess with its figures; accounts and hold are not up for it."""
    daypass_migrations.upgrade(old_url)
    table = schema.usage
    bill = {"outcome": "complete", "estimated": 0, "cost_nano": 3, "tokens": 8, "passes": "[]"}
    correct = sa.update(table).where(table.c.id == "req_4").values(**bill)
    for moved in (
        {"accounts": "sandbox:sbx_a"},
        {"reserved_nano": 3},
        {"reserved_tokens": 8},
        {"worker": "another"},
        {"lease_until": 10},
        {"stream": 1},
    ):
        with pytest.raises(sa.exc.IntegrityError, match="is final"), _writing(old_url) as conn:
            conn.execute(correct.values(**moved))
    with _writing(old_url) as conn:
        assert conn.execute(correct).rowcount == 1
    with pytest.raises(sa.exc.IntegrityError, match="is final"), _writing(old_url) as conn:
        conn.execute(correct)
