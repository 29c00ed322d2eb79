"""Attacks on the wire: framing, trailers, forwarded headers, sizes and slowness, on raw sockets."""

import json
import socket
import time
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
CHUNKS = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)


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


def everything(url: str, data: bytes) -> RawStream:
    """Send raw bytes and read until the other side closes; fails when it does not."""
    stream = RawStream.send(url, data)
    while stream.read_some():
        pass
    stream.close()
    return stream


def answers(stream: RawStream) -> int:
    """How many answers came back."""
    return stream.received.count(b"\r\ndate: ")


AMBIGUOUS = {
    "length and coding": SIZE + CHUNKED + b"\r\n" + CHUNKS + b"\r\n",
    "coding and a short length": CHUNKED + b"Content-Length: 4\r\n\r\n" + CHUNKS + b"\r\n",
    "length twice": SIZE + SIZE + b"\r\n" + BODY,
    "two lengths": SIZE + b"Content-Length: 0\r\n\r\n" + BODY,
    "length as a list": b"Content-Length: %d, %d\r\n\r\n" % (len(BODY), len(BODY)) + BODY,
    "length with a sign": b"Content-Length: +%d\r\n\r\n" % len(BODY) + BODY,
    "negative length": b"Content-Length: -1\r\n\r\n" + BODY,
    "length in hex": b"Content-Length: 0x%x\r\n\r\n" % len(BODY) + BODY,
    "length beyond 64 bits": b"Content-Length: 99999999999999999999\r\n\r\n" + BODY,
    "blank before the colon": b"Content-Length : %d\r\n\r\n" % len(BODY) + BODY,
    "length look-alike": SIZE + b"Content_Length: 3\r\n\r\n" + BODY,
    "two codings": b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS + b"\r\n",
    "coding twice": CHUNKED + CHUNKED + b"\r\n" + CHUNKS + b"\r\n",
    "coding identity": b"Transfer-Encoding: identity\r\n\r\n" + BODY,
    "unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS + b"\r\n",
    "coding after a tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKS + b"\r\n",
    "chunk size 0x": CHUNKED + b"\r\n0x%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    "chunk size with a sign": CHUNKED + b"\r\n+%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    "chunk size with a blank": CHUNKED + b"\r\n%x \r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    "chunk size beyond 64 bits": CHUNKED + b"\r\nfffffffffffffffff1\r\n%s\r\n0\r\n\r\n" % BODY,
    "chunk without its end": CHUNKED + b"\r\n%x\r\n%sXX0\r\n\r\n" % (len(BODY), BODY),
    "chunks with bare LF": CHUNKED + b"\r\n%x\n%s\n0\n\n" % (len(BODY), BODY),
    "LF in a chunk extension": CHUNKED + b"\r\n%x;a\nb\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    "folded header": b"X-A: b\r\n c\r\n" + SIZE + b"\r\n" + BODY,
    "zero byte": b"X-A: b\x00c\r\n" + SIZE + b"\r\n" + BODY,
    "header without a name": b": 1\r\n" + SIZE + b"\r\n" + BODY,
    "second Host": b"Host: y\r\n" + SIZE + b"\r\n" + BODY,
    "h2c upgrade": b"Connection: upgrade\r\nUpgrade: h2c\r\n" + SIZE + b"\r\n" + BODY,
    "upgrade without Connection": b"Upgrade: h2c\r\n" + SIZE + b"\r\n" + BODY,
    "other expectation": b"Expect: 200-ok\r\n" + SIZE + b"\r\n" + BODY,
    "declared trailer": b"Trailer: x-a\r\n" + CHUNKED + b"\r\n" + CHUNKS + b"X-A: b\r\n\r\n",
    "any trailer": CHUNKED + b"\r\n" + CHUNKS + b"X-A: b\r\n\r\n",
}


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_row_7_ambiguous_framing_is_refused_and_ends_the_connection(
    stack: Stack, upstream: StubUpstream, token: str, kind: str
) -> None:
    """Row 7: what two parsers could read differently is one 400, then the connection is closed."""
    smuggled = b"GET /v1/self HTTP/1.1\r\nHost: x\r\n%s\r\n" % auth(token)
    stream = everything(stack.proxy_url, post(token, AMBIGUOUS[kind]) + smuggled)
    assert (stream.status, answers(stream)) == (400, 1)
    assert json.loads(stream.body)["type"] == "error"
    assert upstream.requests == []


