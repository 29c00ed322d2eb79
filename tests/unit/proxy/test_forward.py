"""One request from end to end inside the proxy: the order of its steps, and what it leaves."""

import asyncio
import io
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from daypass_core.claims import Claims
from daypass_core.log import JsonFormatter
from daypass_core.problem import Code, refuse
from daypass_core.revocation import Revocation, RevocationSet
from daypass_core.secret import parse_reference
from daypass_proxy.exchange import Exchange
from daypass_proxy.forward import forward
from daypass_proxy.keyring import Keyring
from daypass_proxy.ledger import Outcome
from daypass_proxy.price import PriceTable
from daypass_proxy.settings import load
from daypass_proxy.streams import CutReason, LiveCalls
from tests.canary import CANARY
from tests.fakes.call import MODEL
from tests.fakes.clock import FakeClock
from tests.fakes.exchange import FakeClient
from tests.fakes.keys import FakeVault
from tests.fakes.ledger import FakeLedger
from tests.fakes.proxy import Proxy as FakeProxy
from tests.fakes.transport import JSON, FakeAnswer, FakeTransport
from tests.servers.wire import message_json, message_stream, text_delta
from tests.support import SANDBOX, make_claims, make_scope

KEY = f"sk-ant-{CANARY}-acme"
PROMPT = "the prompt that nobody may log"
TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzYngifQ.c2lnbmF0dXJl"
WHOLE = message_stream(MODEL)
PRICES = PriceTable.load()
SETTINGS = load(
    {
        "DAYPASS_ISSUER": "https://broker.test",
        "DAYPASS_DATABASE_URL": "sqlite:////tmp/unused.db",
        "DAYPASS_BROKER_URL": "http://127.0.0.1:8701",
        "DAYPASS_ANTHROPIC_URL": "https://api.example",
        "DAYPASS_ANTHROPIC_KEYS": "acme=file:///unused",
    }
)


def request_body(**fields: object) -> bytes:
    """A small request for a stream."""
    messages = [{"role": "user", "content": PROMPT}]
    whole = {"model": MODEL, "max_tokens": 100, "stream": True, "messages": messages, **fields}
    return json.dumps(whole).encode()


class Proxy:
    """The services around one scripted upstream; `claims` is who calls."""

    def __init__(self, *script: FakeAnswer | Exception) -> None:
        self.claims: Claims | Exception = make_claims()
        self.clock = FakeClock()
        self.ledger = FakeLedger()
        self.live_calls = LiveCalls()
        self.transport = FakeTransport(*script)
        self.revoked = RevocationSet.from_rows(())
        self.client = self.new_client()
        self.lines = io.StringIO()
        ring = Keyring(
            {"acme": parse_reference("vault://secret/llm/acme#api_key")},
            env_secrets={},
            vault=FakeVault(acme=KEY),
            clock=self.clock,
        )
        self.services = replace(
            FakeProxy(clock=self.clock, ledger=self.ledger, settings=SETTINGS).services,
            authenticator=cast(Any, self),
            live_calls=self.live_calls,
            revocations=cast(Any, self),
            keyring=ring,
            transport=self.transport,
        )

    def new_client(self, body: bytes | None = None) -> FakeClient:
        """Let another client call; return it."""
        authorization = (b"authorization", f"Bearer {TOKEN}".encode())
        self.client = FakeClient(body or request_body(), headers=(authorization,))
        return self.client

    async def authenticate(self, exchange: Exchange) -> Claims:
        """Stand in for the authenticator."""
        if isinstance(self.claims, Exception):
            raise self.claims
        return self.claims

    def check_fresh(self) -> None:
        """Stand in for the revocation view: always fresh."""

    def verdict(self, claims: Claims) -> Any:
        """Stand in for the revocation view: say what `revoked` says."""
        return self.revoked.verdict(claims)

    async def forward(self, endpoint: str = "messages") -> FakeClient:
        """Serve the client's request to its end."""
        handler = logging.StreamHandler(self.lines)
        handler.setFormatter(JsonFormatter("proxy"))
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            await forward(self.client.exchange, endpoint, self.services)
        finally:
            root.removeHandler(handler)
        assert len(self.live_calls) == 0
        assert self.ledger.open_rows == 0
        return self.client

    @property
    def closing_line(self) -> dict[str, Any]:
        """The one closing line; no line holds a token, a key or the prompt."""
        text = self.lines.getvalue()
        for secret in (CANARY, PROMPT, TOKEN, TOKEN.rpartition(".")[2]):
            assert secret not in text
        lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        (closing,) = [line for line in lines if line["event"] == "call_closed"]
        return closing


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def problem(client: FakeClient) -> dict[str, str]:
    """Return the error that the client was told."""
    error: dict[str, str] = json.loads(client.body)["error"]
    return error


