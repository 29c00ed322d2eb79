"""What a body costs otherwise than as text: seen in one pass, whatever it is nested in."""

import base64
from typing import Any

import pytest

from daypass_core.problem import Code
from daypass_proxy.providers import Beside
from tests.fakes.anthropic import SONNET, detail, read, refused

PICTURE = base64.b64encode(bytes(3_000)).decode()
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    """A body with one turn of these blocks."""
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def block(kind: str, data: object, source: str = "base64") -> dict[str, Any]:
    """An image or a document."""
    return {"type": kind, "source": {"type": source, "media_type": "image/png", "data": data}}


def test_b05_base64_is_weighed_where_it_lies() -> None:
    """B05: images and documents are told apart, also within the result of a tool."""
    result = {"type": "tool_result", "content": [block("image", PICTURE), block("image", "AAAA")]}
    call = read(user(result, block("document", PICTURE)))
    assert (call.images, call.image_bytes) == (2, 4_004)
    assert (call.documents, call.document_bytes) == (1, 4_000)


@pytest.mark.parametrize(
    "changes",
    [
        user({"type": "text", "text": f'{{"type":"image","data":"{PICTURE}"}}'}),
        user({"type": "tool_use", "input": block("image", PICTURE)}),
        user(block("image", PICTURE, "text")),
        user(block("image", [PICTURE])),
        {"system": [{"type": "text", "text": "x", "data": PICTURE}]},
    ],
)
def test_text_is_not_taken_for_an_image(changes: dict[str, Any]) -> None:
    """Only the base64 of an image block is taken off the text: nothing else is read as one."""
    assert read(changes).image_bytes == 0


def test_no_more_is_taken_off_than_there_is() -> None:
    """However JSON writes the base64, it is at least as long there as it counts."""
    call = read(user(block("image", "/\u002b\u00e9" * 100)))
    assert call.image_bytes == 300
    assert len(call.body) > 300


@pytest.mark.parametrize(
    ("thinking", "most", "tokens"),
    [
        (None, 64, None),
        ({"type": "disabled"}, 64, None),
        ({"type": "enabled", "budget_tokens": 20}, 64, 20),
        ({"type": "enabled", "budget_tokens": 2_000}, 64, 64),
        ({"type": "enabled"}, 64, 64),
        ({"type": "adaptive"}, 9_000, 9_000),
        ({"type": "brand_new", "budget_tokens": None}, 64, 64),
    ],
)
def test_thinking_has_its_budget_or_all(thinking: Any, most: int, tokens: int | None) -> None:
    """Thinking without a budget of its own may be the whole answer."""
    assert read({"thinking": thinking, "max_tokens": most}).thinking_tokens == tokens


def test_thinking_of_a_fallback_counts() -> None:
    """The largest budget counts, whoever has it."""
    fallback = {"model": SONNET, "thinking": {"type": "enabled", "budget_tokens": 30}}
    thinking = {"type": "enabled", "budget_tokens": 10}
    assert read({"thinking": thinking, "fallbacks": [fallback]}).thinking_tokens == 30


@pytest.mark.parametrize(
    ("name", "value"),
    [("speed", "fast"), ("service_tier", "priority"), ("inference_geo", "us"), ("speed", "ab")],
)
def test_a_feature_opens_a_value_with_another_price(name: str, value: str) -> None:
    """What changes the price goes on to be priced, once the scope names the feature."""
    call = read({name: value}, detail(name))
    assert getattr(call, name) == value


@pytest.mark.parametrize("name", ["speed", "service_tier", "inference_geo"])
@pytest.mark.parametrize("value", [7, True, ["fast"], {"a": 1}])
def test_what_is_no_word_has_no_price(name: str, value: object) -> None:
    """A value that is no text is refused, whatever the scope names."""
    assert refused({name: value}, detail(name)).field == name


def test_ordinary_values_need_no_feature() -> None:
    """What has the ordinary price passes and is known."""
    call = read({"speed": "standard", "service_tier": "auto", "inference_geo": "global"})
    assert (call.speed, call.service_tier, call.inference_geo) == ("standard", "auto", "global")
    assert read({"service_tier": "standard_only", "speed": None}).service_tier == "standard_only"


def test_searches_need_a_feature_and_a_bound() -> None:
    """Row 34: each search has a fee, so how many there may be has to be said."""
    call = read({"tools": [SEARCH, SEARCH | {"max_uses": 100}]}, detail("web_search"))
    assert (call.searches, call.loops, call.hosted_tools) == (103, True, 2)
    assert "web_search" in refused({"tools": [SEARCH]}).title
    for uses in (None, 0, 101, True, "3", 2.0):
        problem = refused({"tools": [SEARCH | {"max_uses": uses}]}, detail("web_search"))
        assert problem.code is Code.FIELD_NOT_ALLOWED
        assert problem.field == "tools[0].max_uses"


def test_advice_needs_a_bound() -> None:
    """Row 32: each use of an advisor reads the whole request and writes; both are bounded."""
    tool = {"type": "advisor_20260301", "model": SONNET, "max_uses": 4, "max_tokens": 50}
    call = read({"tools": [tool, tool | {"max_tokens": 60}]}, detail("advisor"))
    assert call.beside == (Beside(SONNET, 8, 60),)
    assert (call.writers, call.max_output_tokens, call.loops) == (1, 64, False)
    for name in ("max_uses", "max_tokens"):
        without = {key: value for key, value in tool.items() if key != name}
        assert refused({"tools": [without]}, detail("advisor")).field == f"tools[0].{name}"


@pytest.mark.parametrize(
    ("changes", "features", "loops", "hosted"),
    [
        ({"tools": [{"name": "mine"}, {"type": "custom", "name": "too"}]}, (), False, 0),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, (), False, 1),
        ({"tools": [{"type": "tool_search_tool_regex"}]}, ("tool_search",), True, 1),
        ({"tools": [{"type": "mcp_toolset"}]}, ("mcp_toolset",), True, 1),
        ({"tools": [{"type": "brand_new"}]}, ("brand_new",), True, 1),
        ({"mcp_servers": [{"url": "https://docs.test/"}]}, ("mcp_servers",), True, 0),
    ],
)
def test_tools_of_the_provider(
    changes: dict[str, Any], features: tuple[str, ...], loops: bool, hosted: int
) -> None:
    """A tool that runs at the provider may fill the window; one it describes has a weight."""
    call = read(changes, detail(*features, domains=("docs.test",)))
    assert (call.loops, call.hosted_tools) == (loops, hosted)


@pytest.mark.parametrize(
    ("changes", "compacts"),
    [
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, False),
        ({"context_management": {"edits": []}}, False),
        ({"context_management": {}}, False),
        ({"context_management": {"edits": [{"type": "clear_x"}, {"type": "compact_x"}]}}, True),
        ({"context_management": {"edits": [{"type": "brand_new"}]}}, True),
        ({"context_management": {"edits": [{}]}}, True),
        ({"compaction": {"trigger": 1}}, True),
        ({"compaction": None}, False),
    ],
)
def test_a_compaction_is_one_more_pass(changes: dict[str, Any], compacts: bool) -> None:
    """Row 33: a model may rewrite the context first, which is billed beside; clearing is not."""
    assert read(changes).beside == ((Beside(SONNET),) if compacts else ())
