"""How much of a body may be unknown: scopes with `body` strict, compat and open."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypass_core.problem import Code, Refusal
from daypass_core.scope import BODIES
from daypass_proxy.checkers.worker import Question
from daypass_proxy.providers.known_names import STRICT
from tests.fakes import anthropic, openai
from tests.fakes.openai import CHAT, EMBEDDINGS, RESPONSES

SCHEMA = {"type": "object", "properties": {"brand_new": {"type": "brand_new"}}, "$defs": {}}
TOOL = {"name": "a", "description": "b", "input_schema": SCHEMA}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
ORDINARY: dict[str, Any] = {
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "tools": [TOOL, {"type": "bash_20250124", "name": "bash"}],
    "tool_choice": {"type": "auto"},
    "metadata": {"user_id": "u"},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, IMAGE]},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "t", "name": "a", "input": {"brand": {"type": "new"}}}
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
    ],
}
OPENAI_ORDINARY: dict[str, dict[str, Any]] = {
    CHAT: {
        "tools": [{"type": "function", "function": {"name": "a", "parameters": SCHEMA}}],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        "logit_bias": {"50256": -100},
        "metadata": {"whose": "own"},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    },
    RESPONSES: {
        "reasoning": {"effort": "medium"},
        "include": ["reasoning.encrypted_content"],
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-window-id": "w"},
        "tools": [{"type": "function", "name": "a", "strict": False, "parameters": SCHEMA}],
        "input": [{"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "hi"}]}],
    },
    EMBEDDINGS: {"encoding_format": "float"},
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_ordinary_requests_pass_everywhere(body: str) -> None:
    """Row 32: what the official clients can say is known; what is in a schema is the caller's."""
    assert anthropic.read(ORDINARY, anthropic.detail(body=body))
    for endpoint, changes in OPENAI_ORDINARY.items():
        assert openai.read(endpoint, changes, openai.detail(body=body))


@pytest.mark.parametrize(
    ("changes", "field", "feature"),
    [
        ({"brand_new": 1}, "brand_new", "brand_new"),
        ({"url": "https://x.test"}, "url", "url"),
        ({"metadata": {"brand_new": "x"}}, "metadata.brand_new", "brand_new"),
        ({"tools": [TOOL | {"brand_new": True}]}, "tools[0].brand_new", "brand_new"),
        ({"tools": [{"type": "bash_20990101"}]}, "tools[0].type", "bash_20990101"),
        ({"thinking": {"type": "brand_new"}}, "thinking.type", "brand_new"),
        (
            anthropic.user({"type": "text", "text": "hi", "brand_new": [{}]}),
            "messages[0].content[0].brand_new",
            "brand_new",
        ),
        (
            {"context_management": {"edits": [{"type": "clear_brand_new"}]}},
            "context_management.edits[0].type",
            "clear_brand_new",
        ),
    ],
)
def test_strict_knows_every_name(changes: dict[str, Any], field: str, feature: str) -> None:
    """Row 32: an unknown field or kind at any depth is refused by name, with what would allow it;
    `compat` passes it."""
    problem = anthropic.refused(changes, anthropic.detail(body=STRICT))
    assert problem.code is Code.FIELD_NOT_ALLOWED
    assert problem.field == field
    assert f'feature "{feature}"' in problem.title
    assert anthropic.read(changes)
    assert anthropic.read(changes, anthropic.detail(feature, body=STRICT))


@pytest.mark.parametrize(
    ("endpoint", "changes", "field"),
    [
        (CHAT, {"brand_new": 1}, "brand_new"),
        (CHAT, {"input": "hi"}, "input"),
        (CHAT, openai.user({"type": "text", "text": "a", "brand_new": 1}),
         "messages[0].content[0].brand_new"),
        (CHAT, {"response_format": {"type": "brand_new"}}, "response_format.type"),
        (RESPONSES, {"brand_new": "x"}, "brand_new"),
        (RESPONSES, {"reasoning": {"brand_new": 1}}, "reasoning.brand_new"),
        (EMBEDDINGS, {"brand_new": True}, "brand_new"),
    ],
)  # fmt: skip
def test_strict_knows_every_name_of_openai(
    endpoint: str, changes: dict[str, Any], field: str
) -> None:
    """Row 32: so it is at every endpoint of OpenAI's API, and `compat` passes these."""
    problem = openai.refused(endpoint, changes, openai.detail(body=STRICT))
    assert problem.code is Code.FIELD_NOT_ALLOWED
    assert problem.field == field
    assert openai.read(endpoint, changes)


