"""The token endpoint's pass-through: one target, nothing along but the body and the peer."""

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from daypass_core.clock import StoreClock
from daypass_proxy.broker_link import BrokerAnswer, BrokerLink, BrokerUnreachable, fetch_jwks
from daypass_proxy.token import MAX_BYTES, pass_token_request
from tests.fakes.asgi import Wire, make_exchange
from tests.fakes.broker import ok
from tests.fakes.proxy import Proxy

JSON = (b"content-type", b"application/json")
BODY = b'{"grant_type":"urn:ietf:params:oauth:grant-type:jwt-bearer","assertion":"eyJ.a.b"}'
DOWN = BrokerUnreachable("down", sent=False)
LOST = BrokerUnreachable("connection ended early", sent=True)


async def ask(
    proxy: Proxy,
    body: bytes = BODY,
    *,
    headers: tuple[tuple[bytes, bytes], ...] = (JSON,),
    query: bytes = b"",
    peer: str | None = "10.0.0.7",
) -> Wire:
    """Send one token request through the endpoint."""
    exchange, wire = make_exchange(
        path=b"/v1/oauth/token", query=query, headers=headers, body=body, peer=peer
    )
    await pass_token_request(exchange, proxy.services)
    return wire


async def test_pass_through() -> None:
    """The broker's answer comes back as it is, with its cache and retry headers only."""
    proxy = Proxy()
    proxy.broker_answers(
        ok(
            b'{"access_token":"t"}',
            content_type="application/json",
            cache_control="no-store",
            set_cookie="a=b",
            server="x",
        )
    )
    wire = await ask(proxy)
    assert wire.status == 200
    assert wire.body == b'{"access_token":"t"}'
    assert wire.headers == {
        b"content-type": b"application/json",
        b"cache-control": b"no-store",
        b"content-length": b"20",
        b"request-id": b"req_test",
    }


async def test_only_the_body_and_the_peer_go_along() -> None:
    """Headers of the client are dropped, a forged peer and a forged request id among them."""
    proxy = Proxy()
    await ask(
        proxy,
        headers=(
            (b"content-type", b"Application/JSON; charset=utf-8"),
            (b"authorization", b"Bearer x"),
            (b"cookie", b"a=b"),
            (b"x-daypass-peer", b"1.2.3.4"),
            (b"x-daypass-request-id", b"req_aaaaaaaaaaaaaaaaaaaaaaaaaa"),
            (b"x-forwarded-for", b"1.2.3.4"),
            (b"anthropic-beta", b"oauth-2025-04-20,oidc-federation-2026-04-01"),
        ),
    )
    assert proxy.broker.requests == [
        (
            "POST",
            "/v1/oauth/token",
            {
                "content-type": "application/json",
                "x-daypass-peer": "10.0.0.7",
                "x-daypass-request-id": "req_test",
            },
            BODY,
        )
    ]


async def test_forms_pass_too() -> None:
    """RFC 6749 bodies are forms; both kinds pass."""
    proxy = Proxy()
    await ask(proxy, b"a=b", headers=((b"content-type", b"application/x-www-form-urlencoded"),))
    assert proxy.broker.requests[0][2]["content-type"] == "application/x-www-form-urlencoded"


async def test_errors_of_the_broker_pass() -> None:
    """A 400 invalid_grant reaches the client unchanged and is not retried."""
    proxy = Proxy()
    proxy.broker_answers(ok(b'{"error":"invalid_grant"}', status=400))
    wire = await ask(proxy)
    assert wire.status == 400
    assert wire.json == {"error": "invalid_grant"}
    assert len(proxy.broker.requests) == 1


@pytest.mark.parametrize("fault", [DOWN, ok(status=502), ok(status=503), ok(status=504)])
async def test_a_restarting_broker_is_waited_for(fault: BrokerAnswer | BrokerUnreachable) -> None:
    """Stock SDKs do not retry this path, so the proxy does."""
    proxy = Proxy()
    proxy.broker_answers(fault, fault, ok(b'{"access_token":"t"}'))
    wire = await ask(proxy)
    assert wire.status == 200
    assert proxy.slept == [0.1, 0.2]


