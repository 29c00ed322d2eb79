"""The limits of an account, as a sandbox is told of them: in sentences, headers and a document.

Place in the flow: `reserve` makes the answer to a refused hold here, `relay` sends along what is
left, and `me` shows an account's limits. What is written is what the ledger said; nothing is
decided here but the words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from daypass_core.money import format_usd
from daypass_core.problem import Code, Problem, Refusal
from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.ledger import LedgerRefused, Limit, LimitState

REMAINING_USD = b"daypass-remaining-usd"
REMAINING_TOKENS = b"daypass-remaining-tokens"
REMAINING_REQUESTS = b"daypass-remaining-requests"
RESETS_AT = b"daypass-resets-at"

_HELD_MOST_SECONDS = 5
_RATE_MOST_SECONDS = 30
_RETRY_SECONDS = 2
"""When to come back where the ledger does not know it."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one limit is called: its key in the policy document, its name in a sentence, its unit."""

    key: str
    name: str
    unit: str


_KINDS = {
    Limit.BUDGET: _Kind("budget_usd", "budget", "USD"),
    Limit.DAY: _Kind("budget_per_day_usd", "daily budget", "USD"),
    Limit.MONTH: _Kind("budget_per_month_usd", "monthly budget", "USD"),
    Limit.TOKENS: _Kind("token_budget", "token budget", "tokens"),
    Limit.TPM: _Kind("tokens_per_minute", "token rate", "tokens a minute"),
    Limit.RPM: _Kind("requests_per_minute", "request rate", "requests a minute"),
    Limit.CONCURRENCY: _Kind("concurrency", "number of open calls", "calls at once"),
}
USD_LIMITS = frozenset({Limit.BUDGET, Limit.DAY, Limit.MONTH})
TOKEN_LIMITS = frozenset({Limit.TOKENS, Limit.TPM})
_PLENTY = 1 << 62
"""More than is ever left."""
_PASSING = frozenset({Limit.TPM, Limit.RPM, Limit.CONCURRENCY})
"""What is free again after a minute or a call, so that nobody speaks of "used up"."""


def told(states: Sequence[LimitState]) -> HeaderPairs:
    """Return the headers that tell the least that is left of each unit; none without a limit.

    `daypass-resets-at` is when the first figure among them that comes back by itself does so.
    """
    if not states:
        return ()
    usd, tokens, requests, resets_at = _least(states)
    pairs: list[tuple[bytes, bytes]] = []
    if usd is not None:
        pairs.append((REMAINING_USD, format_usd(usd).encode()))
    if tokens is not None:
        pairs.append((REMAINING_TOKENS, b"%d" % tokens))
    if requests is not None:
        pairs.append((REMAINING_REQUESTS, b"%d" % requests))
    if resets_at:
        pairs.append((RESETS_AT, moment(resets_at).encode()))
    return tuple(pairs)


def remaining(states: Iterable[LimitState]) -> dict[str, object]:
    """Return what `told` says, for JSON; null for what no limit is set on."""
    usd, tokens, requests, resets_at = _least(states)
    return {
        "usd": None if usd is None else format_usd(usd),
        "tokens": tokens,
        "requests": requests,
        "resets_at": moment(resets_at) if resets_at else None,
    }


def _least(
    states: Iterable[LimitState],
) -> tuple[int | None, int | None, int | None, int | None]:
    """Return the least that is left of dollars (in nano), tokens and requests, and when it resets.

    It runs on every call, so the comparisons are plain.
    """
    usd = tokens = requests = _PLENTY
    usd_at = tokens_at = requests_at = None
    for state in states:
        limit, left = state.limit, state.ceiling - state.used - state.held
        if limit in USD_LIMITS:
            if left < usd:
                usd, usd_at = left, state.resets_at
        elif limit in TOKEN_LIMITS:
            if left < tokens:
                tokens, tokens_at = left, state.resets_at
        elif limit is Limit.RPM and left < requests:
            requests, requests_at = left, state.resets_at
    return (
        None if usd == _PLENTY else max(usd, 0),
        None if tokens == _PLENTY else max(tokens, 0),
        None if requests == _PLENTY else max(requests, 0),
        usd_at or tokens_at or requests_at,
    )


def document(states: Iterable[LimitState]) -> dict[str, dict[str, object]]:
    """Return the limits under their names in the policy document, for JSON.

    Dollars are decimal text, all else whole numbers; `resets_at` is null where nothing comes back
    by itself.
    """
    return {
        _KINDS[state.limit].key: {
            "limit": _figure(state.limit, state.ceiling),
            "used": _figure(state.limit, state.used),
            "held": _figure(state.limit, state.held),
            "left": _figure(state.limit, state.left),
            "resets_at": None if state.resets_at is None else moment(state.resets_at),
        }
        for state in states
    }


