"""A desk where a test has batches booked one after another, with the store in memory."""

from typing import Any

from daypass_proxy.ledger import Hold, Outcome, Reservation, Settlement, Usage
from daypass_proxy.ledger.book import Book
from tests.fakes.ledger_store import MemoryStore
from tests.slices import left

NOW = 1_800_000_000_000  # 2027-01-15, 08:00 UTC
LEASE_MS = 60_000
DAY_MS = 86_400_000


def wanted(
    usage_id: str,
    nano: int,
    tokens: int = 0,
    name: str = "a",
    output: tuple[int, int, int] = (0, 0, 0),
) -> Reservation:
    """Return a call of an account that wants so much."""
    words = ("acme", "sbx_1", "grt_1", "tok_1", "anthropic", "messages", "m", True)
    return Reservation(usage_id, 1, name, *words, Hold(nano, tokens), *output)


def bill(usage_id: str, cost: int, tokens: int = 0, **usage: Any) -> Settlement:
    """Return what a call cost."""
    used = Usage(input_tokens=tokens, **usage)
    return Settlement(usage_id, Outcome.COMPLETE, used, cost, False, 200, "req_up")


class Desk:
    """Does one batch after another on a store in memory, at a time of the test's choice."""

    def __init__(self, *accounts: Any) -> None:
        self.store = MemoryStore(*accounts)
        self.now = NOW

    def book(self) -> Book:
        """Return the book of a batch for which everything was loaded."""
        store = self.store
        names = list(store.accounts_kept)
        return Book(
            store.accounts(names),
            store.rows(list(store.usage)),
            store.chains(names),
            worker="w1",
            now_ms=self.now,
            lease_ms=LEASE_MS,
        )

    def close(self, book: Book) -> None:
        """Write the batch, and add up again what it wrote."""
        self.store.commit(book.changes({}))
        self.recount()

    def one(self, act: str, *arguments: Any) -> Any:
        """Do a single act in a batch of its own."""
        book = self.book()
        answer = getattr(book, act)(*arguments)
        self.close(book)
        return answer

    def reap(self) -> None:
        """Reap what has expired."""
        self.one("reap", self.store.expired(self.now, 1000))

    def recount(self) -> None:
        """Fail unless every account is the sum of its rows, by the row and by the window.

        What it has set aside is what its children have left of their slices.
        """
        for name, kept in self.store.accounts_kept.items():
            mine = [row for row in self.store.usage.values() if name in row["accounts"].split(" ")]
            held = [row for row in mine if row["state"] == "open"]
            done = [row for row in mine if row["state"] == "settled"]
            assert all(row["reserved_nano"] >= 0 and row["reserved_tokens"] >= 0 for row in mine)
            assert kept.open_calls == len(held)
            assert kept.reserved_nano == sum(row["reserved_nano"] for row in held)
            assert kept.tokens_reserved == sum(row["reserved_tokens"] for row in held)
            assert kept.spent_nano == sum(row["cost_nano"] for row in done)
            assert kept.tokens_spent == sum(row["tokens"] for row in done)
            assert kept.overdraft_nano == sum(
                max(row["cost_nano"] - row["reserved_nano"], 0) for row in done
            )
            for start, until, spent in (
                (kept.day_from, kept.day_until, kept.day_spent_nano),
                (kept.month_from, kept.month_until, kept.month_spent_nano),
            ):
                inside = [row for row in done if start <= row["settled_at"] < until]
                assert spent == sum(row["cost_nano"] for row in inside)
            children = [one for one in self.store.accounts_kept.values() if one.parent == name]
            assert kept.set_aside_nano == sum(map(left, children))
