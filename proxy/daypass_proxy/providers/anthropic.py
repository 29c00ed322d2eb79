"""The Anthropic Messages dialect: reads requests into Calls and renders our answers.

What goes up is built here from allow-lists: path and query are our constants, headers are picked
by name, and no credential, cookie, forwarding or hop-by-hop header of the client is among them.
Answers have the shape of the API's errors, so that stock clients stop, renew or retry as meant.
"""

import json
from collections.abc import Iterable
from functools import lru_cache

from msgspec.structs import asdict, replace

from daypass_core.problem import Code, Problem, refuse
from daypass_core.scope import Detail
from daypass_proxy.body.spool import Spool
from daypass_proxy.body.strict import check_media, is_quick
from daypass_proxy.exchange import Exchange, HeaderPairs
from daypass_proxy.head import Head
from daypass_proxy.providers import BodyChecker, Call, Rendered
from daypass_proxy.providers.anthropic_body import check_body
from daypass_proxy.providers.anthropic_lower import lower_output
from daypass_proxy.providers.known_names import STRICT, Headers
from daypass_proxy.providers.problem_headers import problem_headers
from daypass_proxy.providers.slowly import check_slowly

NAME = "anthropic"
ROUTES = {
    b"/v1/messages": "messages",
    # Where the base URL ends with /v1 already, as some clients have it (case B46).
    b"/messages": "messages",
    b"/v1/messages/count_tokens": "count_tokens",
}
"""The paths that lead to each endpoint."""
_UPSTREAM_PATHS = {
    "messages": b"/v1/messages",
    "count_tokens": b"/v1/messages/count_tokens",
}
_QUERIES = (b"", b"beta=true")

_UP_EXACT = frozenset({b"accept", b"content-type", b"user-agent", b"x-app"})
_UP_PREFIXES = (b"anthropic-", b"x-stainless-", b"x-claude-code-")
# They choose whose data or whose bill; only the platform may.
_NOT_UP = frozenset(
    {b"anthropic-workspace-id", b"anthropic-user-profile-id", b"anthropic-organization-id"}
)
_HEADERS = Headers(
    NAME,
    b"anthropic-",
    b"anthropic-beta",
    (b"anthropic-version", b"anthropic-dangerous-direct-browser-access"),
)
# Flags of an OAuth credential; what goes up is an API key.
_OAUTH_BETA = b"oauth-2025-04-20"
_FEDERATION_BETA = b"oidc-federation-"

_DOWN_EXACT = frozenset(
    {b"content-type", b"request-id", b"retry-after", b"retry-after-ms", b"x-should-retry"}
)
_NOT_DOWN = frozenset({b"anthropic-organization-id", b"anthropic-workspace-id"})
# Limits are the organisation's, shared by all sandboxes; a client would take them for its own.
_LIMIT_PREFIXES = (b"anthropic-ratelimit-", b"anthropic-priority-", b"anthropic-fast-")
_LIMIT_SUFFIXES = (b"-limit", b"-remaining", b"-reset")

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    426: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    529: "overloaded_error",
}
_TYPES_BY_CODE = {Code.OVERLOADED: "overloaded_error"}


class Anthropic:
    """The Provider for api.anthropic.com and what speaks like it."""

    name = NAME
    base = ""

    def __init__(self, elsewhere: BodyChecker | None = None) -> None:
        """`elsewhere` checks the bodies that take long; without it a thread does."""
        self._elsewhere = elsewhere

    async def read(
        self, exchange: Exchange, endpoint: str, body: bytes | Spool, detail: Detail, sandbox: str
    ) -> Call:
        """Return the Call that `body` asks for; raises Refusal (400, 429, 503), ClientGone."""
        if exchange.raw_query not in _QUERIES:
            raise refuse(Code.INVALID_REQUEST, "the only query accepted here is beta=true")
        exchange.head.once(check_media)
        headers = exchange.head.once(_up)
        if detail.body == STRICT:
            _HEADERS.refuse_unknown(headers)
        billable = endpoint == "messages"
        if isinstance(body, bytes) and is_quick(body):
            asked = check_body(body, detail, max_tokens_needed=billable)
        else:
            body, asked = await check_slowly(
                exchange,
                body,
                detail,
                sandbox,
                dialect=NAME,
                check=check_body,
                elsewhere=self._elsewhere,
                max_tokens_needed=billable,
            )
        return Call(
            **asdict(asked),
            provider=NAME,
            endpoint=endpoint,
            method="POST",
            upstream_path=_UPSTREAM_PATHS[endpoint],
            query=exchange.raw_query,
            headers=headers,
            body=body,
            model=asked.models[0],
            billable=billable,
            dialect=NAME,
        )

    def credential(self, secret_value: str) -> tuple[bytes, bytes]:
        """Return the header that carries the provider key upstream."""
        return b"x-api-key", secret_value.encode("ascii")

    def lower_output(self, call: Call, most: int) -> Call:
        """Return `call` with no `max_tokens` for its answer above `most`; raises ValueError."""
        return replace(call, body=lower_output(call.body, most), max_output_tokens=most)

    def render(self, problem: Problem, request_id: str, endpoint: str = "") -> Rendered:
        """Return the API-shaped error for `problem`."""
        headers = problem_headers(problem, (b"request-id", request_id.encode()))
        return Rendered(problem.status, tuple(headers), _envelope(problem, request_id))

    def stream_error(self, problem: Problem, request_id: str, endpoint: str = "") -> bytes:
        """Return the SSE event that ends a stream with `problem`."""
        return b"event: error\ndata: " + _envelope(problem, request_id) + b"\n\n"

    def response_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> HeaderPairs:
        """Return what of an upstream's headers a sandbox may see (rate limits are not its own)."""
        kept = [(told, value) for name, value in headers if (told := _told(name))]
        if len(dict(kept)) < len(kept):
            # One of each: we decide by the first, so the client must not meet another.
            seen: set[bytes] = set()
            kept = [pair for pair in kept if not _again(pair[0], seen)]
        return tuple(kept)


