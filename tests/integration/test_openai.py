"""OpenAI's API through the whole product, against a stub that speaks it exactly."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.canary import CANARY
from tests.servers import openai_wire as wire
from tests.servers.books import assert_books_right
from tests.servers.openai_stack import KEY, LOCAL_KEY, UPSTREAM_KEYS, openai_stack
from tests.servers.stack import Stack, call
from tests.servers.stub import Close, Send, StubUpstream, chunk
from tests.servers.wire import json_answer, sse_answer
from tests.support import eventually

CHAT: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
RESPONSE: dict[str, Any] = {"model": "gpt-4o", "input": "hi"}


@pytest.fixture(scope="module")
def openai_stub() -> Iterator[StubUpstream]:
    """A stub with the keys of OpenAI, Anthropic and a server of one's own."""
    with StubUpstream(UPSTREAM_KEYS) as server:
        yield server


@pytest.fixture(scope="module")
def module_openai(
    tmp_path_factory: pytest.TempPathFactory, openai_stub: StubUpstream, keys: str
) -> Iterator[Stack]:
    """A stack with OpenAI and a server of one's own."""
    with openai_stack(tmp_path_factory.mktemp("openai"), openai_stub.url, keys) as stack:
        yield stack


@pytest.fixture
def stack(module_openai: Stack, openai_stub: StubUpstream) -> Iterator[Stack]:
    """The module's stack; its books are right afterwards."""
    openai_stub.reset()
    yield module_openai
    assert_books_right(module_openai.database_url)


@pytest.fixture
def upstream(openai_stub: StubUpstream) -> StubUpstream:
    """The stub behind it."""
    return openai_stub


def booked(stack: Stack, sandbox: dict[str, Any]) -> dict[str, Any]:
    """The one row of a sandbox, settled."""
    (row,) = stack.settled(sandbox)
    return row


def test_a_chat_completion(stack: Stack, upstream: StubUpstream) -> None:
    """A whole answer passes byte for byte; its cached tokens and reasoning are booked as such."""
    sandbox = stack.sandbox()
    answer = stack.post(stack.access_token(sandbox), "/openai/v1/chat/completions", CHAT)
    assert (answer.status, answer.json()) == (200, wire.chat_json())
    (seen,) = upstream.requests
    assert seen.target == "/v1/chat/completions"
    assert seen.body == b'{"store":false,' + json.dumps(CHAT).encode()[1:]
    assert seen.header("authorization") == [f"Bearer {KEY}"]
    assert seen.header("x-api-key") == []
    row = booked(stack, sandbox)
    assert (row["provider"], row["endpoint"], row["model"]) == (
        "openai",
        "chat_completions",
        "gpt-4o",
    )
    assert (row["input_tokens"], row["cache_read_input_tokens"]) == (20, 5)
    assert (row["output_tokens"], row["estimated"]) == (15, 0)
    # 2.50 in, 1.25 cached, 10.00 out for a million tokens.
    assert row["cost_nano"] == 20 * 2_500 + 5 * 1_250 + 15 * 10_000


