"""The loopback helper: any key becomes the token of the moment, and nothing else is changed."""

import http.client
import json
from collections.abc import Iterator
from itertools import count

import pytest

import daypass
from daypass import TokenProvider
from daypass._renewal import Time
from daypass.helper import Helper
from tests.servers.stack import Answer, call
from tests.unit.sdk.token_server import LAUNCH, TokenServer

LOOPBACK = ("127.0.0.1", 0)
BODY = json.dumps({"model": "m"}).encode()


@pytest.fixture
def helper(server: TokenServer) -> Iterator[Helper]:
    """A helper in front of the token server, at a port of its own."""
    started = Helper(TokenProvider(server.url, launch=LAUNCH, cache=False), LOOPBACK)
    started.start()
    yield started
    started.close()


def message(helper: Helper, **headers: str) -> Answer:
    """One call with these headers."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(helper.url, "POST", "/v1/messages", BODY, given)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer daypass"},
        {"x_api_key": "daypass"},
        {"authorization": "Bearer a", "x_api_key": "b", "api_key": "c", "x_goog_api_key": "d"},
    ],
)
def test_whatever_key_is_sent_the_token_goes_up(
    server: TokenServer, helper: Helper, headers: dict[str, str]
) -> None:
    """One credential arrives, and it is the access token."""
    answer = message(helper, **headers)
    assert answer.status == 200
    assert answer.json()["content"][0]["text"] == "pong"
    assert server.authorizations == ["Bearer token-1"]
    sent = {name.lower() for name in server.headers}
    assert not sent & {"x-api-key", "api-key", "x-goog-api-key"}


def test_everything_else_goes_as_it_came(server: TokenServer, helper: Helper) -> None:
    """Headers of the client, and no more than its body's bytes."""
    message(helper, anthropic_version="2023-06-01", anthropic_beta="a,b", accept_encoding="br")
    assert server.headers["anthropic-version"] == "2023-06-01"
    assert server.headers["anthropic-beta"] == "a,b"
    assert server.headers["accept-encoding"] == "br"
    assert server.headers["content-length"] == str(len(BODY))


def test_a_token_that_ended_is_renewed_under_way(server: TokenServer, helper: Helper) -> None:
    """The client sees one good answer."""
    message(helper)
    server._issued += 1  # the server takes the newest only
    assert message(helper).status == 200
    assert server.authorizations == ["Bearer token-1", "Bearer token-1", "Bearer token-3"]


def test_a_revoked_sandbox_is_told_not_to_come_again(server: TokenServer, helper: Helper) -> None:
    """401 with our sentence, in a shape that both dialects read; the proxy is not asked again."""
    message(helper)
    server.revoked = True
    server._issued += 1
    for _ in range(2):
        answer = message(helper)
        assert (answer.status, answer.headers["x-should-retry"]) == (401, "false")
        error = answer.json()["error"]
        assert error["type"] == error["code"] == "authentication_error"
        assert "sandbox revoked; an administrator must restore it" in error["message"]
    assert server.exchanges == 2


def test_a_proxy_that_is_away_is_503() -> None:
    """It may come back, so clients may try again."""
    hasty = Time(monotonic=count(step=10).__next__)  # repeats an exchange for 8 s
    nowhere = TokenProvider("http://127.0.0.1:9", launch=LAUNCH, cache=False, clock=hasty)
    closed = Helper(nowhere, LOOPBACK)
    closed.start()
    try:
        answer = message(closed)
    finally:
        closed.close()
    assert (answer.status, answer.headers["x-should-retry"]) == (503, "true")
    assert "nothing listens at http://127.0.0.1:9" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.test"}, 403),
        ({"host": "127.0.0.1"}, 403),
        ({"upgrade": "websocket", "connection": "upgrade"}, 426),
        ({"transfer_encoding": "chunked"}, 411),
        ({"content_length": "²"}, 411),
        ({"content_length": str(2**40)}, 413),
    ],
)
def test_what_it_does_not_serve_is_told(
    server: TokenServer, helper: Helper, headers: dict[str, str], status: int
) -> None:
    """Another name than loopback (a web page), WebSocket, and bodies without or beyond a length."""
    connection = http.client.HTTPConnection(helper.url.removeprefix("http://"), timeout=10)
    own = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest("POST", "/v1/messages", skip_host="host" in own)
    for name, value in own.items():
        connection.putheader(name, value.encode())
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == status
    assert json.loads(answer.read())["error"]["message"]
    connection.close()
    assert server.authorizations == []


def test_it_answers_by_every_name_of_loopback(server: TokenServer, helper: Helper) -> None:
    """B92: `localhost`, 127.0.0.1 and, where it listens there, [::1]."""
    port = helper.url.rpartition(":")[2]
    assert call(f"http://localhost:{port}", "GET", "/v1/self").status == 200
    six = Helper(TokenProvider(server.url, launch=LAUNCH, cache=False), ("::1", 0))
    six.start()
    try:
        assert six.url.startswith("http://[::1]:")
        assert call(six.url, "GET", "/v1/self").status in (200, 401)
    finally:
        six.close()


def test_a_connection_serves_many_calls(server: TokenServer, helper: Helper) -> None:
    """Keep-alive, as clients use it."""
    connection = http.client.HTTPConnection(helper.url.removeprefix("http://"), timeout=10)
    for _ in range(3):
        connection.request("POST", "/v1/messages", BODY)
        answer = connection.getresponse()
        assert answer.status == 200
        assert json.loads(answer.read())["content"]
        sock = connection.sock
        assert sock is not None
    connection.close()
    assert server.exchanges == 1


def test_a_taken_address_is_told(helper: Helper, server: TokenServer) -> None:
    """With what to do about it."""
    port = int(helper.url.rpartition(":")[2])
    with pytest.raises(daypass.DaypassError, match="choose another address with --listen"):
        Helper(TokenProvider(server.url, launch=LAUNCH, cache=False), ("127.0.0.1", port))
