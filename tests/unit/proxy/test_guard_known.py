"""A repeated head is recognised, and nothing else passes for it; each request stands alone."""

import asyncio
import gc
import re
import weakref
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.authenticate import pick_credential
from daypass_proxy.body.strict import check_media
from daypass_proxy.exchange import HEAD_EXTENSION
from daypass_proxy.guard import Limits
from daypass_proxy.guard_known import KnownHead, whole_head
from daypass_proxy.head import Head
from daypass_proxy.providers.anthropic import headers_up
from tests.fakes.connection import Connection
from tests.fakes.guarded import GET, EchoApp, answer


def request(
    *,
    query: bytes = b"",
    token: bytes = b"one",
    beta: bytes = b"a",
    media: bytes = b"application/json",
    more: bytes = b"",
    body: bytes = b"{}",
) -> bytes:
    """One request of a client that keeps its connection."""
    return (
        b"POST /v1/messages%b HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %b\r\n"
        b"anthropic-beta: %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b\r\n%b"
        % (query, token, beta, media, len(body), more, body)
    )


def head_of(scope: dict[str, Any]) -> Head:
    """The Head that the guard gave out with a request."""
    head: Head = scope["extensions"][HEAD_EXTENSION][0]
    return head


async def after(first: bytes, *then: bytes, app: EchoApp | None = None) -> tuple[Connection, Any]:
    """Feed one request after another, each one once the one before was answered.

    They come behind another, of which nothing is left to see: the first one is never known.
    """
    app = app or EchoApp()
    connection = Connection(app)
    connection.feed([GET])
    await connection.settle()
    app.started.pop()
    app.bodies.clear()
    connection.transport.written = b""
    for data in (first, *then):
        connection.feed([data])
        await connection.settle()
    return connection, app


async def test_a_repeated_head_is_one_head() -> None:
    """A request with the head of the last one gets the same Head, and its own length and body."""
    bodies = [b"{}", b"{}", b"[]", b"[1]"]
    connection, app = await after(*(request(body=body) for body in bodies))
    assert connection.statuses == [200] * 4
    assert app.bodies == bodies
    assert len({id(head_of(scope)) for scope in app.started}) == 1
    assert b"content-length" not in dict(head_of(app.started[0]).headers)
    lengths = [dict(scope["headers"])[b"content-length"] for scope in app.started]
    assert lengths == [b"2", b"2", b"2", b"3"]
    order = [[name for name, _ in scope["headers"]] for scope in app.started]
    assert order == [order[0]] * 4
    assert app.started[0] is not app.started[1]
    await connection.hang_up()


@pytest.mark.parametrize(
    "other",
    [
        {"token": b"two"},
        {"beta": b"b"},
        {"beta": b"a\r\nanthropic-beta: a"},
        {"media": b"text/plain-text!"},
        {"query": b"?beta=true"},
        {"more": b"x-api-key: two\r\n"},
        {"body": b"{" + b" " * 99 + b"}"},
    ],
)
async def test_another_head_is_decided_on_its_own(other: dict[str, bytes]) -> None:
    """Credential, beta, media type, query, length: what differs is read anew, there and back."""
    connection, app = await after(request(), request(**other), request())
    assert connection.statuses == [200] * 3
    alone, only = await after(request(**other))
    fields = ("method", "raw_path", "query_string", "headers", "http_version")
    for field in fields:
        assert app.started[1][field] == only.started[0][field]
        assert app.started[2][field] == app.started[0][field]
    mine, its = head_of(app.started[0]), head_of(app.started[1])
    assert its is not mine
    assert head_of(app.started[2]).headers == mine.headers
    if set(other) <= {"token", "beta", "more"}:
        assert its.once(pick_credential) == head_of(only.started[0]).once(pick_credential)
    assert headers_up(its.headers) == headers_up(only.started[0]["headers"])
    await connection.hang_up()
    await alone.hang_up()


async def test_one_byte_makes_another_head() -> None:
    """Whatever byte of the head differs, the request is not taken for the one before."""
    good = request()
    size = good.index(b"\r\n\r\n") + 4
    length = good.index(b"Content-Length: ") + 16
    for at in range(size):
        if at == length:
            continue
        changed = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        connection, app = await after(good, changed)
        assert len(app.started) == 1 or head_of(app.started[0]) is not head_of(app.started[1]), at
        await connection.hang_up()


@pytest.mark.parametrize("digit", [b"x", b"+", b" ", b"-", b"\xb2", b"\x00", b"/", b":"])
async def test_a_length_is_digits_each_time(digit: bytes) -> None:
    """A Content-Length that is no number is refused behind a good head too (RFC 9110 §8.6)."""
    good = request(body=b"x" * 10)
    connection, app = await after(good, good.replace(b"10\r\n", digit + b"2\r\n"))
    assert connection.statuses[0] == 200
    assert len(app.started) == 1 or digit == b" "  # a blank before a number is none of its digits
    await connection.hang_up()


