"""The exchange: headers as they came, one bounded body, and the ways to answer."""

import pytest

from daypass_core.problem import Code, Refusal
from daypass_proxy.exchange import ClientGone, Exchange
from tests.fakes.asgi import Wire, make_exchange, scope


def test_headers_are_frozen_at_creation() -> None:
    """What is added to the scope later (a trailer) is not in the exchange (attack row 8)."""
    wire = Wire([])
    asgi = scope("GET", b"/v1/self", headers=[(b"accept", b"*/*")])
    exchange = Exchange(asgi, wire.receive, wire.send, request_id="req_1", started=0.0)
    asgi["headers"].append((b"authorization", b"Bearer x"))
    assert exchange.headers == ((b"accept", b"*/*"),)
    assert exchange.header(b"authorization") is None


def test_a_header_sent_twice_is_refused() -> None:
    """Asking for the single value of a repeated header is a 400 that names it (attack row 1)."""
    exchange, _ = make_exchange(headers=[(b"x-api-key", b"a"), (b"x-api-key", b"a")])
    assert exchange.values(b"x-api-key") == [b"a", b"a"]
    with pytest.raises(Refusal, match="x-api-key") as caught:
        exchange.header(b"x-api-key")
    assert caught.value.problem.status == 400


@pytest.mark.parametrize(
    ("scheme", "host", "origin"),
    [
        ("http", b"127.0.0.1:8700", "http://127.0.0.1:8700"),
        ("http", b"[::1]:8700", "http://[::1]:8700"),
        ("http", b"localhost", "http://localhost"),
        ("https", b"localhost:8700", "https://localhost:8700"),
        ("http", b"proxy.test", "https://proxy.test"),
        ("http", b"localhost.test:80", "https://localhost.test:80"),
    ],
)
def test_where_the_client_is(scheme: str, host: bytes, origin: str) -> None:
    """Plain HTTP is for loopback; from elsewhere it came through a proxy with the certificate."""
    asgi = scope("GET", b"/v1/self", headers=[(b"host", host)]) | {"scheme": scheme}
    wire = Wire([])
    exchange = Exchange(asgi, wire.receive, wire.send, request_id="req_1", started=0.0)
    assert exchange.origin == origin
    assert exchange.within(b"", (b"content-type", b"a/b"), wire.send).origin == origin


def test_peer() -> None:
    """The peer is the address of the connection, or the word unix."""
    assert make_exchange()[0].peer == "10.0.0.7"
    assert make_exchange(peer=None)[0].peer == "unix"
    headers = [(b"x-forwarded-for", b"1.2.3.4")]
    assert make_exchange(headers=headers)[0].peer == "10.0.0.7"


async def test_body_in_one_piece_is_not_copied() -> None:
    """A body that came in one message is returned as the same object."""
    body = b"x" * 1000
    assert await make_exchange(body=body)[0].read_body(1000) is body


async def test_body_in_pieces() -> None:
    """A body that came in several messages is joined in order."""
    assert await make_exchange(body=[b"a", b"", b"bc"])[0].read_body(10) == b"abc"


async def test_body_announced_too_large_is_not_read() -> None:
    """A content-length over the limit is 413 before a byte is read (attack row 17)."""
    exchange, wire = make_exchange(headers=[(b"content-length", b"11")], body=b"x" * 11)
    with pytest.raises(Refusal) as caught:
        await exchange.read_body(10)
    assert caught.value.problem.code is Code.REQUEST_TOO_LARGE
    assert len(wire.messages) == 1


async def test_body_that_grows_too_large() -> None:
    """An unannounced body is 413 as soon as it passes the limit (attack row 17)."""
    exchange, wire = make_exchange(body=[b"x" * 6, b"x" * 5, b"x"])
    with pytest.raises(Refusal) as caught:
        await exchange.read_body(10)
    assert caught.value.problem.status == 413
    assert len(wire.messages) == 1


async def test_client_that_leaves_during_its_body() -> None:
    """A torn body raises ClientGone, it is never taken for a whole one."""
    exchange, _ = make_exchange(body=b"{}", whole=False)
    with pytest.raises(ClientGone):
        await exchange.read_body(10)


async def test_respond() -> None:
    """A complete answer carries its length and our request id."""
    exchange, wire = make_exchange()
    await exchange.respond(200, [(b"content-type", b"text/plain")], b"hi")
    assert wire.status == exchange.status == 200
    assert wire.headers[b"content-length"] == b"2"
    assert wire.headers[b"request-id"] == b"req_test"
    assert wire.body == b"hi"
    assert exchange.started_response


async def test_the_upstreams_request_id_is_kept() -> None:
    """A request-id among the headers is not doubled by ours."""
    exchange, wire = make_exchange()
    await exchange.start(200, [(b"request-id", b"req_up")])
    assert [name for name, _ in wire.sent[0]["headers"]].count(b"request-id") == 1
    assert wire.headers[b"request-id"] == b"req_up"


async def test_stream() -> None:
    """A stream is a start, chunks as they are, and an end."""
    exchange, wire = make_exchange()
    await exchange.start(200, [])
    await exchange.send(b"a")
    await exchange.finish()
    assert [message.get("more_body") for message in wire.sent] == [None, True, False]
    assert wire.body == b"a"


async def test_abort() -> None:
    """An abort cuts the connection and sends nothing that looks like an end."""
    exchange, wire = make_exchange()
    await exchange.start(200, [])
    await exchange.abort()
    assert wire.aborted == 1
    assert len(wire.sent) == 1


async def test_when_gone() -> None:
    """Who asks to be told that the client is gone is told by the server's own hook."""
    exchange, wire = make_exchange()
    told: list[str] = []
    exchange.when_gone(lambda: told.append("gone"))
    assert told == []
    wire.when_gone[0]()
    assert told == ["gone"]


async def test_server_without_the_hooks() -> None:
    """On a server that offers neither extension an exchange can still be served."""
    asgi = scope("GET", b"/v1/self")
    exchange = Exchange(asgi, Wire([]).receive, Wire([]).send, request_id="req_1", started=0.0)
    exchange.when_gone(lambda: None)
    await exchange.abort()
