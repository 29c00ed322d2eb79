"""The book: what a batch does to the accounts and rows that were loaded for it."""

from typing import Any

import pytest

from daypass_proxy.ledger import MAX_NANO, Hold, LedgerRefused, Limit, Pass, Reserved
from daypass_proxy.ledger.book import Book
from daypass_proxy.ledger.rows import MAX_INTEGER
from daypass_proxy.ledger.store import BatchFailed
from tests.accounts import account
from tests.desk import DAY_MS, LEASE_MS, NOW, Desk, bill, wanted


def test_a_call_is_booked_in_its_account_and_all_parents() -> None:
    """The hold, the bill and the tokens of a call are in the leaf, the tenant and what is above."""
    desk = Desk(account(parent="t"), account("t", parent="top"), account("top"), account("other"))
    assert isinstance(desk.one("reserve", wanted("req_1", 50, 7)), Reserved)
    assert desk.store.usage["req_1"]["accounts"] == "a t top"
    for name in ("a", "t", "top"):
        kept = desk.store.accounts_kept[name]
        assert (kept.reserved_nano, kept.tokens_reserved, kept.open_calls) == (50, 7, 1)
    desk.one("settle", bill("req_1", 60, 9))
    for name in ("a", "t", "top"):
        kept = desk.store.accounts_kept[name]
        assert (kept.spent_nano, kept.tokens_spent, kept.overdraft_nano) == (60, 9, 10)
        assert (kept.reserved_nano, kept.tokens_reserved, kept.open_calls) == (0, 0, 0)
    assert desk.store.accounts_kept["other"] == account("other")


def test_a_call_that_one_account_refuses_is_held_in_none() -> None:
    """All or nothing: the tenant's limit leaves the leaf as it was, in the same batch too."""
    desk = Desk(account(parent="t"), account("t", ceiling_nano=60))
    book = desk.book()
    assert isinstance(book.reserve(wanted("req_1", 50)), Reserved)
    refused = book.reserve(wanted("req_2", 11))
    assert isinstance(refused, LedgerRefused)
    assert refused.state is not None
    assert (refused.reason, refused.state.account) == ("held", "t")
    desk.close(book)
    assert desk.store.accounts_kept["a"].reserved_nano == 50


def test_an_account_that_does_not_exist_is_named_so() -> None:
    """No row and no hold for a leaf without an account, nor for one whose parent is missing."""
    desk = Desk(account(parent="t"), account("t"))
    assert desk.one("reserve", wanted("req_1", 1, name="none")) == LedgerRefused("unknown_account")
    assert desk.one("balance", "none") is None
    book = Book(
        [account(parent="t")], [], {"a": ("a", "t")}, worker="w", now_ms=NOW, lease_ms=LEASE_MS
    )
    assert book.reserve(wanted("req_1", 1)) == LedgerRefused("unknown_account")


def test_what_is_admitted_says_what_is_left_with_it() -> None:
    """The limits of an answer hold the call that it admits, and the output held for it."""
    desk = Desk(account(ceiling_nano=100, policy="clamp", rpm_limit=5))
    answer = desk.one("reserve", wanted("req_1", 20, 3, output=(5, 60, 2)))
    assert answer.output_tokens == 40
    budget, rpm = answer.limits
    assert (budget.limit, budget.used, budget.held, budget.left) == (Limit.BUDGET, 0, 100, 0)
    assert (rpm.limit, rpm.used, rpm.left) == (Limit.RPM, 1, 4)
    assert desk.store.usage["req_1"]["reserved_tokens"] == 43


def test_operations_of_a_batch_see_each_other() -> None:
    """What is settled or released in a batch can be held again in the same one."""
    desk = Desk(account(ceiling_nano=100))
    desk.one("reserve", wanted("req_1", 60))
    desk.one("reserve", wanted("req_2", 40))
    book = desk.book()
    assert book.settle(bill("req_1", 10)) is True
    book.release("req_2", Hold(30))
    assert book.extend("req_2", Hold(50))
    assert isinstance(book.reserve(wanted("req_3", 30)), Reserved)
    assert not book.extend("req_2", Hold(1))
    assert book.settle(bill("req_2", 5)) is True
    assert not book.extend("req_2", Hold(0))
    desk.close(book)
    assert len(desk.store.batches[-1].settled) == 2
    assert desk.store.batches[-1].resized == []


@pytest.mark.parametrize("part", [Hold(51, 0), Hold(0, 8), Hold(MAX_NANO, 10**12)])
def test_more_than_is_held_gives_back_what_is_held(part: Hold) -> None:
    """A release never frees what other calls hold."""
    desk = Desk(account(ceiling_nano=100, token_ceiling=20))
    desk.one("reserve", wanted("req_1", 50, 7))
    desk.one("reserve", wanted("req_2", 50, 7))
    desk.one("release", "req_2", part)
    kept = desk.store.accounts_kept["a"]
    assert kept.reserved_nano == (50 if part.nano else 100)
    assert kept.tokens_reserved == (7 if part.tokens else 14)
    assert kept.open_calls == 2


def test_a_bill_counts_once_and_a_crash_is_corrected_once() -> None:
    """The second bill of a row changes nothing; the first after a reaping replaces the guess."""
    desk = Desk(account(tpm_limit=1_000))
    assert desk.one("settle", bill("req_1", 1)) is None
    desk.one("reserve", wanted("req_1", 60, 500))
    desk.now += LEASE_MS
    desk.reap()
    row = desk.store.usage["req_1"]
    assert (row["outcome"], row["cost_nano"], row["tokens"], row["estimated"]) == (
        "crashed",
        60,
        500,
        1,
    )
    desk.reap()
    assert desk.one("settle", bill("req_1", 70, 400)) is True
    assert desk.one("settle", bill("req_1", 9)) is False
    kept = desk.store.accounts_kept["a"]
    assert (kept.spent_nano, kept.overdraft_nano, kept.tokens_spent) == (70, 10, 400)
    # The minute keeps the larger: it lets no more through than it should.
    assert kept.minute == f"[[{desk.now},0,500]]"


