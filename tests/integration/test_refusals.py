"""B50: each refusal of the proxy as it stands on the wire, provoked at its own place."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from daypass_core.revocation import Verdict
from daypass_proxy.guard import Limits
from daypass_proxy.ledger import LedgerRefused, Limit, LimitState
from tests.fakes.proxy import KEY
from tests.servers.inside import Inside, inside, narrow, raw
from tests.servers.stub import Close, Send, StubUpstream
from tests.servers.wire import head, json_answer
from tests.support import NOW, access_token, make_claims

Cause = Callable[[Inside, StubUpstream], bytes]


@pytest.fixture
async def proxy(stub: StubUpstream) -> AsyncIterator[Inside]:
    """A proxy in front of the stub, impatient with heads that do not come."""
    async with inside(stub.url, limits=Limits(header_seconds=0.2)) as running:
        yield running


def without_token(proxy: Inside, _: StubUpstream) -> bytes:
    """No credential at all."""
    return raw("POST", "/v1/messages", b"{}", "content-type: application/json")


def with_bad_token(proxy: Inside, _: StubUpstream) -> bytes:
    """A token with another signature."""
    return proxy.request(token=proxy.token[:-6] + "AAAAAA")


def with_old_token(proxy: Inside, _: StubUpstream) -> bytes:
    """A token of yesterday."""
    return proxy.request(token=access_token(KEY, make_claims(now=NOW - 86_400)))


def revoked(proxy: Inside, _: StubUpstream) -> bytes:
    """The view speaks against it."""
    proxy.proxy.view.says = Verdict.REVOKED
    return proxy.request()


def out_of_scope(proxy: Inside, _: StubUpstream) -> bytes:
    """The scope has other endpoints only."""
    return proxy.request(token=narrow("models"))


def other_model(proxy: Inside, _: StubUpstream) -> bytes:
    """A model outside the scope."""
    return proxy.request(model="gpt-9")


def bad_body(proxy: Inside, _: StubUpstream) -> bytes:
    """No JSON."""
    headers = (f"authorization: Bearer {proxy.token}", "content-type: application/json")
    return raw("POST", "/v1/messages", b"{", *headers)


def thread(proxy: Inside, _: StubUpstream) -> bytes:
    """A message thread."""
    return proxy.request(thread={"type": "create"})


def unknown_path(proxy: Inside, _: StubUpstream) -> bytes:
    """A path that is not ours."""
    return raw("POST", "/v1/files")


def other_method(proxy: Inside, _: StubUpstream) -> bytes:
    """A method that the path does not have."""
    return raw("DELETE", "/v1/messages")


def half_a_head(proxy: Inside, _: StubUpstream) -> bytes:
    """A head that does not go on."""
    return b"POST /v1/messages HTTP/1.1\r\nhost: proxy.test\r\nx: "


def huge_body(proxy: Inside, _: StubUpstream) -> bytes:
    """A body that is announced too large."""
    lines = (f"authorization: Bearer {proxy.token}", "content-length: 999999999")
    return raw("POST", "/v1/messages", b"", "content-type: application/json", *lines)


def upgrade(proxy: Inside, _: StubUpstream) -> bytes:
    """A WebSocket handshake."""
    lines = ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13")
    return raw("GET", "/v1/responses", b"", *lines, "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==")


def many_headers(proxy: Inside, _: StubUpstream) -> bytes:
    """More headers than anybody needs."""
    return proxy.request(*(f"x-{number}: 1" for number in range(100)))


def ledger_says(reason: Any) -> Cause:
    """The ledger refuses, for a budget or without naming a limit."""
    budget = LimitState(Limit.BUDGET, "sandbox:sbx_1", 1_000_000, 900_000, 50_000)
    state = budget if reason in ("exhausted", "held") else None

    def cause(proxy: Inside, _: StubUpstream) -> bytes:
        proxy.proxy.ledger.refusal = LedgerRefused(reason, state, 200_000)
        return proxy.request()

    return cause


def ledger_gone(proxy: Inside, _: StubUpstream) -> bytes:
    """The store does not answer."""
    proxy.proxy.ledger.unavailable = True
    return proxy.request()


def stale_view(proxy: Inside, _: StubUpstream) -> bytes:
    """Revocations are not known."""
    proxy.proxy.view.stale = True
    return proxy.request()


def no_key(proxy: Inside, _: StubUpstream) -> bytes:
    """A tenant without a key."""
    return proxy.request(token=access_token(KEY, make_claims(tenant="nobody")))


def upstream_says(*answer: Send | Close) -> Cause:
    """The provider answers so."""

    def cause(proxy: Inside, stub: StubUpstream) -> bytes:
        stub.next(answer)
        return proxy.request()

    return cause


def key_refused(proxy: Inside, stub: StubUpstream) -> bytes:
    """The provider does not know our key any more."""
    stub.keys = {"another"}
    return proxy.request()


def upstream_gone(proxy: Inside, stub: StubUpstream) -> bytes:
    """Nobody listens at the provider's address."""
    assert proxy.application.services is not None
    settings = proxy.application.services.settings
    proxy.replace(settings=replace(settings, anthropic_url="http://127.0.0.1:1"))
    return proxy.request()


