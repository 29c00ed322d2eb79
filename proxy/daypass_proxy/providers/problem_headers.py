"""The headers of our own answers to a problem, which are the same in every dialect."""

from __future__ import annotations

from daypass_core.problem import Code, Problem

_INVALID = b'Bearer error="invalid_token"'
_CHALLENGES = {
    # RFC 6750 §3.1: no error code where no credential was sent.
    Code.MISSING_TOKEN: b'Bearer realm="daypass"',
    # In its words (§3): by these our own clients tell an end that a new token mends from others.
    Code.TOKEN_EXPIRED: _INVALID + b', error_description="The access token expired"',
}


def problem_headers(problem: Problem, request_id: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return what tells a client of `problem` beside the body; `request_id` as its dialect has it.

    RFC 6750 §3 challenges, RFC 9110 `retry-after`, and the `x-should-retry` of official clients.
    """
    headers = [(b"content-type", b"application/json"), request_id]
    if problem.status == 401:
        challenge = _CHALLENGES.get(problem.code, _INVALID)
        headers.append((b"www-authenticate", challenge))
    elif problem.code is Code.INSUFFICIENT_SCOPE:
        headers.append((b"www-authenticate", b'Bearer error="insufficient_scope"'))
    if problem.retry_after is not None:
        headers.append((b"retry-after", str(problem.retry_after).encode()))
    if problem.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if problem.should_retry else b"false"))
    headers.extend(problem.headers)
    return headers