def refusal(refused: LedgerRefused) -> Refusal:
    """Return the answer to a hold that a limit, or a queue that is full, stood in the way of.

    What will not fit however long one waits is 402 and not to be repeated, all else is 429 with
    the seconds after which it may fit.
    """
    state = refused.state
    if state is None:
        return Refusal(_later(refused, "too many calls of this sandbox wait for admission", ""))
    headers = told((state,))
    if refused.reason == "exhausted" or refused.wanted > state.ceiling:
        title, hint = _never_fits(refused, state)
        return Refusal(Problem.of(Code.BUDGET_EXHAUSTED, title, hint=hint, headers=headers))
    owner, kind = _owner(state), _KINDS[state.limit]
    if state.limit in _PASSING:
        title = f"{owner} {kind.name} exceeded"
        hint = _allowed(state)
    else:
        by = "calls in flight and delegated tokens" if state.set_aside else "calls in flight"
        title = f"what is left of the {owner} {kind.name} is held by {by}"
        hint = f"{_words(state.limit, state.held)} are held, {_left(state, state.left)} are left"
    return Refusal(_later(refused, title, hint, headers))


@lru_cache(maxsize=256)
def moment(milliseconds: int) -> str:
    """Return a time in epoch milliseconds as RFC 3339 in UTC; a part of a second counts whole."""
    return datetime.fromtimestamp(-(-milliseconds // 1000), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def limit_of(refused: LedgerRefused) -> str:
    """Return which limit was in the way, in one word from a bounded set; a label of metrics."""
    return "queue" if refused.state is None else refused.state.limit.value


def _never_fits(refused: LedgerRefused, state: LimitState) -> tuple[str, str]:
    """Return title and hint for a call that cannot pass before the window ends, if ever."""
    owner, kind = _owner(state), _KINDS[state.limit]
    left = max(state.ceiling - state.used, 0)
    spent = state.limit not in _PASSING and not left
    title = f"{owner} {kind.name} {'used up' if spent else 'too low for this call'}"
    needs = f"it needs at least {_words(state.limit, refused.wanted)}"
    if state.limit in _PASSING:
        return title, f"{needs}, {_allowed(state)}"
    hint = f"{needs}, {_left(state, left)} are left"
    # Where something is left, waiting for a whole window helps only a call that fits into one.
    if state.resets_at is not None and (spent or refused.wanted <= state.ceiling):
        return title, f"{hint}; it starts anew at {moment(state.resets_at)}"
    if spent:
        return title, f"{hint}; ask for more budget"
    return title, f"{hint}; ask for less in one call, or for more budget"


def _later(refused: LedgerRefused, title: str, hint: str, headers: HeaderPairs = ()) -> Problem:
    """Return the 429 that says when to come back."""
    held = refused.reason == "held"
    most = _HELD_MOST_SECONDS if held else _RATE_MOST_SECONDS
    seconds = _RETRY_SECONDS if refused.retry_ms is None else -(-refused.retry_ms // 1000)
    passing = refused.state is None or refused.state.limit in _PASSING
    code = Code.RATE_LIMITED if passing else Code.BUDGET_HELD
    return Problem.of(
        code, title, hint=hint, retry_after=min(max(seconds, 1), most), headers=headers
    )


def _owner(state: LimitState) -> str:
    """Return whose limit it is: `sandbox`, `tenant`, or `grant` of a delegated token."""
    return state.account.partition(":")[0]


def _left(state: LimitState, left: int) -> str:
    return f"{_figure(state.limit, left)} of {_words(state.limit, state.ceiling)}"


def _allowed(state: LimitState) -> str:
    """Return what a rate or a number of calls at once lets pass."""
    unit, _, rest = _KINDS[state.limit].unit.partition(" ")
    if state.ceiling == 1:
        return f"1 {unit.removesuffix('s')} {rest} is allowed"
    return f"{state.ceiling} {unit} {rest} are allowed"


def _words(limit: Limit, amount: int) -> str:
    """Return an amount with its unit."""
    if limit in USD_LIMITS:
        return f"{format_usd(amount)} USD"
    unit = "token" if limit in TOKEN_LIMITS else "call"
    return f"{amount} {unit}" if amount == 1 else f"{amount} {unit}s"


def _figure(limit: Limit, amount: int) -> str | int:
    """Return an amount as JSON has it: dollars as decimal text, all else as a number."""
    return format_usd(amount) if limit in USD_LIMITS else amount
