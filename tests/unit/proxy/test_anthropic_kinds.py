"""Kinds in a Messages body: tools, blocks, sources and state that need a feature of the scope."""

import json
from typing import Any

import pytest

from daypass_core.problem import Code
from daypass_core.scope import Detail
from daypass_proxy.providers import Beside
from daypass_proxy.providers.anthropic import Anthropic
from daypass_proxy.providers.anthropic_fields import FIELDS
from daypass_proxy.providers.reach import MAX_REACHED
from daypass_proxy.providers.scope_check import MAX_MODELS
from tests.fakes.anthropic import SONNET, detail, read, refused, user


def test_threads_are_refused_so_that_the_sdk_resends_the_history() -> None:
    """A thread is a 400 whose details tell stock clients to send the full history (row 36)."""
    problem = refused({"thread": {"type": "create"}})
    assert problem.code is Code.THREAD_UNSUPPORTED
    error = json.loads(Anthropic().render(problem, "req_1").body)["error"]
    assert error == {
        "type": "invalid_request_error",
        "message": "capability_rejected: beta_header:message-threads-2026-08-12;"
        " resend the full history",
        "details": {"error_code": "thread_unsupported_request"},
    }


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"mcp_servers": [{"type": "url", "url": "https://x.test", "name": "n"}]}, "mcp_servers"),
        ({"container": "container_1"}, "container"),
        ({"container": {"skills": []}}, "container"),
        ({"user_profile_id": "up_1"}, "user_profile_id"),
        ({"workspace_id": "w"}, "workspace_id"),
        ({"billing_policy": {"type": "billing_policy", "bill_to": "x"}}, "billing_policy"),
        ({"fallback_credit_token": "t"}, "fallback_credit_token"),
        ({"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics"),
        ({"tags": {"a": "b"}}, "tags"),
        ({"requests": []}, "requests"),
        ({"tools": [{"type": "web_fetch_20260318", "name": "w"}]}, "web_fetch"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "m"}]}, "mcp_toolset"),
        ({"tools": [{"type": "advisor_20260301", "model": SONNET}]}, "advisor"),
        ({"tools": [{"type": "tool_search_tool_bm25_20251119"}]}, "tool_search"),
        ({"tools": [{"type": "tool_search_tool_regex"}]}, "tool_search"),
        ({"tools": [{"type": "brand_new_20270101"}]}, "brand_new"),
        ({"tools": [{"type": "bash_2025"}]}, "bash_2025"),
        (
            user({"type": "image", "source": {"type": "url", "url": "https://x.test"}}),
            "url_sources",
        ),
        (user({"type": "document", "source": {"type": "file", "file_id": "f"}}), "files"),
        (user({"type": "container_upload", "file_id": "f"}), "files"),
        (user({"type": "brand_new_block"}), "brand_new_block"),
        (user({"type": "image", "source": {"type": "brand_new"}}), "brand_new"),
        ({"system": [{"type": "brand_new_block"}]}, "brand_new_block"),
    ],
)
def test_kinds_need_their_feature(changes: dict[str, Any], feature: str) -> None:
    """Egress, state, price and unknown kinds are refused naming the feature (rows 32, 34-37)."""
    problem = refused(changes)
    assert problem.code is Code.FIELD_NOT_ALLOWED
    assert problem.field
    assert f'feature "{feature}"' in problem.title


def test_a_url_source_hidden_in_a_result_is_found() -> None:
    """Sources are checked however deep they stand in a turn (attack row 35)."""
    fetched = {
        "type": "web_fetch_tool_result",
        "tool_use_id": "t",
        "content": {
            "type": "web_fetch_result",
            "url": "https://x.test",
            "content": {"type": "document", "source": {"type": "url", "url": "https://x.test"}},
        },
    }
    problem = refused(user(fetched))
    assert problem.field == "messages[0].content[0].content.content.source.type"


@pytest.mark.parametrize(
    "changes",
    [
        {"speed": "standard", "service_tier": "auto"},
        {"service_tier": "standard_only"},
        {"thread": None, "container": None, "speed": None, "mcp_servers": [], "tools": None},
        {"diagnostics": {"previous_message_id": None}},
        {"tools": [{"name": "a"}, {"type": "custom", "name": "b"}, {"type": None, "name": "c"}]},
        {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        {"tools": [{"type": "text_editor_20250728", "name": "e"}]},
        {"tools": [{"type": "computer_20251124", "name": "c"}]},
        {"tools": [{"type": "memory_20250818", "name": "m"}]},
    ],
)
def test_harmless_kinds_pass(changes: dict[str, Any]) -> None:
    """Client-side tools, ordinary values and null need no feature."""
    assert read(changes)


@pytest.mark.parametrize(
    ("feature", "changes"),
    [
        ("container", {"container": "c"}),
        ("tags", {"tags": {"a": "b"}}),
        ("tool_search", {"tools": [{"type": "tool_search_tool_regex"}]}),
        ("files", user({"type": "document", "source": {"type": "file", "file_id": "f"}})),
    ],
)
def test_a_feature_opens_its_kind(feature: str, changes: dict[str, Any]) -> None:
    """What the scope names passes."""
    assert read(changes, detail(feature))


def added(definition: dict[str, Any]) -> dict[str, Any]:
    """A block that introduces a tool in the middle of a conversation."""
    return {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"inference_geo": "us"}, "inference_geo"),
        ({"speed": "fast"}, "speed"),
        ({"fallbacks": [{"model": SONNET, "speed": "fast"}]}, "fallbacks[0].speed"),
        ({"service_tier": "priority"}, "service_tier"),
    ],
)
def test_values_with_another_price_stay_closed(changes: dict[str, Any], field: str) -> None:
    """A value that changes the price needs its feature; of a fallback it stays closed."""
    others = {"inference_geo", "speed", "service_tier"} - {field}
    problem = refused(changes, detail(*sorted(others)))
    assert problem.code is Code.FIELD_NOT_ALLOWED
    assert problem.field == field