LINES = {
    "bare LF": b"POST /v1/messages HTTP/1.1\nHost: x\n\n",
    "bare CR": b"POST /v1/messages HTTP/1.1\rHost: x\r\r",
    "HTTP/1.0 and chunks": b"POST /v1/messages HTTP/1.0\r\nHost: x\r\n%s\r\n" % CHUNKED,
    "HTTP/1.2": b"POST /v1/messages HTTP/1.2\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"GET /v1/self\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no Host": b"GET /v1/self HTTP/1.1\r\n\r\n",
    "CONNECT": b"CONNECT evil:443 HTTP/1.1\r\nHost: evil:443\r\n\r\n",
    "TRACE": b"TRACE /v1/messages HTTP/1.1\r\nHost: x\r\n\r\n",
    "OPTIONS *": b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    "fragment": b"GET /v1/self#x HTTP/1.1\r\nHost: x\r\n\r\n",
    "byte above ASCII": b"GET /v1/self\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01" + b"\0" * 200,
}


@pytest.mark.parametrize("kind", LINES)
def test_row_7_other_protocols_are_refused(stack: Stack, upstream: StubUpstream, kind: str) -> None:
    """Row 7: other versions, methods and protocols are one 400, whoever asks."""
    stream = everything(stack.proxy_url, LINES[kind])
    assert stream.received.startswith(b"HTTP/1.1 400 ")
    assert upstream.requests == []


def test_row_7_websocket_is_told_what_to_use(stack: Stack) -> None:
    """Row 7: a WebSocket handshake is 426, and nothing more is read from it."""
    lines = b"GET /v1/messages HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    stream = everything(stack.proxy_url, lines + b"Sec-WebSocket-Version: 13\r\n\r\n")
    assert stream.status == 426


@pytest.mark.parametrize(
    "rest",
    [
        CHUNKED + b"\r\n" + CHUNKS + b"\r\n",
        b"Transfer-Encoding:\tchunked\r\n\r\n" + CHUNKS + b"\r\n",
        CHUNKED + b"\r\n%x;a=b\r\n%s\r\n0;c\r\n\r\n" % (len(BODY), BODY),
        CHUNKED + b"\r\n" + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n",
        SIZE + b"\r\n" + BODY,
    ],
)
def test_row_7_what_is_accepted_goes_up_as_it_was_checked(
    stack: Stack, upstream: StubUpstream, token: str, rest: bytes
) -> None:
    """Row 7: however a good body is framed, the provider gets exactly its bytes, once."""
    stream = everything(stack.proxy_url, post(token, b"Connection: close\r\n" + rest))
    assert stream.status == 200
    (seen,) = upstream.requests
    assert seen.body == BODY
    assert seen.header("transfer-encoding") == []
    assert seen.header("content-length") == [str(len(BODY))]


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_row_7_a_pipelined_request_is_not_served(
    stack: Stack, upstream: StubUpstream, token: str, close: bytes
) -> None:
    """Row 7: a request sent before the answer is dropped; the first gets its own answer."""
    other = stack.access_token(stack.sandbox("globex"))
    behind = b"GET /v1/self HTTP/1.1\r\nHost: x\r\n%s\r\n" % auth(other)
    stream = everything(stack.proxy_url, post(token, close + SIZE + b"\r\n" + BODY + behind))
    assert (stream.status, answers(stream)) == (200, 1)
    assert b"globex" not in stream.received
    assert len(upstream.requests) == 1


def test_row_7_a_body_is_never_a_request(stack: Stack, token: str) -> None:
    """Row 7: the body of a GET is swallowed, not read as the next request."""
    inner = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n" % auth(token)
    lines = b"GET /v1/self HTTP/1.1\r\nHost: x\r\n%sConnection: close\r\n" % auth(token)
    sent = lines + b"Content-Length: %d\r\n\r\n" % len(inner) + inner
    stream = everything(stack.proxy_url, sent)
    assert (stream.status, answers(stream)) == (200, 1)
    assert b'"sandbox"' in stream.body


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


