"""The body of a Messages request: what passes, what is refused, and what the Call says of it."""

import json
from typing import Any

import pytest

from daypass_core.problem import Code, Refusal
from daypass_proxy.providers import Beside
from daypass_proxy.providers.anthropic import Anthropic
from tests.fakes.anthropic import JSON, PLAIN, SONNET, detail, read, read_now, refused, user
from tests.fakes.asgi import make_exchange

# -- what a Call says


def test_plain_call() -> None:
    """A plain request becomes a Call with our path and its own bytes."""
    body = json.dumps(PLAIN, indent=1).encode()
    exchange, _ = make_exchange(headers=[JSON], body=body)
    call = read_now(exchange, "messages", body, detail())
    assert call.upstream_path == b"/v1/messages"
    assert call.body is body
    assert (call.model, call.models) == (SONNET, (SONNET,))
    assert (call.max_output_tokens, call.stream, call.billable) == (64, False, True)
    assert (call.images, call.documents) == (0, 0)


def test_count_tokens() -> None:
    """Counting needs no max_tokens and is not billed."""
    call = read(endpoint="count_tokens", without="max_tokens")
    assert call.upstream_path == b"/v1/messages/count_tokens"
    assert call.max_output_tokens is None
    assert not call.billable


def test_a_coding_agents_request() -> None:
    """The fields that coding agents send today all pass in the default profile."""
    call = read(
        {
            "system": [
                {"type": "text", "text": "x-header: 1"},
                {"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}},
            ],
            "tools": [{"name": "Bash", "description": "d", "input_schema": {"type": "object"}}],
            "metadata": {"user_id": '{"device_id":"d"}'},
            "max_tokens": 32000,
            "thinking": {"type": "adaptive", "display": "omitted"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
            "output_config": {"effort": "high"},
            "stop_sequences": ["x"],
            "tool_choice": {"type": "auto"},
            "temperature": 0.5,
            "stream": True,
            "some_new_option": "value",
        },
        query=b"beta=true",
    )
    assert call.stream
    assert call.query == b"beta=true"
    assert call.max_output_tokens == 32000


def test_history_with_tools_passes() -> None:
    """Blocks of earlier turns pass; the input of a tool use is the tool's own data."""
    assert read(
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "t", "signature": "s"},
                        {"type": "redacted_thinking", "data": "d"},
                        {
                            "type": "tool_use",
                            "id": "t1",
                            "name": "n",
                            "input": {"source": {"type": "url"}, "type": "odd", "content": [1]},
                        },
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "content": [{"type": "text", "text": "r"}],
                        }
                    ],
                },
            ]
        }
    )


def test_images_and_documents_are_counted_wherever_they_are() -> None:
    """Every image and document is counted, also inside results and documents."""
    image = {"type": "image", "source": {"type": "base64", "data": "", "media_type": "image/png"}}
    document = {"type": "document", "source": {"type": "text", "data": "", "media_type": "t"}}
    nested = {"type": "document", "source": {"type": "content", "content": [image, image]}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image, document]}
    call = read(user(image, result, nested))
    assert (call.images, call.documents) == (4, 2)


# -- models


@pytest.mark.parametrize(
    ("models", "model", "allowed"),
    [
        (("claude-sonnet-*",), "claude-sonnet-4-5", True),
        (("claude-sonnet-*",), "claude-sonnet", False),
        (("claude-sonnet-*",), "xclaude-sonnet-4", False),
        (("claude-sonnet-*",), "Claude-Sonnet-4-5", False),
        (("claude-sonnet-*",), " claude-sonnet-4-5", False),
        (("claude-sonnet-*",), "claude-sonnet-4-5\n", False),
        (("claude-sonnet-*",), "claude-sonnet-*", False),
        (("claude-sonnet-*",), "claude-sonnet-" + "x" * 10_000, False),
        (("anthropic/*",), "anthropicx/y", False),
        (("anthropic/*",), "anthropic/y", True),
        (("*",), "anything-at-all", True),
        (("*",), "*", False),
        (("*",), "", False),
        (("*",), None, False),
        (("*",), 5, False),
        (("*",), [SONNET], False),
        (("claude-opus-5",), "claude-opus-5", True),
        (("claude-opus-5",), "claude-opus-55", False),
    ],
)
def test_model_scope(models: tuple[str, ...], model: Any, allowed: bool) -> None:
    """B39: models match on the whole decoded string; odd and missing names are 400."""
    if allowed:
        assert read({"model": model}, detail(models=models)).model == model
    else:
        refused({"model": model}, detail(models=models))


