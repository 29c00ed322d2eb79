"""The accounts of one call, from its leaf upwards: whether a hold fits in all of them, or why not.

Place in the flow: `book` keeps a `Chain` per leaf while it works on a batch, and asks it before it
changes a counter. Everything is pure: integers in, decisions out.

An account may have set a part of its budget aside for one that was bought from it: that part is no
longer its own to use, but for calls that come through the one it was set aside for it is.
"""

from __future__ import annotations

from functools import lru_cache

from daypass_proxy.ledger import (
    LedgerRefused,
    Limit,
    LimitState,
    Policy,
    Reservation,
    Terms,
    slices,
)
from daypass_proxy.ledger.account import Account
from daypass_proxy.ledger.minute import Minute

Booked = tuple[Account, Minute | None]
"""An account with its sliding minute, which it has where it has a limit per minute."""

_NANO = (Limit.BUDGET, Limit.DAY, Limit.MONTH)
_TOKENS = (Limit.TOKENS, Limit.TPM)
_RATES = (Limit.RPM, Limit.TPM)
_NEVER = 2**63


class Chain:
    """The accounts that a call is booked in, the leaf first. Their windows are those of now.

    `slices` are those that the call goes through, none for most; the accounts that have sold one
    of these are asked for no more than the call itself.
    """

    __slots__ = ("_lenders", "booked", "slices", "terms", "text")

    def __init__(self, text: str, booked: list[Booked]) -> None:
        self.text = text
        self.booked = booked
        accounts = [account for account, _ in booked]
        self.terms = terms(accounts)
        self.slices = slices.find(accounts)
        self._lenders = {each.parent.id for each in self.slices}

    def output_tokens(self, wanted: Reservation) -> int:
        """Return how many output tokens are to be held: at least `output_least`, fit or not."""
        policy = self.terms.policy
        if policy is Policy.REJECT:
            return wanted.output_most
        if policy is Policy.CUTOFF and wanted.grows:
            return wanted.output_least
        most = wanted.output_most
        for account, minute in self.booked:
            nano, tokens = _room(account, minute, account.id in self._lenders)
            if tokens is not None:
                most = min(most, tokens - wanted.base.tokens)
            if nano is not None and wanted.output_nano:
                most = min(most, (nano - wanted.base.nano) // wanted.output_nano)
        return max(most, wanted.output_least)

    def fits(self, nano: int, tokens: int, calls: int) -> bool:
        """Whether so much more can be held in all accounts: `calls` is 1 for a new call, else 0."""
        lenders = self._lenders
        for account, minute in self.booked:
            if not _fits(account, minute, nano, tokens, calls, account.id in lenders):
                return False
        return True

    def states(self) -> list[LimitState]:
        """Return every limit of every account as it stands, the leaf's first."""
        found: list[LimitState] = []
        for account, minute in self.booked:
            found += states(account, minute, account.id in self._lenders)
        return found

    def refusal(self, nano: int, tokens: int, now_ms: int) -> LedgerRefused:
        """Say which limit is in the way of a new call that does not fit.

        Of several it is the one that is in the way for longest: with one `exhausted` there is no
        use in waiting for the others.
        """
        found = []
        for account, minute in self.booked:
            for state in states(account, minute, account.id in self._lenders):
                wanted = nano if state.limit in _NANO else tokens if state.limit in _TOKENS else 1
                if state.used + state.held + wanted > state.ceiling:
                    found.append(_judge(state, wanted, minute, now_ms))
        return max(found, key=_severity)


def terms(accounts: list[Account]) -> Terms:
    """Return how calls are held: each column of the first account that has it, else the default."""
    policy = drain_ms = drain_tokens = None
    for account in reversed(accounts):
        policy = account.policy if account.policy is not None else policy
        drain_ms = account.drain_ms if account.drain_ms is not None else drain_ms
        drain_tokens = account.drain_tokens if account.drain_tokens is not None else drain_tokens
    return _terms(policy, drain_ms, drain_tokens)


def states(account: Account, minute: Minute | None, sliced: bool = False) -> list[LimitState]:
    """Return the limits of one account that are set, as they stand for a call.

    `sliced`: the call comes through a slice of the account's budget, so that what is set aside is
    not in its way. The ceiling still is: it may be lower by now than it was at the purchase.
    """
    found = []
    name, held, tokens_held = account.id, account.reserved_nano, account.tokens_reserved
    if (ceiling := account.ceiling_nano) is not None:
        aside = 0 if sliced else account.set_aside_nano
        spent = account.spent_nano
        found.append(LimitState(Limit.BUDGET, name, ceiling, spent, held + aside, None, aside))
    if (ceiling := account.token_ceiling) is not None:
        found.append(LimitState(Limit.TOKENS, name, ceiling, account.tokens_spent, tokens_held))
    if (ceiling := account.day_ceiling_nano) is not None:
        spent, until = account.day_spent_nano, account.day_until
        found.append(LimitState(Limit.DAY, name, ceiling, spent, held, until))
    if (ceiling := account.month_ceiling_nano) is not None:
        spent, until = account.month_spent_nano, account.month_until
        found.append(LimitState(Limit.MONTH, name, ceiling, spent, held, until))
    if minute is not None:
        resets_at = minute.resets_at()
        if (ceiling := account.rpm_limit) is not None:
            found.append(LimitState(Limit.RPM, name, ceiling, minute.calls, 0, resets_at))
        if (ceiling := account.tpm_limit) is not None:
            used = minute.tokens
            found.append(LimitState(Limit.TPM, name, ceiling, used, tokens_held, resets_at))
    if (ceiling := account.concurrency_limit) is not None:
        found.append(LimitState(Limit.CONCURRENCY, name, ceiling, 0, account.open_calls))
    return found


def _fits(
    account: Account, minute: Minute | None, nano: int, tokens: int, calls: int, sliced: bool
) -> bool:
    """Whether `states` would leave room; written out because every call passes here."""
    nano += account.reserved_nano
    tokens += account.tokens_reserved
    ceiling = account.ceiling_nano
    if ceiling is not None:
        aside = 0 if sliced else account.lent_nano - account.lent_used_nano
        if account.spent_nano + nano + aside > ceiling:
            return False
    ceiling = account.token_ceiling
    if ceiling is not None and account.tokens_spent + tokens > ceiling:
        return False
    ceiling = account.day_ceiling_nano
    if ceiling is not None and account.day_spent_nano + nano > ceiling:
        return False
    ceiling = account.month_ceiling_nano
    if ceiling is not None and account.month_spent_nano + nano > ceiling:
        return False
    ceiling = account.concurrency_limit
    if calls and ceiling is not None and account.open_calls + calls > ceiling:
        return False
    if minute is None:
        return True
    ceiling = account.rpm_limit
    if calls and ceiling is not None and minute.calls + calls > ceiling:
        return False
    ceiling = account.tpm_limit
    return ceiling is None or minute.tokens + tokens <= ceiling


def _room(account: Account, minute: Minute | None, sliced: bool) -> tuple[int | None, int | None]:
    """Return how many nano-dollars and tokens more can be held; None where nothing limits them.

    It is what `states` would leave, written out as `_fits` is.
    """
    aside = 0 if sliced else account.set_aside_nano
    nano = _least(
        (account.ceiling_nano, account.spent_nano + aside),
        (account.day_ceiling_nano, account.day_spent_nano),
        (account.month_ceiling_nano, account.month_spent_nano),
    )
    tokens = _least(
        (account.token_ceiling, account.tokens_spent),
        (None, 0) if minute is None else (account.tpm_limit, minute.tokens),
    )
    return (
        None if nano is None else nano - account.reserved_nano,
        None if tokens is None else tokens - account.tokens_reserved,
    )


def _least(*limits: tuple[int | None, int]) -> int | None:
    """Return the least that limits leave, each given with what is used of it; None without one."""
    least = None
    for ceiling, used in limits:
        if ceiling is not None and (least is None or ceiling - used < least):
            least = ceiling - used
    return least


def _judge(state: LimitState, wanted: int, minute: Minute | None, now_ms: int) -> LedgerRefused:
    """Say what a limit that is in the way means for the call."""
    if wanted > state.ceiling:
        return LedgerRefused("exhausted", state, wanted)
    if state.limit in _RATES:
        spare = state.ceiling - state.held - wanted
        at = None
        if minute is not None:
            fit_at = minute.calls_fit_at if state.limit is Limit.RPM else minute.tokens_fit_at
            at = fit_at(spare)
        return LedgerRefused("rate", state, wanted, None if at is None else at - now_ms)
    if state.used + wanted > state.ceiling:
        retry_ms = None if state.resets_at is None else state.resets_at - now_ms
        return LedgerRefused("exhausted", state, wanted, retry_ms)
    return LedgerRefused("held", state, wanted)


def _severity(refused: LedgerRefused) -> tuple[int, int]:
    """Order refusals by how long the call has to wait; without an end for ever, or for others."""
    rank = ("held", "rate", "exhausted").index(refused.reason)
    return rank, _NEVER if refused.retry_ms is None else refused.retry_ms


@lru_cache(maxsize=1024)
def _terms(policy: str | None, drain_ms: int | None, drain_tokens: int | None) -> Terms:
    default = Terms()
    return Terms(
        default.policy if policy is None else Policy(policy),
        default.drain_ms if drain_ms is None else drain_ms,
        default.drain_tokens if drain_tokens is None else drain_tokens,
    )
