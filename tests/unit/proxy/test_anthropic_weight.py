"""What a body costs otherwise than as text: seen in one pass, whatever it is nested in."""

import base64
from typing import Any

import pytest

from daypass_core.problem import Code
from daypass_proxy.providers import Beside
from daypass_proxy.providers.anthropic_weight import ROUNDS, SEARCH_TOKENS, may_cache_an_hour
from tests.fakes.anthropic import SONNET, detail, read, refused

PICTURE = base64.b64encode(bytes(3_000)).decode()
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
FETCH = {"type": "web_fetch_20250910", "max_uses": 2, "allowed_domains": ["docs.test"]}
URL = "https://docs.test/a.pdf"


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
    ("thinking", "most", "tokens", "freely"),
    [
        (None, 64, None, False),
        ({"type": "disabled"}, 64, 0, False),
        ({"type": "Disabled"}, 64, 0, True),
        ({"type": "between_tools"}, 64, 0, True),
        ({"type": "enabled", "budget_tokens": 20}, 64, 20, False),
        ({"type": "enabled", "budget_tokens": 2_000}, 64, 64, False),
        ({"type": "enabled"}, 64, 0, True),
        ({"type": "adaptive"}, 9_000, 0, True),
        ({"type": "brand_new", "budget_tokens": None}, 64, 0, True),
        ({"type": "adaptive", "budget_tokens": 5}, 64, 0, True),
    ],
)
def test_thinking_has_its_budget_or_none(
    thinking: Any, most: int, tokens: int | None, freely: bool
) -> None:
    """Thinking counts by its budget, within the answer; without one it may be all of that."""
    call = read({"thinking": thinking, "max_tokens": most})
    assert (call.thinking_tokens, call.thinks_freely) == (tokens, freely)


def test_thinking_of_a_fallback_counts() -> None:
    """The largest budget counts, whoever has it; and whoever has none, beside it."""
    fallback = {"model": SONNET, "thinking": {"type": "enabled", "budget_tokens": 30}}
    thinking = {"type": "enabled", "budget_tokens": 10}
    both = read({"thinking": thinking, "fallbacks": [fallback]})
    assert (both.thinking_tokens, both.thinks_freely) == (30, False)
    adaptive = {"type": "adaptive"}
    free = read({"thinking": adaptive, "fallbacks": [fallback]})
    assert (free.thinking_tokens, free.thinks_freely) == (30, True)
    free = read({"thinking": thinking, "fallbacks": [{"model": SONNET, "thinking": adaptive}]})
    assert (free.thinking_tokens, free.thinks_freely) == (10, True)
    # No budget of another model's says how much the request's own thinks by itself.
    off = {"model": SONNET, "thinking": {"type": "disabled"}}
    for other in (fallback, off):
        assert read({"fallbacks": [other]}).thinks_freely
    none = read({"thinking": {"type": "disabled"}, "fallbacks": [off]})
    assert (none.thinking_tokens, none.thinks_freely) == (0, False)


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
    assert (call.searches, call.loops, call.hosted_tools) == (103, ROUNDS, 2)
    assert call.found == 103 * SEARCH_TOKENS
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
    assert (call.writers, call.max_output_tokens) == (1, 64)
    assert (call.loops, call.found) == (ROUNDS, 4 * 50 + 4 * 60)
    assert read({"tools": [tool] * 4}, detail("advisor")).loops == 16
    for name in ("max_uses", "max_tokens"):
        without = {key: value for key, value in tool.items() if key != name}
        assert refused({"tools": [without]}, detail("advisor")).field == f"tools[0].{name}"


@pytest.mark.parametrize(
    ("changes", "features", "loops", "endless", "hosted"),
    [
        ({"tools": [{"name": "mine"}, {"type": "custom", "name": "too"}]}, (), 0, False, 0),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, (), 0, False, 1),
        ({"tools": [{"type": "tool_search_tool_regex"}]}, ("tool_search",), ROUNDS, False, 1),
        ({"tools": [{"type": "mcp_toolset"}] * 9}, ("mcp_toolset",), ROUNDS, True, 9),
        ({"tools": [{"type": "brand_new"}]}, ("brand_new",), ROUNDS, True, 1),
        ({"mcp_servers": [{"url": "https://docs.test/"}]}, ("mcp_servers",), ROUNDS, True, 0),
        # A use beyond max_uses is an error, which the model reads as well.
        ({"tools": [SEARCH | {"max_uses": 1}]}, ("web_search",), ROUNDS, False, 1),
        ({"tools": [FETCH]}, ("web_fetch",), ROUNDS, True, 1),
    ],
)
def test_tools_of_the_provider(
    changes: dict[str, Any], features: tuple[str, ...], loops: int, endless: bool, hosted: int
) -> None:
    """How often a tool at the provider has the model read again, and whether it fills windows."""
    call = read(changes, detail(*features, domains=("docs.test",)))
    assert (call.loops, call.found == 10**9, call.hosted_tools) == (loops, endless, hosted)


