"""What passes through is what was sent: codings, headers, interim answers, trailers, odd ends."""

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Sequence

import pytest

from tests.servers.client import RawStream
from tests.servers.stack import Answer, Stack, call
from tests.servers.stub import Close, Reset, Send, Stall, Step, StubUpstream, Wait, chunk
from tests.servers.wire import Headers, head, message_json, message_stream, sse_answer
from tests.support import eventually

MODEL = "claude-sonnet-4-5"
WHOLE = json.dumps(message_json(MODEL)).encode()
ERROR = b'{"type":"error","error":{"type":"rate_limit_error","message":"slow  down"}}'
END = Send(b"0\r\n\r\n")
PACK: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}


@pytest.fixture
def token(stack: Stack) -> str:
    """An access token of a fresh sandbox."""
    return stack.access_token(stack.sandbox())


def answer(status: int, body: bytes, headers: Headers = (), kind: str = "application/json") -> Send:
    """A whole answer with a length."""
    common = [("content-type", kind), ("content-length", str(len(body))), ("connection", "close")]
    return Send(head(status, [*common, ("request-id", "req_x"), *headers]) + body)


def post(stack: Stack, token: str, **headers: str) -> Answer:
    """One call with further headers."""
    body = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
    common = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    data = json.dumps(body).encode()
    return call(stack.proxy_url, "POST", "/v1/messages", data, common | more)


@pytest.mark.parametrize("accepted", ["identity", "gzip, deflate, br, zstd"])
@pytest.mark.parametrize("coding", PACK)
@pytest.mark.parametrize(("status", "plain"), [(200, WHOLE), (429, ERROR), (500, ERROR)])
def test_b47_header_and_body_agree(
    stack: Stack, upstream: StubUpstream, token: str, accepted: str, coding: str, status: int,
    plain: bytes,
) -> None:  # fmt: skip
    """B47: compressed or not, the coding says what the body is, and the length is its length."""
    said = [] if coding == "identity" else [("content-encoding", coding)]
    packed = PACK[coding](plain)
    upstream.next([answer(status, packed, said)])
    got = post(stack, token, accept_encoding=accepted)
    assert upstream.requests[0].header("accept-encoding") == ["identity"]
    assert got.status == status
    assert got.headers.get("content-encoding", "identity") == coding
    assert int(got.headers["content-length"]) == len(got.body)
    assert got.body == packed


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "gzip"])
def test_b47_what_cannot_be_read_is_refused(
    stack: Stack, upstream: StubUpstream, token: str, coding: str, status: int
) -> None:
    """B47, row 29: an unknown coding, or a body that is not in its coding, is 502 in plain JSON."""
    upstream.next([answer(status, b"\x8b\x05\x80{}\x03", [("content-encoding", coding)])])
    got = post(stack, token, accept_encoding=coding)
    assert got.status == 502
    assert "content-encoding" not in got.headers
    assert got.json()["error"]["type"] == "api_error"


LIMITS = [
    ("retry-after", "7"),
    ("retry-after-ms", "7000"),
    ("x-should-retry", "true"),
    ("anthropic-of-tomorrow", "yes"),
    ("anthropic-ratelimit-requests-remaining", "0"),
    ("anthropic-ratelimit-unified-status", "rejected"),
    ("anthropic-priority-input-tokens-remaining", "1"),
    ("anthropic-organization-id", "org_1"),
    ("set-cookie", "s=1"),
    ("server", "cloudflare"),
    ("cf-ray", "1-FRA"),
    ("via", "1.1 google"),
    ("x-envoy-upstream-service-time", "9"),
]
PASSED = {
    "request-id": "req_x",
    "retry-after": "7",
    "retry-after-ms": "7000",
    "x-should-retry": "true",
    "anthropic-of-tomorrow": "yes",
}


