"""A call whose budget is short: refused, lowered, extended, cut, or read on without its client."""

import asyncio
import json
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from daypass_proxy.estimate import quote
from daypass_proxy.ledger import Hold, LedgerRefused, Limit, LimitState, Outcome, Policy, Terms
from daypass_proxy.metric_specs import HOLDS_REFUSED
from daypass_proxy.price import PriceTable
from daypass_proxy.providers import anthropic_lower
from daypass_proxy.streams import CutReason
from tests.fakes.call import MODEL, make_call
from tests.fakes.exchange import FakeClient
from tests.fakes.forwarding import WHOLE, Forwarding, request_body
from tests.fakes.transport import JSON, FakeAnswer, Step
from tests.servers.wire import MESSAGE_STOP, message_delta, message_json, message_start, text_delta
from tests.support import SANDBOX

ACCOUNT = f"sandbox:{SANDBOX}"
START = message_start(MODEL, {"input_tokens": 25, "output_tokens": 1})
END = [message_delta({"output_tokens": 500}), MESSAGE_STOP]


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def said(client: FakeClient) -> dict[str, Any]:
    """The error at the end of what the client got."""
    error: dict[str, Any] = json.loads(client.body.rpartition(b"data: ")[2] or client.body)["error"]
    return error


def words(count: int, size: int = 100) -> list[bytes]:
    """Deltas of so many bytes of text."""
    return [text_delta("x" * size)] * count


def served(policy: Policy, output_tokens: int, *script: FakeAnswer, **body: object) -> Forwarding:
    """A proxy whose ledger has room for the call's input and `output_tokens` more."""
    proxy = Forwarding(*script)
    proxy.new_client(request_body(max_tokens=64_000, **body))
    proxy.ledger.terms[ACCOUNT] = Terms(policy)
    proxy.ledger.ceilings[ACCOUNT] = room(output_tokens, proxy)
    return proxy


def room(output_tokens: int, proxy: Forwarding) -> int:
    """What the call's input and so many output tokens hold, in nano-dollars."""
    body = proxy.client._body or b""
    call = replace(make_call(body), hour_cache=False)
    quoted = quote(call, PriceTable.load(), proxy.clock.now())
    return quoted.base.nano + output_tokens * quoted.output_nano


@pytest.mark.parametrize("stream", [True, False])
async def test_clamp_lowers_max_tokens(stream: bool) -> None:
    """Policy clamp: the provider is asked for what is left, and the rest of the body stays."""
    answer = FakeAnswer(WHOLE if stream else [json.dumps(message_json(MODEL)).encode()],
                        headers=FakeAnswer([]).headers if stream else JSON)  # fmt: skip
    proxy = served(Policy.CLAMP, 5_000, answer, stream=stream)
    body = proxy.client._body or b""
    assert (await proxy.forward()).status == 200
    (request,) = proxy.transport.requests
    assert request.body == body.replace(b"64000", b"5000")
    assert proxy.closing_line["bytes_up"] == len(request.body)


async def test_cutoff_lowers_what_does_not_stream() -> None:
    """Policy cutoff: an answer that comes whole cannot be cut, so its max_tokens is lowered."""
    answer = FakeAnswer([json.dumps(message_json(MODEL)).encode()], headers=JSON)
    proxy = served(Policy.CUTOFF, 5_000, answer, stream=False)
    await proxy.forward()
    assert json.loads(proxy.transport.requests[0].body)["max_tokens"] == 5000


@pytest.mark.parametrize("policy", Policy)
async def test_enough_is_left(policy: Policy) -> None:
    """Where all that was asked for is left, or a stream may yet grow, the body goes up as it is."""
    proxy = served(policy, 64_000, FakeAnswer(WHOLE))
    body = proxy.client._body
    await proxy.forward()
    assert proxy.transport.requests[0].body == body


async def test_reject_holds_all_or_nothing() -> None:
    """Policy reject: a call that may need more than is left is refused."""
    proxy = served(Policy.REJECT, 63_999)
    client = await proxy.forward()
    assert (client.status, said(client)["type"]) == (402, "billing_error")
    assert client.headers[b"x-should-retry"] == b"false"
    assert proxy.transport.requests == []


