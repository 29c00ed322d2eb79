"""What the broker writes to accounts and what it shows of them; never a counter."""

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypass_broker import account, db, revocation, sandbox, schema
from daypass_broker.credential import Principal
from daypass_broker.limits import UNLIMITED, Limits
from daypass_broker.policy import Wish
from daypass_broker.sandbox_request import SandboxRequest
from daypass_core.problem import Code, Refusal
from daypass_proxy import limits as limits_of_proxy
from daypass_proxy.ledger import account as ledger_account
from daypass_proxy.ledger import chain
from daypass_proxy.ledger.minute import Minute
from tests.unit.broker.desk import ACME, ADMIN, GLOBEX, POLICY, Desk

LIMITED = POLICY.replace(
    "    token_ttl_seconds: 600\n",
    "    token_ttl_seconds: 600\n    budget_per_day_usd: 2\n    requests_per_minute: 30\n"
    "    over_budget: clamp\n",
).replace(
    "acme: {profiles: [coding]}",
    "acme: {profiles: [coding], time_zone: Europe/Berlin, budget_usd: 100, concurrency: 8,"
    " drain_seconds: 1.5}",
)
COUNTERS = (
    *("spent_nano", "reserved_nano", "overdraft_nano", "tokens_spent", "tokens_reserved"),
    *("open_calls", "day_spent_nano", "month_spent_nano", "day_until", "month_until", "minute"),
)


def make(desk: Desk, limits: Limits = UNLIMITED, tenant: str = "acme") -> Any:
    """Make a sandbox with these limits."""
    request = SandboxRequest(tenant=tenant, profile="coding", wish=Wish(limits=limits))
    with desk.acting(revocation.share_version) as act:
        return sandbox.create(act, ADMIN, request, min_token_ttl=2)[0]


def limit(desk: Desk, ident: str, principal: Principal = ADMIN, **wanted: Any) -> Any:
    """Change limits of a sandbox."""
    with desk.acting(revocation.share_version) as act:
        return sandbox.limit(act, principal, ident, wanted)


def account_of(desk: Desk, ident: str) -> Any:
    """An account's row."""
    (row,) = desk.rows(schema.account, id=ident)
    return row


def states(desk: Desk, ident: str) -> Any:
    """The limits of an account as shown."""
    with db.read(desk.engine) as conn:
        return account.states(conn, ident)


def test_a_policy_writes_the_tenant_s_account(desk: Desk) -> None:
    """A tenant's limits and time zone are its account's, in the transaction of the policy."""
    before = account_of(desk, "tenant:acme")
    assert (before.kind, before.parent, before.ceiling_nano) == ("tenant", None, None)
    desk.apply(LIMITED)
    after = account_of(desk, "tenant:acme")
    assert (after.ceiling_nano, after.concurrency_limit, after.drain_ms) == (100 * 10**9, 8, 1500)
    assert (after.time_zone, after.day_ceiling_nano, after.policy) == ("Europe/Berlin", None, None)
    desk.apply()
    again = account_of(desk, "tenant:acme")
    assert (again.ceiling_nano, again.concurrency_limit, again.time_zone) == (None, None, "UTC")


def test_a_policy_moves_accounts_to_the_tenant_s_time_zone(desk: Desk) -> None:
    """All accounts of the tenant follow its zone, and no other tenant's."""
    mine, other = make(desk), make(desk, tenant="globex")
    desk.apply(LIMITED)
    zones = {row.id: row.time_zone for row in desk.rows(schema.account)}
    assert zones == {
        f"sandbox:{mine.id}": "Europe/Berlin",
        f"sandbox:{other.id}": "UTC",
        "tenant:acme": "Europe/Berlin",
        "tenant:globex": "UTC",
    }


def test_a_dry_run_touches_no_account(desk: Desk) -> None:
    """What a policy would do to a tenant's account is not done."""
    before = desk.rows(schema.account)
    summary = desk.apply(LIMITED, dry_run=True)
    assert set(summary.updated) == {"profiles.coding", "tenants.acme"}
    assert desk.rows(schema.account) == before


def test_a_running_sandbox_keeps_what_it_was_given(desk: Desk) -> None:
    """A profile's new limits are for sandboxes to come."""
    row = make(desk)
    desk.apply(LIMITED)
    assert account_of(desk, f"sandbox:{row.id}").day_ceiling_nano is None
    assert account_of(desk, f"sandbox:{make(desk).id}").day_ceiling_nano == 2 * 10**9


