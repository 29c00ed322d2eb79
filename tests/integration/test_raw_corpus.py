"""The corpus of raw requests against the real proxy as it starts: 100 % as written, nothing tuned.

Entries with `limits` would make a test wait for the real deadlines. Those of the head run against
a second proxy with DAYPASS_HEADER_SECONDS set low; those of the body, which have no setting, run in
memory only (`tests/unit/proxy/test_guard_corpus.py`, which also sees whom authentication accepted).
"""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from tests.canary import CANARY
from tests.servers.client import RawStream
from tests.servers.record import record
from tests.servers.stack import Stack
from tests.servers.stub import StubUpstream
from tests.vectors.raw_requests import Raw, fill, forge, load

CORPUS = load()
TUNED = [raw for raw in CORPUS if "header_seconds" in raw.limits]
UNTUNED = [raw for raw in CORPUS if not raw.limits]
TENANTS = {"token": "acme", "other": "globex"}
PROBE = b"GET /livez HTTP/1.1\r\nHost: proxy.test\r\n\r\n"


def credentials_of(stack: Stack) -> dict[str, str]:
    """Access tokens of two tenants, and what looks like one."""
    tokens = {name: stack.access_token(stack.sandbox(tenant)) for name, tenant in TENANTS.items()}
    token = tokens["token"]
    return tokens | {"forged": forge(token), "half": token[: len(token) // 2]}


@pytest.fixture(scope="module")
def credentials(module_stack: Stack) -> dict[str, str]:
    """Credentials at the module's proxy."""
    return credentials_of(module_stack)


def test_nearly_all_entries_run_untuned() -> None:
    """At most eight entries wait for a deadline; every other runs at the defaults."""
    assert len(UNTUNED) >= 300
    assert len(CORPUS) - len(UNTUNED) <= 8


@pytest.mark.parametrize("raw", UNTUNED, ids=[raw.id for raw in UNTUNED])
def test_raw_request(
    stack: Stack, upstream: StubUpstream, credentials: dict[str, str], raw: Raw
) -> None:
    """Rows 1-18; B03 B04 B09 B10 B38 B41 B42 B46 B92: each entry is answered as written.

    The provider gets what is written, or nothing.
    """
    check(stack.proxy_url, upstream, credentials, raw)


def test_raw_requests_of_slow_clients(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """Row 18: the entries that wait for the head's deadline, with a short one."""
    stack = make_stack(proxy_settings={"DAYPASS_HEADER_SECONDS": "0.3"})
    credentials = credentials_of(stack)
    for raw in TUNED:
        check(stack.proxy_url, upstream, credentials, raw)


def check(url: str, upstream: StubUpstream, credentials: dict[str, str], raw: Raw) -> None:
    """Play one entry and hold what happens against what is written."""
    stream = RawStream.send(url, b"")
    stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with closing(stream):
        with suppress(ConnectionError):
            for piece in pieces(raw, credentials, stream):
                stream.sock.sendall(piece)
        check_answer(raw, stream)
        record(stream.received)
    check_upstream(raw, upstream, credentials)


def pieces(raw: Raw, credentials: dict[str, str], stream: RawStream) -> Iterator[bytes]:
    """The bytes to write, one write each."""
    for piece in raw.send:
        if isinstance(piece, str):
            yield fill(piece, credentials)
        elif "drip" in piece:
            for byte in fill(piece["drip"], credentials):
                yield bytes([byte])
        elif "await" in piece:
            stream.until(b"\r\n\r\n")
            assert stream.received.startswith(b"HTTP/1.1 %d " % piece["await"])
        elif "end" in piece:
            stream.sock.shutdown(socket.SHUT_WR)
        else:
            for _ in range(piece["times"] // 1000):
                yield fill(piece["repeat"], {}) * 1000
            yield fill(piece["repeat"], {}) * (piece["times"] % 1000)


def check_answer(raw: Raw, stream: RawStream) -> None:
    """One answer of the right kind, and the connection in the right state after it."""
    if raw.status is None:
        assert stream.read_some() == b""
        return
    if not read_answer(raw, stream):
        assert raw.may_cut
        return
    assert stream.status == raw.status
    check_words(raw, stream)
    if raw.connection == "closed":
        size = len(stream.received)
        while stream.read_some():
            pass
        assert len(stream.received) == size, "a second answer"
    elif raw.connection == "open":
        stream.received = b""
        stream.sock.sendall(PROBE)
        stream.until(lambda _: stream.complete)
        assert stream.status == 200


def read_answer(raw: Raw, stream: RawStream) -> bool:
    """Read the final answer; False when the connection was cut before it."""
    while not whole(raw, stream):
        if not stream.read_some():
            return False
    interim = stream.received.startswith(b"HTTP/1.1 100 ")
    assert interim == raw.interim or raw.interim is None
    if interim:
        stream.received = stream.received.partition(b"\r\n\r\n")[2]
    return True


def whole(raw: Raw, stream: RawStream) -> bool:
    """Whether the final answer has come."""
    rest = stream.received
    if rest.startswith(b"HTTP/1.1 100 "):
        rest = rest.partition(b"\r\n\r\n")[2]
    if raw.head:
        return b"\r\n\r\n" in rest
    return RawStream(stream.sock, rest).complete


def check_words(raw: Raw, stream: RawStream) -> None:
    """B50: every refusal is a JSON error in the caller's dialect."""
    if stream.status < 400 or raw.head:
        return
    document = json.loads(stream.body)
    if raw.error == "oauth":
        assert document["error"] == "invalid_request"
    else:
        assert document["type"] == "error"
        assert document["error"]["type"] == (raw.error or document["error"]["type"])
        assert f"request-id: {document['request_id']}".encode() in stream.head


def check_upstream(raw: Raw, upstream: StubUpstream, credentials: dict[str, str]) -> None:
    """The provider got nothing, or exactly what is written under the key of who was accepted."""
    requests = list(upstream.requests)
    upstream.reset()
    if raw.upstream is None:
        assert requests == []
        return
    (seen,) = requests
    assert (seen.method, seen.target) == (raw.upstream.method, raw.upstream.target)
    assert seen.body == fill(raw.upstream.body, {})
    assert raw.accepted is not None
    assert seen.header("x-api-key") == [f"sk-ant-{CANARY}-{TENANTS[raw.accepted]}"]
    assert seen.header("host") == [f"127.0.0.1:{upstream.port}"]
    for name, value in raw.upstream.headers.items():
        assert seen.header(name) == [value]
    for name in raw.upstream.absent:
        assert seen.header(name) == []
    assert not [text for text in credentials.values() if text.encode() in seen.raw]