SCHEMA = {"type": "object", "properties": {"max_tokens": {}}}
NO_SENSE: list[dict[str, Any]] = [
    {"thinking": {"type": "enabled", "budget_tokens": 1_500}},
    {"tools": [{"name": "model", "input_schema": SCHEMA}]},
]


@pytest.mark.parametrize("more", NO_SENSE)
async def test_no_sense_with_less(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]) -> None:
    """A request that would only think, or is too large to be lowered, is 402, its hold freed."""
    proxy = Forwarding()
    monkeypatch.setattr(proxy.ledger, "_output_tokens", lambda *_: 1_500)
    monkeypatch.setattr(anthropic_lower, "SLOW_MAX", 0)
    proxy.new_client(request_body(max_tokens=64_000, stream=False, **more))
    client = await proxy.forward()
    assert (client.status, said(client)["type"]) == (402, "billing_error")
    assert "budget too low for this call; it pays for 1500 output tokens" in said(client)["message"]
    assert proxy.transport.requests == []
    assert proxy.ledger.settlement.cost_nano == 0


async def test_stream_is_extended() -> None:
    """Policy cutoff: a long stream grows with its text, arrives whole and is booked as said."""
    steps = [START, *words(40), *END]
    proxy = served(Policy.CUTOFF, 64_000, FakeAnswer(steps))
    client = await proxy.forward()
    assert client.body == b"".join(steps)
    assert proxy.ledger.settlement.outcome is Outcome.COMPLETE
    assert not proxy.ledger.settlement.estimated
    line = proxy.closing_line
    assert (line["extensions"], "extensions_refused" in line) == (2, False)
    assert proxy.services.metrics._granted.value == 2


async def test_stream_is_cut() -> None:
    """Policy cutoff: where no more can be held the stream ends in the provider's words, settled."""
    answer = FakeAnswer([START, *words(40), *END])
    proxy = served(Policy.CUTOFF, 1_600, answer)
    client = await proxy.forward()
    assert client.finished
    assert answer.closed
    assert said(client)["type"] == "billing_error"
    assert "used up during the answer" in said(client)["message"]
    passed = client.body.count(text_delta("x" * 100))
    held = 1024 + sum(more.tokens for _, more in proxy.ledger.extensions)
    assert passed == held // 100, "to the end of what is held, and no further"
    settled = proxy.ledger.settlement
    assert (settled.outcome, settled.estimated) == (Outcome.CUT_BUDGET, True)
    assert settled.usage.input_tokens == 25
    assert settled.usage.output_tokens == (passed + 1) * 25, "what came is booked, told or not"
    line = proxy.closing_line
    assert (line["outcome"], line["extensions"] > 0) == ("cut_budget", True)
    assert line["extensions_refused"] > 0


async def test_stream_is_cut_without_the_store() -> None:
    """A stream that cannot be extended since the store is gone says so, in the provider's words."""
    gate = asyncio.Event()
    answer = FakeAnswer([START, gate, *words(40)])
    proxy = served(Policy.CUTOFF, 64_000, answer)
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    proxy.ledger.unavailable = True
    gate.set()
    client = await task
    assert said(client)["type"] == "api_error"
    assert "store" in said(client)["message"]
    assert proxy.ledger.settlement.outcome is Outcome.CUT_BUDGET


async def test_hold_shrinks_at_the_first_event() -> None:
    """What was held for more input than there was is free for others while the answer streams."""
    gate = asyncio.Event()
    answer = FakeAnswer([START, gate, *END])
    proxy = served(Policy.REJECT, 64_000, answer)
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    (part,) = [part for _, part in proxy.ledger.releases]
    before = proxy.ledger.reservations[0].hold(64_000)
    after = proxy.ledger.held["req_test"]
    assert after == Hold(before.nano - part.nano, before.tokens - part.tokens)
    assert after.tokens == 64_000 + 25
    gate.set()
    await task


