"""B07: every route has a budget decision, and keeps it; a new route without one fails here."""

import json

import pytest

from daypass_proxy.edge import ROUTES, respond
from daypass_proxy.ledger import LedgerRefused, Limit, LimitState
from daypass_proxy.providers import anthropic
from tests.fakes.call import MODEL
from tests.fakes.exchange import FakeClient
from tests.fakes.forwarding import TOKEN, Forwarding
from tests.support import SANDBOX

BILLED, COUNTED, OURS = "billed", "counted", "ours"
# billed: holds what it may cost; counted: costs nothing, but is a request and an open call; ours:
# answered here, nothing goes to the provider.
DECISIONS = {
    b"/v1/messages": BILLED,
    b"/v1/messages/count_tokens": COUNTED,
    b"/v1/models": OURS,
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
    assert set(anthropic._UPSTREAM_PATHS.values()) == decided


async def ask(path: bytes, proxy: Forwarding, *, stream: bool = False, query: bytes = b"") -> None:
    """One call of a route as a client would make it."""
    body: dict[str, object] = {"model": MODEL, "messages": MESSAGES}
    if DECISIONS[path] is BILLED:
        body |= {"max_tokens": 100, "stream": stream}
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
    proxy.ledger.ceilings[ACCOUNT] = 1000
    await ask(path, proxy, stream=stream, query=query)
    assert proxy.client.status == 402
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
