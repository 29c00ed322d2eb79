"""The edge: closed routes, refusals in one shape, services that live and die whole."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from daypass_core.problem import Code, refuse
from daypass_proxy import routes
from daypass_proxy.edge import Application, respond
from daypass_proxy.exchange import ClientGone, Exchange
from daypass_proxy.routes import ROUTES, find_route
from daypass_proxy.services import Services
from tests.fakes.asgi import Wire, make_exchange, scope
from tests.fakes.proxy import KEY, Proxy
from tests.support import access_token

HOST = (b"host", b"proxy.test")
BEARER = (b"authorization", f"Bearer {access_token(KEY)}".encode())


async def ask(method: str, path: bytes, *headers: tuple[bytes, bytes], **options: Any) -> Wire:
    """Send one request through the whole of `respond`."""
    exchange, wire = make_exchange(method, path, headers=(HOST, *headers), **options)
    await respond(exchange, Proxy().services)
    return wire


@pytest.mark.parametrize(
    "path",
    [
        b"/",
        b"/v1",
        b"/v1/",
        b"/v1/messages/",
        b"/v1/Messages",
        b"/v1/messages%2F..%2Ffiles",
        b"/v1/messages/../files",
        b"/v1/%6dessages",
        b"/v1/%6dessages/batches",
        b"//v1/files",
        b"//v1/messages",
        b"/v1/messages;x=/files",
        b"/v1/messages\\..\\files",
        b"/v1/messages%00",
        b"/v1/messages/batches",
        b"/v1/files",
        b"/v1/complete",
        b"/v1/organizations",
        b"/v1/models/",
        b"/v1/models/a/b",
        b"/v1/models/..",
        b"/v1/models/%2e%2e",
        b"/v1/models/a?x",
        b"/v1/oauth/token/",
        b"/admin",
        b"/metrics",
    ],
)
async def test_unknown_paths(path: bytes) -> None:
    """B09, rows 9 and 36: a path that is not ours byte for byte is 404 in the API's shape."""
    wire = await ask("POST", path, BEARER)
    assert wire.status == 404
    assert wire.json["type"] == "error"
    assert wire.json["error"]["type"] == "not_found_error"
    assert wire.json["request_id"].startswith("req_")


@pytest.mark.parametrize("path", [b"/v1/v1/messages", b"/v1/v1/oauth/token", b"//v1/messages"])
async def test_doubled_prefix_is_explained(path: bytes) -> None:
    """B46: a base URL that ends in /v1 or a slash is answered with the right one."""
    wire = await ask("POST", path)
    assert wire.status == 404
    assert "https://proxy.test, without /v1" in wire.json["error"]["message"]


async def test_missing_prefix_is_explained() -> None:
    """B46: a client that leaves /v1 to the base URL is told so."""
    wire = await ask("POST", b"/models")
    assert wire.status == 404
    assert "https://proxy.test/v1" in wire.json["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", b"/v1/messages", b"POST"),
        ("DELETE", b"/v1/messages", b"POST"),
        ("POST", b"/v1/models", b"GET"),
        ("DELETE", b"/v1/models/claude-sonnet-4-5", b"GET"),
        ("GET", b"/v1/oauth/token", b"POST"),
        ("PUT", b"/livez", b"GET, HEAD"),
        ("post", b"/v1/messages", b"POST"),
    ],
)
async def test_other_methods(method: str, path: bytes, allow: bytes) -> None:
    """A known path with another method is 405 and says which methods there are."""
    wire = await ask(method, path, BEARER)
    assert wire.status == 405
    assert wire.headers[b"allow"] == allow
    assert wire.json["error"]["type"] == "invalid_request_error"


async def test_the_query_does_not_choose_the_route() -> None:
    """Row 10: the decision is on the path alone."""
    wire = await ask("POST", b"/v1/files", BEARER, query=b"x=/livez")
    assert wire.status == 404


async def test_no_token() -> None:
    """B01: a route that needs a token answers 401 with a challenge before reading the body."""
    for method, path in (
        ("POST", b"/v1/messages"),
        ("POST", b"/v1/messages/count_tokens"),
        ("GET", b"/v1/models"),
        ("GET", b"/v1/models/claude-sonnet-4-5"),
        ("GET", b"/v1/self"),
    ):
        exchange, wire = make_exchange(method, path, headers=[HOST], body=b"{}")
        await respond(exchange, Proxy().services)
        assert wire.status == 401
        assert wire.json["error"]["type"] == "authentication_error"
        assert b"www-authenticate" in wire.headers
        assert len(wire.messages) == 1


async def test_routes_without_a_token() -> None:
    """The warm-up and the probes need none."""
    assert (await ask("HEAD", b"/api/hello")).status == 200
    assert (await ask("GET", b"/livez")).status == 200
    assert (await ask("GET", b"/readyz")).status == 200


