"""The client that fetches keys: bounded in size, time and place, whatever the other side does."""

import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from daypass_broker.attest.https import MAX_BYTES, FetchError, HttpsClient
from tests.servers.ca import Authority
from tests.servers.issuer import Issuer, reply

Handler = http.server.BaseHTTPRequestHandler
LOOPBACK = ("127.0.0.0/8", "::/64")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that the server's certificate is of."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def one_issuer(authority: Authority) -> Iterator[Issuer]:
    """One server for all tests."""
    with Issuer(authority) as issuer:
        yield issuer


@pytest.fixture
def issuer(one_issuer: Issuer) -> Issuer:
    """The server as good as new."""
    one_issuer.behave = None
    one_issuer.requests.clear()
    return one_issuer


@pytest.fixture
def client(authority: Authority) -> HttpsClient:
    """A client that may go to the loopback address, and is patient."""
    return HttpsClient(LOOPBACK, authority.file, seconds=30.0)


async def refused(client: HttpsClient, url: str) -> str:
    """Why nothing came."""
    with pytest.raises(FetchError) as caught:
        await client.get(url)
    return str(caught.value)


async def test_it_fetches(client: HttpsClient, issuer: Issuer) -> None:
    """By address and by name, with nothing told but what a GET needs."""
    found = json.loads(await client.get(issuer.url + "/keys"))
    assert len(found["keys"]) == 5
    assert await client.get(issuer.url.replace("127.0.0.1", "localhost") + "/keys")


async def test_chunked_answers_are_read(client: HttpsClient, issuer: Issuer) -> None:
    """Content delivery networks send those."""

    def chunked(request: Handler) -> bool:
        request.protocol_version = "HTTP/1.1"
        request.send_response(200)
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()
        request.wfile.write(b"3\r\n{} \r\n2\r\n  \r\n0\r\n\r\n")
        request.close_connection = True
        return True

    issuer.behave = chunked
    assert json.loads(await client.get(issuer.url)) == {}


def _redirect(request: Handler) -> bool:
    reply(request, 302, b"", location="/keys")
    return True


def _large(request: Handler) -> bool:
    reply(request, 200, b" " * (MAX_BYTES + 1))
    return True


def _endless(request: Handler) -> bool:
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(b" " * 65536)


def _dripping(request: Handler) -> bool:
    request.send_response(200)
    request.end_headers()
    for _ in range(100):
        request.wfile.write(b" ")
        request.wfile.flush()
        time.sleep(0.1)  # less than any pause a timeout between reads would notice
    return True


def _breaking_off(request: Handler) -> bool:
    request.send_response(200)
    request.send_header("content-length", "100")
    request.end_headers()
    request.wfile.write(b"{")
    return True


def _no_http(request: Handler) -> bool:
    request.wfile.write(b"SSH-2.0-server\r\n")
    return True


def _error(request: Handler) -> bool:
    reply(request, 503, b"secret words of the inside")
    return True


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (_redirect, "answered 302"),
        (_large, "sent more than"),
        (_endless, "sent more than"),
        (_dripping, "took longer than 1 s"),
        (_breaking_off, "IncompleteRead"),
        (_no_http, "BadStatusLine"),
        (_error, "answered 503"),
    ],
)
async def test_bad_servers_cost_little(
    client: HttpsClient, issuer: Issuer, behave: Callable[[Handler], bool], words: str
) -> None:
    """No redirect is followed, no size and no slowness is without bound, no content is repeated."""
    issuer.behave = behave
    if behave is _dripping:  # for ten seconds
        client = replace(client, seconds=1.0)
    started = time.monotonic()
    said = await refused(client, issuer.url)
    assert words in said
    assert "secret" not in said
    assert time.monotonic() - started < 9
    assert len(issuer.requests) <= 1  # a slow connection may leave no time for it


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "10.0.0.1",
        "169.254.169.254",
        "192.168.1.1",
        "100.64.0.1",
        "0.0.0.0",
        "[fe80::1]",
        "[64:ff9b::a00:1]",
        "[2002:a00:1::1]",
        "[fd00::1]",
        "[fec0::2]",
        "[::7f00:1]",
        "[::ffff:0:7f00:1]",
        "[64:ff9b:1::7f00:1]",
        "224.0.0.1",
    ],
)
async def test_inner_addresses_are_refused(authority: Authority, host: str) -> None:
    """Loopback, private, link-local, carrier and multicast addresses, however they are written."""
    closed = HttpsClient(ca_file=authority.file, seconds=30.0)
    assert "private address" in await refused(closed, f"https://{host}/keys")


async def test_one_inner_address_among_public_ones_is_enough(
    client: HttpsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that stands for both would get inside every other time."""
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))
        for address in ("93.184.216.34", "10.0.0.1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert "private address" in await refused(client, "https://issuer.test/keys")


async def test_only_trusted_certificates_are_taken(
    client: HttpsClient, issuer: Issuer, tmp_path: Path
) -> None:
    """B23: an authority of nobody is refused; the file is read again, so a new one counts."""
    file = tmp_path / "ca.pem"
    file.write_bytes(Authority(tmp_path).file.read_bytes())
    fresh = replace(client, ca_file=file)
    assert "TLS failed" in await refused(fresh, issuer.url + "/keys")
    assert client.ca_file is not None
    file.write_bytes(client.ca_file.read_bytes())
    assert await fresh.get(issuer.url + "/keys")


async def test_a_certificate_is_for_its_name(authority: Authority) -> None:
    """A good certificate of another host is no certificate."""
    context = authority.server("other.test")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)
        port = listening.getsockname()[1]

        def serve() -> None:
            connection, _ = listening.accept()
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        client = HttpsClient(LOOPBACK, authority.file, seconds=20.0)
        assert "TLS failed" in await refused(client, f"https://127.0.0.1:{port}/")
        thread.join()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "https:///keys", "https://a@127.0.0.1/", "file:///etc/passwd"]
)
async def test_only_https_is_spoken(client: HttpsClient, url: str) -> None:
    """No other scheme, no credentials in a URL."""
    assert "https://" in await refused(client, url)


async def test_no_header_can_be_smuggled(client: HttpsClient, issuer: Issuer) -> None:
    """A line break in a URL is no second header."""
    assert await refused(client, issuer.url + "/keys\r\nx: y")
    with pytest.raises(FetchError):
        await client.send("GET", issuer.url, {"x": "a\nb: c"})
