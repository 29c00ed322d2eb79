"""The book: what the operations of one batch do to the accounts and rows that were loaded for it.

Place in the flow: the writer loads and locks, asks one `Book` operation by operation, and writes
its `changes`. Nothing here knows of a database, so both stores decide alike. Operations see what
those before them in the batch have done. An operation that raises ValueError has done nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from daypass_proxy.ledger import (
    Balance,
    Hold,
    LedgerRefused,
    Outcome,
    Reservation,
    Reserved,
    Settlement,
)
from daypass_proxy.ledger.account import Account, written
from daypass_proxy.ledger.chain import Booked, Chain
from daypass_proxy.ledger.minute import Minute
from daypass_proxy.ledger.rows import MAX_INTEGER, check_figures, opened, settled
from daypass_proxy.ledger.store import BatchFailed, Changes, Row, Values
from daypass_proxy.ledger.usage import Usage
from daypass_proxy.ledger.windows import roll

Chains = Mapping[str, tuple[str, ...]]
"""The ids of an account and its parents, by the account's."""


class Book:
    """One batch: `now_ms` is the time under the lock, `lease_ms` how long a new row may stay open.

    `chains` has the leaves of the reservations; one that is not in it does not exist.
    """

    def __init__(
        self,
        accounts: Iterable[Account],
        rows: Iterable[Row],
        chains: Chains,
        *,
        worker: str,
        now_ms: int,
        lease_ms: int,
    ) -> None:
        self._accounts = {account.id: account for account in accounts}
        self._rows = {row.id: row for row in rows}
        self._parents = chains
        self._worker = worker
        self._now = now_ms
        self._lease_until = now_ms + lease_ms
        self._booked: dict[str, Booked] = {}
        self._chains: dict[str, Chain] = {}
        self._leaves: dict[str, Chain] = {}
        self._changed: set[str] = set()
        self._opened: list[Values] = []
        self._resized: dict[str, Values] = {}
        self._settled: dict[str, Values] = {}

    def reserve(self, wanted: Reservation) -> Reserved | LedgerRefused:
        """Hold the call in all its accounts and open its row, or say why not."""
        chain = self._chain_from(wanted.account)
        if chain is None:
            return LedgerRefused("unknown_account")
        self._moment(chain)
        output = chain.output_tokens(wanted)
        nano = wanted.base.nano + output * wanted.output_nano
        tokens = wanted.base.tokens + output
        if not chain.fits(nano, tokens, 1):
            self._changed.update(account.id for account, minute in chain.booked if _redated(minute))
            return chain.refusal(nano, tokens, self._now)
        self._hold(chain, nano, tokens, calls=1)
        lease = self._worker, self._lease_until, self._now
        self._opened.append(opened(wanted, chain.text, nano, tokens, *lease))
        return Reserved(wanted.usage_id, output, chain.terms, tuple(chain.states()), self._now)

    def extend(self, usage_id: str, more: Hold) -> bool:
        """Add to the hold of an open row; False when it is closed or a limit is in the way."""
        row = self._rows.get(usage_id)
        if row is None or row.state != "open":
            return False
        chain = self._chain(row.accounts)
        self._moment(chain)
        if not chain.fits(more.nano, more.tokens, 0):
            return False
        self._resize(row, chain, more.nano, more.tokens)
        return True

    def release(self, usage_id: str, part: Hold) -> None:
        """Give a part of the hold of an open row back, at most all of it."""
        row = self._rows.get(usage_id)
        if row is not None and row.state == "open":
            nano = min(part.nano, row.reserved_nano)
            tokens = min(part.tokens, row.reserved_tokens)
            self._resize(row, self._chain(row.accounts), -nano, -tokens)

    def settle(self, bill: Settlement) -> bool | None:
        """Book a bill once: True when it was booked, False when one was before, None without a row.

        Raises ValueError for a figure that no column can hold.
        """
        row = self._rows.get(bill.usage_id)
        if row is None:
            return None
        if row.state != "open" and not (row.outcome == Outcome.CRASHED and row.estimated):
            return False
        tokens = bill.usage.tokens
        check_figures(bill.usage, tokens)
        self._close(row, bill.cost_nano, tokens, bill.outcome, bill.estimated)
        upstream = bill.http_status, bill.upstream_request_id
        self._settled[row.id] = settled(row, bill.usage, *upstream)
        return True

    def reap(self, rows: Iterable[Row]) -> None:
        """Settle rows whose lease is over at their holds; they may be among those loaded."""
        for each in rows:
            row = self._rows.setdefault(each.id, each)
            if row.state == "open":
                nano, tokens = row.reserved_nano, row.reserved_tokens
                self._close(row, nano, tokens, Outcome.CRASHED, estimated=True)
                self._settled[row.id] = settled(row, Usage(), None, None)

    def balance(self, account_id: str) -> Balance | None:
        """Return an account as it stands, with the limits of its parents; None without one."""
        chain = self._chain_from(account_id)
        if chain is None:
            return None
        self._moment(chain)
        account = self._accounts[account_id]
        return Balance(
            account.id,
            account.spent_nano,
            account.reserved_nano,
            account.overdraft_nano,
            account.tokens_spent,
            account.tokens_reserved,
            account.open_calls,
            tuple(chain.states()),
        )

    def changes(self, incidents: Mapping[tuple[str, str, int], int]) -> Changes:
        """Return what is to be written, with `incidents` added.

        Raises BatchFailed when an account's sum would be larger than a column can hold.
        """
        accounts = [self._written(account_id) for account_id in sorted(self._changed)]
        return Changes(
            opened=self._opened,
            resized=list(self._resized.values()),
            settled=list(self._settled.values()),
            accounts=accounts,
            incidents=[(*key, incidents[key]) for key in sorted(incidents)],
        )

    def _chain_from(self, leaf: str) -> Chain | None:
        chain = self._leaves.get(leaf)
        if chain is None:
            ids = self._parents.get(leaf)
            if ids is None or not all(account_id in self._accounts for account_id in ids):
                return None
            chain = self._leaves[leaf] = self._chain(" ".join(ids))
        return chain

    def _chain(self, text: str) -> Chain:
        """Return the chain of a row. `verify` names an account that is gone and has rows."""
        chain = self._chains.get(text)
        if chain is None:
            known = [self._book(one) for one in text.split(" ") if one in self._accounts]
            chain = self._chains[text] = Chain(text, known)
        return chain

    def _book(self, account_id: str) -> Booked:
        booked = self._booked.get(account_id)
        if booked is None:
            account = self._accounts[account_id]
            rated = account.rpm_limit is not None or account.tpm_limit is not None
            minute = Minute(account.minute, self._now) if rated else None
            booked = self._booked[account_id] = (account, minute)
        return booked

    def _moment(self, chain: Chain) -> int:
        """Roll the windows of a chain and return the moment that lies in all of them.

        It is now, unless the clock went back, or another's is ahead, behind the beginning of a
        window: what is spent in that window must be dated inside it.
        """
        moment = self._now
        for account, _ in chain.booked:
            if account.day_from > moment:
                moment = account.day_from
            if account.month_from > moment:
                moment = account.month_from
        for account, _ in chain.booked:
            if moment >= account.day_until or moment >= account.month_until:
                roll(account, moment)
        return moment

    def _hold(self, chain: Chain, nano: int, tokens: int, calls: int) -> None:
        before = [each.used for each in chain.slices]
        for account, minute in chain.booked:
            account.reserved_nano += nano
            account.tokens_reserved += tokens
            account.open_calls += calls
            if minute is not None and calls:
                minute.add(calls=calls)
            self._changed.add(account.id)
        if before:
            _count(chain, before)

    def _resize(self, row: Row, chain: Chain, nano: int, tokens: int) -> None:
        self._hold(chain, nano, tokens, calls=0)
        row.reserved_nano += nano
        row.reserved_tokens += tokens
        self._resized[row.id] = (
            row.reserved_nano,
            row.reserved_tokens,
            row.started_at,
            row.id,
        )

    def _close(self, row: Row, cost: int, tokens: int, outcome: Outcome, estimated: bool) -> None:
        """Book the cost in place of the hold, or in place of the guess when the row is a crash's.

        A guess leaves the windows that it was booked in; of a window that is over, nothing is taken
        back. A minute is never corrected downwards, so that it lets no more through than it should.
        """
        chain = self._chain(row.accounts)
        moment = self._moment(chain)
        calls, held, held_tokens = 1, row.reserved_nano, row.reserved_tokens
        guess, guess_tokens, guessed_at = 0, 0, 0
        if row.state != "open":
            calls, held, held_tokens = 0, 0, 0
            guess, guess_tokens = row.cost_nano or 0, row.tokens or 0
            guessed_at = row.settled_at or 0
        more, overdraft = cost - guess, max(cost - row.reserved_nano, 0)
        before = [each.used for each in chain.slices]
        for account, minute in chain.booked:
            account.open_calls -= calls
            account.reserved_nano -= held
            account.tokens_reserved -= held_tokens
            account.spent_nano += more
            account.tokens_spent += tokens - guess_tokens
            account.overdraft_nano += overdraft
            account.day_spent_nano += more if guessed_at >= account.day_from else cost
            account.month_spent_nano += more if guessed_at >= account.month_from else cost
            if minute is not None:
                minute.add(tokens=max(tokens - guess_tokens, 0))
            self._changed.add(account.id)
        if before:
            _count(chain, before)
        row.state, row.cost_nano, row.tokens, row.settled_at = "settled", cost, tokens, moment
        row.outcome, row.estimated = outcome.value, int(estimated)
        self._resized.pop(row.id, None)

    def _written(self, account_id: str) -> Values:
        account, minute = self._booked[account_id]
        if minute is not None:
            account.minute = minute.text()
        if max(account.spent_nano + account.reserved_nano, account.tokens_spent) > MAX_INTEGER:
            raise BatchFailed(f"the sum of account {account_id} has no room left", locked=False)
        return written(account, self._now)


def _count(chain: Chain, before: list[int]) -> None:
    """Count what is used of each slice that a chain goes through beyond what was used before."""
    for each, used in zip(chain.slices, before, strict=True):
        each.add_used(used)


def _redated(minute: Minute | None) -> bool:
    return minute is not None and minute.redated
