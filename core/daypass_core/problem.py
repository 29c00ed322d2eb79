"""The one shape of refusal inside daypass: a stable code, a status, words, and what to do next.

Steps of a path raise `Refusal(Problem)`; the edge renders it once in the caller's dialect
(Anthropic error, RFC 9457 problem+json). Causes and details for us go to the log, never in here.
"""

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """Every stable code a client or operator can meet; documented, never renamed."""

    # the access token
    MISSING_TOKEN = "missing_token"  # noqa: S105  a code, no password
    INVALID_TOKEN = "invalid_token"  # noqa: S105  a code, no password
    TOKEN_EXPIRED = "token_expired"  # noqa: S105  a code, no password
    TOKEN_REVOKED = "token_revoked"  # noqa: S105  a code, no password
    FOREIGN_SOURCE = "foreign_source"
    INSUFFICIENT_SCOPE = "insufficient_scope"
    # the request
    MODEL_NOT_ALLOWED = "model_not_allowed"
    INVALID_REQUEST = "invalid_request"
    FIELD_NOT_ALLOWED = "field_not_allowed"
    THREAD_UNSUPPORTED = "thread_unsupported"
    UNPRICED_MODEL = "unpriced_model"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    REQUEST_TOO_LARGE = "request_too_large"
    UPGRADE_REFUSED = "upgrade_refused"
    HEADERS_TOO_LARGE = "headers_too_large"
    # money and load
    BUDGET_EXHAUSTED = "budget_exhausted"
    BUDGET_HELD = "budget_held"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    # what we cannot know or reach
    VIEW_STALE = "view_stale"
    STORE_UNAVAILABLE = "store_unavailable"
    KEY_UNAVAILABLE = "key_unavailable"
    SIGNING_UNAVAILABLE = "signing_unavailable"
    UPSTREAM_REFUSED_KEY = "upstream_refused_key"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    UPSTREAM_BROKEN = "upstream_broken"
    INTERNAL_ERROR = "internal_error"
    # ends of a call that had begun
    CALL_REVOKED = "call_revoked"
    CALL_TOO_LONG = "call_too_long"
    # the admin listener
    INVALID_CREDENTIAL = "invalid_credential"
    FORBIDDEN = "forbidden"
    BEYOND_PROFILE = "beyond_profile"
    CONFLICT = "conflict"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is said to the caller. `retry_after` is in seconds.

    `should_retry` becomes the header x-should-retry when it is not None; `field` names the part
    of the request at fault; `error_code` is Anthropic's `details.error_code`; `headers` are sent
    along at the proxy, names in lower case.
    """

    code: Code
    status: int
    title: str
    hint: str = ""
    retry_after: int | None = None
    should_retry: bool | None = None
    field: str | None = None
    error_code: str | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of(
        cls,
        code: Code,
        title: str = "",
        *,
        hint: str = "",
        field: str | None = None,
        retry_after: int | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> "Problem":
        """Return the standard problem of `code`; `title` and `retry_after` replace its own."""
        usual = _USUAL[code]
        return cls(
            code=code,
            status=usual.status,
            title=title or usual.title,
            hint=hint,
            retry_after=usual.retry_after if retry_after is None else retry_after,
            should_retry=usual.should_retry,
            field=field,
            error_code=usual.error_code,
            headers=headers,
        )


class Refusal(Exception):
    """A step of a path says no; rendered once, at the edge."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.code}: {problem.title}")
        self.problem = problem


def refuse(code: Code, title: str = "", *, hint: str = "", field: str | None = None) -> Refusal:
    """Return the Refusal for the standard problem of `code`, ready to raise."""
    return Refusal(Problem.of(code, title, hint=hint, field=field))


@dataclass(frozen=True, slots=True)
class _Usual:
    """What every problem of one code has in common."""

    status: int
    title: str
    retry_after: int | None = None
    should_retry: bool | None = None
    error_code: str | None = None