def test_a_sandbox_s_account_has_the_limits_of_its_profile(desk: Desk) -> None:
    """Parent, zone and limits come from tenant and profile; a request takes less where it asks."""
    desk.apply(LIMITED)
    row = make(desk, Limits(day_ceiling_nano=10**9, token_ceiling=50, policy="reject"))
    made = account_of(desk, f"sandbox:{row.id}")
    assert (made.parent, made.time_zone, made.kind) == ("tenant:acme", "Europe/Berlin", "sandbox")
    assert (made.ceiling_nano, made.day_ceiling_nano, made.token_ceiling) == (5 * 10**9, 10**9, 50)
    assert (made.rpm_limit, made.policy, made.drain_ms) == (30, "reject", None)
    (event,) = desk.rows(schema.audit, sandbox=row.id, tag="sandbox.created")
    assert db.from_json(event.detail)["limits"] == {
        "ceiling_nano": 5 * 10**9,
        "day_ceiling_nano": 10**9,
        "token_ceiling": 50,
        "rpm_limit": 30,
        "policy": "reject",
    }


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (Limits(ceiling_nano=20 * 10**9 + 1), "budget_usd"),
        (Limits(day_ceiling_nano=2 * 10**9 + 1), "budget_per_day_usd"),
        (Limits(rpm_limit=31), "requests_per_minute"),
        (Limits(policy="cutoff"), "over_budget"),
        (Limits(drain_ms=1501), "drain_seconds"),
        (Limits(drain_tokens=501), "drain_tokens"),
    ],
)
def test_a_request_for_more_is_refused_by_name(desk: Desk, wanted: Limits, field: str) -> None:
    """More than the profile gives, or of draining than is usual for the tenant, is refused."""
    desk.apply(LIMITED)
    with pytest.raises(Refusal) as refused:
        make(desk, wanted)
    problem = refused.value.problem
    assert (problem.code, problem.field) == (Code.BEYOND_PROFILE, field)
    assert desk.rows(schema.sandbox) == []


@pytest.mark.unbooked
def test_limits_change_and_counters_do_not(desk: Desk) -> None:
    """An admin raises, lowers and takes limits away; what the ledger counted stays as it was."""
    row = make(desk)
    ident = f"sandbox:{row.id}"
    desk.change(
        schema.account, ident, spent_nano=7, reserved_nano=5, open_calls=1, minute="[[1,1,1]]"
    )
    before = account_of(desk, ident)
    changed = limit(desk, row.id, ceiling_nano=50 * 10**9, rpm_limit=3, policy="reject")
    assert changed.ceiling_nano == 50 * 10**9
    limit(desk, row.id, rpm_limit=None)
    after = account_of(desk, ident)
    assert (after.ceiling_nano, after.rpm_limit, after.policy) == (50 * 10**9, None, "reject")
    assert [getattr(after, name) for name in COUNTERS] == [
        getattr(before, name) for name in COUNTERS
    ]


def test_a_change_is_on_record(desk: Desk) -> None:
    """The audit event says what each limit was and is; a change of nothing is none."""
    row = make(desk)
    limit(desk, row.id, ACME, ceiling_nano=10**9, concurrency_limit=2)
    limit(desk, row.id, ACME, ceiling_nano=10**9, concurrency_limit=2)
    (event,) = desk.rows(schema.audit, sandbox=row.id, tag="sandbox.limited")
    assert (event.subject, event.tenant) == (row.id, "acme")
    assert db.from_json(event.detail) == {
        "before": {"ceiling_nano": 5 * 10**9, "concurrency_limit": None},
        "after": {"ceiling_nano": 10**9, "concurrency_limit": 2},
    }


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"ceiling_nano": 5 * 10**9 + 1}, "budget_usd"),
        ({"rpm_limit": 31}, "requests_per_minute"),
        ({"rpm_limit": None}, "requests_per_minute"),
        ({"policy": "cutoff"}, "over_budget"),
        ({"drain_ms": 1501}, "drain_seconds"),
        ({"ceiling_nano": 1, "drain_tokens": 501}, "drain_tokens"),
    ],
)
def test_orchestrators_only_lower(desk: Desk, wanted: Any, field: str) -> None:
    """Raising a limit, or taking it away, is for admins; all of such a change is refused."""
    desk.apply(LIMITED)
    row = make(desk)
    before = account_of(desk, f"sandbox:{row.id}")
    with pytest.raises(Refusal) as refused:
        limit(desk, row.id, ACME, **wanted)
    problem = refused.value.problem
    assert (problem.code, problem.field) == (Code.FORBIDDEN, field)
    assert account_of(desk, f"sandbox:{row.id}") == before
    lower = {"ceiling_nano": 1, "rpm_limit": 0, "policy": "reject", "drain_ms": 0}
    limit(desk, row.id, ACME, **lower)
    after = account_of(desk, f"sandbox:{row.id}")
    assert {name: getattr(after, name) for name in lower} == lower


