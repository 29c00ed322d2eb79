"""Routes, hosts and queries are closed: nothing but the route table decides where a call goes.

The many spellings of paths and hosts (B09, rows 6 and 9) are files: see `test_raw_corpus.py`.
"""

import json
from collections.abc import Callable

import pytest

from tests.servers.client import RawStream
from tests.servers.ports import free_port
from tests.servers.stack import Stack, call
from tests.servers.stub import Send, StubUpstream
from tests.servers.wire import head
from tests.support import eventually

BODY = json.dumps(
    {"model": "claude-sonnet-4-5", "max_tokens": 8, "messages": [{"role": "user", "content": "x"}]}
).encode()


@pytest.fixture
def token(stack: Stack) -> str:
    """An access token of a fresh sandbox."""
    return stack.access_token(stack.sandbox())


def raw(stack: Stack, token: str, target: str, *lines: str, host: str = "127.0.0.1") -> RawStream:
    """One raw request with a good token, read to its end."""
    head_lines = [
        f"POST {target} HTTP/1.1",
        f"Host: {host}",
        f"Authorization: Bearer {token}",
        "Content-Type: application/json",
        f"Content-Length: {len(BODY)}",
        "Connection: close",
        *lines,
    ]
    stream = RawStream.send(stack.proxy_url, "\r\n".join(head_lines).encode() + b"\r\n\r\n" + BODY)
    stream.rest()
    stream.close()
    return stream


def test_b46_doubled_prefix_gets_a_sentence(stack: Stack, token: str) -> None:
    """B46: a base URL that ends in /v1 is answered with what to change."""
    answer = raw(stack, token, "/v1/v1/messages")
    assert answer.status == 404
    assert "base" in json.loads(answer.body)["error"]["message"].lower()


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/anthropic", "/anthropic/v1/"])
def test_b46_upstream_base_forms(
    make_stack: Callable[..., Stack], upstream: StubUpstream, suffix: str
) -> None:
    """B46: however the provider's base is written, the provider sees one /v1/messages below it."""
    stack = make_stack(upstream_url=upstream.url + suffix)
    token = stack.access_token(stack.sandbox())
    answer = call(
        stack.proxy_url,
        "POST",
        "/v1/messages?beta=true",
        BODY,
        {"authorization": f"Bearer {token}", "content-type": "application/json"},
    )
    assert answer.status == 200, answer.body
    prefix = "/anthropic" if "anthropic" in suffix else ""
    assert upstream.requests[0].target == f"{prefix}/v1/messages?beta=true"


@pytest.mark.parametrize(
    "query", ["model=claude-opus-4-5", "x=/health", "beta=false", "beta=true&x=1", "key=AIza", "="]
)
def test_rows_10_11_12_unknown_query_is_400(
    stack: Stack, upstream: StubUpstream, token: str, query: str
) -> None:
    """Rows 10-12: a query key outside the route's list is refused, never forwarded or decisive."""
    assert raw(stack, token, f"/v1/messages?{query}").status == 400
    assert upstream.requests == []


@pytest.mark.parametrize(
    "lines",
    [
        ["X-Upstream-Url: http://evil.example"],
        ["X-Forwarded-Host: evil.example", "X-Forwarded-Proto: https"],
        ["X-Original-URL: /v1/files", "X-Rewrite-URL: /v1/files"],
        ["x-portkey-custom-host: http://evil.example"],
        ["Forwarded: host=evil.example"],
    ],
)
def test_b03_row_13_no_header_chooses_the_upstream(
    stack: Stack, upstream: StubUpstream, token: str, lines: list[str]
) -> None:
    """B03a, row 13: such headers change nothing and do not go up."""
    assert raw(stack, token, "/v1/messages", *lines).status == 200
    seen = upstream.requests[0]
    assert seen.target == "/v1/messages"
    assert b"evil" not in seen.raw


