"""B07: every route has a budget decision, and keeps it; a new route without one fails here."""

import json

import pytest

from daypass_core.scope import ENDPOINTS, Detail, Scope
from daypass_proxy.edge import respond
from daypass_proxy.ledger import LedgerRefused, Limit, LimitState
from daypass_proxy.providers import anthropic, openai
from daypass_proxy.routes import ROUTES
from tests.fakes.call import MODEL
from tests.fakes.exchange import FakeClient
from tests.fakes.forwarding import TOKEN, Forwarding
from tests.support import SANDBOX, make_claims

BILLED, COUNTED, OURS = "billed", "counted", "ours"
# billed: holds what it may cost; counted: costs nothing, but is a request and an open call; ours:
# answered here, nothing goes to the provider.
DECISIONS = {
    b"/v1/messages": BILLED,
    b"/messages": BILLED,
    b"/v1/messages/count_tokens": COUNTED,
    b"/v1/models": OURS,
    b"/openai/v1/chat/completions": BILLED,
    b"/openai/v1/responses": BILLED,
    b"/openai/v1/embeddings": BILLED,
    b"/openai/v1/models": OURS,
    b"/v1/infer": BILLED,
    b"/v1/self": OURS,
    b"/v1/oauth/token": OURS,
    b"/api/hello": OURS,
    b"/livez": OURS,
    b"/readyz": OURS,
}
ACCOUNT = f"sandbox:{SANDBOX}"
MESSAGES = [{"role": "user", "content": "hi"}]


def test_every_route_is_decided() -> None:
    """The table of routes and the table of decisions name the same paths."""
    assert set(DECISIONS) == set(ROUTES)


def test_every_upstream_path_is_decided() -> None:
    """Whatever the provider module can send upstream is billed or counted."""
    decided = {path for path, decision in DECISIONS.items() if decision is not OURS}
    assert set(anthropic.ROUTES) | set(openai.routes("openai")) | {b"/v1/infer"} == decided
    assert set(anthropic._UPSTREAM_PATHS) == set(anthropic.ROUTES.values())


SCOPE = Scope(
    (
        Detail("anthropic", ENDPOINTS["anthropic"], (MODEL,)),
        Detail("openai", ENDPOINTS["openai"], ("gpt-4o",)),
    )
)


def body_of(path: bytes, *, stream: bool) -> dict[str, object]:
    """A body as a route wants it."""
    if path == b"/v1/infer":
        return {"prompt": "hi"}
    if path.startswith(b"/openai/"):
        asked = {"messages": MESSAGES} if b"chat" in path else {"input": "hi"}
        more = {} if path.endswith(b"embeddings") else {"stream": stream}
        return {"model": "gpt-4o", **asked, **more}
    body: dict[str, object] = {"model": MODEL, "messages": MESSAGES}
    return body | ({"max_tokens": 100, "stream": stream} if DECISIONS[path] is BILLED else {})


async def ask(path: bytes, proxy: Forwarding, *, stream: bool = False, query: bytes = b"") -> None:
    """One call of a route as a client would make it."""
    body = body_of(path, stream=stream)
    proxy.claims = make_claims(scope=SCOPE)
    headers = ((b"authorization", f"Bearer {TOKEN}".encode()),)
    proxy.client = FakeClient(json.dumps(body).encode(), path=path, query=query, headers=headers)
    exchange = proxy.client.exchange
    exchange.method = next(iter(ROUTES[path]))
    await respond(exchange, proxy.services)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("query", [b"", b"beta=true"])
@pytest.mark.parametrize("path", [path for path, what in DECISIONS.items() if what is BILLED])
async def test_billed(path: bytes, query: bytes, stream: bool) -> None:
    """B07: with a budget that is used up, a billed route is 402 and nothing goes up."""
    proxy = Forwarding()
    proxy.ledger.ceilings[ACCOUNT] = 10
    await ask(path, proxy, stream=stream, query=query if b"messages" in path else b"")
    # To clients of the Responses API 402 means: try again.
    assert proxy.client.status == (429 if path.endswith(b"/responses") else 402)
    assert proxy.client.headers[b"x-should-retry"] == b"false"
    assert proxy.transport.requests == []


@pytest.mark.parametrize("path", [path for path, what in DECISIONS.items() if what is not OURS])
async def test_counted(path: bytes) -> None:
    """B07: with a request rate that is used up, whatever would go up is 429, free or not."""
    proxy = Forwarding()
    state = LimitState(Limit.RPM, ACCOUNT, 10, 10, 0)
    proxy.ledger.refusal = LedgerRefused("rate", state, 1, 900)
    await ask(path, proxy)
    assert proxy.client.status == 429
    assert proxy.transport.requests == []


@pytest.mark.parametrize("path", [path for path, what in DECISIONS.items() if what is OURS])
async def test_ours(path: bytes) -> None:
    """B07: what is answered here reaches neither the ledger's holds nor the provider."""
    proxy = Forwarding()
    await ask(path, proxy)
    assert proxy.client.status is not None
    assert proxy.ledger.reservations == []
    assert proxy.transport.requests == []