@pytest.mark.parametrize(
    "more",
    [b"Host: h\r\n", b"Content-Length: 2\r\n", b"Transfer-Encoding: chunked\r\n", b"X_A: b\r\n"],
)
async def test_a_refused_head_is_refused_each_time(more: bytes) -> None:
    """What was refused once is not remembered, and a good head before it helps nothing."""
    connection, app = await after(request(), request(more=more))
    assert connection.statuses == [200, 400]
    assert len(app.started) == 1
    await connection.hang_up()


async def test_a_header_sent_twice_is_refused_each_time() -> None:
    """A repeated head does not make two credentials of one name acceptable (attack row 1)."""
    twice = request(more=b"Authorization: Bearer one\r\n")
    connection, app = await after(twice, twice)
    head = head_of(app.started[1])
    assert head is head_of(app.started[0])
    for _ in range(3):
        with pytest.raises(Exception, match="authorization"):
            head.once(pick_credential)
    await connection.hang_up()


def test_what_is_found_once_is_kept() -> None:
    """A result is worked out once for a head, a refusal is raised at each asking."""
    asked: list[str] = []

    def find(head: Head) -> str | None:
        asked.append("once")
        return None

    head = Head(((b"content-encoding", b"gzip"),))
    assert (head.once(find), head.once(find)) == (None, None)
    assert asked == ["once"]
    for _ in range(2):
        with pytest.raises(Exception, match="compressed"):
            head.once(check_media)


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"POST / HTTP/1.0\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}",
        b"POST / HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
async def test_a_head_that_ends_its_connection_is_not_known(head: bytes) -> None:
    """After Connection: close, and in HTTP/1.0, nothing is a request (attack row 7)."""
    connection = Connection(app := EchoApp())
    connection.feed([GET])
    await connection.settle()
    connection.feed([head])
    assert connection.protocol._known is None
    await connection.settle()
    assert connection.transport.closing
    await connection.hang_up()
    assert len(app.started) == 2


async def test_a_first_request_is_not_kept() -> None:
    """The only stream of a connection does not hold its head in memory twice."""
    connection = Connection(app := EchoApp(gate=asyncio.Event()))
    connection.feed([request()])
    for _ in range(3):
        await asyncio.sleep(0)
    assert connection.protocol._known is None
    assert connection.protocol.headers == []
    assert app.gate is not None
    app.gate.set()
    await connection.settle()
    connection.feed([request()])
    await connection.settle()
    known = connection.protocol._known
    assert known is not None
    assert "extensions" not in known.scope  # they would hold the request that was
    await connection.hang_up()


async def test_chunks_are_parsed_each_time() -> None:
    """A repeated head with chunks is the parser's: it alone knows where that body ends."""
    chunked = (
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    )
    connection, app = await after(chunked, chunked, request(), chunked)
    assert app.bodies == [b"{}"] * 4
    assert head_of(app.started[0]) is not head_of(app.started[1])
    size = chunked.index(b"\r\n\r\n") + 4
    for _ in range(2):
        connection.feed([chunked[:size], chunked[size:]])
        await connection.settle()
    assert app.bodies == [b"{}"] * 6
    await connection.hang_up()


async def test_continue_is_said_each_time() -> None:
    """Expect: 100-continue is answered for a repeated head as for the first (RFC 9110 §10.1.1)."""
    data = request(more=b"Expect: 100-continue\r\n")
    size = data.index(b"\r\n\r\n") + 4
    connection = Connection(app := EchoApp())
    for _ in range(3):
        connection.feed([data[:size]])
        await connection.settle()
        connection.feed([data[size:]])
        await connection.settle()
    assert connection.statuses == [100, 200] * 3
    assert app.bodies == [b"{}"] * 3
    assert head_of(app.started[1]) is head_of(app.started[2])
    await connection.hang_up()


async def test_what_follows_a_known_body_is_parsed() -> None:
    """A request behind one that is not answered yet is refused, as behind any (attack row 7)."""
    connection, app = await after(request(), request() + request())
    assert len(app.started) == 2
    assert connection.statuses == [200, 200]
    assert connection.transport.closing
    await connection.hang_up()


async def test_empty_lines_before_a_known_head() -> None:
    """Half an empty line before a repeated head is refused, a whole one is not (RFC 9112 §2.2)."""
    connection, app = await after(request(), b"\r\n" + request())
    assert connection.statuses == [200, 200]
    await connection.hang_up()
    connection, app = await after(request(), b"\r", request())
    assert (connection.statuses, len(app.started)) == ([200, 400], 1)
    await connection.hang_up()


