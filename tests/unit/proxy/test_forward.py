"""One request from end to end inside the proxy: the order of its steps, and what it leaves."""

import json
import logging

import pytest

from daypass_core.problem import Code, refuse
from daypass_proxy.ledger import Hold, Outcome
from daypass_proxy.price import PriceTable, Tariff
from tests.fakes.call import MODEL
from tests.fakes.exchange import FakeClient
from tests.fakes.forwarding import PROMPT, SETTINGS, WHOLE, Forwarding, request_body
from tests.fakes.transport import JSON, FakeAnswer
from tests.servers.wire import message_json
from tests.support import SANDBOX, make_claims, make_scope

PRICES = PriceTable.load()


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def problem(client: FakeClient) -> dict[str, str]:
    """Return the error that the client was told."""
    error: dict[str, str] = json.loads(client.body)["error"]
    return error


async def test_streamed_call() -> None:
    """A call is relayed, booked, and told in one line without token, key or prompt (B58)."""
    proxy = Forwarding(FakeAnswer(WHOLE))
    proxy.clock.advance(0.25)
    client = await proxy.forward()
    assert client.body == b"".join(WHOLE)
    price = PRICES.find("anthropic", MODEL, proxy.clock.now())
    settled = proxy.ledger.settlement
    assert price is not None
    assert settled.cost_nano == Tariff(price).cost(settled.usage).nano > 0
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
    proxy = Forwarding(FakeAnswer([body], headers=JSON))
    proxy.new_client(request_body(stream=False))
    assert (await proxy.forward()).body == body
    assert not proxy.ledger.reservations[0].stream
    assert proxy.ledger.settlement.outcome is Outcome.COMPLETE


async def test_count_tokens() -> None:
    """count_tokens costs nothing, and has a row: it counts as a request and an open call."""
    proxy = Forwarding(FakeAnswer([b'{"input_tokens":7}'], headers=JSON))
    messages = [{"role": "user", "content": PROMPT}]
    proxy.new_client(json.dumps({"model": MODEL, "messages": messages}).encode())
    assert (await proxy.forward("count_tokens")).body == b'{"input_tokens":7}'
    assert proxy.transport.requests[0].url == "https://api.example/v1/messages/count_tokens"
    (reservation,) = proxy.ledger.reservations
    assert (reservation.endpoint, reservation.hold(0)) == ("count_tokens", Hold())
    assert reservation.output_most == 0
    assert proxy.ledger.settlement.cost_nano == 0
    assert proxy.closing_line["outcome"] == "complete"


async def test_authenticated_before_the_body_is_read() -> None:
    """Nothing is read of the body of a caller who is not known, and nothing is counted."""
    proxy = Forwarding()
    proxy.claims = refuse(Code.INVALID_TOKEN)
    client = await proxy.forward()
    assert client.status == 401
    assert not client.body_was_read
    assert proxy.ledger.counted == {}
    assert proxy.closing_line["refused"] == "invalid_token"
    assert "tenant" not in proxy.closing_line


async def test_endpoint_not_in_scope() -> None:
    """An endpoint outside the scope is 403, final, before the body is read, and counted."""
    proxy = Forwarding()
    proxy.claims = make_claims(scope=make_scope(endpoints=("models",)))
    client = await proxy.forward()
    assert (client.status, problem(client)["type"]) == (403, "permission_error")
    assert client.headers[b"x-should-retry"] == b"false"
    assert not client.body_was_read
    assert proxy.ledger.counted == {(SANDBOX, "call_refused:insufficient_scope"): 1}


async def test_model_not_in_scope() -> None:
    """A model outside the scope is 400 and reaches neither ledger nor provider."""
    proxy = Forwarding()
    proxy.new_client(request_body(model="claude-opus-4-5"))
    client = await proxy.forward()
    assert client.status == 400
    assert "claude-opus-4-5" in problem(client)["message"]
    assert proxy.ledger.reservations == []
    assert proxy.transport.requests == []


async def test_body_too_large() -> None:
    """A body beyond the limit is 413."""
    proxy = Forwarding()
    proxy.new_client(b"x" * (SETTINGS.max_body_bytes + 1))
    assert (await proxy.forward()).status == 413


async def test_budget_used_up() -> None:
    """A used-up budget is 402 in the provider's shape, and the provider sees nothing."""
    proxy = Forwarding()
    proxy.ledger.ceilings = {f"sandbox:{SANDBOX}": 1}
    client = await proxy.forward()
    assert (client.status, problem(client)["type"]) == (402, "billing_error")
    assert proxy.transport.requests == []
    assert proxy.ledger.counted == {(SANDBOX, "call_refused:budget_exhausted"): 1}


async def test_outages_of_ours_are_no_incidents() -> None:
    """A refusal that the sandbox did not cause is not counted against it."""
    proxy = Forwarding()
    proxy.ledger.unavailable = True
    client = await proxy.forward()
    assert client.status == 503
    assert proxy.ledger.counted == {}
    assert proxy.closing_line["refused"] == "store_unavailable"


async def test_errors_of_ours_are_not_the_clients() -> None:
    """A bug is told as such in the closing line, not as a client that left."""
    proxy = Forwarding()
    proxy.claims = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        await proxy.forward()
    assert proxy.closing_line["outcome"] == "internal_error"


async def test_client_gone_in_its_body() -> None:
    """A client that leaves while it sends is told as such."""
    proxy = Forwarding()
    proxy.client.tear()
    await proxy.forward()
    assert proxy.closing_line["outcome"] == "client_gone"


async def test_upstream_error_passes() -> None:
    """An error of the provider passes; it is booked at nothing."""
    body = b'{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}'
    client = await (proxy := Forwarding(FakeAnswer([body], status=429, headers=JSON))).forward()
    assert (client.status, client.body) == (429, body)
    assert proxy.ledger.settlement.outcome is Outcome.UPSTREAM_REFUSED
    assert proxy.ledger.settlement.cost_nano == 0
