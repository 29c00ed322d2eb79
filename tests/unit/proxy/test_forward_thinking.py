"""A call that may think unseen: it is asked for no more than is held for it before it is sent."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypass_proxy.estimate import Quote, quote
from daypass_proxy.ledger import Outcome, Pass, Policy, Terms, Usage
from daypass_proxy.price import PriceTable
from tests.fakes.anthropic import read
from tests.fakes.forwarding import Forwarding, request_body
from tests.fakes.transport import JSON, FakeAnswer
from tests.servers.wire import MESSAGE_STOP, message_delta, message_json, message_start, text_delta
from tests.support import SANDBOX

ACCOUNT = f"sandbox:{SANDBOX}"
# One that thinks only where it is told to, and one that does so by itself.
MODEL, THINKER = "claude-sonnet-4-6", "claude-sonnet-5"
TABLE = PriceTable.load()
ADAPTIVE = {"type": "adaptive", "display": "omitted"}
BUDGET = {"type": "enabled", "budget_tokens": 1_500}
STREAM = [
    message_start(MODEL, {"input_tokens": 25, "output_tokens": 1}),
    *[text_delta("x" * 100)] * 100,
    message_delta({"output_tokens": 4_000}),
    MESSAGE_STOP,
]
FREELY: list[dict[str, Any]] = [
    {"thinking": ADAPTIVE},
    {"thinking": {"type": "enabled"}},
    {"thinking": ADAPTIVE, "stream": False},
    {"model": THINKER},
    {"fallbacks": [{"model": MODEL, "thinking": ADAPTIVE}], "thinking": {"type": "disabled"}},
    {"fallbacks": [{"model": THINKER}], "thinking": {"type": "disabled"}},
]


class Asking:
    """A call of `fields`, and a proxy whose ledger has room for its input and `left` tokens."""

    def __init__(self, policy: Policy, left: int, **fields: Any) -> None:
        streams = fields.get("stream", True)
        whole = json.dumps(message_json(MODEL)).encode()
        answer = FakeAnswer(STREAM) if streams else FakeAnswer([whole], headers=JSON)
        self.body = request_body(**{"max_tokens": 64_000, **fields})
        self.proxy = Forwarding(answer)
        self.proxy.new_client(self.body)
        self.quote: Quote = quote(read(json.loads(self.body)), TABLE, self.proxy.clock.now())
        self.ceiling = self.quote.base.nano + left * self.quote.output_nano
        self.proxy.ledger.terms[ACCOUNT] = Terms(policy)
        self.proxy.ledger.ceilings[ACCOUNT] = self.ceiling

    async def sent(self) -> bytes | None:
        """Make the call; return what went up, None when it was refused for want of budget."""
        client = await self.proxy.forward()
        if client.status == 402:
            assert self.proxy.transport.requests == []
            return None
        assert client.status == 200
        (request,) = self.proxy.transport.requests
        return request.body


@pytest.mark.parametrize("policy", [Policy.CUTOFF, Policy.CLAMP])
@pytest.mark.parametrize("more", FREELY)
async def test_thinking_without_a_budget_is_lowered(policy: Policy, more: dict[str, Any]) -> None:
    """It is asked for what is left, and every other byte stays.

    However much text comes, it is not cut and asks for no more: all it may use is held.
    """
    asking = Asking(policy, 5_000, **more)
    assert await asking.sent() == asking.body.replace(b"64000", b"5000")
    ledger = asking.proxy.ledger
    assert ledger.settlement.outcome is Outcome.COMPLETE
    assert ledger.extensions == []
    assert ledger.reservations[0].stream is more.get("stream", True)
    if "stream" not in more:
        assert asking.proxy.client.body == b"".join(STREAM)


@pytest.mark.parametrize("policy", Policy)
async def test_all_of_it_fits(policy: Policy) -> None:
    """Where all that was asked for is left, the body goes up as it is."""
    asking = Asking(policy, 64_000, thinking=ADAPTIVE)
    assert await asking.sent() == asking.body


@pytest.mark.parametrize("more", FREELY)
@pytest.mark.parametrize(
    ("policy", "enough"), [(Policy.REJECT, 64_000), (Policy.CUTOFF, 1_024), (Policy.CLAMP, 1_024)]
)
async def test_the_least_that_is_sent(policy: Policy, enough: int, more: dict[str, Any]) -> None:
    """Policy reject holds all of it or nothing; under the others 1,024 tokens have to fit."""
    assert await Asking(policy, enough - 1, **more).sent() is None
    asking = Asking(policy, enough, **more)
    assert await asking.sent() == asking.body.replace(b"64000", b"%d" % enough)


async def test_thinking_with_a_budget_grows() -> None:
    """A stream whose thinking has a budget begins with that and a little, and is not lowered."""
    asking = Asking(Policy.CUTOFF, 20_000, thinking=BUDGET)
    assert await asking.sent() == asking.body
    assert asking.proxy.ledger.reservations[0].output_least == 1_024 + 1_500
    assert asking.proxy.ledger.extensions


async def test_a_budget_beside_stays_below() -> None:
    """A fallback's budget is held beside the least, so there is something to say after it."""
    fallbacks = [{"model": MODEL, "thinking": BUDGET}]
    few = Asking(Policy.CUTOFF, 2_523, thinking=ADAPTIVE, fallbacks=fallbacks)
    assert await few.sent() is None
    enough = Asking(Policy.CUTOFF, 2_524, thinking=ADAPTIVE, fallbacks=fallbacks)
    assert await enough.sent() == enough.body.replace(b"64000", b"2524")


KINDS = st.sampled_from([None, {"type": "disabled"}, ADAPTIVE]) | st.integers(0, 9_000).map(
    lambda tokens: {"type": "enabled", "budget_tokens": tokens}
)


@given(
    policy=st.sampled_from(Policy),
    left=st.integers(0, 70_000),
    most=st.integers(1, 64_000),
    thinking=st.tuples(KINDS, KINDS),
    models=st.lists(st.sampled_from([MODEL, THINKER]), min_size=2, max_size=2),
    stream=st.booleans(),
)
def test_what_may_be_billed_is_held(
    policy: Policy,
    left: int,
    most: int,
    thinking: tuple[Any, Any],
    models: list[str],
    stream: bool,
) -> None:
    """Bound B: each model may think all of the `max_tokens` it is sent, and the budget pays for it.

    But for a stream of policy `cutoff` in which only budgets are thought: that is cut in time.
    """
    own, other = models
    fallback = {"model": other, "max_tokens": 50_000, "thinking": thinking[1]}
    fields = {"model": own, "thinking": thinking[0], "fallbacks": [fallback], "stream": stream}
    asking = Asking(policy, left, max_tokens=most, **fields)
    body = asyncio.run(asking.sent())
    if body is None:
        return
    document = json.loads(body)
    limits = (document["max_tokens"], document["fallbacks"][0]["max_tokens"])
    asked = (most, 50_000)
    if asking.proxy.ledger.reservations[0].grows and policy is Policy.CUTOFF:
        # What the request says is said to its own model, another may do as it does by itself.
        assert ADAPTIVE not in thinking
        assert own != THINKER or thinking[0] is not None
        assert other in (own, MODEL)
        assert limits == asked
        return
    passes = tuple(
        Pass("fallback_message", model, 25, tokens)
        for model, tokens in zip(models, limits, strict=True)
    )
    assert asking.quote.tariff.cost(Usage(passes=passes)).nano <= asking.ceiling
    least = max((kind or {}).get("budget_tokens", 0) for kind in thinking)
    assert limits == asked or max(limits) > least