@pytest.mark.parametrize("kind", ["200", "429", "529", "stream"])
def test_b48_what_speaks_of_the_call_passes(
    stack: Stack, upstream: StubUpstream, token: str, kind: str
) -> None:
    """B48: on success, error and stream, id and waits pass; limits of the organisation do not."""
    if kind == "stream":
        events = map(chunk, message_stream(MODEL))
        upstream.next(
            [Send(sse_answer([("x", "y"), *LIMITS]).replace(b"req_stub", b"req_x")), *events, END]
        )
        stream = RawStream.post(stack.proxy_url, token, {
            "model": MODEL, "max_tokens": 9, "stream": True,
            "messages": [{"role": "user", "content": "x"}],
        })  # fmt: skip
        stream.rest()
        lines = stream.head.decode().split("\r\n")[1:]
        headers = dict(line.lower().split(": ", 1) for line in lines)
    else:
        upstream.next([answer(int(kind), WHOLE if kind == "200" else ERROR, LIMITS)])
        got = post(stack, token)
        assert got.status == int(kind)
        headers = got.headers
    assert PASSED.items() <= headers.items()
    ours = {"date", "content-type", "content-length", "transfer-encoding", "cache-control",
            "x-accel-buffering", "connection", "daypass-remaining-usd"}  # fmt: skip
    assert set(headers) - ours == set(PASSED)


def test_b48_our_id_where_the_provider_says_none(
    stack: Stack, upstream: StubUpstream, token: str
) -> None:
    """B48: an answer without a request id gets ours, once."""
    bare = [("content-type", "application/json"), ("content-length", str(len(WHOLE)))]
    upstream.next([Send(head(200, [*bare, ("connection", "close")]) + WHOLE)])
    assert re.fullmatch("req_[a-z0-9]{20,40}", post(stack, token).headers["request-id"])


@pytest.mark.parametrize(
    "body",
    [
        ERROR,
        b'{ "type" : "error" }',
        b"<html><h1>502</h1></html>",
        b"",
        b"plain \xff words",
        b"{" * 99,
    ],
)
@pytest.mark.parametrize("status", [400, 403, 404, 413, 422, 429, 500, 503, 529])
def test_errors_pass_byte_for_byte(
    stack: Stack, upstream: StubUpstream, token: str, status: int, body: bytes
) -> None:
    """Errors of the provider pass with their bytes and type, since clients match their words."""
    upstream.next([answer(status, body, kind="text/weird")])
    got = post(stack, token)
    assert (got.status, got.body, got.headers["content-type"]) == (status, body, "text/weird")