async def test_a_lost_answer_is_not_asked_for_again() -> None:
    """A second use of a single_use credential quarantines its sandbox; 503 would invite one."""
    proxy = Proxy()
    proxy.broker_answers(DOWN, LOST, ok(b'{"access_token":"t"}'))
    wire = await ask(proxy)
    assert wire.status == 500
    assert wire.json["error"] == "server_error"
    assert wire.headers[b"cache-control"] == b"no-store"
    assert b"retry-after" not in wire.headers
    assert len(proxy.broker.requests) == 2


async def test_a_broker_that_stays_away() -> None:
    """After ten seconds the answer is 503 temporarily_unavailable with Retry-After."""
    proxy = Proxy()
    proxy.broker_answers(DOWN)
    wire = await ask(proxy)
    assert wire.status == 503
    assert wire.json["error"] == "temporarily_unavailable"
    assert wire.headers[b"retry-after"] == b"2"
    assert wire.headers[b"cache-control"] == b"no-store"
    assert 8 < sum(proxy.slept) <= 10
    assert max(proxy.slept) == 1.0


async def test_redirects_are_not_passed() -> None:
    """An answer that sends clients elsewhere is no answer."""
    proxy = Proxy()
    proxy.broker_answers(ok(status=307, location="https://evil.test"))
    assert (await ask(proxy)).status == 503


async def test_large_bodies() -> None:
    """A body of 24 KiB passes, one byte more is refused in the words of RFC 6749."""
    proxy = Proxy()
    assert (await ask(proxy, b"x" * MAX_BYTES)).status == 200
    wire = await ask(proxy, b"x" * (MAX_BYTES + 1))
    assert wire.status == 400
    assert wire.json["error"] == "invalid_request"
    assert len(proxy.broker.requests) == 1