@pytest.mark.parametrize(
    ("changes", "unseen"),
    [
        (user(block("image", None, "url") | {"source": {"type": "url", "url": URL}}), False),
        (user({"type": "document", "source": {"type": "url", "url": URL}}), True),
        (user({"type": "document", "source": {"type": "file", "file_id": "f"}}), True),
        (user({"type": "document"}), True),
        (user({"type": "document", "source": {"type": "text", "data": "x"}}), False),
        (user({"type": "document", "source": {"type": "content", "content": []}}), False),
        (user(block("document", "AAAA")), False),
        (user({"type": "brand_new", "url": "x"}), True),
        (user({"type": "image", "source": {"type": "brand_new"}}), True),
        (user({"type": "tool_result", "content": [{"type": "brand_new"}]}), True),
        ({"container": {"skills": []}}, True),
        ({"brand_new": {"a": 1}}, True),
        ({"metadata": {"a": 1}}, False),
    ],
)
def test_what_the_body_does_not_hold_is_unseen(changes: dict[str, Any], unseen: bool) -> None:
    """A kind that a feature lets through, or a document elsewhere, may be of any size."""
    features = ("files", "url_sources", "brand_new", "container")
    assert read(changes, detail(*features, domains=("docs.test",))).unseen is unseen


@pytest.mark.parametrize("kind", [None, 7, ["base64"], {"base64": 1}])
def test_a_source_of_no_kind_is_refused(kind: object) -> None:
    """Whatever stands where the kind of a source should is a 400."""
    problem = refused(user({"type": "document", "source": {"type": kind}}))
    assert problem.field == "messages[0].content[0].source.type"


def test_a_model_may_write_once_more_as_a_fallback() -> None:
    """Row 32: a fallback to a model that is named already is one more reading and writing."""
    other = "claude-sonnet-4-5"
    call = read({"fallbacks": [{"model": SONNET}, {"model": other}, {"model": other}]})
    assert (call.models, call.writers) == ((SONNET, other), 2)
    assert call.beside == (Beside(SONNET, 1, None), Beside(other, 1, None))


def test_every_writer_may_compact_at_every_reading() -> None:
    """Row 33: a context that grows by searches may be compacted again, by each model."""
    edits = {"edits": [{"type": "compact_20260112"}]}
    other = "claude-sonnet-4-5"
    changes = {"context_management": edits, "fallbacks": [{"model": other}], "tools": [SEARCH]}
    call = read(changes, detail("web_search"))
    assert call.beside == (Beside(SONNET, 10, None), Beside(other, 10, None))


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        (b"{}", False),
        (b'{"cache_control":{"type":"ephemeral"}}', False),
        (b'{"cache_control":{"type":"ephemeral","ttl":"5m"}}', False),
        (b'{"cache_control":{"type":"ephemeral","ttl": "5m"}}', False),
        (b'{"cache_control":{"type":"ephemeral","ttl" :"5m"}}', True),
        (b'{"a":"ttl","b":"5m"}', True),
        (b'[{"ttl":"5m"}' + b',{"ttl":"5m"}' * 9 + b"]", False),
        (b'[{"ttl":"5m"}' + b',{"ttl":"5m"}' * 99 + b"]", True),
        (b'{"cache_control":{"type":"ephemeral","ttl":"1h"}}', True),
        (b'{"cache_control":{"ttl":"5m"},"caching":{"ttl":"1h"}}', True),
        (b'{"cache_control":{"ttl":"5\\u006d"}}', True),
        (b'{"cache_control":{"ttl":"\\u0031\\u0068"}}', True),
        (b'{"cache_control":{"\\u0074tl":"1h"}}', True),
        (b'{"cache_control":{"tt\\u006C":"1h"}}', True),
        (b'{"cache_control":{"ttl":3600}}', True),
        (b'{"text":"\\u00e9 and \\"ttl\\": \\"1h\\""}', False),
    ],
)
def test_caching_for_an_hour_is_seen_however_it_is_spelled(text: bytes, hour: bool) -> None:
    """B34: only where no other time to live is asked for are writes of an hour left out."""
    assert may_cache_an_hour(text) is hour


def test_caching_reaches_the_call() -> None:
    """The whole body is looked at: an advisor's own caching too."""
    assert not read({"cache_control": {"type": "ephemeral"}}).hour_cache
    assert read({"system": [{"type": "text", "cache_control": {"ttl": "1h"}}]}).hour_cache


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
