"""Problems: the standard answer of every code."""

import pytest

from daypass_core.problem import Code, Problem, Refusal, refuse


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_standard(code: Code) -> None:
    """Every code has a status and words that say what is the matter."""
    problem = Problem.of(code)
    assert 400 <= problem.status <= 599
    assert problem.title
    assert problem.title == problem.title.rstrip(".")


@pytest.mark.parametrize(
    ("code", "status", "should_retry", "retry_after"),
    [
        (Code.TOKEN_EXPIRED, 401, False, None),
        (Code.TOKEN_REVOKED, 401, False, None),
        (Code.INSUFFICIENT_SCOPE, 403, False, None),
        (Code.MODEL_NOT_ALLOWED, 400, False, None),
        (Code.BUDGET_EXHAUSTED, 402, False, None),
        (Code.BUDGET_HELD, 429, None, 2),
        (Code.VIEW_STALE, 503, None, 5),
        (Code.STORE_UNAVAILABLE, 503, None, 5),
        (Code.KEY_UNAVAILABLE, 503, None, 5),
        (Code.UPSTREAM_REFUSED_KEY, 502, None, None),
        (Code.UPSTREAM_UNREACHABLE, 529, None, 5),
        (Code.REQUEST_TOO_LARGE, 413, None, None),
        (Code.HEADERS_TOO_LARGE, 431, None, None),
    ],
)
def test_what_stops_clients(
    code: Code, status: int, should_retry: bool | None, retry_after: int | None
) -> None:
    """What cannot change by itself tells clients to stop, what can tells them when."""
    problem = Problem.of(code)
    assert (problem.status, problem.should_retry, problem.retry_after) == (
        status,
        should_retry,
        retry_after,
    )


def test_thread_refusal_carries_the_provider_code() -> None:
    """A refused message thread names the error code stock clients fall back on."""
    assert Problem.of(Code.THREAD_UNSUPPORTED).error_code == "thread_unsupported_request"


def test_refuse() -> None:
    """A refusal carries its problem, with words, hint and field of the case."""
    refusal = refuse(Code.INVALID_REQUEST, "no such thing", hint="leave it out", field="tools[0]")
    assert isinstance(refusal, Refusal)
    assert refusal.problem.title == "no such thing"
    assert (refusal.problem.hint, refusal.problem.field) == ("leave it out", "tools[0]")
    assert str(refusal) == "invalid_request: no such thing"
