"""The most that a body can cost, by what goes up, against what is held for it.

The provider here is the worst one: it writes as much as the body lets it, in as many answers, takes
every byte for a token, and serves at the dearest tier that the body leaves open.
"""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_core.problem import Refusal
from daypass_proxy.estimate import Unpriced, quote
from daypass_proxy.ledger import Usage
from daypass_proxy.price import Price, PriceTable
from daypass_proxy.providers import Call
from tests.fakes.openai import CHAT, EMBEDDINGS, RESPONSES, detail, read
from tests.fakes.prices import NOW

OWN = {"model": "own", "context_window": 8192, "input": "1", "output": "2"}
FREE = OWN | {"model": "free", "input": "0", "output": "0"}
TABLE = PriceTable.load(own={"own": [OWN, FREE]})
MODELS = {"openai": ("gpt-4o", "gpt-5.4", "o3", "text-embedding-3-small"), "own": ("own", "free")}
NUMBERS = st.sampled_from([None, 1, 7, 128, 9_000, 50_000])
OPTIONS = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), NUMBERS),
    **dict.fromkeys(("n", "best_of", "n_predict", "n_cmpl", "max_new_tokens"), NUMBERS),
    "service_tier": st.sampled_from([None, "auto", "default", "priority", "flex"]),
    "stream": st.booleans(),
    "reasoning_effort": st.sampled_from(["low", "none"]),
}
TEXTS = st.builds(
    lambda text, times: text * times,
    st.sampled_from(["x", "\u00e9", "\ufdfa", '"', "\U0001f600"]),
    st.integers(1, 3_000),
)
# Which members each kind of server reads: the first one that is there.
LIMITS = {
    ("openai", CHAT): ("max_completion_tokens", "max_tokens"),
    # Not all of one's own know the newer name; llama.cpp has its own before all others.
    ("own", CHAT): ("n_predict", "max_new_tokens", "max_tokens"),
    ("openai", RESPONSES): ("max_output_tokens",),
    ("own", RESPONSES): ("n_predict", "max_new_tokens", "max_output_tokens"),
}


def worst(call: Call, price: Price, text: str, texts: int) -> Usage:
    """The most usage that a provider can have of what goes up."""
    sent: dict[str, Any] = json.loads(call.body)
    read_in = min(len(text.encode()) * texts, price.context_window * texts)
    if call.endpoint == EMBEDDINGS:
        return Usage(input_tokens=read_in, output_tokens=0)
    names = LIMITS[call.provider, call.endpoint]
    limit = next((sent[name] for name in names if sent.get(name) is not None), 10**9)
    several = ("n", "best_of") if call.provider == "openai" else ("n", "best_of", "n_cmpl")
    answers = max(sent.get(name) or 1 for name in several)
    written = min(limit, price.context_window) * answers
    tier = sent.get("service_tier")
    if tier in (None, "auto") and "priority" in price.service_tiers:
        tier = "priority"
    tier = None if tier in ("auto", "default") else tier
    return Usage(input_tokens=read_in, output_tokens=written, service_tier=tier)


@given(
    provider=st.sampled_from(["openai", "own"]),
    endpoint=st.sampled_from([CHAT, RESPONSES, EMBEDDINGS]),
    text=TEXTS,
    texts=st.integers(1, 20),
    cap=st.sampled_from([None, 100, 60_000]),
    data=st.data(),
)
@settings(max_examples=500, deadline=None)
def test_no_body_costs_more_than_is_held(
    provider: str, endpoint: str, text: str, texts: int, cap: int | None, data: st.DataObject
) -> None:
    """Whatever a body says, what is held for it is at least what it can cost."""
    model = data.draw(st.sampled_from(MODELS[provider]))
    changes: dict[str, Any] = data.draw(st.fixed_dictionaries({}, optional=OPTIONS))
    if endpoint == CHAT:
        texts, message = 1, {"role": "user", "content": text}
        changes |= {"model": model, "messages": [message]}
    else:
        texts = texts if endpoint == EMBEDDINGS else 1
        changes |= {"model": model, "input": text if texts == 1 else [text] * texts}
    scope = detail("service_tier", models=("*",), provider=provider, cap=cap)
    body = json.dumps(changes, ensure_ascii=False).encode()[: 64 * 1024]
    try:
        call = read(endpoint, scope=scope, provider=provider, body=body)
        quoted = quote(call, TABLE, NOW)
    except (Refusal, Unpriced):
        return
    price = TABLE.find(provider, model, NOW)
    assert price is not None
    cost = quoted.tariff.cost(worst(call, price, text, texts)).nano
    assert quoted.base.nano + quoted.output_nano * quoted.output_most >= cost