async def test_what_is_left_is_told() -> None:
    """An answer carries what is left, with this call held; a refusal does so too."""
    limits = (LimitState(Limit.RPM, ACCOUNT, 60, 2, 0, 1_800_000_000_000),)
    proxy = served(Policy.REJECT, 64_000, FakeAnswer(WHOLE))
    proxy.ledger.limits = limits
    client = await proxy.forward()
    assert client.headers[b"daypass-remaining-usd"] == b"0.00"
    assert client.headers[b"daypass-remaining-requests"] == b"58"
    assert client.headers[b"daypass-resets-at"] == b"2027-01-15T08:00:00Z"
    proxy.ledger.refusal = LedgerRefused("rate", limits[0], 1, 300)
    refused = await proxy_again(proxy)
    assert (refused.status, refused.headers[b"retry-after"]) == (429, b"1")
    assert refused.headers[b"daypass-remaining-requests"] == b"58"
    exposed = proxy.services.metrics.board
    assert exposed.count(HOLDS_REFUSED, "rpm", "rate").value == 1


async def test_nothing_is_told_of_what_costs_nothing() -> None:
    """count_tokens carries none of these headers."""
    proxy = Forwarding(FakeAnswer([b'{"input_tokens":7}'], headers=JSON))
    proxy.ledger.ceilings[ACCOUNT] = 10
    proxy.new_client(json.dumps({"model": MODEL, "messages": []}).encode())
    client = await proxy.forward("count_tokens")
    assert client.status == 200
    assert not [name for name in client.headers if name.startswith(b"daypass-")]


async def proxy_again(proxy: Forwarding) -> FakeClient:
    """Let another client call."""
    proxy.new_client(request_body())
    return await proxy.forward()


# -- without its client

PATIENT = Terms(drain_ms=60_000)


async def left(
    *rest: Step, terms: Terms = PATIENT, before: int = 3
) -> tuple[Forwarding, FakeAnswer, "asyncio.Task[FakeClient]"]:
    """A stream whose client hangs up after some text; `rest` comes when the gate opens."""
    gate = asyncio.Event()
    answer = FakeAnswer([START, *words(before), gate, *rest])
    proxy = Forwarding(answer)
    proxy.new_client(request_body(max_tokens=64_000))
    proxy.ledger.terms[ACCOUNT] = terms
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    proxy.client.hang_up()
    gate.set()
    return proxy, answer, task


async def test_b05_drained_to_the_last_figures() -> None:
    """B05 (a): an answer is read on without its client, so the provider's own bill is booked."""
    proxy, answer, task = await left(*words(5), *END)
    client = await task
    settled = proxy.ledger.settlement
    assert (settled.outcome, settled.estimated) == (Outcome.CLIENT_GONE, False)
    assert (settled.usage.input_tokens, settled.usage.output_tokens) == (25, 500)
    assert client.body == b"".join([START, *words(3)]), "nothing is written to nobody"
    assert answer.closed
    line = proxy.closing_line
    assert (line["outcome"], line["drained_tokens"]) == ("client_gone", 125)
    assert proxy.services.metrics._drained.value == 125
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_b05_drain_ends_after_so_many_tokens() -> None:
    """B05: no more output is paid for than the terms say: then it is cut, and booked as seen."""
    proxy, answer, task = await left(
        *words(30), *END, terms=Terms(drain_ms=60_000, drain_tokens=100)
    )
    await task
    settled = proxy.ledger.settlement
    assert (settled.outcome, settled.estimated) == (Outcome.CLIENT_GONE, True)
    assert settled.usage.output_tokens == (3 + 5) * 25
    assert answer.closed


async def test_b05_drain_ends_with_the_hold() -> None:
    """What is read on without a client asks for no more money."""
    terms = Terms(drain_ms=60_000, drain_tokens=5_000)
    proxy, _, task = await left(*words(30), *END, terms=terms, before=7)
    await task
    settled = proxy.ledger.settlement
    assert settled.estimated
    assert settled.usage.output_tokens == 11 * 25
    assert proxy.ledger.extensions == []