@lru_cache(maxsize=256)
def _told(name: bytes) -> bytes | None:
    """Return the name, in lower case, of a header that a sandbox may see: known to us, or an
    anthropic-* header that speaks of the call and not of the organisation."""
    name = name.lower()
    of_the_call = name.startswith(b"anthropic-") and not (
        name in _NOT_DOWN or name.startswith(_LIMIT_PREFIXES) or name.endswith(_LIMIT_SUFFIXES)
    )
    return name if of_the_call or name in _DOWN_EXACT else None


def _again(name: bytes, seen: set[bytes]) -> bool:
    """Say whether a header of which there is to be one was seen before."""
    if name in seen:
        return name in _DOWN_EXACT
    seen.add(name)
    return False


def _up(head: Head) -> HeaderPairs:
    return headers_up(head.headers)


def headers_up(headers: HeaderPairs) -> HeaderPairs:
    """Return the client's headers that go upstream, in order.

    Names that a Connection header nominates are hop-by-hop and stay (attack row 3).
    """
    kept: list[tuple[bytes, bytes]] = []
    nominated: set[bytes] = set()
    for pair in headers:
        name, value = pair
        goes = _USUAL.get(name)
        if goes is None:
            goes = _goes_up(name)
        if goes:
            if name == b"anthropic-beta":
                value = without_oauth(value)
                if value.strip():
                    kept.append((name, value))
            else:
                kept.append(pair)
        elif name == b"connection" and value != b"keep-alive":
            nominated.update(token.strip().lower() for token in value.split(b","))
    if nominated:
        return tuple(pair for pair in kept if pair[0] not in nominated)
    return tuple(kept)


def _goes_up(name: bytes) -> bool:
    return name in _UP_EXACT or (name.startswith(_UP_PREFIXES) and name not in _NOT_UP)


# What stock clients send, decided beforehand.
_USUAL = {
    name: _goes_up(name)
    for name in (
        *(b"accept", b"accept-encoding", b"authorization", b"connection", b"content-length"),
        *(b"content-type", b"host", b"user-agent", b"x-api-key", b"x-app", b"anthropic-beta"),
        *(b"anthropic-version", b"anthropic-dangerous-direct-browser-access"),
        *(b"x-stainless-arch", b"x-stainless-async", b"x-stainless-lang", b"x-stainless-os"),
        *(b"x-stainless-package-version", b"x-stainless-retry-count", b"x-stainless-runtime"),
        *(b"x-stainless-runtime-version", b"x-stainless-timeout", b"x-stainless-helper-method"),
    )
}


def without_oauth(value: bytes) -> bytes:
    """Return an anthropic-beta value without OAuth flags; otherwise byte for byte (case B37)."""
    flags = value.split(b",")
    kept = [
        flag
        for flag in flags
        if flag.strip() != _OAUTH_BETA and not flag.strip().startswith(_FEDERATION_BETA)
    ]
    return value if len(kept) == len(flags) else b",".join(kept).strip()


def _envelope(problem: Problem, request_id: str) -> bytes:
    kind = _TYPES_BY_CODE.get(problem.code) or _TYPES.get(problem.status, "api_error")
    message = f"{problem.title}; {problem.hint}" if problem.hint else problem.title
    error: dict[str, object] = {"type": kind, "message": message}
    if problem.error_code is not None:
        error["details"] = {"error_code": problem.error_code}
    document = {"type": "error", "error": error, "request_id": request_id}
    # ASCII only: a newline or control character must not break the SSE frame or a terminal.
    return json.dumps(document, separators=(",", ":")).encode("ascii")
