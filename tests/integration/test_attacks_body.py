"""Attacks inside the body: other models, ways out, prices, states; and what goes up unchanged."""

import json
from typing import Any

import pytest

from tests.servers.client import RawStream
from tests.servers.stack import Answer, Stack, call
from tests.servers.stub import StubUpstream

SONNET, OPUS = "claude-sonnet-4-5", "claude-opus-4-5"
PLAIN: dict[str, Any] = {
    "model": SONNET,
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "x"}],
}
SCOPE = {
    "type": "llm_inference",
    "provider": "anthropic",
    "endpoints": ["messages", "count_tokens"],
    "models": ["claude-sonnet-*"],
}


@pytest.fixture(scope="module")
def sandbox(module_stack: Stack) -> dict[str, Any]:
    """A sandbox that may call one family of models and nothing else."""
    return module_stack.sandbox(authorization_details=[SCOPE])


@pytest.fixture(scope="module")
def token(module_stack: Stack, sandbox: dict[str, Any]) -> str:
    """Its access token."""
    return module_stack.access_token(sandbox)


def send(stack: Stack, token: str, body: object, path: str = "/v1/messages") -> Answer:
    """One call with this body: bytes as they are, all else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    return call(stack.proxy_url, "POST", path, data, headers)


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    """Messages with these blocks."""
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def url(kind: str) -> dict[str, Any]:
    """A block whose content lies at a URL."""
    return {"type": kind, "source": {"type": "url", "url": "https://evil.example/x?secret"}}


MODELS: list[object] = [
    OPUS,
    "gpt-4",
    "claude-*",
    "claude-sonnet-*",
    "Claude-Sonnet-4-5",
    " claude-sonnet-4-5",
    "claude-sonnet-4-5\n",
    "claude-sonnet-4-5\x00",
    "anthropic/claude-sonnet-4-5",
    "\uff43laude-sonnet-4-5",
    "\u0441laude-sonnet-4-5",
    "claude\u2010sonnet-4-5",
    "claude-sonnet-4-5\u200b",
    "claude-sonnet-" + "4" * 300,
    "",
    [SONNET],
    {"name": SONNET},
    None,
    True,
    5,
]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("model", MODELS)
def test_no_other_spelling_of_a_model_passes(
    stack: Stack, upstream: StubUpstream, token: str, model: object, path: str
) -> None:
    """A model outside the scope, an alias, a look-alike or another kind is 400, nothing goes up."""
    answer = send(stack, token, PLAIN | {"model": model}, path)
    assert (answer.status, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert answer.headers["x-should-retry"] == "false"
    assert upstream.requests == []


def text_of(**changes: object) -> str:
    """The plain body as text, without its final brace."""
    return json.dumps(PLAIN | changes)[:-1]


TWO_READINGS: dict[str, bytes] = {
    "model twice": f'{text_of()},"model":"{OPUS}"}}'.encode(),
    "model first": f'{{"model":"{OPUS}",{text_of()[1:]}}}'.encode(),
    "escaped key": f'{text_of()},"mod\\u0065l":"{OPUS}"}}'.encode(),
    "key in capitals": f'{text_of()},"MODEL":"{OPUS}"}}'.encode(),
    "wide key": f'{text_of()},"\uff4dodel":"{OPUS}"}}'.encode(),
    "key with a blank": f'{text_of()},"model ":"{OPUS}"}}'.encode(),
    "nested twice": f'{text_of()},"metadata":{{"user_id":"a","user_id":"b"}}}}'.encode(),
    "UTF-16": (text_of() + "}").encode("utf-16"),
    "UTF-32": (text_of() + "}").encode("utf-32"),
    "byte-order mark": b"\xef\xbb\xbf" + (text_of() + "}").encode(),
    "NaN": f'{text_of()},"temperature":NaN}}'.encode(),
    "1e400": f'{text_of()},"temperature":1e400}}'.encode(),
    "lone surrogate": f'{text_of()},"metadata":{{"user_id":"\\ud800"}}}}'.encode(),
    "overlong UTF-8": (text_of() + ',"a":"').encode() + b'\xc0\xa2"}',
    "two documents": (text_of() + "}").encode() * 2,
    "a list": f"[{text_of()}}}]".encode(),
    "a comment": f"{text_of()}/* {OPUS} */}}".encode(),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", TWO_READINGS)
def test_a_body_with_two_readings_is_refused(
    stack: Stack, upstream: StubUpstream, token: str, kind: str
) -> None:
    """Row 31: where two JSON parsers would see two requests, it is 400 and nothing goes up."""
    assert send(stack, token, TWO_READINGS[kind]).status == 400
    assert upstream.requests == []


WAYS_OUT: dict[str, dict[str, Any]] = {
    "fallback model": {"fallbacks": [{"model": OPUS}]},
    "default fallback": {"fallbacks": "default"},
    "fallback look-alike": {"fallbacks": [{"model": SONNET, "Model": OPUS}]},
    "fast fallback": {"fallbacks": [{"model": SONNET, "speed": "fast"}]},
    "long fallback": {"fallbacks": [{"model": SONNET, "max_tokens": 10**9}]},
    "advisor": {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": SONNET}]},
    "advisor of another model": {"tools": [{"type": "advisor_20260301", "model": OPUS}]},
    "web search": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "web fetch": {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
    "code execution": {"tools": [{"type": "code_execution_20250825", "name": "c"}]},
    "undated tool": {"tools": [{"type": "web_search"}]},
    "future tool": {"tools": [{"type": "web_search_99990101"}]},
    "tool type look-alike": {"tools": [{"name": "x", "Type": "web_search_20250305"}]},
    "MCP toolset": {"tools": [{"type": "mcp_toolset", "mcp_server_name": "m"}]},
    "MCP server": {"mcp_servers": [{"type": "url", "url": "https://evil.example", "name": "m"}]},
    "container": {"container": "container_of_somebody"},
    "skills": {"container": {"skills": [{"type": "custom", "skill_id": "s"}]}},
    "thread": {"thread": {"id": "thread_of_somebody"}},
    "other workspace": {"workspace_id": "wrkspc_other"},
    "other payer": {"billing_policy": {"type": "billing_policy", "bill_to": "user_profile"}},
    "other profile": {"user_profile_id": "up_other"},
    "priority": {"service_tier": "priority"},
    "fast": {"speed": "fast"},
    "other place": {"inference_geo": "us"},
    "previous message": {"diagnostics": {"previous_message_id": "msg_of_somebody"}},
    "unknown object": {"router": {"model": OPUS}},
    "requests of a batch": {"requests": [{"params": {"model": OPUS}}]},
    "image by URL": user(url("image")),
    "document by URL": user(url("document")),
    "document by file": user(
        {"type": "document", "source": {"type": "file", "file_id": "file_of_somebody"}}
    ),
    "file in a container": user({"type": "container_upload", "file_id": "file_of_somebody"}),
    "in a tool result": user(
        {"type": "tool_result", "tool_use_id": "t", "content": [url("document")]}
    ),
    "in a result's result": user(
        {
            "type": "web_fetch_tool_result",
            "tool_use_id": "t",
            "content": {"type": "web_fetch_result", "url": "u", "content": url("document")},
        }
    ),
    "in a document": user(
        {"type": "document", "source": {"type": "content", "content": [url("image")]}}
    ),
    "in the system prompt": {"system": [url("document")]},
    "in a system turn": {"messages": [{"role": "system", "content": [url("image")]}]},
    "unknown block": user({"type": "remote_include", "href": "https://evil.example"}),
    "unknown source": user({"type": "image", "source": {"type": "s3", "bucket": "b"}}),
    "tool in a message": user(
        {
            "type": "tool_addition",
            "tool": {"type": "tool_definition", "definition": {"type": "web_search_20250305"}},
        }
    ),
    "unknown tool reference": user({"type": "tool_addition", "tool": {"type": "anything"}}),
}


@pytest.mark.parametrize("kind", WAYS_OUT)
def test_rows_32_34_35_36_37_every_way_out_is_closed(
    stack: Stack, upstream: StubUpstream, token: str, kind: str
) -> None:
    """Rows 32 and 34-37: models, egress, state and prices outside the scope are 400 by name."""
    answer = send(stack, token, PLAIN | WAYS_OUT[kind])
    assert (answer.status, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert answer.headers["x-should-retry"] == "false"
    assert upstream.requests == []


@pytest.mark.parametrize(
    "value",
    [10**9, 10**30, 1_000_001, 0, -1, -(10**18), 1.0, 8.5, "8", True, False, None, [8], {"a": 8}],
)
def test_row_39_max_tokens_is_a_small_whole_number(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, Any], token: str, value: object
) -> None:
    """Row 39: any other max_tokens is 400; no hold is taken, and none is ever negative."""
    before = stack.account(sandbox)
    for changes in ({"max_tokens": value}, {"fallbacks": [{"model": SONNET, "max_tokens": value}]}):
        if changes.get("fallbacks") and value is None:
            continue  # a fallback without its own limit has the limit of the request
        assert send(stack, token, PLAIN | changes).status == 400
    assert upstream.requests == []
    assert stack.account(sandbox) == before


def test_row_39_the_scope_caps_max_tokens(stack: Stack, upstream: StubUpstream) -> None:
    """Row 39: above the scope's own cap max_tokens is refused, also in a fallback."""
    capped = stack.sandbox(authorization_details=[SCOPE | {"max_output_tokens": 100}])
    token = stack.access_token(capped)
    over = {"fallbacks": [{"model": SONNET, "max_tokens": 101}]}
    assert send(stack, token, PLAIN | {"max_tokens": 101}).status == 400
    assert send(stack, token, PLAIN | over).status == 400
    assert upstream.requests == []
    assert send(stack, token, PLAIN | {"max_tokens": 100}).status == 200


