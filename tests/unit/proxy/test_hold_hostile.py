"""Requests that are made to cost more than is held for them: none does, whatever it nests or names.

Each is read from its body, as any is, and billed as the provider bills the worst that can come of
it: several readings, thinking that nobody sees, models that answer in turn.
"""

from typing import Any

import pytest

from daypass_core.scope import Detail
from daypass_proxy.estimate import Quote, quote
from daypass_proxy.ledger import Pass, Usage
from daypass_proxy.price import PriceTable
from tests.fakes.anthropic import detail, read, user
from tests.fakes.prices import NOW

TABLE = PriceTable.load()
SONNET, OPUS, HAIKU, THINKER = (
    "claude-sonnet-4-5",
    "claude-opus-4-5",
    "claude-haiku-4-5",
    "claude-opus-5",
)
WINDOW = 200_000
URL = "https://docs.test/a.pdf"
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 4}
FETCH = {"type": "web_fetch_20250910", "max_uses": 3, "allowed_domains": ["docs.test"]}
LATER = {"type": "web_search_20260209", "name": "web_search", "max_uses": 1}
ADVISOR = {"type": "advisor_20260301", "model": OPUS, "max_uses": 5, "max_tokens": 2_000}
ALL = detail(
    *("web_search", "web_fetch", "advisor", "mcp_servers", "files", "url_sources", "video"),
    models=("claude-*",),
    domains=("docs.test",),
)


def quoted(changes: dict[str, Any], scope: Detail = ALL) -> Quote:
    """Return the quote of a body."""
    return quote(read({"model": SONNET, "stream": True, **changes}, scope), TABLE, NOW)


def loop(readings: int, each: int, output: int, searches: int = 0, *passes: Pass) -> Usage:
    """Return the usage of a call whose model read so often so much."""
    usage = Usage(readings * each, output, web_search_requests=searches, passes=passes)
    return usage


@pytest.mark.parametrize(
    ("changes", "usage"),
    [
        # Tools at the provider: each use is one more reading of all that came before, and one
        # beyond max_uses is too.
        ({"system": "x" * 50_000, "tools": [SEARCH | {"max_uses": 1}]}, loop(10, 45_000, 64, 1)),
        ({"max_tokens": 9_000, "tools": [SEARCH]}, loop(5, 20_000, 9_000, 4)),
        ({"max_tokens": 9_000, "tools": [FETCH]}, loop(9, WINDOW, 9_000)),
        ({"tools": [LATER]}, loop(10, 20_000, 64, 1)),
        ({"mcp_servers": [{"url": URL}]}, loop(9, WINDOW, 64)),
        # Advice reads what was written, and what was advised is read again.
        (
            {"max_tokens": 50_000, "tools": [ADVISOR]},
            loop(
                *(9, 55_000, 50_000, 0),
                *[Pass("advisor_message", OPUS, 50_000, 2_000)] * 5,
            ),
        ),
        # A fallback to the same model, and one with a larger answer than the model's own.
        (
            {"max_tokens": 9_000, "fallbacks": [{"model": SONNET}] * 3},
            Usage(passes=(Pass("fallback_message", SONNET, 900, 9_000),) * 4),
        ),
        # A context that grows by searching is compacted again and again.
        (
            {
                "tools": [SEARCH],
                "max_tokens": 2_000,
                "context_management": {"edits": [{"type": "compact_20260112"}]},
            },
            loop(5, 9_000, 2_000, 4, *[Pass("compaction", None, 30_000, 2_000)] * 5),
        ),
        # What only the provider sees the size of, wherever it is nested.
        (user({"type": "document", "source": {"type": "file", "file_id": "f"}}), Usage(WINDOW)),
        (user({"type": "document", "source": {"type": "url", "url": URL}}), Usage(WINDOW)),
        (user({"type": "video", "url": URL}), Usage(WINDOW)),
        (
            user({"type": "tool_result", "content": [{"type": "video", "id": "1"}]}),
            Usage(WINDOW),
        ),
        (user({"type": "image", "source": {"type": "url", "url": URL}}), Usage(4_784)),
        # All of it written to a cache for an hour, however that is spelled.
        (
            {"system": [{"type": "text", "text": "x" * 90, "cache_control": {"ttl": "1h"}}]},
            Usage(0, 64, 1_000, 1_000),
        ),
    ],
)
def test_no_request_costs_more_than_is_held(changes: dict[str, Any], usage: Usage) -> None:
    """Rows 32-35: the worst bill of a hostile request is within its hold, in dollars and tokens."""
    offer = quoted(changes)
    held = offer.base.nano + offer.output_nano * offer.output_most
    assert offer.tariff.cost(usage).nano <= held
    assert usage.tokens <= offer.base.tokens + offer.output_most


@pytest.mark.parametrize(
    "changes",
    [
        {"model": THINKER},
        {"model": THINKER, "thinking": None},
        {"model": THINKER, "thinking": {"type": "adaptive", "display": "omitted"}},
        {"model": SONNET, "thinking": {"type": "adaptive"}},
        {"fallbacks": [{"model": THINKER}]},
        {"thinking": {"type": "disabled"}, "fallbacks": [{"model": THINKER}]},
        {
            "model": THINKER,
            "fallbacks": [{"model": SONNET, "thinking": {"type": "enabled", "budget_tokens": 9}}],
        },
    ],
)
def test_unseen_thinking_is_held_before_it_can_be_thought(changes: dict[str, Any]) -> None:
    """A stream that may think unseen gets no more than is held at first: nothing shows its use."""
    assert quoted({"max_tokens": 30_000, **changes}).whole


@pytest.mark.parametrize(
    "changes",
    [
        {"model": THINKER, "thinking": {"type": "disabled"}},
        {"model": SONNET},
        {"model": SONNET, "thinking": {"type": "enabled", "budget_tokens": 0}},
        {"model": SONNET, "fallbacks": [{"model": HAIKU}]},
    ],
)
def test_no_more_is_held_where_nothing_is_thought(changes: dict[str, Any]) -> None:
    """A stream that cannot think starts with a little: each piece of it shows."""
    offer = quoted({"max_tokens": 30_000, **changes})
    assert (offer.output_least, offer.whole) == (1_024, False)