async def test_self_through_the_table() -> None:
    """A good token reads itself."""
    wire = await ask("GET", b"/v1/self", BEARER)
    assert wire.status == 200
    assert wire.headers[b"request-id"] == b"req_test"


def replace_hello(monkeypatch: pytest.MonkeyPatch, handler: Any) -> None:
    """Put another handler behind GET /api/hello."""
    monkeypatch.setattr(routes, "ROUTES", {**ROUTES, b"/api/hello": {"GET": handler}})


async def test_unexpected_errors_tell_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows 41 and 42: a bug is a constant 500; neither answer nor log holds its text."""

    async def broken(exchange: Exchange, services: Services) -> None:
        raise ValueError("prompt and sk-ant-canary")

    replace_hello(monkeypatch, broken)
    caplog.set_level("INFO")
    wire = await ask("GET", b"/api/hello")
    assert wire.status == 500
    assert wire.json["error"] == {"type": "api_error", "message": "unexpected error"}
    assert "canary" not in repr([record.__dict__ for record in caplog.records])
    assert any(record.msg == "request_failed" for record in caplog.records)


async def test_errors_after_the_start_cut_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that had begun is torn, never ended tidily."""

    async def torn(exchange: Exchange, services: Services) -> None:
        await exchange.start(200, [])
        await exchange.send(b"half")
        raise refuse(Code.STORE_UNAVAILABLE)

    replace_hello(monkeypatch, torn)
    wire = await ask("GET", b"/api/hello")
    assert wire.aborted == 1
    assert wire.sent[-1]["more_body"] is True


async def test_a_client_that_left_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent to a client that is gone."""

    async def gone(exchange: Exchange, services: Services) -> None:
        raise ClientGone

    replace_hello(monkeypatch, gone)
    assert (await ask("GET", b"/api/hello")).sent == []


async def test_odd_paths_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Row 45: one line per request; the path is a bounded field of it, not a message."""
    caplog.set_level("INFO")
    await ask("GET", b"/\x1b[31m%0d%0a" + b"x" * 500)
    (record,) = [record for record in caplog.records if record.msg == "request_served"]
    fields = record.__dict__["fields"]
    assert len(fields["path"]) == 128
    assert fields["status"] == 404


def test_routes_are_a_closed_table() -> None:
    """Every path that leads upstream is in this list."""
    assert set(ROUTES) == {
        b"/v1/messages",
        b"/messages",
        b"/v1/messages/count_tokens",
        b"/v1/models",
        b"/openai/v1/chat/completions",
        b"/openai/v1/responses",
        b"/openai/v1/embeddings",
        b"/openai/v1/models",
        b"/v1/infer",
        b"/v1/self",
        b"/v1/oauth/token",
        b"/api/hello",
        b"/livez",
        b"/readyz",
    }
    assert find_route(b"/v1/models/claude-sonnet-4-5@20250929") is not None


# -- lifespan


class Lifespan:
    """The server's side of the lifespan protocol."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.outgoing: asyncio.Queue[Any] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    async def startup(self) -> Any:
        self.task = asyncio.create_task(
            self.application({"type": "lifespan"}, self.incoming.get, self.outgoing.put)
        )
        await self.incoming.put({"type": "lifespan.startup"})
        return await self.outgoing.get()

    async def shutdown(self) -> Any:
        await self.incoming.put({"type": "lifespan.shutdown"})
        message = await self.outgoing.get()
        assert self.task is not None
        await self.task
        return message


async def test_lifespan() -> None:
    """Services exist from startup to shutdown and are closed then."""
    proxy = Proxy()
    events: list[str] = []

    @asynccontextmanager
    async def build() -> AsyncIterator[Services]:
        events.append("open")
        yield proxy.services
        events.append("closed")

    application = Application(build)
    lifespan = Lifespan(application)
    assert (await lifespan.startup())["type"] == "lifespan.startup.complete"
    wire = Wire([])
    await application(scope("GET", b"/livez"), wire.receive, wire.send)
    assert wire.status == 200
    assert wire.headers[b"request-id"].startswith(b"req_")
    assert events == ["open"]
    assert (await lifespan.shutdown())["type"] == "lifespan.shutdown.complete"
    assert events == ["open", "closed"]


async def test_failed_startup_is_reported() -> None:
    """A service that cannot be made ends the start with its reason."""

    @asynccontextmanager
    async def build() -> AsyncIterator[Services]:
        raise RuntimeError("no usable database")
        yield

    lifespan = Lifespan(Application(build))
    message = await lifespan.startup()
    assert message["type"] == "lifespan.startup.failed"
    assert "no usable database" in message["message"]