@pytest.mark.parametrize("host", ["evil.example", "h/public?x=", "127.0.0.1:1"])
def test_row_6_host_decides_nothing(
    stack: Stack, upstream: StubUpstream, token: str, host: str
) -> None:
    """Row 6: whatever Host says, the route is the raw path and the upstream is ours."""
    answer = raw(stack, token, "/v1/messages", host=host)
    assert answer.status in (200, 400)
    assert all(seen.header("host") == [f"127.0.0.1:{upstream.port}"] for seen in upstream.requests)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_b03_row_14_redirects_are_not_followed(
    stack: Stack, upstream: StubUpstream, token: str, status: int
) -> None:
    """B03b, row 14: an upstream redirect is a 502 without Location; its target is never asked."""
    with StubUpstream([]) as elsewhere:
        location = [("location", f"{elsewhere.url}/v1/messages"), ("content-length", "0")]
        upstream.next([Send(head(status, location))])
        answer = raw(stack, token, "/v1/messages")
        assert answer.status == 502
        assert b"location" not in answer.head.lower()
        assert elsewhere.connections == 0


def test_b41_count_tokens_is_relayed_for_nothing(
    stack: Stack, upstream: StubUpstream, token: str
) -> None:
    """B41: count_tokens goes up with its query and costs nothing; what is no route is named."""
    body = json.loads(BODY)
    del body["max_tokens"]
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    target = "/v1/messages/count_tokens?beta=true"
    answer = call(stack.proxy_url, "POST", target, json.dumps(body).encode(), headers)
    assert (answer.status, answer.json()) == (200, {"input_tokens": 7})
    assert upstream.requests[0].target == target
    itself = call(stack.proxy_url, "GET", "/v1/self", None, headers).json()
    assert itself["budget"]["spent_usd"] == itself["budget"]["reserved_usd"] == "0.00"
    assert call(stack.proxy_url, "HEAD", "/").status == 404
    assert call(stack.proxy_url, "GET", "/v1/models", None, headers).json()["data"]
    assert call(stack.proxy_url, "GET", "/", None, headers).json()["type"] == "error"


def test_b92_every_name_of_the_loopback_works(make_stack: Callable[..., Stack]) -> None:
    """B92: localhost, 127.0.0.1 and [::1] reach a proxy that listens on both families."""
    stack = make_stack()
    stack.stop_process("proxy")
    both = f"127.0.0.1:{stack.proxy_port},[::1]:{stack.proxy_port}"
    stack.proxy_settings = {"DAYPASS_PROXY_LISTEN": both}
    stack.start_proxy()
    for host in ("localhost", "127.0.0.1", "[::1]"):
        assert call(f"http://{host}:{stack.proxy_port}", "GET", "/livez").status == 200, host
    eventually(lambda: f'"addresses":["[::1]:{stack.proxy_port}"]' in stack.log("proxy"))


def test_b03_upstream_must_not_be_the_proxy(make_stack: Callable[..., Stack]) -> None:
    """B03c: a proxy whose upstream is itself refuses to start and says so."""
    port = free_port()
    with pytest.raises(AssertionError, match="DAYPASS_ANTHROPIC_URL"):
        make_stack(
            upstream_url=f"http://127.0.0.1:{port}",
            proxy_settings={"DAYPASS_PROXY_LISTEN": f"127.0.0.1:{port}"},
        )


def test_rows_3_4_connection_cannot_strip_our_key(
    stack: Stack, upstream: StubUpstream, token: str
) -> None:
    """Rows 3 and 4: names in Connection and look-alike names do not reach or remove our header."""
    lines = ["Connection: x-api-key, anthropic-version", "anthropic-version: 2023-06-01"]
    answer = raw(stack, token, "/v1/messages", *lines)
    assert answer.status in (200, 400)
    assert all(len(seen.header("x-api-key")) == 1 for seen in upstream.requests)
    upstream.reset()
    assert raw(stack, token, "/v1/messages", "x_api_key: stolen").status == 400
    assert upstream.requests == []