def test_null_is_no_field() -> None:
    """An unknown field that is null asks for nothing."""
    assert anthropic.read({"brand_new": None}, anthropic.detail(body=STRICT))
    assert openai.read(CHAT, {"brand_new": None}, openai.detail(body=STRICT))


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        (b"anthropic-beta", b"interleaved-thinking-2025-05-14, claude-code-20250219", True),
        (b"anthropic-beta", b"interleaved-thinking-2025-05-14,oauth-2025-04-20", True),
        (b"anthropic-beta", b"brand-new-2027-01-01", False),
        (b"anthropic-beta", b"interleaved-thinking-2025-05-14, brand-new-2027-01-01", False),
        (b"anthropic-brand-new", b"1", False),
        (b"anthropic-version", b"2023-06-01", True),
    ],
)
def test_strict_knows_every_beta(name: bytes, value: bytes, known: bool) -> None:
    """Row 32: an unknown flag or header is refused in a strict scope, and goes up in others."""
    headers = ((name, value),)
    call = anthropic.read(headers=headers)
    assert name in dict(call.headers)
    strict = anthropic.detail(body=STRICT)
    if known:
        assert anthropic.read(headers=headers, scope=strict).headers == call.headers
        return
    problem = anthropic.refused(headers=headers, scope=strict)
    assert problem.code is Code.FIELD_NOT_ALLOWED
    assert problem.field == name.decode()


def test_strict_knows_the_betas_of_openai() -> None:
    """Row 32: so it is with `openai-beta`."""
    scope = openai.detail(body=STRICT)
    assert openai.read(
        RESPONSES, scope=scope, headers=((b"openai-beta", b"responses=experimental"),)
    )
    headers = ((b"openai-beta", b"brand_new=v1"),)
    assert openai.read(RESPONSES, headers=headers)
    assert openai.refused(RESPONSES, scope=scope, headers=headers).field == "openai-beta"


NEW_BLOCK = {"type": "brand_new", "brand_new": {"text": "hi", "n": 3}}
UNKNOWN: list[dict[str, Any]] = [
    {"brand_new": {"a": [{"b": 1}]}},
    {"brand_new": []},
    {"tools": [{"type": "brand_new_20270101", "name": "n"}]},
    anthropic.user(NEW_BLOCK),
    anthropic.user({"type": "image", "source": {"type": "brand_new", "data": "x"}}),
    {"system": [NEW_BLOCK]},
]


@pytest.mark.parametrize("changes", UNKNOWN)
def test_open_passes_unknown_kinds(changes: dict[str, Any]) -> None:
    """Row 32: what `compat` refuses for not knowing it, `open` passes, held as unseen."""
    assert "feature" in anthropic.refused(changes).title
    call = anthropic.read(changes, anthropic.detail(body="open"))
    assert call.unseen or call.found


@pytest.mark.parametrize(
    ("endpoint", "changes"),
    [
        (CHAT, {"brand_new": {"a": 1}}),
        (CHAT, openai.user({"type": "brand_new", "text": "x"})),
        (RESPONSES, {"brand_new": [1]}),
        (RESPONSES, openai.items({"type": "brand_new", "content": "x"})),
        (RESPONSES, {"tools": [{"type": "brand_new"}], "max_tool_calls": 2}),
        (EMBEDDINGS, {"brand_new": {"a": 1}}),
    ],
)
def test_open_passes_unknown_kinds_of_openai(endpoint: str, changes: dict[str, Any]) -> None:
    """Row 32: so it is at every endpoint of OpenAI's API."""
    assert "feature" in openai.refused(endpoint, changes).title
    call = openai.read(endpoint, changes, openai.detail(body="open"))
    assert call.unseen or call.found


