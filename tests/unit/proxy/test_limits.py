"""Limits as a sandbox is told of them: refusals that steer a client, headers, a document."""

import json

import pytest
from msgspec.structs import replace

from daypass_core.problem import Code, Problem
from daypass_proxy.ledger import LedgerRefused, Limit, LimitState
from daypass_proxy.limits import document, limit_of, moment, refusal, told
from daypass_proxy.providers.anthropic import Anthropic

SANDBOX, TENANT = "sandbox:sbx_1", "tenant:acme"
MIDNIGHT = 1_796_083_200_000
USD = 1_000_000_000


def state(
    limit: Limit, ceiling: int, used: int, held: int = 0, resets_at: int | None = None,
    account: str = SANDBOX,
) -> LimitState:  # fmt: skip
    """A limit as it stands."""
    return LimitState(limit, account, ceiling, used, held, resets_at)


def said(refused: LedgerRefused) -> tuple[Problem, dict[bytes, bytes], str]:
    """The problem, the headers and the sentence that a client gets."""
    problem = refusal(refused).problem
    rendered = Anthropic().render(problem, "req_1")
    headers = dict(rendered.headers)
    assert len(headers) == len(rendered.headers)
    return problem, headers, json.loads(rendered.body)["error"]["message"]


EXHAUSTED = [
    (
        state(Limit.BUDGET, 5 * USD, 5 * USD + 7), USD // 50,
        "sandbox budget used up; it needs at least 0.02 USD, 0.00 of 5.00 USD are left;"
        " ask for more budget",
    ),
    (
        state(Limit.DAY, 2 * USD, 1_990_000_000, resets_at=MIDNIGHT), USD // 50,
        "sandbox daily budget too low for this call; it needs at least 0.02 USD, 0.01 of 2.00 USD"
        " are left; it starts anew at 2026-12-01T00:00:00Z",
    ),
    (
        state(Limit.MONTH, 2 * USD, 2 * USD, resets_at=MIDNIGHT, account=TENANT), 1,
        "tenant monthly budget used up; it needs at least 0.000000001 USD, 0.00 of 2.00 USD are"
        " left; it starts anew at 2026-12-01T00:00:00Z",
    ),
    (
        state(Limit.DAY, 2 * USD, USD, resets_at=MIDNIGHT), 3 * USD,
        "sandbox daily budget too low for this call; it needs at least 3.00 USD, 1.00 of 2.00 USD"
        " are left; ask for less in one call, or for more budget",
    ),
    (
        state(Limit.TOKENS, 1000, 900), 101,
        "sandbox token budget too low for this call; it needs at least 101 tokens, 100 of 1000"
        " tokens are left; ask for less in one call, or for more budget",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("limit", "wanted", "words"), EXHAUSTED)
def test_exhausted(limit: LimitState, wanted: int, words: str) -> None:
    """B49: what will not come back in time is 402, final, with limit, rest and reset time."""
    problem, headers, message = said(LedgerRefused("exhausted", limit, wanted))
    assert (problem.code, problem.status) == (Code.BUDGET_EXHAUSTED, 402)
    assert headers[b"x-should-retry"] == b"false"
    assert b"retry-after" not in headers
    assert message == words


def test_held() -> None:
    """B49: what calls in flight will give back is 429 with a wait of one to five seconds."""
    limit = state(Limit.BUDGET, 5 * USD, USD, 4 * USD)
    problem, headers, message = said(LedgerRefused("held", limit, USD))
    assert (problem.code, problem.status) == (Code.BUDGET_HELD, 429)
    assert headers[b"retry-after"] == b"2"
    assert b"x-should-retry" not in headers
    assert message == (
        "what is left of the sandbox budget is held by calls in flight;"
        " 4.00 USD are held, 0.00 of 5.00 USD are left"
    )
    assert said(LedgerRefused("held", limit, USD, 60_000))[1][b"retry-after"] == b"5"


def test_held_for_who_bought_it() -> None:
    """B49: where a part is set aside for delegated tokens, it is said: it is back when they end."""
    limit = replace(state(Limit.BUDGET, 5 * USD, USD, 4 * USD), set_aside=3 * USD)
    assert said(LedgerRefused("held", limit, USD))[2].startswith(
        "what is left of the sandbox budget is held by calls in flight and delegated tokens; 4.00"
    )
    bought = replace(limit, account="grant:grt_1", used=5 * USD, held=0)
    assert said(LedgerRefused("exhausted", bought, USD))[2].startswith("grant budget used up; ")


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (Limit.RPM, "sandbox request rate exceeded; 10 requests a minute are allowed"),
        (Limit.TPM, "sandbox token rate exceeded; 10 tokens a minute are allowed"),
    ],
)
@pytest.mark.parametrize(
    ("milliseconds", "seconds"),
    [(None, b"2"), (0, b"1"), (1, b"1"), (1000, b"1"), (1001, b"2"), (59_000, b"30")],
)
def test_rates(limit: Limit, words: str, milliseconds: int | None, seconds: bytes) -> None:
    """B49: a rate is 429 with the seconds until it may fit, rounded up, thirty at most."""
    refused = LedgerRefused("rate", state(limit, 10, 10), 1, milliseconds)
    problem, headers, message = said(refused)
    assert (problem.code, problem.status) == (Code.RATE_LIMITED, 429)
    assert headers[b"retry-after"] == seconds
    assert message == words