def test_a_row_that_is_reaped_and_billed_in_one_batch_has_the_bill() -> None:
    """The bill that comes with the reaping of its own row corrects it."""
    desk = Desk(account())
    desk.one("reserve", wanted("req_1", 60))
    desk.now += LEASE_MS
    book = desk.book()
    book.reap(desk.store.expired(desk.now, 10))
    assert book.settle(bill("req_1", 5)) is True
    desk.close(book)
    assert desk.store.usage["req_1"]["outcome"] == "complete"


def test_b60_the_spending_of_a_gap_counts_in_the_new_window() -> None:
    """B60: a call admitted before midnight and settled after it is spent in the new day."""
    desk = Desk(account(time_zone="America/St_Johns", day_ceiling_nano=100))
    desk.now = 1_796_009_390_000  # 2026-11-30 23:59:50 there
    assert isinstance(desk.one("reserve", wanted("req_1", 40)), Reserved)
    desk.one("settle", bill("req_1", 40))
    assert isinstance(desk.one("reserve", wanted("req_2", 60)), Reserved)
    refused = desk.one("reserve", wanted("req_3", 1))
    assert (refused.reason, refused.state.resets_at) == ("held", desk.now + 10_000)
    desk.now += 9_999
    assert not desk.one("extend", "req_2", Hold(1))
    desk.now += 1
    assert desk.one("extend", "req_2", Hold(40))
    desk.now += 10_000
    desk.one("settle", bill("req_2", 90))
    refused = desk.one("reserve", wanted("req_3", 11))
    assert (refused.reason, refused.retry_ms) == ("exhausted", DAY_MS - 10_000)
    assert desk.store.accounts_kept["a"].day_spent_nano == 90


@pytest.mark.parametrize(("later", "day_spent"), [(1_000, 30), (DAY_MS, 30)])
def test_a_correction_leaves_only_the_window_of_the_guess(later: int, day_spent: int) -> None:
    """The guess is taken out of the day it was booked in if that is today's, and of no other."""
    desk = Desk(account())
    desk.one("reserve", wanted("req_1", 60))
    desk.now += LEASE_MS
    desk.reap()
    desk.now += later
    desk.one("settle", bill("req_1", 30))
    kept = desk.store.accounts_kept["a"]
    assert (kept.day_spent_nano, kept.month_spent_nano) == (day_spent, 30)


def test_a_minute_of_the_future_is_over_a_minute_after_the_step_back() -> None:
    """With the clock an hour back a call counts for 60 s more, also while only refusals follow."""
    desk = Desk(account(rpm_limit=1))
    desk.now += 3_600_000
    desk.one("reserve", wanted("req_1", 1))
    desk.now -= 3_600_000
    for _ in range(60):
        assert desk.one("reserve", wanted("req_2", 1)).reason == "rate"
        desk.now += 1_000
    assert isinstance(desk.one("reserve", wanted("req_2", 1)), Reserved)


def test_what_is_settled_after_a_step_back_is_dated_into_its_window() -> None:
    """With the clock a day back a bill counts in the day that has begun, also in its row."""
    desk = Desk(account(parent="t"), account("t"))
    desk.one("reserve", wanted("req_1", 60))
    desk.one("reserve", wanted("req_2", 60))
    desk.now += DAY_MS
    desk.one("settle", bill("req_1", 10))
    began = desk.store.accounts_kept["a"].day_from
    desk.now -= DAY_MS
    desk.one("settle", bill("req_2", 20))
    assert desk.store.usage["req_2"]["settled_at"] == began
    assert desk.store.accounts_kept["t"].day_spent_nano == 30


@pytest.mark.parametrize(
    "usage",
    [
        {"output_tokens": 2**63},
        {"thinking_tokens": -1},
        {"web_search_requests": 2**64},
        {"passes": (Pass("compaction", output_tokens=2**63),)},
    ],
)
def test_a_figure_that_is_none_is_refused_before_anything_is_done(usage: dict[str, Any]) -> None:
    """No column could hold it, and half a bill would be worse than none."""
    desk = Desk(account())
    desk.one("reserve", wanted("req_1", 60))
    book = desk.book()
    with pytest.raises(ValueError, match="usage figure"):
        book.settle(bill("req_1", 5, **usage))
    assert book.changes({}).accounts == []


def test_a_sum_never_becomes_larger_than_its_column() -> None:
    """The batch fails instead: SQLite would turn the sum into a float without a word."""
    desk = Desk(account(spent_nano=MAX_INTEGER - MAX_NANO))
    book = desk.book()
    book.reserve(wanted("req_1", MAX_NANO))
    book.reserve(wanted("req_2", 1))
    with pytest.raises(BatchFailed, match="account a"):
        book.changes({})


def test_incidents_and_accounts_are_written_in_order() -> None:
    """Two processes that write the same rows take their locks in the same order."""
    desk = Desk(account("b"), account("a"), account("c"))
    book = desk.book()
    for number, name in enumerate("cab"):
        book.reserve(wanted(f"req_{number}", 1, name=name))
    changes = book.changes({("s2", "k", 1): 3, ("s1", "k", 2): 1, ("s1", "k", 1): 2})
    assert [row[-1] for row in changes.accounts] == ["a", "b", "c"]
    assert changes.incidents == [("s1", "k", 1, 2), ("s1", "k", 2, 1), ("s2", "k", 1, 3)]