TELLING: list[tuple[dict[str, Any], str]] = [
    ({"model": "claude-opus-5"}, "model"),
    ({"\uff2dODEL": "claude-opus-5"}, "\uff2dODEL"),
    ({"judge_models": ["claude-opus-5"]}, "judge_models"),
    ({"deep": [{"draft_model": "claude-opus-5"}]}, "deep[0].draft_model"),
    ({"url": "https://x.test"}, "url"),
    ({"server_url": "http://a.test"}, "server_url"),
    ({"image_url": {"url": "https://x.test"}}, "image_url.url"),
    ({"callback": {"webhook": "x.test"}}, "callback.webhook"),
    ({"allowed_domains": ["x.test"]}, "allowed_domains"),
    ({"file_id": "file_1"}, "file_id"),
    ({"container": {"id": "c"}}, "container"),
    ({"bill_to": "them"}, "bill_to"),
    ({"workspace_id": "w"}, "workspace_id"),
    ({"authorization_token": "t"}, "authorization_token"),
    ({"previous_message_id": "m"}, "previous_message_id"),
    ({"max_tokens": 65}, "max_tokens"),
    ({"model": {"name": "claude-opus-5"}}, "model.name"),
    ({"models": [[{"id": "claude-opus-5"}]]}, "models.id"),
    ({"modelId": "claude-opus-5"}, "modelId"),
    ({"fallbacks": ["claude-opus-5"]}, "fallbacks"),
    ({"baseUrl": "https://x.test"}, "baseUrl"),
    ({"base-url": "https://x.test"}, "base-url"),
    ({"hosts": ["x.test"]}, "hosts"),
    ({"url": [["https://x.test"]]}, "url"),
    ({"server": {"at": "wss://x.test"}}, "server.at"),
    ({"apiKey": "k"}, "apiKey"),
    ({"service_tier": "priority"}, "service_tier"),
]


@pytest.mark.parametrize(("inside", "field"), TELLING)
def test_open_never_passes_what_the_checks_need(inside: dict[str, Any], field: str) -> None:
    """Rows 32, 34-37: models, addresses, states, limits and who pays are looked for in it."""
    scope = anthropic.detail(body="open", domains=("a.test",), cap=64)
    for changes, place in (
        ({"brand_new": inside}, f"brand_new.{field}"),
        (anthropic.user({"type": "brand_new", **inside}), f"messages[0].content[0].{field}"),
        ({"tools": [{"type": "brand_new", "name": "n", "more": inside}]}, f"tools[0].more.{field}"),
    ):
        assert anthropic.refused(changes, scope).field == place
    chat = openai.detail(body="open", domains=("a.test",), cap=64)
    assert openai.refused(CHAT, {"brand_new": inside}, chat).field == f"brand_new.{field}"


@given(steps=st.lists(st.sampled_from(["a", "content", "input", "text", 0, 1]), max_size=9))
def test_open_looks_however_deep(steps: list[str | int]) -> None:
    """Row 32: a model that is not in the scope is found wherever it stands in what is unknown."""
    for inside in ({"model": "claude-opus-5"}, {"type": "web_fetch_20260318"}):
        value: Any = inside
        for step in steps:
            value = {step: value} if isinstance(step, str) else [None, value][1 - step :]
        scope = anthropic.detail(body="open")
        assert anthropic.refused({"brand_new": value or [inside]}, scope)
        assert openai.refused(CHAT, {"brand_new": {"model": "o3", "x": value}}, openai.detail())


def test_the_worker_is_told() -> None:
    """A large body is checked elsewhere by the same profile."""
    question = Question("anthropic", 1, True, anthropic.detail(body="open"))
    assert msgspec.json.decode(msgspec.json.encode(question), type=Question) == question


def test_open_looks_at_known_kinds_inside_of_unknown_ones() -> None:
    """Rows 34-37: a gated tool or source is gated wherever it hides; its feature opens it."""
    fetch = {"type": "web_fetch_20260318", "max_uses": 1, "allowed_domains": ["a.test"]}
    for inside, feature in (
        (fetch, "web_fetch"),
        ({"type": "mcp_toolset"}, "mcp_toolset"),
        ({"type": "container_upload"}, "files"),
    ):
        changes = {"brand_new": [{"deep": inside}]}
        problem = anthropic.refused(changes, anthropic.detail(body="open"))
        assert problem.field == "brand_new[0].deep.type"
        assert f'feature "{feature}"' in problem.title
        scope = anthropic.detail(feature, body="open", domains=("a.test",))
        assert anthropic.read(changes, scope)
    fee = {"brand_new": {"type": "code_execution_20260521"}}
    assert anthropic.refused(fee, anthropic.detail("code_execution", body="open"))
    assert openai.refused(
        RESPONSES, {"brand_new": {"type": "input_audio"}}, openai.detail(body="open")
    )