@pytest.mark.parametrize("asked", [True, False, None])
def test_a_chat_stream(stack: Stack, upstream: StubUpstream, asked: bool | None) -> None:
    """The usage is asked for by us, and its chunk reaches only a client that asked for it."""
    sandbox = stack.sandbox()
    options = {} if asked is None else {"stream_options": {"include_usage": asked}}
    answer = stack.post(
        stack.access_token(sandbox),
        "/openai/v1/chat/completions",
        CHAT | {"stream": True} | options,
    )
    events = wire.chat_stream()
    shown = events if asked else [each for each in events if each != wire.figures()]
    assert (answer.status, answer.body) == (200, b"".join(shown))
    sent = json.loads(upstream.requests[0].body)
    assert sent["stream_options"] == {"include_usage": True}
    ours = {"stream_options": sent["stream_options"], "store": False}
    assert sent == CHAT | {"stream": True} | ours
    row = booked(stack, sandbox)
    assert (row["input_tokens"], row["output_tokens"], row["estimated"]) == (20, 15, 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_response(stack: Stack, upstream: StubUpstream, stream: bool) -> None:
    """Responses pass byte for byte, are booked from their last event and stored nowhere."""
    sandbox = stack.sandbox()
    body = RESPONSE | {"stream": stream}
    answer = stack.post(stack.access_token(sandbox), "/openai/v1/responses", body)
    whole = (
        b"".join(wire.response_stream()) if stream else json.dumps(wire.response_json()).encode()
    )
    assert (answer.status, answer.body) == (200, whole)
    assert json.loads(upstream.requests[0].body) == body | {"store": False}
    row = booked(stack, sandbox)
    assert (row["input_tokens"], row["cache_read_input_tokens"]) == (18, 5)
    assert (row["cache_creation_input_tokens"], row["output_tokens"]) == (2, 15)
    assert row["estimated"] == 0


def test_embeddings(stack: Stack, upstream: StubUpstream) -> None:
    """Embeddings are paid for by their input alone."""
    sandbox = stack.sandbox()
    body = {"model": "text-embedding-3-small", "input": ["one", "two"]}
    answer = stack.post(stack.access_token(sandbox), "/openai/v1/embeddings", body)
    assert answer.status == 200
    row = booked(stack, sandbox)
    assert (row["input_tokens"], row["output_tokens"], row["estimated"]) == (14, 0, 0)
    assert row["cost_nano"] == 14 * 20


def test_models_are_those_of_the_scope(stack: Stack, upstream: StubUpstream) -> None:
    """The list is answered here, in the API's shape, and holds nothing of other scopes."""
    token = stack.access_token(stack.sandbox())
    headers = {"authorization": f"Bearer {token}"}
    listed = call(stack.proxy_url, "GET", "/openai/v1/models?client_version=0.1", None, headers)
    names = [model["id"] for model in listed.json()["data"]]
    assert {"gpt-4o", "gpt-4.1", "gpt-4.1-nano", "text-embedding-3-small"} <= set(names)
    assert not [name for name in names if name.startswith(("claude", "gpt-5", "o3"))]
    one = call(stack.proxy_url, "GET", "/openai/v1/models/gpt-4o", None, headers)
    assert one.json() == {"id": "gpt-4o", "object": "model", "created": 0, "owned_by": "openai"}
    other = call(stack.proxy_url, "GET", "/openai/v1/models/o3", None, headers)
    assert other.status == 404
    assert upstream.requests == []


def test_a_server_of_ones_own(stack: Stack, upstream: StubUpstream) -> None:
    """An upstream of the settings has its own prefix, URL, key and prices."""
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    body = CHAT | {"model": "meta/own", "stream": True}
    answer = stack.post(token, "/local/v1/chat/completions", body)
    assert answer.status == 200
    (seen,) = upstream.requests
    assert seen.target == "/engine/v1/chat/completions"
    assert seen.header("authorization") == [f"Bearer {LOCAL_KEY}"]
    row = booked(stack, sandbox)
    assert (row["provider"], row["cost_nano"]) == ("local", 20 * 1_000 + 5 * 1_000 + 15 * 2_000)
    headers = {"authorization": f"Bearer {token}"}
    listed = call(stack.proxy_url, "GET", "/local/v1/models", None, headers)
    assert [model["id"] for model in listed.json()["data"]] == ["meta/own"]
    one = call(stack.proxy_url, "GET", "/local/v1/models/meta/own", None, headers)
    assert one.json()["owned_by"] == "local"
    refused = stack.post(token, "/local/v1/responses", RESPONSE | {"model": "meta/own"})
    assert (refused.status, refused.json()["error"]["code"]) == (403, "insufficient_scope")


def test_infer(stack: Stack, upstream: StubUpstream) -> None:
    """The plain form is a call of the first model of the scope, held and booked as any other."""
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    answer = stack.post(token, "/v1/infer", {"prompt": "Say hi."})
    assert answer.status == 200
    assert answer.json() == {"completion": "".join(wire.WORDS), "model": "gpt-4o"}
    assert "daypass-remaining-usd" in answer.headers
    sent = json.loads(upstream.requests[0].body)
    assert sent == CHAT | {
        "store": False,
        "messages": [{"role": "user", "content": "Say hi."}],
        "max_completion_tokens": 1024,
    }
    row = booked(stack, sandbox)
    assert (row["endpoint"], row["output_tokens"]) == ("chat_completions", 15)

    def ends() -> list[str]:
        lines = [json.loads(line) for line in stack.log("proxy").splitlines()]
        return [line["event"] for line in lines if line.get("request_id") == row["id"]]

    assert eventually(ends) == ["call_closed"]
    wrong = stack.post(token, "/v1/infer", {"prompt": "x", "model": "gpt-4o"})
    assert wrong.status == 400


@pytest.mark.parametrize(
    ("path", "body", "events", "told"),
    [
        ("chat/completions", CHAT, wire.chat_stream()[:4], b'data: {"error":{'),
        ("responses", RESPONSE, wire.response_stream()[:6], b'event: error\ndata: {"type":"error"'),
    ],
)
def test_a_torn_stream(
    stack: Stack,
    upstream: StubUpstream,
    path: str,
    body: dict[str, Any],
    events: list[bytes],
    told: bytes,
) -> None:
    """A stream that breaks ends in an error of the API's shape, never tidily, and is booked."""
    sandbox = stack.sandbox()
    upstream.next([Send(sse_answer()), *(chunk(each) for each in events), Close()])
    token = stack.access_token(sandbox)
    answer = stack.post(token, f"/openai/v1/{path}", body | {"stream": True})
    assert answer.body.startswith(b"".join(events))
    end = answer.body.removeprefix(b"".join(events))
    assert end.startswith(b"\n\n" + told)
    assert b"[DONE]" not in answer.body
    row = booked(stack, sandbox)
    assert (row["outcome"], row["estimated"]) == ("upstream_broken", 1)
    assert row["cost_nano"] > 0


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("chat/completions", CHAT, 402), ("responses", RESPONSE, 429)],
)
def test_a_spent_budget(
    stack: Stack, upstream: StubUpstream, path: str, body: dict[str, Any], status: int
) -> None:
    """B49: a budget that is used up ends stock clients: the code they stop at, no retry-after."""
    sandbox = stack.sandbox(budget_usd="0.0001")
    answer = stack.post(stack.access_token(sandbox), f"/openai/v1/{path}", body)
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["type"]) == (status, *["insufficient_quota"] * 2)
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    assert "budget" in error["message"]
    assert upstream.requests == []