@pytest.mark.parametrize("terms", [Terms(drain_ms=0), Terms(drain_tokens=0)])
async def test_b05_no_drain(terms: Terms) -> None:
    """B05: an account that drains nothing is booked at once, at what passed."""
    proxy, answer, task = await left(asyncio.Event(), terms=terms)
    await task
    settled = proxy.ledger.settlement
    assert (settled.outcome, settled.estimated) == (Outcome.CLIENT_GONE, True)
    assert settled.usage.output_tokens == 75
    assert answer.closed


async def test_b05_drain_ends_in_time() -> None:
    """B05: an answer that falls silent is left after the time of the terms."""
    proxy, answer, task = await left(asyncio.Event(), terms=Terms(drain_ms=10))
    await task
    assert proxy.ledger.settlement.outcome is Outcome.CLIENT_GONE
    assert answer.closed


@pytest.mark.parametrize("reason", [CutReason.REVOKED, CutReason.STALE, CutReason.SHUTDOWN])
async def test_a_cut_ends_a_drain(reason: CutReason) -> None:
    """A revocation, a stale view and a shutdown find the call that goes on without its client."""
    proxy, answer, task = await left(asyncio.Event())
    await asyncio.sleep(0)
    assert proxy.live_calls.cut_all(reason) == 1
    await task
    assert answer.closed
    assert proxy.ledger.settlement.estimated
    assert proxy.ledger.settlement.outcome is not Outcome.COMPLETE


async def test_upstream_breaks_in_a_drain() -> None:
    """An answer that breaks without its client is booked as one that the client left."""
    proxy, _, task = await left(*words(1))
    await task
    settled = proxy.ledger.settlement
    assert (settled.outcome, settled.estimated) == (Outcome.CLIENT_GONE, True)
    assert settled.usage.output_tokens == 100


async def test_whole_answer_is_drained() -> None:
    """B05: an answer that comes whole is read to its end and booked as said."""
    body = json.dumps(message_json(MODEL)).encode()
    gate = asyncio.Event()
    answer = FakeAnswer([body[:30], gate, body[30:]], headers=JSON)
    proxy = Forwarding(answer)
    proxy.new_client(request_body(stream=False))
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    proxy.client.hang_up()
    gate.set()
    client = await task
    assert client.status is None
    settled = proxy.ledger.settlement
    assert (settled.outcome, settled.estimated) == (Outcome.CLIENT_GONE, False)
    assert settled.usage.output_tokens == 15


async def test_answer_that_begins_without_its_client() -> None:
    """A client that leaves while the provider thinks: what begins in time is read to its end."""
    proxy = Forwarding(FakeAnswer([START, *words(2), *END]))
    proxy.new_client(request_body())
    proxy.transport.gate.clear()
    task = asyncio.create_task(proxy.forward())
    await proxy.transport.arrived.wait()
    proxy.client.hang_up()
    proxy.transport.gate.set()
    client = await task
    assert client.chunks == []
    settled = proxy.ledger.settlement
    assert (settled.outcome, settled.estimated) == (Outcome.CLIENT_GONE, False)
    assert settled.usage.output_tokens == 500


async def test_gone_after_the_end() -> None:
    """A client that goes when its call is settled starts nothing."""
    proxy = Forwarding(FakeAnswer(WHOLE))
    await proxy.forward()
    line = proxy.closing_line
    proxy.client.hang_up()
    assert proxy.ledger.settlement.outcome is Outcome.COMPLETE
    assert "drained_tokens" not in line
    assert not [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]


async def test_client_that_has_all_is_complete() -> None:
    """A client that has the last event and leaves before the connection ends had all of it."""
    gate = asyncio.Event()
    answer = FakeAnswer([*WHOLE, gate])
    proxy = Forwarding(answer)
    task = asyncio.create_task(proxy.forward())
    await answer.waiting.wait()
    proxy.client.hang_up()
    gate.set()
    await task
    assert proxy.ledger.settlement.outcome is Outcome.COMPLETE
    assert "drained_tokens" not in proxy.closing_line