@pytest.mark.parametrize(
    "changes",
    [
        {"tools": [{"type": "code_execution_20260521", "name": "c"}]},
        user(added({"type": "code_execution_20260521"})),
    ],
)
def test_tools_with_a_fee_stay_closed(changes: dict[str, Any]) -> None:
    """A fee for each use without a price is in no hold, so no feature opens such a tool."""
    assert "cannot be priced" in refused(changes, detail("code_execution")).title


FETCH = {"type": "web_fetch_20260318", "name": "w", "max_uses": 3}


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({}, "allowed_domains"),
        ({"allowed_domains": []}, "allowed_domains"),
        ({"allowed_domains": ["docs.test", "other.test"]}, "allowed_domains"),
        ({"allowed_domains": ["evildocs.test"]}, "allowed_domains"),
        ({"allowed_domains": ["docs.test"], "max_uses": None}, "max_uses"),
        ({"allowed_domains": ["docs.test"], "max_uses": 10**9}, "max_uses"),
    ],
)
def test_web_tools_stay_within_domains_and_uses(tool: dict[str, Any], field: str) -> None:
    """A granted web tool still names its domains, within the scope's, and its uses (row 34)."""
    scope = detail("web_fetch", domains=("docs.test",))
    assert refused({"tools": [{**FETCH, **tool}]}, scope).field == f"tools[0].{field}"


def test_web_tool_within_its_bounds() -> None:
    """Domains of the scope and below pass."""
    scope = detail("web_fetch", domains=("docs.test",))
    tool = {**FETCH, "allowed_domains": ["docs.test", "api.docs.test/path"]}
    assert read({"tools": [tool]}, scope)


@pytest.mark.parametrize(
    "url",
    [
        "http://docs.test/a",
        "https://other.test/a",
        "https://docs.test@evil.test/a",
        "https://docs.test.evil.test",
        "https://evil.test\\@docs.test/",
        "https://[::1/",
        "https://docs.test\n.evil.test/",
        " https://docs.test/",
        "https://docs.test/\u2100",
        "https://docs.test/" + "a" * 2048,
        "file:///etc/passwd",
        "",
        None,
    ],
)
def test_url_sources_stay_within_domains(url: Any) -> None:
    """A granted URL source is https and within the scope's domains (attack row 35)."""
    scope = detail("url_sources", domains=("docs.test",))
    refused(user({"type": "image", "source": {"type": "url", "url": url}}), scope)


def test_url_source_within_domains() -> None:
    """A URL below an allowed domain passes."""
    scope = detail("url_sources", domains=("docs.test",))
    source = {"type": "url", "url": "https://img.docs.test/a.png"}
    assert read(user({"type": "image", "source": source}), scope).images == 1


@pytest.mark.parametrize("key", ["Model", "MAX_TOKENS", "messageS", "\uff4dodel", "Thread"])
def test_lookalike_keys(key: str) -> None:
    """A top-level key that folds to a known one is refused (attack row 31)."""
    assert refused({key: "x"}).field == key.casefold().replace("\uff4d", "m")


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": "hi"},
        {"messages": ["hi"]},
        {"messages": [{"role": "user", "content": ["hi"]}]},
        {"messages": [{"role": "user", "content": [{"text": "no type"}]}]},
        {"messages": [{"role": "user", "content": [{"type": 5}]}]},
        {"tools": {}},
        {"tools": [5]},
        {"tools": [{"type": 5}]},
        {"tools": [{"Type": "web_fetch_20260318"}]},
        {"thinking": "enabled"},
        {"temperature": {}},
    ],
)
def test_malformed_structures(changes: dict[str, Any]) -> None:
    """What cannot be read cannot be checked, so it is refused."""
    refused(changes)


def test_field_sets_do_not_overlap() -> None:
    """A name of the field data is in one class only."""
    top = FIELDS["top_level"]
    assert not set(top["scalars"]) & set(top["structures"])
    assert set(top["gated"]) <= set(top["scalars"]) | set(top["structures"])
    assert not set(FIELDS["blocks"]["known"]) & set(FIELDS["blocks"]["gated"])
    tools = FIELDS["tools"]
    assert not set(tools["client"]) & set(tools["server"])
    assert not set(tools["fees"]) & {*tools["client"], *tools["server"], *tools["egress"]}