# Stock clients retry 408, 409, 429 and every 5xx twice, and obey x-should-retry. So a refusal that
# will not change by itself says false, and one that will says when.
_USUAL: dict[Code, _Usual] = {
    Code.MISSING_TOKEN: _Usual(401, "no access token; send it as Authorization: Bearer"),
    Code.INVALID_TOKEN: _Usual(401, "access token is not valid here"),
    # Who can renew does so whatever this says; who cannot would send its whole body ten times more.
    Code.TOKEN_EXPIRED: _Usual(401, "access token expired; fetch a new one", should_retry=False),
    Code.TOKEN_REVOKED: _Usual(401, "access token revoked", should_retry=False),
    Code.FOREIGN_SOURCE: _Usual(
        401, "access token may not be used from this address", should_retry=False
    ),
    Code.INSUFFICIENT_SCOPE: _Usual(
        403, "this token may not use this endpoint", should_retry=False
    ),
    Code.MODEL_NOT_ALLOWED: _Usual(400, "model not allowed for this sandbox", should_retry=False),
    Code.INVALID_REQUEST: _Usual(400, "request is not valid", should_retry=False),
    Code.FIELD_NOT_ALLOWED: _Usual(400, "field not allowed for this sandbox", should_retry=False),
    Code.THREAD_UNSUPPORTED: _Usual(
        400,
        "message threads are not available here; resend the full history",
        should_retry=False,
        error_code="thread_unsupported_request",
    ),
    Code.UNPRICED_MODEL: _Usual(400, "model has no price", should_retry=False),
    Code.NOT_FOUND: _Usual(404, "no such endpoint"),
    Code.METHOD_NOT_ALLOWED: _Usual(405, "method not allowed"),
    Code.REQUEST_TIMEOUT: _Usual(408, "request body did not arrive in time"),
    Code.REQUEST_TOO_LARGE: _Usual(413, "request body too large"),
    Code.UPGRADE_REFUSED: _Usual(426, "use plain HTTP; upgrades are not offered"),
    Code.HEADERS_TOO_LARGE: _Usual(431, "request headers too large"),
    Code.BUDGET_EXHAUSTED: _Usual(402, "sandbox budget used up", should_retry=False),
    Code.BUDGET_HELD: _Usual(429, "remaining budget is held by calls in flight", retry_after=2),
    Code.RATE_LIMITED: _Usual(429, "sandbox request rate exceeded", retry_after=2),
    Code.OVERLOADED: _Usual(503, "too much at once; try again", retry_after=2),
    Code.VIEW_STALE: _Usual(503, "revocations cannot be checked right now", retry_after=5),
    Code.STORE_UNAVAILABLE: _Usual(503, "store not reachable right now", retry_after=5),
    Code.KEY_UNAVAILABLE: _Usual(503, "provider key not available right now", retry_after=5),
    Code.SIGNING_UNAVAILABLE: _Usual(503, "nothing can be signed right now", retry_after=5),
    Code.UPSTREAM_REFUSED_KEY: _Usual(502, "provider refused the platform's key"),
    Code.UPSTREAM_UNREACHABLE: _Usual(529, "provider not reachable", retry_after=5),
    Code.UPSTREAM_BROKEN: _Usual(502, "provider broke off its answer"),
    Code.INTERNAL_ERROR: _Usual(500, "unexpected error"),
    Code.CALL_REVOKED: _Usual(401, "access token revoked during the call", should_retry=False),
    Code.CALL_TOO_LONG: _Usual(504, "call ran longer than allowed", should_retry=False),
    Code.INVALID_CREDENTIAL: _Usual(401, "credential is not valid"),
    Code.FORBIDDEN: _Usual(403, "credential may not do this"),
    Code.BEYOND_PROFILE: _Usual(403, "request goes beyond the profile"),
    Code.CONFLICT: _Usual(409, "state does not allow this", should_retry=False),
    Code.IDEMPOTENCY_MISMATCH: _Usual(422, "same Idempotency-Key, different request"),
}