def test_a_longer_context_is_held_in_full(stack: Stack, upstream: StubUpstream) -> None:
    """A beta flag for the long context raises what a large call is held at, tier included."""
    rich = stack.sandbox(budget_usd="3.00")
    body = json.dumps(PLAIN | {"system": "x" * 900_000}).encode()
    headers = {
        "authorization": f"Bearer {stack.access_token(rich)}",
        "content-type": "application/json",
    }
    assert call(stack.proxy_url, "POST", "/v1/messages", body, headers).status == 200
    long = headers | {"anthropic-beta": "context-1m-2025-08-07"}
    assert call(stack.proxy_url, "POST", "/v1/messages", body, long).status == 402
    assert len(upstream.requests) == 1


BETAS = [
    ["anthropic-beta: a-2026-01-01,b-2026-02-02"],
    ["anthropic-beta: b-2026-02-02 , a-2026-01-01", "anthropic-version: 2023-06-01"],
    ["anthropic-beta: a-2026-01-01", "anthropic-beta: b-2026-02-02"],
    ["anthropic-version: 2026-10-21", "x-stainless-new-thing: 7", "x-app: cli"],
    [],
]


@pytest.mark.parametrize("lines", BETAS)
def test_b37_versions_and_betas_go_up_as_they_came(
    stack: Stack, upstream: StubUpstream, token: str, lines: list[str]
) -> None:
    """B37: betas in their order and number, versions, unknown x-stainless-*: none changed."""
    post(stack, token, lines)
    seen = [f"{name}: {value}" for name, value in upstream.requests[0].headers]
    passed = [line for line in seen if line.lower().startswith(("anthropic-", "x-stain", "x-app"))]
    assert [line.lower() for line in passed] == [line.lower() for line in lines]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("oauth-2025-04-20", []),
        ("a-2026-01-01,oauth-2025-04-20,b-2026-02-02", ["a-2026-01-01,b-2026-02-02"]),
        ("oauth-2025-04-20,oidc-federation-2026-04-01", []),
    ],
)
def test_b37_oauth_flags_do_not_go_out_with_a_key(
    stack: Stack, upstream: StubUpstream, token: str, value: str, expected: list[str]
) -> None:
    """B37: the flags that say "this is an OAuth token" are taken out, and nothing else is."""
    post(stack, token, [f"anthropic-beta: {value}"])
    assert upstream.requests[0].header("anthropic-beta") == expected


def post(stack: Stack, token: str, lines: list[str]) -> None:
    """One good call with further header lines."""
    data = json.dumps(PLAIN).encode()
    head = [
        "POST /v1/messages HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {token}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *lines,
    ]
    stream = RawStream.send(stack.proxy_url, "\r\n".join(head).encode() + b"\r\n\r\n" + data)
    stream.rest()
    assert stream.status == 200