async def test_b42_draining_behind_a_known_head_is_bounded() -> None:
    """B42: of a body that was answered early a bounded number of bytes is read, known or not."""

    async def early(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"early")

    connection = Connection(EchoApp(reply=early), Limits(drain_bytes=100_000))
    data = request(body=b"x" * 90_000)
    for _ in range(2):  # drained to its end, the connection goes on
        connection.feed([data[:1000]])
        await connection.settle()
        connection.feed([data[1000:]])
        await connection.settle()
    assert connection.statuses == [200, 200]
    connection.feed([data.replace(b"90000\r\n", b"99999\r\n")[:1000]])
    await connection.settle()
    connection.protocol.limits = Limits(drain_bytes=50_000)
    connection.feed([b"x" * 40_000])
    assert not connection.transport.closing
    connection.feed([b"x" * 40_000])
    assert connection.transport.closing
    await connection.hang_up()


async def test_nothing_is_known_after_the_connection() -> None:
    """The head of a connection, with its token, is gone with it."""
    connection, app = await after(request(), request())
    head = weakref.ref(head_of(app.started[0]))
    protocol = connection.protocol
    assert protocol._known is not None
    await connection.hang_up()
    assert protocol._known is None
    app.started.clear()
    del connection, app, protocol
    await asyncio.sleep(0)
    gc.collect()
    assert head() is None


async def test_each_connection_knows_its_own() -> None:
    """Equal heads on two connections are two."""
    app = EchoApp()
    one, _ = await after(request(), app=app)
    two, _ = await after(request(), app=app)
    assert head_of(app.started[0]) is not head_of(app.started[1])
    await one.hang_up()
    await two.hang_up()


def test_where_a_head_ends_has_to_be_certain() -> None:
    """A head is known only if its first empty line leaves what the parser took for the body."""
    assert whole_head(b"GET / HTTP/1.1\r\n\r\n", 0) == b"GET / HTTP/1.1\r\n\r\n"
    assert whole_head(b"GET / HTTP/1.1\r\n\r\n{}", 2) == b"GET / HTTP/1.1\r\n\r\n"
    assert whole_head(b"GET / HTTP/1.1\r\n\r\n{}", 1) is None
    assert whole_head(b"GET / HTTP/1.1\n\n{}\r\n\r\n", 6) is None
    assert whole_head(b"\r\nGET / HTTP/1.1\r\n\r\n", 0) is None
    assert whole_head(b"GET / HTTP/1.1\r\n", 0) is None
    assert whole_head(b"GET / HTTP/1.1\r\nA: %b\r\n\r\n" % (b"x" * 9000), 0) is None


async def test_a_length_in_an_unknown_form_makes_no_known_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A head whose length is not found again where it was read is parsed each time (row 4)."""
    monkeypatch.setattr("daypass_proxy.guard_known._LENGTH_LINE", re.compile(rb"never"))
    connection, app = await after(request(), request())
    assert app.bodies == [b"{}"] * 2
    assert head_of(app.started[0]) is not head_of(app.started[1])
    await connection.hang_up()


PIECES = [
    request(),
    request(body=b"[]"),
    request(body=b'{"a":1}'),
    request(token=b"two"),
    request(body=b""),
    request(more=b"Expect: 100-continue\r\n"),
    request(more=b"content-length : 2\r\n"),
    request(more=b"Connection: close\r\n"),
    request().replace(b": 2\r\n", b": 02 \r\n"),
    request().replace(b": 2\r\n", b":\r\n 2\r\n"),
    request().replace(b": 2\r\n", b":\t 2\t\r\n"),
    b"GET /v1/self HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"\r\n",
]


@st.composite
def conversations(draw: st.DrawFn) -> list[list[bytes]]:
    """A few things said one after another, each in a few segments; often the same again."""
    few = draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=2))
    said = draw(st.lists(st.sampled_from([*few, *few, *few, *PIECES]), min_size=3, max_size=6))
    if draw(st.booleans()):
        said[-1] += draw(st.sampled_from(PIECES))
    return [
        [data[a:b] for a, b in pairwise([0, *cuts, len(data)]) if a < b]
        for data in said
        for cuts in [sorted(draw(st.lists(st.integers(0, len(data)), max_size=2)))]
    ]


@settings(max_examples=150, deadline=None)
@given(said=conversations())
def test_known_or_parsed_is_the_same(said: list[list[bytes]]) -> None:
    """With the memory and without it, the same requests are read and the same answers given."""

    async def talk() -> tuple[Any, ...]:
        connection = Connection(app := EchoApp())
        for segments in said:
            connection.feed(segments)
            await connection.settle()
        closing = connection.transport.closing
        await connection.hang_up()
        heads = [{**scope, "extensions": None} for scope in app.started]
        return heads, app.bodies, app.gone, connection.statuses, closing

    def is_forgotten(known: KnownHead, data: bytes) -> None:
        return None

    remembered = asyncio.run(talk())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KnownHead, "length", is_forgotten)
        assert asyncio.run(talk()) == remembered