@pytest.mark.parametrize(
    ("inside", "feature", "field"),
    [
        ({"type": "web_fetch_20260318", "max_uses": 1}, "web_fetch", "allowed_domains"),
        ({"type": "web_fetch_20260318", "allowed_domains": ["a.test"]}, "web_fetch", "max_uses"),
        ({"type": "web_search_20260318"}, "web_search", "max_uses"),
        ({"type": "advisor_20260301", "model": anthropic.SONNET}, "advisor", "max_tokens"),
    ],
)
def test_open_keeps_the_rules_of_tools_inside_of_unknown_kinds(
    inside: dict[str, Any], feature: str, field: str
) -> None:
    """Rows 34, 35: a feature opens a tool with its bounds, also within an unknown wrapper."""
    scope = anthropic.detail(feature, body="open", domains=("a.test",))
    changes = {"tools": [{"type": "brand_new", "name": "n", "tools": [inside]}]}
    problem = anthropic.refused(changes, scope)
    assert problem.field is not None
    assert problem.field.startswith("tools[0].tools[0]")
    assert field in problem.title


def test_open_keeps_the_rules_of_tools_of_openai() -> None:
    """Rows 34, 35: so it is with OpenAI's."""
    inside = {"type": "mcp", "server_label": "s"}
    changes = {"tools": [{"type": "brand_new", "tools": [inside]}], "max_tool_calls": 2}
    scope = openai.detail("mcp", body="open", domains=("a.test",))
    assert openai.refused(RESPONSES, changes, scope).field == "tools[0].tools[0].server_url"
    inside["server_url"] = "https://a.test/mcp"
    assert openai.read(RESPONSES, changes, scope)


def test_open_reads_schemas_of_unknown_tools_as_such() -> None:
    """A property of a schema that is called as a model or an address is, names neither."""
    schema = {"model": {"type": "string", "description": "a"}, "url": {"format": "uri"}}
    tool = {"type": "brand_new", "name": "n", "input_schema": {"properties": schema}}
    assert anthropic.read({"tools": [tool]}, anthropic.detail(body="open"))


def test_open_passes_what_is_within_the_scope() -> None:
    """What is looked for and allowed passes: its model is priced, its address in the domains."""
    inside = {"model": "claude-sonnet-5", "url": "https://docs.a.test/x", "image": {
        "src": "data:image/png;base64,aGk="}, "url_list": None, "max_tokens": 64}  # fmt: skip
    scope = anthropic.detail(body="open", domains=("a.test",), cap=64)
    call = anthropic.read({"brand_new": inside}, scope)
    assert call.models == (anthropic.SONNET, "claude-sonnet-5")


@pytest.mark.parametrize(
    "changes",
    [
        {"thread": {"type": "create"}},
        {"mcp_servers": [{"type": "url", "url": "https://a.test", "name": "n"}]},
        {"container": "c"},
        {"billing_policy": {"type": "billing_policy", "bill_to": "x"}},
        {"speed": "fast"},
        {"fallbacks": "default"},
        {"tools": [{"type": "web_search_20260318", "max_uses": 1}]},
        {"Model": "x"},
        anthropic.user({"type": "document", "source": {"type": "file", "file_id": "f"}}),
    ],
)
def test_open_opens_nothing_that_is_known(changes: dict[str, Any]) -> None:
    """Rows 31-37: what has a rule keeps it in an open scope."""
    assert anthropic.refused(changes, anthropic.detail(body="open", domains=("a.test",)))


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("brand_new", True),
        ("api_base", False),
        ("base_url", False),
        ("n_predict", False),
        ("custom_llm_provider", False),
        ("deployment_id", False),
        ("preset", False),
        ("num_retries", False),
        ("\uff4dodel_list", False),
        ("num_ctx", True),
    ],
)
def test_options_of_own_servers(name: str, passes: bool) -> None:
    """Row 32: in an open scope unknown options pass to a server of one's own, but for those that
    sound as if they led elsewhere; in a strict one only those listed pass."""
    scope = openai.detail(provider="vllm", body="open")
    if passes:
        assert openai.read(CHAT, {name: "x"}, scope, provider="vllm")
    else:
        problem = openai.refused(CHAT, {name: "x"}, scope, provider="vllm")
        assert f'feature "{name}"' in problem.title
    strict = openai.detail(provider="vllm", body=STRICT)
    assert openai.refused(CHAT, {name: "x"}, strict, provider="vllm")
    assert openai.read(CHAT, {"top_k": 4, "min_p": 0.1}, strict, provider="vllm")


def test_what_is_looked_into_is_bounded() -> None:
    """Row 17: an open scope does not make a body name more models or addresses than another."""
    scope = anthropic.detail(body="open", models=("*",))
    with pytest.raises(Refusal, match="too many"):
        anthropic.read({"brand_new": [{"model": f"m-{n}"} for n in range(100)]}, scope)