def our_mistake(proxy: Inside, _: StubUpstream) -> bytes:
    """Something of ours breaks, with words that are nobody's business."""

    class Broken:
        """A transport with a bug."""

        async def send(self, request: Any) -> Any:
            """Fail as bugs do."""
            raise RuntimeError("secret of /srv/daypass/internal.py on db.internal:5432")

    proxy.replace(transport=Broken())
    return proxy.request()


def text(status: int, body: bytes, kind: str = "text/html") -> Send:
    """An answer of another kind."""
    length = ("content-length", str(len(body)))
    return Send(head(status, [("content-type", kind), length, ("connection", "close")]) + body)


JSON_ERROR = {"type": "error", "error": {"type": "billing_error", "message": "our bill"}}
CASES: dict[str, tuple[Cause, int, str]] = {
    "no token": (without_token, 401, "authentication_error"),
    "bad token": (with_bad_token, 401, "authentication_error"),
    "old token": (with_old_token, 401, "authentication_error"),
    "revoked": (revoked, 401, "authentication_error"),
    "endpoint": (out_of_scope, 403, "permission_error"),
    "model": (other_model, 400, "invalid_request_error"),
    "body": (bad_body, 400, "invalid_request_error"),
    "thread": (thread, 400, "invalid_request_error"),
    "path": (unknown_path, 404, "not_found_error"),
    "method": (other_method, 405, "invalid_request_error"),
    "head": (half_a_head, 408, "timeout_error"),
    "size": (huge_body, 413, "request_too_large"),
    "upgrade": (upgrade, 426, "invalid_request_error"),
    "headers": (many_headers, 431, "invalid_request_error"),
    "budget": (ledger_says("exhausted"), 402, "billing_error"),
    "held": (ledger_says("held"), 429, "rate_limit_error"),
    "waiting": (ledger_says("overloaded"), 429, "rate_limit_error"),
    "no account": (ledger_says("unknown_account"), 503, "api_error"),
    "store": (ledger_gone, 503, "api_error"),
    "view": (stale_view, 503, "api_error"),
    "key": (no_key, 403, "permission_error"),
    "key refused": (key_refused, 502, "api_error"),
    "our bill": (upstream_says(Send(json_answer(402, JSON_ERROR))), 502, "api_error"),
    "redirect": (upstream_says(text(302, b"to http://evil.internal")), 502, "api_error"),
    "html": (upstream_says(text(200, b"<html>nginx/1.2</html>")), 502, "api_error"),
    "no content": (upstream_says(Send(head(204, [("connection", "close")]))), 502, "api_error"),
    "not HTTP": (upstream_says(Send(b"SSH-2.0-internal\r\n"), Close()), 502, "api_error"),
    "torn": (upstream_says(Send(json_answer(200, {})[:-1]), Close()), 502, "api_error"),
    "no answer": (upstream_says(Close()), 529, "overloaded_error"),
    "upstream gone": (upstream_gone, 529, "overloaded_error"),
    "our mistake": (our_mistake, 500, "api_error"),
}
WORDS_OF_OURS = (
    b"traceback", b".py", b"error:", b"127.0.0.1", b"internal", b"sqlite", b"httptools", b"uvicorn",
    b"nginx", b"evil", b"none", b"null", b"our bill", b"detail\"",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_refusal(proxy: Inside, stub: StubUpstream, name: str) -> None:
    """B50: the provider's envelope and type name, JSON, a request id, nothing of our insides."""
    cause, status, kind = CASES[name]
    client = await proxy.ask(cause(proxy, stub))
    found, headers, body = await asyncio.wait_for(client.response(), 10)
    document = json.loads(body)
    assert (found, document["error"]["type"]) == (status, kind), body
    assert document["type"] == "error"
    assert set(document) == {"type", "error", "request_id"}
    assert document["request_id"] == headers["request-id"]
    assert headers["content-type"] == "application/json"
    assert not [word for word in WORDS_OF_OURS if word in body.lower()], body
    assert ("allow" in headers) == (status == 405)
    assert "server" not in headers


@pytest.mark.parametrize("path", ["/v1/v1/messages", "/v1/chat/completions", "/chat/completions"])
async def test_b91_wrong_base_url(proxy: Inside, stub: StubUpstream, path: str) -> None:
    """B91: a call at the wrong place is told the right base URL, and nothing of it goes up."""
    lines = (f"authorization: Bearer {proxy.token}", "content-type: application/json")
    client = await proxy.ask(raw("POST", path, b'{"model":"gpt-9"}', *lines))
    status, _, body = await client.response()
    assert status == 404
    assert "https://proxy.test" in json.loads(body)["error"]["message"]
    assert stub.requests == []


async def test_method_names_the_others(proxy: Inside) -> None:
    """RFC 9110 section 15.5.6: 405 says which methods there are."""
    client = await proxy.ask(raw("PUT", "/v1/messages"))
    status, headers, _ = await client.response()
    assert (status, headers["allow"]) == (405, "post")