def test_keys_and_bills_of_ours_stay_here(stack: Stack, upstream: StubUpstream) -> None:
    """What the provider says of our key or our quota is 502; its other errors pass as they are."""
    token = stack.access_token(stack.sandbox())
    spent = wire.error_json("You exceeded your current quota", "insufficient_quota", None)
    for kind, code in (("insufficient_quota", "insufficient_quota"), ("insufficient_quota", None)):
        upstream.next([Send(json_answer(429, wire.error_json("quota", kind, code)))])
        assert stack.post(token, "/openai/v1/chat/completions", CHAT).status == 502
    upstream.next([Send(json_answer(401, spent))])
    assert stack.post(token, "/openai/v1/chat/completions", CHAT).status == 502
    busy = wire.error_json("slow down", "requests", "rate_limit_exceeded")
    upstream.next([Send(json_answer(429, busy, [("x-ratelimit-limit-requests", "9")]))])
    answer = stack.post(token, "/openai/v1/chat/completions", CHAT)
    assert (answer.status, answer.json()) == (429, busy)
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


@pytest.mark.parametrize("path", ["/openai/v1/responses", "/local/v1/responses", "/v1/messages"])
def test_a_websocket_is_answered_426(stack: Stack, path: str) -> None:
    """Codex falls back to HTTP at this status alone; the refusal has the shape of the route."""
    headers = {
        "authorization": f"Bearer {stack.access_token(stack.sandbox())}",
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    answer = call(stack.proxy_url, "GET", path, None, headers)
    assert answer.status == 426
    assert ("code" in answer.json()["error"]) == (path != "/v1/messages")


def test_key_of_one_provider_never_goes_to_another(stack: Stack, upstream: StubUpstream) -> None:
    """B91: whatever the route, a request goes up with the key of its own provider alone."""
    token = stack.access_token(stack.sandbox())
    stack.message(token)
    stack.post(token, "/openai/v1/chat/completions", CHAT)
    stack.post(token, "/local/v1/chat/completions", CHAT | {"model": "meta/own"})
    by_target = {seen.target: seen.raw for seen in upstream.requests}
    assert len(by_target) == 3
    keys = {
        "/v1/messages": f"sk-ant-{CANARY}-acme",
        "/v1/chat/completions": KEY,
        "/engine/v1/chat/completions": LOCAL_KEY,
    }
    for target, raw in by_target.items():
        for owner, key in keys.items():
            assert (key.encode() in raw) == (owner == target), (owner, target)


def test_revocation_cuts_a_chat(stack: Stack, upstream: StubUpstream) -> None:
    """A sandbox that is ended has its next call refused as OpenAI's clients understand it."""
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    assert stack.admin("DELETE", f"/v1/sandboxes/{sandbox['id']}").status in (200, 204)
    answer = stack.post(token, "/openai/v1/chat/completions", CHAT)
    while answer.status == 200:
        answer = stack.post(token, "/openai/v1/chat/completions", CHAT)
    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (401, "invalid_api_key")
    assert answer.headers["x-should-retry"] == "false"