def test_limits_of_other_tenants_and_ended_sandboxes_do_not_change(desk: Desk) -> None:
    """Not found for another tenant; a conflict for a sandbox that is over."""
    row = make(desk)
    with pytest.raises(Refusal) as refused:
        limit(desk, row.id, GLOBEX, ceiling_nano=1)
    assert refused.value.problem.code is Code.NOT_FOUND
    with desk.acting(revocation.lock_version) as act:
        sandbox.end(act, ADMIN, row.id)
    with pytest.raises(Refusal) as refused:
        limit(desk, row.id, ceiling_nano=1)
    assert refused.value.problem.code is Code.CONFLICT


@pytest.mark.unbooked
def test_every_limit_is_shown_as_it_stands(desk: Desk) -> None:
    """Used, held and left of each limit that is set, in its unit."""
    desk.apply(LIMITED)
    row = make(desk, Limits(token_ceiling=1000, tpm_limit=100, concurrency_limit=2))
    with desk.acting() as act:
        now = act.at
    minute = db.to_json([[now - 60_001, 9, 9], [now - 30_000, 2, 30], [now, 1, 10]])
    desk.change(
        schema.account,
        f"sandbox:{row.id}",
        spent_nano=10**9,
        reserved_nano=5 * 10**8,
        tokens_spent=700,
        tokens_reserved=50,
        open_calls=1,
        day_spent_nano=25 * 10**7,
        day_until=now + 3_600_000,
        minute=minute,
    )
    shown = states(desk, f"sandbox:{row.id}")
    assert {name: tuple(state.values())[:4] for name, state in shown.items()} == {
        "budget_usd": ("5.00", "1.00", "0.50", "3.50"),
        "budget_per_day_usd": ("2.00", "0.25", "0.50", "1.25"),
        "token_budget": (1000, 700, 50, 250),
        "requests_per_minute": (30, 3, 0, 27),
        "tokens_per_minute": (100, 40, 50, 10),
        "concurrency": (2, 0, 1, 1),
    }
    resets = {name for name, state in shown.items() if state["resets_at"] is not None}
    assert resets == {"budget_per_day_usd", "requests_per_minute", "tokens_per_minute"}
    assert set(states(desk, "tenant:acme")) == {"budget_usd", "concurrency"}


counters = st.integers(0, 10**12)


@given(st.tuples(*[st.none() | counters] * 7), st.tuples(*[counters] * 7), st.data())
def test_the_broker_shows_what_the_ledger_decides_on(
    ceilings: Any, counted: Any, data: st.DataObject
) -> None:
    """Used, held, left and reset of every limit are those of the ledger, to the unit."""
    now, until = 10**12, 10**12 + data.draw(st.integers(1, 10**7))
    slices = data.draw(st.lists(st.tuples(st.integers(now - 90_000, now), counters, counters)))
    of_limits = dict(zip(list(UNLIMITED.columns())[:7], ceilings, strict=True))
    names = ("spent_nano", "reserved_nano", "tokens_spent", "tokens_reserved", "open_calls")
    counts = dict(zip((*names, "day_spent_nano", "month_spent_nano"), counted, strict=True))
    set_aside, lent_used = data.draw(counters), data.draw(counters)
    row = ledger_account.Account(
        id="sandbox:a", parent=None, time_zone="UTC", policy=None, drain_ms=None, drain_tokens=None,
        **of_limits, overdraft_nano=0, day_from=0, day_until=until, month_from=0, month_until=until,
        minute=json.dumps(sorted(slices)), sliced=0, lent_nano=set_aside + lent_used,
        lent_used_nano=lent_used, **counts,
    )  # fmt: skip
    expected = limits_of_proxy.document(chain.states(row, Minute(row.minute, now)))
    assert account.figures(cast(Any, row), now) == expected


@pytest.mark.unbooked
def test_a_window_that_is_over_is_not_used(desk: Desk) -> None:
    """Yesterday's spending is none of today's, though the ledger has not opened today yet."""
    row = make(desk, Limits(month_ceiling_nano=10**9))
    desk.change(
        schema.account, f"sandbox:{row.id}", month_spent_nano=10**9, month_until=1, spent_nano=10**9
    )
    state = states(desk, f"sandbox:{row.id}")["budget_per_month_usd"]
    assert (state["used"], state["left"], state["resets_at"]) == ("0.00", "1.00", None)


def test_the_terms_in_force_are_shown(desk: Desk) -> None:
    """Each of them from the account, else the tenant's, else what is usual."""
    desk.apply(LIMITED)
    row = make(desk)
    with db.read(desk.engine) as conn:
        terms = account.terms(conn, row.id, "acme").document()
    assert terms == {"over_budget": "clamp", "drain_seconds": "1.5", "drain_tokens": 500}