def test_concurrency() -> None:
    """Too many open calls are 429 for a moment: a call that ends makes room."""
    refused = LedgerRefused("held", state(Limit.CONCURRENCY, 4, 4, account=TENANT), 1)
    problem, headers, message = said(refused)
    assert (problem.code, headers[b"retry-after"]) == (Code.RATE_LIMITED, b"2")
    assert message == "tenant number of open calls exceeded; 4 calls at once are allowed"
    alone = LedgerRefused("held", state(Limit.CONCURRENCY, 1, 1), 1)
    assert said(alone)[2] == "sandbox number of open calls exceeded; 1 call at once is allowed"


@pytest.mark.parametrize(("limit", "reason"), [(Limit.TPM, "rate"), (Limit.CONCURRENCY, "held")])
def test_what_never_fits_is_final(limit: Limit, reason: str) -> None:
    """A call beyond a limit's whole size does not fit after any wait: 402, so that nobody loops."""
    refused = LedgerRefused(reason, state(limit, 0, 0), 1, 500)  # type: ignore[arg-type]
    problem, headers, message = said(refused)
    assert problem.status == 402
    assert headers[b"x-should-retry"] == b"false"
    assert b"retry-after" not in headers
    assert message.endswith(
        (
            "it needs at least 1 token, 0 tokens a minute are allowed",
            "it needs at least 1 call, 0 calls at once are allowed",
        )
    )


def test_overloaded() -> None:
    """A full queue is 429 and tells no limit."""
    problem, headers, message = said(LedgerRefused("overloaded"))
    assert (problem.code, headers[b"retry-after"]) == (Code.RATE_LIMITED, b"2")
    assert message == "too many calls of this sandbox wait for admission"
    assert limit_of(LedgerRefused("overloaded")) == "queue"


def test_refusals_tell_what_is_left() -> None:
    """A refusal carries the headers of the limit that was in the way."""
    limit = state(Limit.DAY, 2 * USD, USD, USD // 2, MIDNIGHT)
    _, headers, _ = said(LedgerRefused("held", limit, USD))
    assert headers[b"daypass-remaining-usd"] == b"0.50"
    assert headers[b"daypass-resets-at"] == b"2026-12-01T00:00:00Z"
    assert limit_of(LedgerRefused("held", limit)) == "day"


def test_headers_tell_the_tightest() -> None:
    """Of several limits of one unit the one with the least left is told, whoever's it is."""
    states = (
        state(Limit.BUDGET, 5 * USD, USD, USD),
        state(Limit.DAY, 2 * USD, USD, USD // 2, MIDNIGHT, TENANT),
        state(Limit.TOKENS, 1000, 100, 100),
        state(Limit.TPM, 900, 100, 700, MIDNIGHT - 1000, TENANT),
        state(Limit.RPM, 60, 58, 0, MIDNIGHT - 2000),
        state(Limit.CONCURRENCY, 4, 1),
    )
    assert told(states) == (
        (b"daypass-remaining-usd", b"0.50"),
        (b"daypass-remaining-tokens", b"100"),
        (b"daypass-remaining-requests", b"2"),
        (b"daypass-resets-at", b"2026-12-01T00:00:00Z"),
    )


def test_headers_only_where_there_is_a_limit() -> None:
    """No limit, no header; a budget for life comes back at no time."""
    assert told(()) == ()
    assert told((state(Limit.CONCURRENCY, 4, 1),)) == ()
    assert told((state(Limit.BUDGET, USD, 0),)) == ((b"daypass-remaining-usd", b"1.00"),)


def test_reset_is_that_of_the_first_figure_that_has_one() -> None:
    """A budget without a reset does not hide when the rate comes back."""
    states = (state(Limit.BUDGET, USD, 0), state(Limit.RPM, 60, 58, 0, MIDNIGHT))
    assert dict(told(states))[b"daypass-resets-at"] == b"2026-12-01T00:00:00Z"


def test_document() -> None:
    """Limits stand under the names of the policy document, in its units."""
    states = (state(Limit.DAY, 2 * USD, USD, 5, MIDNIGHT), state(Limit.RPM, 60, 58))
    assert document(states) == {
        "budget_per_day_usd": {
            "limit": "2.00",
            "used": "1.00",
            "held": "0.000000005",
            "left": "0.999999995",
            "resets_at": "2026-12-01T00:00:00Z",
        },
        "requests_per_minute": {"limit": 60, "used": 58, "held": 0, "left": 2, "resets_at": None},
    }
    assert set(document([state(limit, 1, 0) for limit in Limit])) == {
        "budget_usd", "budget_per_day_usd", "budget_per_month_usd", "token_budget",
        "requests_per_minute", "tokens_per_minute", "concurrency",
    }  # fmt: skip


def test_moment_is_never_too_early() -> None:
    """A part of a second counts as a whole one."""
    assert moment(MIDNIGHT) == "2026-12-01T00:00:00Z"
    assert moment(MIDNIGHT + 1) == "2026-12-01T00:00:01Z"