async def test_streamed_call() -> None:
    """A call is relayed, booked, and told in one line without token, key or prompt (B58)."""
    proxy = Proxy(FakeAnswer(WHOLE))
    proxy.clock.advance(0.25)
    client = await proxy.forward()
    assert client.body == b"".join(WHOLE)
    price = PRICES.find("anthropic", MODEL)
    settled = proxy.ledger.settlement
    assert price is not None
    assert settled.cost_nano == price.cost(settled.usage) > 0
    line = proxy.closing_line
    expected = {
        "request_id": "req_test",
        "tenant": "acme",
        "sandbox": SANDBOX,
        "token_id": "tok_one",
        "model": MODEL,
        "endpoint": "messages",
        "status": 200,
        "outcome": "complete",
        "refused": None,
        "cost_nano": settled.cost_nano,
        "estimated": False,
        "ms": 250.0,
        "first_byte_ms": 250.0,
    }
    assert expected.items() <= line.items()
    assert line["usage"]["output_tokens"] == 15


async def test_whole_call() -> None:
    """A call that does not stream is answered whole and booked."""
    body = json.dumps(message_json(MODEL)).encode()
    proxy = Proxy(FakeAnswer([body], headers=JSON))
    proxy.new_client(request_body(stream=False))
    assert (await proxy.forward()).body == body
    assert not proxy.ledger.reservations[0].stream
    assert proxy.ledger.settlement.outcome is Outcome.COMPLETE


async def test_count_tokens() -> None:
    """count_tokens goes up and back without touching the ledger."""
    proxy = Proxy(FakeAnswer([b'{"input_tokens":7}'], headers=JSON))
    proxy.ledger.unavailable = True
    messages = [{"role": "user", "content": PROMPT}]
    proxy.new_client(json.dumps({"model": MODEL, "messages": messages}).encode())
    assert (await proxy.forward("count_tokens")).body == b'{"input_tokens":7}'
    assert proxy.transport.requests[0].url == "https://api.example/v1/messages/count_tokens"
    assert proxy.ledger.settlements == []
    assert proxy.closing_line["outcome"] == "complete"


async def test_authenticated_before_the_body_is_read() -> None:
    """Nothing is read of the body of a caller who is not known, and nothing is counted."""
    proxy = Proxy()
    proxy.claims = refuse(Code.INVALID_TOKEN)
    client = await proxy.forward()
    assert client.status == 401
    assert not client.body_was_read
    assert proxy.ledger.counted == {}
    assert proxy.closing_line["refused"] == "invalid_token"
    assert "tenant" not in proxy.closing_line


async def test_endpoint_not_in_scope() -> None:
    """An endpoint outside the scope is 403, final, before the body is read, and counted."""
    proxy = Proxy()
    proxy.claims = make_claims(scope=make_scope(endpoints=("models",)))
    client = await proxy.forward()
    assert (client.status, problem(client)["type"]) == (403, "permission_error")
    assert client.headers[b"x-should-retry"] == b"false"
    assert not client.body_was_read
    assert proxy.ledger.counted == {(SANDBOX, "call_refused:insufficient_scope"): 1}


async def test_model_not_in_scope() -> None:
    """A model outside the scope is 400 and reaches neither ledger nor provider."""
    proxy = Proxy()
    proxy.new_client(request_body(model="claude-opus-4-5"))
    client = await proxy.forward()
    assert client.status == 400
    assert "claude-opus-4-5" in problem(client)["message"]
    assert proxy.ledger.reservations == []
    assert proxy.transport.requests == []


async def test_body_too_large() -> None:
    """A body beyond the limit is 413."""
    proxy = Proxy()
    proxy.new_client(b"x" * (SETTINGS.max_body_bytes + 1))
    assert (await proxy.forward()).status == 413


async def test_budget_used_up() -> None:
    """A used-up budget is 402 in the provider's shape, and the provider sees nothing."""
    proxy = Proxy()
    proxy.ledger.ceilings = {f"sandbox:{SANDBOX}": 1}
    client = await proxy.forward()
    assert (client.status, problem(client)["type"]) == (402, "billing_error")
    assert proxy.transport.requests == []
    assert proxy.ledger.counted == {(SANDBOX, "call_refused:budget_exhausted"): 1}


async def test_outages_of_ours_are_no_incidents() -> None:
    """A refusal that the sandbox did not cause is not counted against it."""
    proxy = Proxy()
    proxy.ledger.unavailable = True
    client = await proxy.forward()
    assert client.status == 503
    assert proxy.ledger.counted == {}
    assert proxy.closing_line["refused"] == "store_unavailable"


async def test_errors_of_ours_are_not_the_clients() -> None:
    """A bug is told as such in the closing line, not as a client that left."""
    proxy = Proxy()
    proxy.claims = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        await proxy.forward()
    assert proxy.closing_line["outcome"] == "internal_error"


async def test_client_gone_in_its_body() -> None:
    """A client that leaves while it sends is told as such."""
    proxy = Proxy()
    proxy.client.tear()
    await proxy.forward()
    assert proxy.closing_line["outcome"] == "client_gone"


