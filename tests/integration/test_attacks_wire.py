"""Attacks on the wire: identity, forwarded headers, sizes, slowness, on raw sockets.

Framing, trailers, heads and what else fits into one file of bytes: see `test_raw_corpus.py`.
"""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.servers.client import RawStream
from tests.servers.stack import Stack, call
from tests.servers.stub import StubUpstream
from tests.support import eventually

BODY = json.dumps(
    {"model": "claude-sonnet-4-5", "max_tokens": 8, "messages": [{"role": "user", "content": "x"}]}
).encode()
SIZE = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.fixture
def token(stack: Stack) -> str:
    """An access token of a fresh sandbox."""
    return stack.access_token(stack.sandbox())


def auth(token: str) -> bytes:
    """The header line that carries a token."""
    return b"Authorization: Bearer %s\r\n" % token.encode()


def post(token: str, rest: bytes, line: bytes = b"POST /v1/messages HTTP/1.1") -> bytes:
    """A request with a good token and JSON, then `rest`: further headers, empty line, body."""
    return b"%s\r\nHost: x\r\n%sContent-Type: application/json\r\n%s" % (line, auth(token), rest)


def test_every_request_of_a_connection_is_authenticated(stack: Stack, token: str) -> None:
    """A kept connection carries no identity from one request to the next."""
    stream = RawStream.send(stack.proxy_url, post(token, SIZE + b"\r\n" + BODY))
    stream.until(lambda _: stream.complete)
    assert stream.status == 200
    stream.received = b""
    stream.sock.sendall(post(token, SIZE + b"\r\n" + BODY).replace(auth(token), b""))
    stream.until(lambda _: stream.complete)
    assert stream.status == 401
    stream.close()


FORWARDED = {
    "x-forwarded-for": "203.0.113.9",
    "x-real-ip": "203.0.113.9",
    "forwarded": "for=203.0.113.9",
    "x-forwarded-uri": "/livez",
    "x-original-uri": "/livez",
    "x-forwarded-user": "admin",
    "x-forwarded-email": "admin@example.com",
    "x-daypass-peer": "203.0.113.9",
    "x-daypass-sandbox": "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa",
    "user-agent": "kube-probe/1.30 GoogleHC/1.0",
}


def test_row_5_forwarded_headers_decide_nothing(
    stack: Stack, upstream: StubUpstream, token: str
) -> None:
    """Row 5: such headers neither authenticate, nor name the peer, nor go up."""
    headers = FORWARDED | {"content-type": "application/json"}
    assert call(stack.proxy_url, "POST", "/v1/messages", BODY, headers).status == 401
    assert upstream.requests == []
    headers |= {"authorization": f"Bearer {token}"}
    assert call(stack.proxy_url, "POST", "/v1/messages", BODY, headers).status == 200
    assert b"203.0.113.9" not in upstream.requests[0].raw
    assert "203.0.113.9" not in stack.complete_log("proxy")


def test_row_5_the_broker_is_told_the_real_peer(stack: Stack) -> None:
    """Row 5: a forged peer does not reach the broker through the token endpoint."""
    sandbox = stack.sandbox()
    form = f"grant_type=urn:ietf:params:oauth:grant-type:jwt-bearer&assertion={launch(sandbox)}"
    headers = FORWARDED | {"content-type": "application/x-www-form-urlencoded"}
    answer = call(stack.proxy_url, "POST", "/v1/oauth/token", form.encode(), headers)
    assert answer.status == 200, answer.body
    assert "203.0.113.9" not in stack.complete_log("broker")


def launch(sandbox: dict[str, dict[str, str]]) -> str:
    """The launch credential of a sandbox."""
    return sandbox["launch"]["credential"]


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"Content-Length: 200000\r\n\r\n" + b"[" * 200_000, 400),
        (b"Content-Length: 600002\r\n\r\n{" + b'"":[' * 150_000 + b"}", 400),
    ],
)
def test_row_17_too_much_is_refused_early(
    stack: Stack, upstream: StubUpstream, token: str, rest: bytes, status: int
) -> None:
    """Row 17: a depth beyond 64 is refused, however the brackets are written."""
    stream = RawStream.send(stack.proxy_url, post(token, rest))
    stream.rest()
    assert stream.status == status
    assert upstream.requests == []
    assert stack.message(token).status == 200


