"""What of bodies of OpenAI's API has a price, how much of it is held, and what nobody can read."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_core.problem import Code, Refusal
from daypass_proxy.providers.openai_fields import CHAT as CHAT_FIELDS
from daypass_proxy.providers.openai_fields import LIMITS
from daypass_proxy.providers.openai_fields import RESPONSES as RESPONSES_FIELDS
from tests.fakes.openai import (
    CHAT,
    EMBEDDINGS,
    PIXEL,
    RESPONSES,
    detail,
    items,
    read,
    refused,
    user,
)

LINK = "https://files.example.com/a.png"

# -- price


@pytest.mark.parametrize(
    "changes",
    [
        {"audio": {"voice": "x", "format": "wav"}},
        {"modalities": ["text", "audio"]},
        {"modalities": ["audio"]},
        {"modalities": "audio"},
        {"web_search_options": {}},
        user({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
        {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]},
        {"prompt_cache_options": {"ttl": "12h"}},
    ],
)
def test_what_has_no_price_is_refused(changes: dict[str, Any]) -> None:
    """Audio, searches without a bound and long-lived cache writes have no price here."""
    everything = detail("audio", "modalities", "web_search_options", "input_audio", "web_search")
    assert refused(CHAT, changes, everything).code is Code.FIELD_NOT_ALLOWED


def test_what_has_a_price_passes() -> None:
    """Text alone and the ordinary life of cache writes are what everything is priced for."""
    read(CHAT, {"modalities": ["text"], "prompt_cache_options": {"ttl": "30m", "mode": "explicit"}})
    read(CHAT, {"audio": None, "prompt_cache_retention": "24h", "prompt_cache_key": "k"})


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES])
@pytest.mark.parametrize("tier", ["flex", "priority", "scale", "fast", "ultrafast"])
def test_service_tiers(endpoint: str, tier: str) -> None:
    """Another tier needs the feature; whether it has a price is for the quote."""
    assert '"service_tier"' in refused(endpoint, {"service_tier": tier}).title
    assert read(endpoint, {"service_tier": tier}, detail("service_tier")).service_tier == tier
    assert read(endpoint, {"service_tier": "default"}).service_tier == "standard_only"
    assert read(endpoint, {"service_tier": "auto"}).service_tier == "auto"


@pytest.mark.parametrize("name", ["n", "best_of"])
def test_choices(name: str) -> None:
    """Each answer is paid for, so what is held is multiplied by how many there are."""
    assert read(CHAT, {name: 3, "max_tokens": 10}).choices == 3
    assert read(CHAT, {"n": 2, "best_of": 5}).choices == 5
    for value in (0, -1, 129, True, 1.0, "2"):
        assert refused(CHAT, {name: value}).field == name


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [(CHAT, "max_tokens"), (CHAT, "max_completion_tokens"), (RESPONSES, "max_output_tokens")],
)
def test_output_limits(endpoint: str, name: str) -> None:
    """A limit is a whole number within the cap, which is put in where there is none."""
    capped = detail(cap=100)
    assert read(endpoint, {name: 100}, capped).max_output_tokens == 100
    for value in (0, -5, 101, True, 1.0, "7"):
        assert refused(endpoint, {name: value}, capped).field == name
    assert read(endpoint).max_output_tokens is None
    call = read(endpoint, None, capped)
    usual = "max_output_tokens" if endpoint == RESPONSES else "max_completion_tokens"
    assert (call.max_output_tokens, json.loads(call.body).get(usual)) == (100, 100)
    null = read(endpoint, {name: None}, capped)
    assert json.loads(null.body)[usual] == 100


def test_the_highest_limit_counts() -> None:
    """Where both names are given, nobody knows which is read."""
    assert read(CHAT, {"max_tokens": 5, "max_completion_tokens": 50}).max_output_tokens == 50


def test_reasoning_may_fill_the_answer() -> None:
    """Reasoning that nobody sees is paid for in advance; without any word the model decides."""
    assert read(CHAT).thinking_tokens is None
    assert not read(CHAT).thinks_freely
    for effort in ("minimal", "low", "high", "xhigh", "new"):
        assert read(CHAT, {"reasoning_effort": effort}).thinks_freely
        assert read(RESPONSES, {"reasoning": {"effort": effort}}).thinks_freely
    for call in (
        read(CHAT, {"reasoning_effort": "none"}),
        read(RESPONSES, {"reasoning": {"effort": "none"}}),
    ):
        assert (call.thinks_freely, call.thinking_tokens) == (False, 0)
    assert read(RESPONSES, {"reasoning": {"summary": "auto"}}).thinks_freely
    assert refused(RESPONSES, {"reasoning": "high"}).field == "reasoning"


def test_predictions_need_a_feature() -> None:
    """What is not used of a prediction is billed as output, so all of it is held."""
    prediction = {"prediction": {"type": "content", "content": "x"}}
    assert '"prediction"' in refused(CHAT, prediction).title
    assert read(CHAT, prediction, detail("prediction")).thinks_freely


def test_compaction_is_a_further_reading() -> None:
    """A context that is written anew is read once more."""
    managed = {"context_management": [{"type": "compaction"}]}
    assert '"context_management"' in refused(RESPONSES, managed).title
    assert read(RESPONSES, managed, detail("context_management")).beside[0].model == "gpt-4o"
    assert read(RESPONSES, items({"type": "compaction_trigger"})).beside[0].passes == 1


def test_moderation_names_a_model() -> None:
    """A second model needs the feature."""
    for endpoint in (CHAT, RESPONSES):
        assert '"moderation"' in refused(endpoint, {"moderation": {"model": "m"}}).title


# -- embeddings


@pytest.mark.parametrize(
    ("given", "inputs"),
    [("hi", 1), (["a", "b", "c"], 3), ([1, 2, 3], 1), ([[1, 2], [3]], 2)],
)
def test_embeddings_are_of_so_many_texts(given: object, inputs: int) -> None:
    """Each text is read by itself, and nothing is written."""
    call = read(EMBEDDINGS, {"input": given})
    assert (call.inputs, call.max_output_tokens, call.stream) == (inputs, 0, False)


@pytest.mark.parametrize("given", [None, 3, {}, [], [None], [1, "a"], [{}], ["a"] * 2049])
def test_odd_inputs_are_refused(given: object) -> None:
    """What is no text, list of texts or tokens is refused."""
    assert refused(EMBEDDINGS, {"input": given}).field == "input"


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": "x"},
        {"messages": [1]},
        {"tools": {}},
        {"tools": [{"type": 1}]},
        {"stream": "yes"},
        {"stream_options": []},
        {"stream_options": {"include_usage": 1}},
        {"stream_options": {"Include_Usage": True}},
        user({"type": None}),
        {"messages": [{"role": "user", "content": [3]}]},
    ],
)
def test_malformed(changes: dict[str, Any]) -> None:
    """What cannot be read one way only is refused."""
    assert refused(CHAT, changes).code is Code.INVALID_REQUEST


@pytest.mark.parametrize("given", [3, {}, [3], [{"type": 3}], [{"role": "user", "content": [3]}]])
def test_malformed_input(given: object) -> None:
    """What cannot be read one way only is refused."""
    assert refused(RESPONSES, {"input": given}).code is Code.INVALID_REQUEST


# -- whatever is sent

_NAMES = st.sampled_from(
    [
        *("model", "messages", "input", "tools", "type", "role", "content", "image_url", "url"),
        *("file", "file_id", "file_url", "file_data", "stream", "stream_options", "include_usage"),
        *("store", "n", "reasoning", "effort", "prompt_cache_options", "ttl", "environment"),
        *("filters", "allowed_domains", "server_url", "max_tool_calls", "output", "summary"),
        *LIMITS,
        *("service_tier", "modalities", "context_management", "x"),
    ]
)
_WORDS = st.sampled_from(
    [
        *("gpt-4o", "function", "web_search", "mcp", "shell", "namespace", "message", "local"),
        *("input_image", "image_url", "file", "input_file", "reasoning", "item_reference"),
        *("additional_tools", "tool_search_output", "data:,x", PIXEL, LINK, "none", "30m", ""),
    ]
)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 200) | st.floats(0, 1) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(endpoint=st.sampled_from([CHAT, RESPONSES, EMBEDDINGS]), data=st.data())
@settings(max_examples=600, deadline=None)
def test_whatever_is_sent_is_refused_or_understood(endpoint: str, data: st.DataObject) -> None:
    """No body makes the check stumble, and what passes has the one model and keeps to the cap."""
    changes = data.draw(st.dictionaries(_NAMES, _ANYTHING, max_size=6))
    body = json.dumps({"model": "gpt-4o", **changes}).encode()
    scope = detail("url_sources", "mcp", "web_search", "files", "store", "x", cap=100)
    try:
        call = read(endpoint, scope=scope, body=body)
    except Refusal:
        return
    assert call.models == ("gpt-4o",)
    if endpoint != EMBEDDINGS:
        sent = json.loads(call.body)
        # What another endpoint calls a limit is none here, and servers look past it.
        known = (CHAT_FIELDS if endpoint == CHAT else RESPONSES_FIELDS).scalars & set(LIMITS)
        limits = [sent[name] for name in known if sent.get(name) is not None]
        assert limits
        assert call.max_output_tokens in range(1, 101)