async def test_upstream_error_passes() -> None:
    """An error of the provider passes; it is booked at nothing."""
    body = b'{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}'
    client = await (proxy := Proxy(FakeAnswer([body], status=429, headers=JSON))).forward()
    assert (client.status, client.body) == (429, body)
    assert proxy.ledger.settlement.outcome is Outcome.UPSTREAM_REFUSED
    assert proxy.ledger.settlement.cost_nano == 0


async def wait_for(proxy: Proxy, act: Callable[[], object]) -> FakeClient:
    """Serve with the provider's headers held back; act once the request is there."""
    proxy.transport.gate.clear()
    task = asyncio.create_task(proxy.forward())
    await proxy.transport.arrived.wait()
    act()
    return await task


async def test_client_gone_before_headers() -> None:
    """B05 (b), B30 (b): a client that leaves before any byte pays for its input, once."""
    proxy = Proxy()
    client = await wait_for(proxy, proxy.client.hang_up)
    assert client.status is None
    settled = proxy.ledger.settlement
    assert settled.outcome is Outcome.CLIENT_GONE
    assert settled.estimated
    assert settled.usage.input_tokens == -(-len(request_body()) // 4)
    assert settled.usage.output_tokens is None
    assert proxy.closing_line["outcome"] == "client_gone"


async def test_client_gone_in_the_stream() -> None:
    """B30 (a): a client that leaves in the middle ends the upstream's answer."""
    answer = FakeAnswer([*WHOLE[:4], asyncio.Event()])
    proxy = Proxy(answer)
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    proxy.client.hang_up()
    await task
    assert answer.closed
    assert proxy.ledger.settlement.outcome is Outcome.CLIENT_GONE
    assert proxy.ledger.settlement.usage.input_tokens == 25


async def test_client_gone_in_a_whole_answer() -> None:
    """B30 (c): the same for a call that does not stream."""
    answer = FakeAnswer([b"{", asyncio.Event()], headers=JSON)
    proxy = Proxy(answer)
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    proxy.client.hang_up()
    await task
    assert answer.closed
    assert proxy.ledger.settlement.outcome is Outcome.CLIENT_GONE


async def test_revoked_before_headers() -> None:
    """A call revoked while the provider thinks is answered 401, final."""
    proxy = Proxy()
    rows = [Revocation("tenant", "acme", 2**31, 2**32)]

    def revoke() -> None:
        assert proxy.live_calls.cut_revoked(RevocationSet.from_rows(rows)) == 1

    client = await wait_for(proxy, revoke)
    assert client.status == 401
    assert client.headers[b"x-should-retry"] == b"false"
    assert proxy.ledger.settlement.outcome is Outcome.CUT_REVOKED


async def test_one_token_ended_before_headers() -> None:
    """A call whose one token was ended is answered like expiry: renewal is allowed."""
    proxy = Proxy()
    client = await wait_for(proxy, lambda: proxy.live_calls.cut_all(CutReason.TOKEN_ENDED))
    assert client.status == 401
    assert b"x-should-retry" not in client.headers


async def test_revoked_in_the_stream() -> None:
    """A revoked stream ends with an error event, and the row says so."""
    answer = FakeAnswer([*WHOLE[:4], asyncio.Event()])
    proxy = Proxy(answer)
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    proxy.live_calls.cut_all(CutReason.REVOKED)
    client = await task
    assert client.status == 200
    assert client.body.rpartition(b"event: error")[1]
    assert proxy.ledger.settlement.outcome is Outcome.CUT_REVOKED
    assert proxy.closing_line["outcome"] == "cut_revoked"


async def test_expiry_does_not_cut() -> None:
    """B17: a stream outlives its token to its last frame; the next call is refused."""
    gate = asyncio.Event()
    answer = FakeAnswer([*WHOLE[:3], gate, *[text_delta("x")] * 15, *WHOLE[3:]])
    proxy = Proxy(answer, FakeAnswer(WHOLE))
    proxy.claims = make_claims(ttl=5)
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    proxy.clock.advance(3600)
    gate.set()
    client = await task
    assert client.body.endswith(WHOLE[-1])
    assert client.body.count(text_delta("x")) == 15
    assert proxy.ledger.settlement.outcome is Outcome.COMPLETE
    proxy.new_client()
    assert (await proxy.forward()).status == 401


async def test_longest_call() -> None:
    """A call past the longest time is ended, and its client told."""
    proxy = Proxy()
    client = await wait_for(proxy, lambda: proxy.live_calls.cut_all(CutReason.TOO_LONG))
    assert client.status == 504
    assert proxy.ledger.settlement.outcome is Outcome.CUT_TOO_LONG


async def test_server_stops() -> None:
    """A request that is cancelled with the server is booked before it goes."""
    answer = FakeAnswer([*WHOLE[:4], asyncio.Event()])
    proxy = Proxy(answer)
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert proxy.ledger.settlement.outcome is Outcome.SHUTDOWN
    assert answer.closed