ENDS: dict[str, tuple[Sequence[Step], int, str]] = {
    "reset inside": ([Send(answer(200, WHOLE).data[:-9]), Reset()], 502, "upstream_broken"),
    "closed inside": ([Send(answer(200, WHOLE).data[:-9]), Close()], 502, "upstream_broken"),
    "closed inside a chunk": ([Send(head(200, [("content-type", "application/json"),
        ("transfer-encoding", "chunked")]) + b"ff\r\n{"), Close()], 502, "upstream_broken"),
    "torn, without a length": ([Send(head(200, [("content-type", "application/json")])
        + WHOLE[:-9]), Close()], 502, "upstream_broken"),
    "empty": ([answer(200, b"")], 502, "upstream_broken"),
    "HTML": ([answer(200, b"<html>", kind="text/html")], 502, "upstream_broken"),
    "no content": ([Send(head(204, [("connection", "close")]))], 502, "upstream_broken"),
    "partial content": ([answer(206, WHOLE)], 502, "upstream_broken"),
    "not modified": ([Send(head(304, [("connection", "close")]))], 502, "upstream_refused"),
    "error under 200": ([answer(200, ERROR)], 200, "upstream_broken"),
    "reset before the head": ([Reset()], 529, "upstream_broken"),
    "switch of protocols": ([Send(head(101, [("upgrade", "x")]))], 502, "upstream_broken"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ENDS)
def test_b25_whole_answers_that_are_not(stack: Stack, upstream: StubUpstream, kind: str) -> None:
    """B25: a JSON answer that did not come whole is an error, booked once and never as complete."""
    sandbox = stack.sandbox()
    steps, status, outcome = ENDS[kind]
    upstream.next(steps)
    got = post(stack, stack.access_token(sandbox))
    assert got.status == status
    (row,) = stack.settled(sandbox)
    assert row["outcome"] == outcome
    assert len(upstream.requests) == 1, "never sent twice"
    assert got.body == ERROR or got.json()["error"]["type"] in ("api_error", "overloaded_error")


def test_interim_answers_are_passed_over(stack: Stack, upstream: StubUpstream, token: str) -> None:
    """100, 102 and 103 of the provider are no answers; the one that follows is."""
    interim = b"".join(head(status, [("link", "</x>")]) for status in (100, 102, 103))
    upstream.next([Send(interim), answer(200, WHOLE)])
    got = post(stack, token)
    assert (got.status, got.body) == (200, WHOLE)
    assert "link" not in got.headers


def test_trailers_are_dropped(stack: Stack, upstream: StubUpstream, token: str) -> None:
    """Trailers of the provider reach nobody; the stream before them is whole."""
    trailers = b"0\r\nset-cookie: s=1\r\nx-checksum: 9\r\n\r\n"
    events = message_stream(MODEL)
    upstream.next([Send(sse_answer()), *map(chunk, events), Send(trailers)])
    body: dict[str, object] = {"model": MODEL, "max_tokens": 9, "stream": True,
            "messages": [{"role": "user", "content": "x"}]}  # fmt: skip
    stream = RawStream.post(stack.proxy_url, token, body)
    stream.rest()
    assert stream.body == b"".join(events)
    assert b"x-checksum" not in stream.received
    assert stream.received.endswith(b"0\r\n\r\n")


def test_b51_limits_and_a_single_try(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """B45, B51: no first byte in time is 529 after one try, booked as estimated; others go on."""
    stack = make_stack(
        proxy_settings={"DAYPASS_FIRST_BYTE_SECONDS": "0.5", "DAYPASS_CONNECT_SECONDS": "0.5"}
    )
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    upstream.next([Stall()])
    got = post(stack, token)
    assert (got.status, got.json()["error"]["type"]) == (529, "overloaded_error")
    assert int(got.headers["retry-after"]) <= 10
    assert len(upstream.requests) == 1
    (row,) = stack.settled(sandbox)
    assert (row["outcome"], row["estimated"]) == ("upstream_broken", 1)
    assert upstream.requests[0].peer_gone.wait(20)
    assert post(stack, token).status == 200
    assert len(stack.settled(sandbox, 2)) == 2


def test_b51_a_long_silence_before_a_whole_answer(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """B51: while the provider thinks nothing of ours runs out, not even the limit for heads."""
    stack = make_stack(proxy_settings={"DAYPASS_HEADER_SECONDS": "0.5"})
    token = stack.access_token(stack.sandbox())
    upstream.next([Wait("thought"), answer(200, WHOLE)])
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    waiting = RawStream.post(stack.proxy_url, token, body)
    upstream.wait_for(1)
    # Later than the call was read, this head runs out of time.
    late = RawStream.send(stack.proxy_url, b"GET /v1/self HTTP/1.1\r\n")
    assert b" 408 " in late.rest()
    upstream.release("thought")
    waiting.rest()
    assert (waiting.status, waiting.body) == (200, WHOLE)


def test_b45_a_provider_that_is_gone(make_stack: Callable[..., Stack]) -> None:
    """B45: nobody at the provider's address is 529 at once, at no cost; never a hang."""
    stack = make_stack(upstream_url="http://127.0.0.1:1")
    sandbox = stack.sandbox()
    got = post(stack, stack.access_token(sandbox))
    assert (got.status, got.json()["error"]["type"]) == (529, "overloaded_error")
    (row,) = stack.settled(sandbox)
    assert (row["outcome"], row["cost_nano"]) == ("unreachable", 0)


def descriptors(stack: Stack) -> int:
    """How many files and sockets the proxy has open."""
    return len(os.listdir(f"/proc/{stack.processes['proxy'].pid}/fd"))


def test_b31_nothing_is_left_open(stack: Stack, upstream: StubUpstream) -> None:
    """B31: after 500 refused and 500 abandoned streams all descriptors are back, and calls pass."""
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    assert post(stack, token).status == 200
    before = descriptors(stack)
    body: dict[str, object] = {"model": MODEL, "max_tokens": 9, "stream": True,
            "messages": [{"role": "user", "content": "x"}]}  # fmt: skip
    for number in range(500):
        upstream.next([answer((429, 500)[number % 2], ERROR)])
        refused = RawStream.post(stack.proxy_url, token, body)
        refused.rest()
        assert refused.status in (429, 500)
    events = [chunk(event) for event in message_stream(MODEL)]
    for _ in range(500):
        upstream.next([Send(sse_answer()), *events[:3], Stall()])
        left = RawStream.post(stack.proxy_url, token, body)
        left.until(b"message_start")
        left.close()
    assert [post(stack, token).status for _ in range(10)] == [200] * 10
    eventually(lambda: abs(descriptors(stack) - before) <= 5, timeout=20)
    stack.settled(sandbox, 1011)


SCOPE = [{"type": "llm_inference", "provider": "anthropic", "models": ["claude-sonnet-4-5"],
          "endpoints": ["messages", "count_tokens", "models"]}]  # fmt: skip


def test_b10_the_model_that_is_checked_is_the_model_that_is_sent(
    stack: Stack, upstream: StubUpstream
) -> None:
    """B10: a model in the query, the path, a form or a batch is no way around the scope."""
    token = stack.access_token(stack.sandbox(authorization_details=SCOPE))
    bearer = {"authorization": f"Bearer {token}"}
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    other = body | {"model": "claude-opus-4-5"}
    batch = {"requests": [{"custom_id": str(k), "params": b} for k, b in enumerate([body, other])]}
    json_type = {"content-type": "application/json"}
    form = {"content-type": "application/x-www-form-urlencoded"}

    def status(method: str, path: str, data: bytes | None, headers: dict[str, str]) -> int:
        return call(stack.proxy_url, method, path, data, bearer | headers).status

    plain = json.dumps(body).encode()
    assert status("POST", "/v1/messages?model=claude-opus-4-5", plain, json_type) == 400
    assert status("GET", "/v1/models/claude-opus-4-5", None, {}) == 404
    packed = json.dumps(batch).encode()
    assert status("POST", "/v1/messages/batches", packed, json_type) == 404
    assert status("POST", "/v1/messages", b"model=claude-opus-4-5", form) == 400
    assert status("POST", "/v1/messages", json.dumps(other).encode(), json_type) == 400
    twice = plain[:-1] + b',"model":"claude-opus-4-5"}'
    assert status("POST", "/v1/messages", twice, json_type) == 400
    assert upstream.requests == []
    assert status("POST", "/v1/messages", plain, json_type) == 200
    assert json.loads(upstream.requests[0].body)["model"] == MODEL


def test_b40_allowed_models_are_listed_and_named(stack: Stack) -> None:
    """B40: the list has the provider's shape and the scope's models; a refusal names them.

    A model may be called by any of its names, in a call and in the list.
    """
    token = stack.access_token(stack.sandbox(authorization_details=SCOPE))
    bearer = {"authorization": f"Bearer {token}"}
    listed = call(stack.proxy_url, "GET", "/v1/models?limit=1000", None, bearer)
    assert listed.status == 200
    document = listed.json()
    assert [model["id"] for model in document["data"]] == [MODEL]
    assert {model["type"] for model in document["data"]} == {"model"}
    assert document["has_more"] is False
    dated = f"{MODEL}-20250929"
    assert stack.message(token, model=dated).status == 200
    shown = call(stack.proxy_url, "GET", f"/v1/models/{dated}", None, bearer)
    assert (shown.status, shown.json()["id"]) == (200, dated)
    for name in ("sonnet", "claude-opus-4-5", "claude-sonnet-4-6", "claude-sonnet-4"):
        refused = stack.message(token, model=name)
        assert refused.status == 400
        message = refused.json()["error"]["message"]
        assert name in message
        assert f"allowed: {MODEL}" in message
