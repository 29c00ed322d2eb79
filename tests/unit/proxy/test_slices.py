"""Slices: who bought one may use all of it, its buyer only the rest, and the two always add up."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.ledger import Hold, LedgerRefused, Reserved
from daypass_proxy.ledger.account import Account
from tests import slices
from tests.accounts import account
from tests.desk import LEASE_MS, Desk, bill, wanted

SANDBOX, TENANT = "sandbox:s", "tenant:t"


class Family(Desk):
    """A sandbox of 100 nano-dollars in a tenant, and whoever buys a part of them."""

    def __init__(self, ceiling: int | None = 100, **tenant: Any) -> None:
        super().__init__(
            account(SANDBOX, parent=TENANT, ceiling_nano=ceiling), account(TENANT, **tenant)
        )
        self.calls = 0

    def kept(self, name: str) -> Account:
        """Return an account as last written."""
        return self.store.accounts_kept[name]

    def buy(self, child: str, nano: int, buyer: str = SANDBOX) -> bool:
        """Buy a slice, as the broker does."""
        made = slices.buy(self.kept(buyer), child, nano)
        if made is not None:
            self.store.accounts_kept[child] = made
        return made is not None

    def give_back(self, child: str) -> int:
        """Give a slice back, as the broker does."""
        one = self.kept(child)
        assert one.parent is not None
        nano = slices.give_back(one, self.kept(one.parent))
        self.recount()
        return nano

    def call(self, name: str, nano: int) -> Any:
        """Reserve a call of an account and return its number, or the refusal."""
        number = self.calls
        self.calls += 1
        answer = self.one("reserve", wanted(f"req_{number}", nano, name=name))
        return number if isinstance(answer, Reserved) else answer

    def pay(self, number: int, cost: int) -> None:
        """Book the bill of a call."""
        assert self.one("settle", bill(f"req_{number}", cost))


def test_what_is_set_aside_is_for_the_child_alone() -> None:
    """The sandbox has 100 and sells 60: it can use 40 itself, and its child 60, in any order."""
    family = Family()
    assert family.buy("grant:c", 60)
    refused = family.call(SANDBOX, 41)
    assert isinstance(refused, LedgerRefused)
    assert refused.state is not None
    assert (refused.reason, refused.state.held, refused.state.set_aside) == ("held", 60, 60)
    own = family.call(SANDBOX, 40)
    child = family.call("grant:c", 60)
    refused = family.call("grant:c", 1)
    assert (refused.reason, refused.state.account) == ("held", "grant:c")
    family.pay(own, 40)
    family.pay(child, 60)
    sandbox = family.kept(SANDBOX)
    assert (sandbox.spent_nano, sandbox.lent_nano, sandbox.lent_used_nano) == (100, 60, 60)
    assert family.kept(TENANT).spent_nano == 100
    assert family.kept(TENANT).lent_used_nano == 0


def test_a_call_sees_the_limits_as_they_are_for_it() -> None:
    """What the sandbox set aside is held for its own calls, and not for those of its child."""
    family = Family()
    family.buy("grant:c", 60)
    for name, lefts in ((SANDBOX, {SANDBOX: 40}), ("grant:c", {"grant:c": 60, SANDBOX: 100})):
        balance = family.one("balance", name)
        assert {one.account: one.left for one in balance.limits} == lefts
    family.kept("grant:c").policy = family.kept(SANDBOX).policy = "clamp"
    for name, left in ((SANDBOX, 40), ("grant:c", 60)):
        clamped = wanted(f"req_{name}", 0, name=name, output=(0, 90, 1))
        answer = family.one("reserve", clamped)
        assert isinstance(answer, Reserved)
        assert answer.output_tokens == left


def test_all_other_limits_of_the_buyer_hold_for_the_child() -> None:
    """A slice is of the budget alone: a day, a month, tokens and open calls are shared."""
    for column in ("day_ceiling_nano", "month_ceiling_nano", "token_ceiling", "concurrency_limit"):
        family = Family()
        family.buy("grant:c", 60)
        setattr(family.kept(SANDBOX), column, 1)
        first = family.one("reserve", wanted("req_a", 1, 1, "grant:c"))
        assert isinstance(first, Reserved)
        refused = family.one("reserve", wanted("req_b", 1, 1, "grant:c"))
        assert refused.state.account == SANDBOX


def test_a_budget_that_is_lowered_stops_the_children_too() -> None:
    """A slice is no right to more than the sandbox may still use at all."""
    family = Family()
    family.buy("grant:c", 60)
    first = family.call("grant:c", 30)
    family.kept(SANDBOX).ceiling_nano = 31
    assert family.one("extend", f"req_{first}", Hold(1))
    assert not family.one("extend", f"req_{first}", Hold(1))
    refused = family.call("grant:c", 1)
    assert (refused.reason, refused.state.account) == ("held", SANDBOX)


def test_a_slice_is_bought_once_and_from_what_is_free() -> None:
    """What is spent, held or set aside cannot be sold; no slice without a budget."""
    family = Family()
    assert family.buy("grant:c", 60)
    family.pay(family.call(SANDBOX, 10), 10)
    family.call(SANDBOX, 10)
    assert not family.buy("grant:d", 21)
    assert family.buy("grant:d", 20)
    assert not family.buy("grant:e", 1)
    assert family.buy("grant:e", 60, buyer="grant:c")
    assert isinstance(family.call("grant:c", 1), LedgerRefused)
    assert isinstance(family.call("grant:e", 60), int)
    assert not Family(None).buy("grant:c", 1)


def test_an_overdraft_of_a_child_is_paid_by_its_buyer() -> None:
    """A bill of 80 in a slice of 60: the other 20 leave the sandbox 20 of its own 40."""
    family = Family()
    family.buy("grant:c", 60)
    family.pay(family.call("grant:c", 60), 80)
    sandbox = family.kept(SANDBOX)
    assert (sandbox.spent_nano, sandbox.lent_used_nano) == (80, 60)
    assert slices.room(sandbox) == 20
    assert family.give_back("grant:c") == 0
    assert slices.room(family.kept(SANDBOX)) == 20


@pytest.mark.parametrize("bill", [0, 20, 50, 70])
@pytest.mark.parametrize("returned", ["before the crash", "after the crash", "after the bill"])
def test_a_late_bill_counts_whenever_the_slice_is_given_back(bill: int, returned: str) -> None:
    """A crashed call of a child is corrected: the sandbox has left what 100 less the bill is."""
    family = Family()
    family.buy("grant:c", 60)
    number = family.call("grant:c", 50)
    if returned == "before the crash":
        assert family.give_back("grant:c") == 10
    assert family.one("balance", SANDBOX).limits[0].left == (
        50 if returned == "before the crash" else 40
    )
    family.now += LEASE_MS
    family.reap()
    if returned == "after the crash":
        assert family.give_back("grant:c") == 10
    family.pay(number, bill)
    if returned == "after the bill":
        assert family.give_back("grant:c") == max(60 - bill, 0)
    assert slices.room(family.kept(SANDBOX)) == 100 - bill
    assert family.one("balance", SANDBOX).limits[0].left == 100 - bill


def test_a_call_after_the_slice_was_given_back_is_its_buyers() -> None:
    """An admission that comes too late is checked against what the sandbox has for itself."""
    family = Family()
    family.buy("grant:c", 60)
    open_call = family.call("grant:c", 10)
    family.give_back("grant:c")
    family.buy("grant:d", 85)
    assert not family.one("extend", f"req_{open_call}", Hold(6))
    refused = family.call("grant:c", 6)
    assert (refused.reason, refused.state.account, refused.state.left) == ("held", SANDBOX, 5)
    assert family.one("extend", f"req_{open_call}", Hold(5))


def test_a_mark_without_a_ceiling_is_no_slice() -> None:
    """An account marked as a slice that has no ceiling uses what its parent has for itself."""
    family = Family()
    family.store.accounts_kept["grant:c"] = account("grant:c", parent=SANDBOX, sliced=1)
    family.buy("grant:d", 90)
    refused = family.call("grant:c", 11)
    assert isinstance(refused, LedgerRefused)
    assert (refused.reason, refused.state and refused.state.account) == ("held", SANDBOX)
    assert isinstance(family.call("grant:c", 10), int)


names = st.integers(0, 9)
small = st.integers(0, 40)
acts = st.one_of(
    st.tuples(st.just("buy"), names, small),
    st.tuples(st.just("give_back"), names),
    st.tuples(st.just("reserve"), names, small),
    st.tuples(st.just("reserve"), names, small),
    st.tuples(st.just("extend"), names, small),
    st.tuples(st.just("release"), names, small),
    st.tuples(st.just("settle"), names, st.integers(0, 50)),
    st.tuples(st.just("reap")),
)


class Tree(Family):
    """Random purchases and calls in a tree of accounts, each answer measured by what it means.

    Without `overdrafts` no bill is higher than its hold.
    """

    def __init__(self, overdrafts: bool) -> None:
        super().__init__()
        self.overdrafts = overdrafts
        self.names = [SANDBOX]
        self.last = 0

    def do(self, act: str, *arguments: int) -> None:
        """Do one act; the accounts are added up again after it."""
        getattr(self, f"do_{act}")(*arguments)
        self.recount()
        for one in self.store.accounts_kept.values():
            passed = one.spent_nano + one.reserved_nano + one.set_aside_nano
            assert self.overdrafts or one.ceiling_nano is None or passed <= one.ceiling_nano

    def name(self, number: int) -> str:
        """Return one of the accounts that calls come from."""
        return self.names[number % len(self.names)]

    def chain(self, name: str) -> list[Account]:
        """Return an account and all above it."""
        one = self.kept(name)
        return [one, *(self.chain(one.parent) if one.parent else [])]

    def do_buy(self, number: int, nano: int) -> None:
        """A part of one account becomes another's, three deep at most."""
        buyer = self.name(number)
        child = f"grant:{len(self.names)}"
        if len(self.chain(buyer)) < 5 and self.buy(child, nano, buyer):
            self.names.append(child)

    def do_give_back(self, number: int) -> None:
        """A slice is given back, whatever is open in it or bought from it."""
        if self.name(number) != SANDBOX:
            self.give_back(self.name(number))

    def do_reserve(self, number: int, nano: int) -> None:
        """A call is refused exactly where it is more than somebody above it has for it."""
        name = self.name(number)
        fits = self.fits(name, nano)
        assert isinstance(self.call(name, nano), int) == fits

    def fits(self, name: str, nano: int) -> bool:
        """Whether every account has so much for a call that comes from `name`.

        Without overdrafts the only ones to be asked are those up to the first that was not bought,
        or is no more: whoever sold a slice has it.
        """
        sliced = 0
        for one in self.chain(name):
            limited = one.ceiling_nano is not None and (self.overdrafts or not sliced)
            used = one.spent_nano + one.reserved_nano + (0 if sliced else one.set_aside_nano)
            if limited and used + nano > (one.ceiling_nano or 0):
                return False
            sliced = one.sliced
        return True

    def row(self, number: int) -> dict[str, Any] | None:
        """Return the row of one of the calls."""
        return self.store.usage.get(f"req_{number % max(self.calls, 1)}")

    def do_extend(self, number: int, nano: int) -> None:
        """More is held for an open call exactly where a new call of so much would fit."""
        if (row := self.row(number)) is not None:
            fits = row["state"] == "open" and self.fits(row["account"], nano)
            assert self.one("extend", row["id"], Hold(nano)) == fits

    def do_release(self, number: int, nano: int) -> None:
        """A part of a hold is given back."""
        if (row := self.row(number)) is not None:
            self.one("release", row["id"], Hold(nano))

    def do_settle(self, number: int, cost: int) -> None:
        """A call is billed, or one that was reaped is corrected."""
        if (row := self.row(number)) is not None:
            most = cost if self.overdrafts else min(cost, row["reserved_nano"])
            self.one("settle", bill(row["id"], most))

    def do_reap(self) -> None:
        """All that is open is given up."""
        self.now += LEASE_MS
        self.reap()


@settings(max_examples=300)
@given(st.booleans(), st.lists(acts, min_size=10, max_size=50))
def test_budgets_of_a_tree_add_up(overdrafts: bool, acts: list[tuple[Any, ...]]) -> None:
    """B06: no child uses more than it bought, no buyer what it sold, and no nano-dollar is lost.

    A slice that was bought can be used whatever else goes on. Once all are given back, the sandbox
    has left what its bills leave of its budget.
    """
    tree = Tree(overdrafts)
    for act in acts:
        tree.do(*act)
    tree.do_reap()
    for name in tree.names[1:]:
        tree.give_back(name)
    sandbox = tree.kept(SANDBOX)
    billed = sum(row["cost_nano"] for row in tree.store.usage.values())
    assert (sandbox.spent_nano, sandbox.set_aside_nano) == (billed, 0)
    assert slices.room(sandbox) == 100 - billed
    assert tree.kept(TENANT).spent_nano == billed
    assert all(slices.left(one) == 0 for one in tree.store.accounts_kept.values())
    if not overdrafts:
        assert billed <= 100