def test_refused_model_is_named_with_the_allowed_ones() -> None:
    """A model out of scope is a 400 that names it and what is allowed (wire table)."""
    problem = refused({"model": "claude-opus-5-5"})
    assert problem.code is Code.MODEL_NOT_ALLOWED
    rendered = Anthropic().render(problem, "req_1")
    assert json.loads(rendered.body) == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "model claude-opus-5-5 is not allowed for this sandbox;"
            " allowed: claude-sonnet-*",
        },
        "request_id": "req_1",
    }
    assert (b"x-should-retry", b"false") in rendered.headers


def test_escaped_model_is_the_decoded_one() -> None:
    """A model written with escapes is judged as decoded, and the bytes are kept (row 31)."""
    body = json.dumps(PLAIN).replace("sonnet", "\\u006fpus").encode()
    exchange, _ = make_exchange(headers=[JSON], body=body)
    with pytest.raises(Refusal, match="claude-opus"):
        read_now(exchange, "messages", body, detail())


def test_missing_model() -> None:
    """A body without a model is a 400."""
    assert refused(without="model").field == "model"


@pytest.mark.parametrize(
    "changes",
    [
        {"fallbacks": [{"model": "claude-opus-5-5"}]},
        {"fallbacks": [{"model": SONNET}, {"model": "claude-opus-5-5", "max_tokens": 1}]},
        {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-5-5"}]},
        user(
            {
                "type": "tool_addition",
                "tool": {
                    "type": "tool_definition",
                    "definition": {
                        "type": "advisor_20260301",
                        "name": "advisor",
                        "model": "claude-opus-5-5",
                    },
                },
            }
        ),
    ],
)
def test_model_side_doors(changes: dict[str, Any]) -> None:
    """Every model-bearing field is checked against the scope (attack row 32)."""
    problem = refused(changes, detail("advisor"))
    assert problem.code is Code.MODEL_NOT_ALLOWED
    assert problem.field is not None
    assert problem.field.endswith(".model")


def test_all_models_are_in_the_call() -> None:
    """The Call lists every model that may be billed, and the largest output of those that write."""
    advisor = {"type": "advisor_20260301", "model": "claude-sonnet-6"}
    call = read(
        {
            "fallbacks": [{"model": "claude-sonnet-5", "max_tokens": 100}],
            "tools": [advisor | {"max_uses": 2, "max_tokens": 500}],
        },
        detail("advisor"),
    )
    assert call.models == (SONNET, "claude-sonnet-5", "claude-sonnet-6")
    assert (call.writers, call.max_output_tokens) == (2, 100)
    assert call.beside == (Beside("claude-sonnet-6", 2, 500),)


def test_default_fallbacks_are_refused() -> None:
    """Fallbacks that the provider chooses cannot be checked."""
    assert refused({"fallbacks": "default"}).field == "fallbacks"


# -- numbers


@pytest.mark.parametrize(
    "value", [0, -1, 1.0, 64.5, True, "64", None, [64], 1_000_000_000, 10**30, 101]
)
def test_max_tokens_is_a_strict_integer(value: Any) -> None:
    """max_tokens is a whole number from 1 to the scope's cap and nothing else (attack row 39)."""
    assert refused({"max_tokens": value}, detail(cap=100)).field == "max_tokens"


def test_max_tokens_without_a_cap() -> None:
    """Without a cap in the scope an absurd number is refused still (attack row 39)."""
    assert read({"max_tokens": 128_000}).max_output_tokens == 128_000
    refused({"max_tokens": 1_000_000_000})
    refused(without="max_tokens")
    body = json.dumps(PLAIN).replace("64", "1e9").encode()
    exchange, _ = make_exchange(headers=[JSON], body=body)
    with pytest.raises(Refusal):
        read_now(exchange, "messages", body, detail())


def test_fallback_max_tokens() -> None:
    """The cap holds for every fallback (attack row 32)."""
    changes = {"fallbacks": [{"model": SONNET, "max_tokens": 101}]}
    assert refused(changes, detail(cap=100)).field == "fallbacks[0].max_tokens"


@pytest.mark.parametrize(
    "thinking",
    [
        None,
        {"type": "disabled"},
        {"type": "enabled", "budget_tokens": 40},
        {"type": "adaptive"},
        {"type": "something_new"},
    ],
)
def test_thinking(thinking: Any) -> None:
    """Thinking passes, with a budget of its own or without."""
    assert read({"thinking": thinking})


@pytest.mark.parametrize("value", [True, 1.5, -1, "1024", 10**12])
def test_thinking_budget_is_strict(value: Any) -> None:
    """A thinking budget that is no sane whole number is refused (attack row 39)."""
    refused({"thinking": {"type": "enabled", "budget_tokens": value}})


@pytest.mark.parametrize("value", ["true", 1, [], {}])
def test_stream_is_a_boolean(value: Any) -> None:
    """stream is true, false or absent."""
    refused({"stream": value})
