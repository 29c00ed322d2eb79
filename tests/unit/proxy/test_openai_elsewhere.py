"""Bodies for servers of one's own: options are closed there, and the limit has one name."""

import json
from typing import Any

import pytest

from daypass_core.problem import Code
from daypass_proxy.providers import openai_fields as fields
from daypass_proxy.providers.openai_check import MAX_MEMBERS
from tests.fakes.openai import CHAT, EMBEDDINGS, RESPONSES, detail, read, refused

OWN = detail(provider="own", cap=100)


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES, EMBEDDINGS])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        # LiteLLM sends the request, and its key, where these say.
        ("api_base", "https://evil.example"),
        ("base_url", "https://evil.example"),
        ("aws_bedrock_runtime_endpoint", "https://evil.example"),
        ("api_key", "sk-theirs"),
        ("custom_llm_provider", "openai"),
        ("prompt_id", "pmpt_1"),
        ("num_retries", 50),
        # llama.cpp takes these before `max_tokens` and `n`, or another's slot.
        ("n_predict", 100_000),
        ("n_cmpl", 100),
        ("id_slot", 3),
        ("max_new_tokens", 100_000),
        ("chat_template", "{{ messages }}"),
        ("priority", -1),
        ("brand_new", True),
    ],
)
def test_options_need_a_feature(endpoint: str, name: str, value: object) -> None:
    """Rows 13, 32: what nobody here knows may lead elsewhere or above every limit."""
    problem = refused(endpoint, {name: value}, OWN, provider="own")
    assert (problem.code, problem.field) == (Code.FIELD_NOT_ALLOWED, name)
    named = detail(name, provider="own", cap=100)
    assert json.loads(read(endpoint, {name: value}, named, provider="own").body)[name] == value
    assert read(endpoint, {name: None}, OWN, provider="own").billable


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES, EMBEDDINGS])
def test_how_a_text_is_drawn_passes(endpoint: str) -> None:
    """The usual options of such servers stand for no model, price, place or state."""
    changes = {"top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": False}
    assert changes.items() <= json.loads(read(endpoint, changes, OWN, provider="own").body).items()
    assert not fields.OPTIONS & {"n_predict", "api_base", "base_url", "api_key", *fields.LIMITS}


@pytest.mark.parametrize("provider", ["openai", "own"])
@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        (CHAT, "max_output_tokens"),
        (RESPONSES, "max_tokens"),
        (RESPONSES, "max_completion_tokens"),
    ],
)
def test_a_limit_of_another_endpoint_is_none(provider: str, endpoint: str, name: str) -> None:
    """A server looks past it, so it must not stand for the limit that the cap would put in."""
    for cap in (100, None):
        scope = detail(name, provider=provider, cap=cap)
        problem = refused(endpoint, {name: 5}, scope, provider=provider)
        assert (problem.code, problem.field) == (Code.INVALID_REQUEST, name)
        assert "the limit here is max_" in problem.title


@pytest.mark.parametrize("endpoint", [RESPONSES, EMBEDDINGS])
@pytest.mark.parametrize("name", ["n", "best_of"])
def test_choices_are_of_chats(endpoint: str, name: str) -> None:
    """What multiplies the price of a chat is not counted elsewhere, so it does not pass there."""
    for provider in ("openai", "own"):
        scope = detail(name, provider=provider)
        assert refused(endpoint, {name: 3}, scope, provider=provider).field == name


@pytest.mark.parametrize("given", [{}, {"max_tokens": 9}, {"max_tokens": None}])
def test_the_newer_limit_goes_by_the_older_name(given: dict[str, Any]) -> None:
    """Some servers do not know the newer name, and to them there would be no limit."""
    call = read(CHAT, {"max_completion_tokens": 50, **given}, OWN, provider="own")
    sent = json.loads(call.body)
    assert (sent.get("max_tokens"), "max_completion_tokens" in sent) == (50, False)
    assert (call.max_output_tokens, call.limits) == (50, ("max_tokens",))
    assert "max_completion_tokens" in json.loads(read(CHAT, {"max_completion_tokens": 5}).body)


def test_members_are_bounded() -> None:
    """Row 17: a body of thousands of members would hold the event loop when one is changed."""
    few = {f"x{number}": 1 for number in range(MAX_MEMBERS - 2)}
    assert read(CHAT, few).billable
    assert "members" in refused(CHAT, {**few, "y": 1}).title
