"""The Anthropic dialect: which headers and queries go up, what comes down, how answers look."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_core.problem import Code, Problem
from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.providers.anthropic import Anthropic, headers_up, without_oauth
from daypass_proxy.routes import ROUTES, Inference, find_route
from tests.fakes.anthropic import JSON, PLAIN, detail, read, read_now, refused
from tests.fakes.asgi import make_exchange

# -- the way up


def test_only_listed_headers_go_up() -> None:
    """B04, row 3: credentials, cookies, forwarding and hop-by-hop headers of the client stay."""
    up = headers_up(
        (
            (b"host", b"proxy.test"),
            (b"authorization", b"Bearer TOKEN"),
            (b"x-api-key", b"TOKEN"),
            (b"x-goog-api-key", b"TOKEN"),
            (b"api-key", b"TOKEN"),
            (b"cookie", b"a=b"),
            (b"proxy-authorization", b"Basic x"),
            (b"x-forwarded-for", b"1.2.3.4"),
            (b"x-forwarded-host", b"evil"),
            (b"forwarded", b"for=1"),
            (b"connection", b"close, X-App, anthropic-version"),
            (b"x-app", b"cli"),
            (b"anthropic-version", b"2023-06-01"),
            (b"keep-alive", b"timeout=5"),
            (b"te", b"trailers"),
            (b"accept-encoding", b"gzip, br, zstd"),
            (b"content-length", b"2"),
            (b"x-custom", b"1"),
            (b"anthropic-workspace-id", b"w"),
            (b"anthropic-user-profile-id", b"u"),
            (b"anthropic-organization-id", b"o"),
            (b"content-type", b"application/json"),
            (b"user-agent", b"Anthropic/Python 2.14.0"),
            (b"x-stainless-retry-count", b"0"),
            (b"x-claude-code-session-id", b"s"),
            (b"anthropic-dangerous-direct-browser-access", b"true"),
            (b"anthropic-beta", b"a-2026-01-01"),
        )
    )
    assert up == (
        (b"content-type", b"application/json"),
        (b"user-agent", b"Anthropic/Python 2.14.0"),
        (b"x-stainless-retry-count", b"0"),
        (b"x-claude-code-session-id", b"s"),
        (b"anthropic-dangerous-direct-browser-access", b"true"),
        (b"anthropic-beta", b"a-2026-01-01"),
    )


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (b"a-2026-01-01,b-2026-02-02", b"a-2026-01-01,b-2026-02-02"),
        (b" a , b ", b" a , b "),
        (b"oauth-2025-04-20", b""),
        (b"a,oauth-2025-04-20,b", b"a,b"),
        (b"oauth-2025-04-20, a", b"a"),
        (b"oauth-2025-04-20,oidc-federation-2026-04-01", b""),
        (b"xoauth-2025-04-20", b"xoauth-2025-04-20"),
    ],
)
def test_betas_go_up_verbatim(value: bytes, kept: bytes) -> None:
    """B37: betas pass in order and unchanged; only OAuth flags are taken out."""
    assert without_oauth(value) == kept


def test_betas_in_two_lines() -> None:
    """B37: two lines stay two lines; a line that only held OAuth flags is gone."""
    beta = b"anthropic-beta"
    up = headers_up(((beta, b"a,b"), (beta, b"c"), (beta, b"oauth-2025-04-20")))
    assert up == ((beta, b"a,b"), (beta, b"c"))


@pytest.mark.parametrize("version", [b"2023-06-01", b"2026-10-21", None])
def test_version_is_the_clients(version: bytes | None) -> None:
    """B37: the version header goes up as it came, and is not added."""
    headers: HeaderPairs = () if version is None else ((b"anthropic-version", version),)
    values = [v for name, v in read(headers=headers).headers if name == b"anthropic-version"]
    assert values == ([] if version is None else [version])


@pytest.mark.parametrize(
    "query",
    [b"beta=false", b"beta=true&x=1", b"model=claude-opus-5", b"key=sk-1", b"x", b"beta=tru%65"],
)
def test_query_allow_list(query: bytes) -> None:
    """The only query is beta=true, byte for byte (attack rows 10-12)."""
    refused(query=query)


def test_real_keys_path() -> None:
    """The provider key goes into x-api-key."""
    assert Anthropic().credential("sk-real") == (b"x-api-key", b"sk-real")


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=40),
        st.lists(
            st.sampled_from(
                [
                    *(b"/v1", b"/messages", b"/", b"..", b"%2f", b"%2e", b";", b"\\", b"//"),
                    *(b"/files", b"/count_tokens", b"?", b"#", b"/models", b"/batches", b"%00"),
                ]
            ),
            max_size=6,
        ).map(b"".join),
    ),
    st.sampled_from([b"", b"beta=true"]),
)
def test_upstream_paths_are_a_closed_set(path: bytes, query: bytes) -> None:
    """Whatever the path of a request, what goes up is one of two constants (rows 9, 10; B09)."""
    handler = (find_route(path) or {}).get("POST")
    if path not in (b"/v1/messages", b"/messages", b"/v1/messages/count_tokens"):
        assert not isinstance(handler, Inference) or handler.place.provider != "anthropic"
        assert handler is None or path in ROUTES
        return
    endpoint = "count_tokens" if path.endswith(b"count_tokens") else "messages"
    body = json.dumps(PLAIN).encode()
    exchange, _ = make_exchange(path=path, query=query, headers=[JSON], body=body)
    call = read_now(exchange, endpoint, body, detail())
    assert call.upstream_path in (b"/v1/messages", b"/v1/messages/count_tokens")
    assert call.query == query


# -- the way down


def test_response_headers() -> None:
    """B48: limits and ids of our account, cookies and hop-by-hop headers stay; the rest passes."""
    down = Anthropic().response_headers(
        [
            (b"Content-Type", b"application/json"),
            (b"request-id", b"req_up"),
            (b"retry-after", b"3"),
            (b"retry-after-ms", b"3000"),
            (b"x-should-retry", b"true"),
            (b"anthropic-new-header", b"1"),
            (b"anthropic-ratelimit-requests-remaining", b"9"),
            (b"anthropic-ratelimit-unified-status", b"rejected"),
            (b"anthropic-organization-id", b"org"),
            (b"anthropic-workspace-id", b"w"),
            (b"x-ratelimit-limit-requests", b"1"),
            (b"set-cookie", b"a=b"),
            (b"server", b"cloudflare"),
            (b"cf-ray", b"1"),
            (b"via", b"1.1 x"),
            (b"content-encoding", b"gzip"),
            (b"content-length", b"10"),
            (b"transfer-encoding", b"chunked"),
            (b"connection", b"keep-alive"),
        ]
    )
    assert down == (
        (b"content-type", b"application/json"),
        (b"request-id", b"req_up"),
        (b"retry-after", b"3"),
        (b"retry-after-ms", b"3000"),
        (b"x-should-retry", b"true"),
        (b"anthropic-new-header", b"1"),
    )


@pytest.mark.parametrize(
    ("code", "status", "kind", "retry_after", "should_retry"),
    [
        (Code.MISSING_TOKEN, 401, "authentication_error", None, None),
        (Code.INVALID_TOKEN, 401, "authentication_error", None, None),
        (Code.TOKEN_EXPIRED, 401, "authentication_error", None, b"false"),
        (Code.TOKEN_REVOKED, 401, "authentication_error", None, b"false"),
        (Code.INSUFFICIENT_SCOPE, 403, "permission_error", None, b"false"),
        (Code.MODEL_NOT_ALLOWED, 400, "invalid_request_error", None, b"false"),
        (Code.FIELD_NOT_ALLOWED, 400, "invalid_request_error", None, b"false"),
        (Code.UNPRICED_MODEL, 400, "invalid_request_error", None, b"false"),
        (Code.BUDGET_EXHAUSTED, 402, "billing_error", None, b"false"),
        (Code.BUDGET_HELD, 429, "rate_limit_error", b"2", None),
        (Code.RATE_LIMITED, 429, "rate_limit_error", b"2", None),
        (Code.REQUEST_TOO_LARGE, 413, "request_too_large", None, None),
        (Code.NOT_FOUND, 404, "not_found_error", None, None),
        (Code.METHOD_NOT_ALLOWED, 405, "invalid_request_error", None, None),
        (Code.VIEW_STALE, 503, "api_error", b"5", None),
        (Code.STORE_UNAVAILABLE, 503, "api_error", b"5", None),
        (Code.KEY_UNAVAILABLE, 503, "api_error", b"5", None),
        (Code.UPSTREAM_REFUSED_KEY, 502, "api_error", None, None),
        (Code.UPSTREAM_UNREACHABLE, 529, "overloaded_error", b"5", None),
        (Code.INTERNAL_ERROR, 500, "api_error", None, None),
    ],
)
def test_answers_are_those_of_the_wire_table(
    code: Code, status: int, kind: str, retry_after: bytes | None, should_retry: bytes | None
) -> None:
    """B19: each code has its status, error type and retry headers, as stock clients expect."""
    rendered = Anthropic().render(Problem.of(code), "req_1")
    headers = dict(rendered.headers)
    assert rendered.status == status
    document = json.loads(rendered.body)
    assert document["type"] == "error"
    assert document["error"]["type"] == kind
    assert document["request_id"] == "req_1"
    assert headers[b"request-id"] == b"req_1"
    assert headers[b"content-type"] == b"application/json"
    assert headers.get(b"retry-after") == retry_after
    assert headers.get(b"x-should-retry") == should_retry
    challenge = headers.get(b"www-authenticate")
    if code is Code.INSUFFICIENT_SCOPE:
        assert challenge == b'Bearer error="insufficient_scope"'  # RFC 6750 §3.1
    elif status != 401:
        assert challenge is None
    elif code is Code.MISSING_TOKEN:
        assert challenge == b'Bearer realm="daypass"'
    elif code is Code.TOKEN_EXPIRED:
        expired = b', error_description="The access token expired"'
        assert challenge == b'Bearer error="invalid_token"' + expired
    else:
        assert challenge == b'Bearer error="invalid_token"'


def test_stream_error() -> None:
    """The error of a stream is one SSE event, whatever its words contain."""
    problem = Problem.of(Code.CALL_REVOKED, "odd\nwords\x1b")
    data = Anthropic().stream_error(problem, "req_1")
    assert data.startswith(b"event: error\ndata: {")
    assert data.endswith(b"}\n\n")
    assert data.count(b"\n") == 3
    document = json.loads(data.split(b"data: ")[1])
    assert document["error"]["message"] == "odd\nwords\x1b"