@pytest.mark.parametrize(
    "headers",
    [(), ((b"content-type", b"text/plain"),), (JSON, JSON)],
)
async def test_other_bodies(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    """Bodies of another or of no kind are refused without asking the broker."""
    proxy = Proxy()
    wire = await ask(proxy, headers=headers)
    assert wire.status == 400
    assert wire.json["error"] == "invalid_request"
    assert proxy.broker.requests == []


async def test_query() -> None:
    """A query is refused: credentials do not belong into URLs (row 12)."""
    proxy = Proxy()
    assert (await ask(proxy, query=b"assertion=eyJ")).status == 400


@pytest.mark.parametrize(
    ("peers", "places"), [(["10.0.0.7"], 8), ([None], 32), ([f"10.0.0.{i}" for i in range(20)], 64)]
)
async def test_places_are_bounded(peers: list[str | None], places: int) -> None:
    """At most 8 requests per peer and 64 in all are under way; the next gets 503 at once."""
    proxy = Proxy()
    proxy.broker.may_answer.clear()
    waiting = [asyncio.create_task(ask(proxy, peer=peers[i % len(peers)])) for i in range(places)]
    while len(proxy.broker.requests) < places:
        await asyncio.sleep(0)
    wire = await ask(proxy, peer=peers[0])
    assert wire.status == 503
    assert wire.json["error"] == "temporarily_unavailable"
    proxy.broker.may_answer.set()
    assert {wire.status for wire in await asyncio.gather(*waiting)} == {200}
    assert (await ask(proxy, peer=peers[0])).status == 200
    assert proxy.services.token_gate.peers == {}


# -- the line to the broker


@asynccontextmanager
async def broker_that_says(
    answer: bytes, seen: list[bytes] | None = None, *, unix: bool = True
) -> AsyncIterator[str]:
    """Run a server that answers one connection with `answer` and gives its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        if seen is not None:
            seen.append(head + await reader.readexactly(length))
        with suppress(ConnectionError):  # the link may have had enough
            writer.write(answer)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        over.set()

    over = asyncio.Event()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "broker.sock"
        if unix:
            server = await asyncio.start_unix_server(serve, path)
            url = f"unix:{path}"
        else:
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/prefix"
        async with server:
            yield url
            await over.wait()


@pytest.mark.parametrize("unix", [True, False])
async def test_link(unix: bool) -> None:
    """The link speaks to a Unix socket or a URL, and reads the whole answer."""
    seen: list[bytes] = []
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\nRetry-After: 1\r\n\r\n{}"
    async with broker_that_says(answer, seen, unix=unix) as url:
        link = BrokerLink(url)
        got = await link.request("POST", "/v1/oauth/token", {"x-a": "b"}, b"hi", limit=10)
    assert (got.status, got.body, got.headers["retry-after"]) == (400, b"{}", "1")
    prefix = b"" if unix else b"/prefix"
    assert seen[0].startswith(b"POST " + prefix + b"/v1/oauth/token HTTP/1.1\r\nhost: ")
    assert b"\r\nx-a: b\r\n" in seen[0]
    assert seen[0].endswith(b"\r\n\r\nhi")


async def test_link_reads_chunks() -> None:
    """A chunked answer is put together."""
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
    async with broker_that_says(answer) as url:
        got = await BrokerLink(url).request("GET", "/", {}, b"", limit=10)
    assert got.body == b"{}"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" + b"x" * 11,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"b\r\n" + b"x" * 11,
        b"HTTP/1.1 200 OK\r\nX-A: " + b"x" * 200_000,
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
)
async def test_link_refuses_torn_and_large_answers(answer: bytes) -> None:
    """An answer that is torn, too large or not HTTP is none."""
    async with broker_that_says(answer) as url:
        with pytest.raises(BrokerUnreachable) as caught:
            await BrokerLink(url).request("GET", "/", {}, b"", limit=10)
    assert caught.value.sent


async def test_link_without_a_broker(tmp_path: Path) -> None:
    """No socket is BrokerUnreachable, not an error of the system, and nothing was sent."""
    for url in (f"unix:{tmp_path}/absent.sock", "http://127.0.0.1:1"):
        with pytest.raises(BrokerUnreachable) as caught:
            await BrokerLink(url).request("GET", "/", {}, b"", limit=10)
        assert not caught.value.sent


async def test_link_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that accepts and says nothing is given up after the limit."""
    heard, left = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        heard.set()
        await reader.read()
        writer.close()
        left.set()

    path, loop = tmp_path / "b.sock", asyncio.get_running_loop()
    async with await asyncio.start_unix_server(serve, path):
        link = BrokerLink(f"unix:{path}", seconds=60.0)
        asked = asyncio.create_task(link.request("GET", "/", {}, b"", limit=9))
        await heard.wait()
        assert not asked.done()
        time = loop.time
        monkeypatch.setattr(loop, "time", lambda: time() + 60.0)
        with pytest.raises(BrokerUnreachable) as caught:
            await asked
        await left.wait()
    assert caught.value.sent


async def test_key_set_must_be_a_200() -> None:
    """A key set that is not answered with 200 was not read."""
    answer = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
    async with broker_that_says(answer) as url:
        with pytest.raises(BrokerUnreachable, match="503"):
            await fetch_jwks(BrokerLink(url), StoreClock())


@pytest.mark.parametrize(
    ("told", "moved"),
    [
        ("1060.000", 60.0),
        ("940.000", 0.0),
        ("4600.000", 3600.0),
        ("4600.001", 0.0),
        ("1060", 0.0),
        ("1e9.000", 0.0),
        ("", 0.0),
    ],
)
async def test_the_clock_follows_the_broker_ahead(told: str, moved: float) -> None:
    """A proxy that knows less time than its broker catches up, by at most a token's life."""
    clock = StoreClock(lambda: 0.0)
    clock.set(1000.0)
    head = f"x-daypass-time: {told}\r\n" if told else ""
    answer = f"HTTP/1.1 200 OK\r\n{head}Content-Length: 2\r\n\r\n{{}}".encode()
    async with broker_that_says(answer) as url:
        assert await fetch_jwks(BrokerLink(url), clock) == b"{}"
    assert clock.now() == 1000.0 + moved


def test_session_keys_of_the_broker_are_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A variable of the environment does not make TLS to the broker write its keys to a file."""
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    tls = BrokerLink("https://broker.example")._tls
    assert tls is not None
    assert tls.keylog_filename is None
    assert tls.check_hostname
    assert tls.verify_mode is ssl.CERT_REQUIRED
