"""What a client of OpenAI's API is told: our refusals in its shape, and headers that concern it.

Called by `providers.openai`. Codes are OpenAI's own where stock clients act on them (`wire.md` §9
is the table): a spent budget is `insufficient_quota`, which is what ends them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache

from daypass_core.problem import Code, Problem
from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.providers import Rendered
from daypass_proxy.providers.problem_headers import problem_headers

RESPONSES = "responses"
_CODES = {
    Code.MISSING_TOKEN: "invalid_api_key",
    Code.INVALID_TOKEN: "invalid_api_key",
    Code.TOKEN_EXPIRED: "invalid_api_key",
    Code.TOKEN_REVOKED: "invalid_api_key",
    Code.CALL_REVOKED: "invalid_api_key",
    Code.MODEL_NOT_ALLOWED: "model_not_found",
    Code.UNPRICED_MODEL: "model_not_found",
    Code.BUDGET_EXHAUSTED: "insufficient_quota",
    Code.BUDGET_HELD: "rate_limit_exceeded",
    Code.RATE_LIMITED: "rate_limit_exceeded",
}
_TYPES = {
    402: "insufficient_quota",
    408: "timeout_error",
    429: "rate_limit_error",
}
_DOWN = frozenset(
    {b"content-type", b"x-request-id", b"retry-after", b"retry-after-ms", b"x-should-retry"}
    | {b"openai-processing-ms", b"openai-version", b"openai-model"}
)


def render(problem: Problem, request_id: str, endpoint: str) -> Rendered:
    """Return the API-shaped error for `problem`."""
    status = _status(problem, endpoint)
    headers = problem_headers(problem, (b"x-request-id", request_id.encode()))
    if problem.retry_after is not None:
        headers.append((b"retry-after-ms", str(problem.retry_after * 1000).encode()))
    return Rendered(status, tuple(headers), _json({"error": _error(problem, status)}))


def stream_error(problem: Problem, endpoint: str) -> bytes:
    """Return the SSE event that ends a stream with `problem`; nothing like `[DONE]` follows it."""
    error = _error(problem, problem.status)
    if endpoint == RESPONSES:
        said = {"type": "error", **{key: error[key] for key in ("code", "message", "param")}}
        return b"event: error\ndata: " + _json(said) + b"\n\n"
    return b"data: " + _json({"error": error}) + b"\n\n"


def response_headers(headers: Iterable[tuple[bytes, bytes]]) -> HeaderPairs:
    """Return what of an upstream's headers a sandbox may see, one of each.

    Limits (`x-ratelimit-*`), organisation and project are the platform's, shared by all sandboxes.
    """
    kept: dict[bytes, bytes] = {}
    for name, value in headers:
        name = _lower(name)
        if name in _DOWN:
            kept.setdefault(name, value)
    return tuple(kept.items())


@lru_cache(maxsize=256)
def _lower(name: bytes) -> bytes:
    return name.lower()


def _status(problem: Problem, endpoint: str) -> int:
    """Return the status that ends, or holds back, the clients of this endpoint."""
    if problem.code is Code.BUDGET_EXHAUSTED and endpoint == RESPONSES:
        return 429  # to codex 402 means: try again
    return 503 if problem.status == 529 else problem.status


def _error(problem: Problem, status: int) -> dict[str, object]:
    code = _CODES.get(problem.code, problem.code.value)
    kind = code if code == "insufficient_quota" else _TYPES.get(status)
    if kind is None:
        kind = "server_error" if status >= 500 else "invalid_request_error"
    message = f"{problem.title}; {problem.hint}" if problem.hint else problem.title
    return {"message": message, "type": kind, "param": problem.field, "code": code}


def _json(document: dict[str, object]) -> bytes:
    # ASCII only: a newline or control character must not break the SSE frame or a terminal.
    return json.dumps(document, separators=(",", ":")).encode("ascii")