def test_http_1_0_gets_a_stream_without_chunks(stack: Stack, token: str) -> None:
    """RFC 9112 §6.1: a stream to HTTP/1.0 has no chunks in it and ends with the connection."""
    body = BODY[:-1] + b',"stream":true}'
    rest = b"Connection: keep-alive\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    line = b"POST /v1/messages HTTP/1.0"
    stream = RawStream.send(stack.proxy_url, post(token, rest, line))
    while stream.read_some():
        pass
    assert b"transfer-encoding" not in stream.head.lower()
    assert b"connection: close" in stream.head.lower()
    assert stream.body.startswith(b"event: message_start\n")
    assert stream.body.endswith(b'{"type":"message_stop"}\n\n')
    stream.close()


MUCH = 40_000_000


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("kind", ["length", "chunks", "expect"])
def test_b42_a_body_that_is_too_large_is_told_so(
    stack: Stack, upstream: StubUpstream, token: str, kind: str, close: bytes
) -> None:
    """B42: 40 MB with a length, in chunks or behind Expect: one 413 that the client can read."""
    framing = CHUNKED if kind == "chunks" else b"Content-Length: %d\r\n" % MUCH
    expect = b"Expect: 100-continue\r\n" if kind == "expect" else b""
    stream = RawStream.send(stack.proxy_url, post(token, close + expect + framing + b"\r\n"))
    if kind != "expect":
        piece = b"x" * 100_000
        piece = b"%x\r\n%b\r\n" % (len(piece), piece) if kind == "chunks" else piece
        for _ in range(MUCH // 100_000):
            stream.sock.sendall(piece)
    stream.until(lambda _: stream.complete)
    assert stream.status == 413
    assert json.loads(stream.body)["error"]["type"] == "request_too_large"
    assert (b"connection: close" in stream.head) == bool(close or expect)
    assert upstream.requests == []
    stream.close()


def test_rows_17_18_limits_hold_while_bytes_arrive(make_stack: Callable[..., Stack]) -> None:
    """Rows 17 and 18: chunks beyond the body's limit are 413, a head that drips is 408."""
    limits = {"DAYPASS_MAX_BODY_BYTES": "65536", "DAYPASS_HEADER_SECONDS": "0.3"}
    stack = make_stack(proxy_settings=limits)
    token = stack.access_token(stack.sandbox())
    chunk = b"4000\r\n%s\r\n" % (b" " * 0x4000)
    stream = RawStream.send(stack.proxy_url, post(token, CHUNKED + b"\r\n" + chunk * 5))
    stream.rest()
    assert stream.status == 413
    drip = RawStream.send(stack.proxy_url, b"POST /v1/messages HTTP/1.1\r\nHost: x\r\n")
    drip.rest()
    assert drip.status == 408
    silent = RawStream.send(stack.proxy_url, b"")
    assert silent.read_some() == b""
    silent.close()


@contextmanager
def held_open(stack: Stack, data: bytes, count: int) -> Iterator[None]:
    """Hold connections open that have sent `data` and say nothing more."""
    address = ("127.0.0.1", stack.proxy_port)
    sockets = [socket.create_connection(address) for _ in range(count)]
    try:
        for sock in sockets:
            sock.sendall(data)
        yield
    finally:
        for sock in sockets:
            sock.close()


def test_row_18_slow_bodies_keep_nobody_from_a_token(stack: Stack) -> None:
    """Row 18: bodies that dawdle at the token endpoint take no place that others need."""
    lines = b"POST /v1/oauth/token HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with held_open(stack, lines + b"Content-Length: 500\r\n\r\n{", 100):
        assert stack.exchange(stack.sandbox()).status == 200


def test_row_17_one_sandbox_cannot_fill_the_memory(stack: Stack, token: str) -> None:
    """Row 17: large bodies under way are counted; past its share a sandbox gets 429, others go."""
    with held_open(stack, post(token, b"Content-Length: 33554432\r\n\r\n{"), 8):
        eventually(lambda: stack.message(token).status == 429)
        other = stack.access_token(stack.sandbox())
        assert stack.message(other).status == 200
    eventually(lambda: stack.message(token).status == 200)


def test_a_half_closed_request_leaves_no_hold(stack: Stack) -> None:
    """A client that shuts its sending side down is gone: whatever was begun is settled.

    Its connection may end before the call is even admitted; one line says when that is over.
    """
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    stream = RawStream.send(stack.proxy_url, post(token, SIZE + b"\r\n" + BODY))
    stream.sock.shutdown(socket.SHUT_WR)
    stream.rest()
    eventually(lambda: has_closed_call(stack, sandbox["id"]), timeout=10)
    assert all(row["state"] == "settled" for row in stack.usage(sandbox))
    assert stack.account(sandbox)["reserved_nano"] == 0


def has_closed_call(stack: Stack, sandbox: str) -> bool:
    """Whether the proxy has said the end of a call of this sandbox."""
    lines = stack.log("proxy").splitlines()
    return any(sandbox in line and '"event":"call_closed"' in line for line in lines)