@pytest.mark.parametrize("name", [b"Authorization: Bearer ", b"X-Api-Key: ", b"Content-Length: 1"])
def test_row_8_trailers_authenticate_nobody(
    stack: Stack, upstream: StubUpstream, token: str, name: bytes
) -> None:
    """Row 8: a credential in a trailer is none: the request without one is refused."""
    rest = CHUNKED + b"\r\n" + CHUNKS + name + token.encode() + b"\r\n\r\n"
    unnamed = post(token, b"").replace(auth(token), b"")
    stream = everything(stack.proxy_url, unnamed + rest)
    assert stream.status in (400, 401)
    assert answers(stream) == 1
    assert upstream.requests == []


def test_row_8_a_trailer_replaces_no_credential(
    stack: Stack, upstream: StubUpstream, token: str
) -> None:
    """Row 8: a token of another tenant behind the body changes nothing but refuses the request."""
    victim = stack.access_token(stack.sandbox("globex"))
    stream = everything(
        stack.proxy_url, post(token, CHUNKED + b"\r\n" + CHUNKS + auth(victim) + b"\r\n")
    )
    assert stream.status == 400
    assert upstream.requests == []


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
    assert "203.0.113.9" not in stack.log("proxy")


def test_row_5_the_broker_is_told_the_real_peer(stack: Stack) -> None:
    """Row 5: a forged peer does not reach the broker through the token endpoint."""
    sandbox = stack.sandbox()
    form = f"grant_type=urn:ietf:params:oauth:grant-type:jwt-bearer&assertion={launch(sandbox)}"
    headers = FORWARDED | {"content-type": "application/x-www-form-urlencoded"}
    answer = call(stack.proxy_url, "POST", "/v1/oauth/token", form.encode(), headers)
    assert answer.status == 200, answer.body
    assert "203.0.113.9" not in stack.log("broker")


def launch(sandbox: dict[str, dict[str, str]]) -> str:
    """The launch credential of a sandbox."""
    return sandbox["launch"]["credential"]


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"X-A: %s\r\n%s\r\n%s" % (b"a" * 40_000, SIZE, BODY), 431),
        (b"".join(b"X-%d: a\r\n" % i for i in range(70)) + SIZE + b"\r\n" + BODY, 431),
        (b"Content-Length: 33554433\r\n\r\n", 413),
        (b"Content-Length: 200000\r\n\r\n" + b"[" * 200_000, 400),
        (b"Content-Length: 600002\r\n\r\n{" + b'"":[' * 150_000 + b"}", 400),
    ],
)
def test_row_17_too_much_is_refused_early(
    stack: Stack, upstream: StubUpstream, token: str, rest: bytes, status: int
) -> None:
    """Row 17: headers beyond 32 KiB or 64, bodies beyond 32 MiB, depth beyond 64 are refused."""
    stream = RawStream.send(stack.proxy_url, post(token, rest))
    stream.rest()
    assert stream.status == status
    assert upstream.requests == []
    assert stack.message(token).status == 200


def test_row_17_an_endless_target_is_cut_off(stack: Stack) -> None:
    """Row 17: a request line without end is refused at 32 KiB, not collected."""
    stream = RawStream.send(stack.proxy_url, b"GET /" + b"a" * 200_000)
    stream.rest()
    assert stream.received.startswith(b"HTTP/1.1 431 ")


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
    """A client that shuts its sending side down is gone: whatever was begun is settled."""
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    stream = RawStream.send(stack.proxy_url, post(token, SIZE + b"\r\n" + BODY))
    stream.sock.shutdown(socket.SHUT_WR)
    stream.rest()
    began = time.monotonic()
    eventually(lambda: all(row["state"] == "settled" for row in stack.usage(sandbox)))
    assert stack.account(sandbox)["reserved_nano"] == 0
    assert time.monotonic() - began < 5