@pytest.mark.parametrize("kind", [{}, [], 5, None, "else"])
def test_a_reference_of_an_unknown_kind(kind: object) -> None:
    """What a change of tools refers to is a known kind, which is text, or it is refused."""
    problem = refused(user({"type": "tool_addition", "tool": {"type": kind}}))
    assert problem.field == "messages[0].content[0].tool.type"


def test_tools_that_a_compaction_keeps_are_looked_at() -> None:
    """Rows 32, 34: what was introduced before a compaction is checked like any other tool."""
    kept = {"type": "compaction", "content": None, "tool_changes": [added({"name": "mine"})]}
    assert read(user(kept))
    kept["tool_changes"] = [added({"type": "code_execution_20260521"})]
    assert "cannot be priced" in refused(user(kept)).title
    kept["tool_changes"] = [added({"type": "advisor_20260301", "model": "claude-opus-5-5"})]
    problem = refused(user(kept), detail("advisor"))
    assert problem.code is Code.MODEL_NOT_ALLOWED
    assert problem.field == "messages[0].content[0].tool_changes[0].tool.definition.model"


def test_an_advisor_has_the_cap_of_the_scope() -> None:
    """Row 39: an advisor's own limit is a whole number within the cap, like any other."""
    tool = {"type": "advisor_20260301", "name": "advisor", "model": SONNET, "max_uses": 1}
    for value in (101, True, 1.5, 0, None):
        problem = refused({"tools": [tool | {"max_tokens": value}]}, detail("advisor", cap=100))
        assert problem.field == "tools[0].max_tokens"
    assert read({"tools": [tool | {"max_tokens": 100}]}, detail("advisor", cap=100))


# -- how much a body may make us compare (row 17)


class Compared(Detail):
    """A scope that counts the models it is asked about."""

    asked = 0

    def allows_model(self, model: str) -> bool:
        """Count, and say what the scope says."""
        Compared.asked += 1
        return super().allows_model(model)


def test_row_17_a_model_is_compared_with_the_scope_once() -> None:
    """Row 17: thousands of tools and 64 fallbacks that name one model are one comparison."""
    tools = [{"type": "advisor", "model": SONNET, "max_uses": 2, "max_tokens": 9}] * 1000
    scope = Compared("anthropic", ("messages",), ("claude-*",), ("advisor",))
    Compared.asked = 0
    call = read({"tools": tools, "fallbacks": [{"model": SONNET}] * MAX_MODELS}, scope)
    assert (call.models, Compared.asked) == ((SONNET,), 1)
    again = Beside(SONNET, MAX_MODELS * 2001, None)
    assert call.beside == (Beside(SONNET, 2000, 9), again)


def test_row_17_fallbacks_are_bounded() -> None:
    """Row 17: more fallbacks than models may be named are refused, also when all are one model."""
    problem = refused({"fallbacks": [{"model": SONNET}] * (MAX_MODELS + 1)})
    assert problem.field == "fallbacks"
    assert str(MAX_MODELS) in problem.title


@pytest.mark.parametrize("each", [1, 64, MAX_REACHED])
def test_row_17_domains_are_bounded(each: int) -> None:
    """Row 17: so many domains and URLs in all of a body are compared with the scope's, no more."""
    scope = detail("web_fetch", "mcp_servers", domains=("docs.test",))
    tool = {**FETCH, "allowed_domains": ["docs.test"] * each}
    tools = [tool] * (MAX_REACHED // each)
    left = MAX_REACHED % each
    servers = [{"type": "url", "url": "https://docs.test/", "name": "m"}]
    read({"tools": tools, "mcp_servers": servers * left}, scope)
    problem = refused({"tools": tools, "mcp_servers": servers * (left + 1)}, scope)
    assert problem.field == f"mcp_servers[{left}].url"
    problem = refused({"tools": [*tools, tool]}, scope)
    assert problem.field == f"tools[{len(tools)}].allowed_domains"


@pytest.mark.parametrize(
    ("domain", "allowed"),
    [
        *(
            ("docs.test", True),
            ("a.docs.test", True),
            ("DOCS.test/x", True),
            ("a.b.docs.test", True),
        ),
        *((".docs.test", True), ("xdocs.test", False), ("docs.test.", False), ("test", False)),
        *(("docs.test.evil", False), ("", False), ("/docs.test", False), ("two.test", True)),
    ],
)
def test_domains_are_those_of_the_scope_or_below(domain: str, allowed: bool) -> None:
    """Row 34: a domain is one of the scope's, or ends in a dot and one of them."""
    scope = detail("web_fetch", domains=("docs.test", "two.test"))
    tool = {**FETCH, "allowed_domains": [domain]}
    if allowed:
        read({"tools": [tool]}, scope)
    else:
        assert refused({"tools": [tool]}, scope).field == "tools[0].allowed_domains"
