"""The shipped table against the data set it is made from: every model, every way it is served."""

import datetime
import json
import subprocess
import sys
from decimal import ROUND_HALF_UP
from importlib import resources, util
from pathlib import Path
from types import ModuleType
from typing import Any

import genai_prices
import pytest
from genai_prices.data import providers
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from daypass_core.scope import Detail
from daypass_proxy.ledger import Usage
from daypass_proxy.price import PriceTable, Tariff
from tests.fakes.prices import NOW, find, tariff

TOOL = Path(__file__).parents[3] / "proxy" / "tools" / "make_prices.py"
SHIPPED = json.loads(resources.files("daypass_proxy").joinpath("prices.json").read_bytes())
ENTRIES = SHIPPED["providers"]["anthropic"]
MODELS = {entry["model"]: entry for entry in ENTRIES}
(SOURCE,) = (provider for provider in providers if provider.id == "anthropic")
TABLE = PriceTable.load()
DAY = datetime.datetime.fromisoformat(SHIPPED["as_of"] + "T12:00Z")
# Which context of the source is what the provider says of a call that it served so.
CONTEXTS: dict[str, dict[str, str]] = {
    "ordinary": {},
    "batch": {"processing": "batch"},
    "fast": {"speed": "fast"},
}


def served(way: str, usage: Usage) -> Usage:
    """Return usage as the provider reports it of a call that was served so."""
    if way == "ordinary":
        return usage
    return replace(usage, service_tier="batch") if way == "batch" else replace(usage, speed="fast")


def ways_of(model: str) -> list[str]:
    """Return how the source knows this model to be served."""
    (known,) = (each for each in SOURCE.models if each.id == model)
    whens = [each.when for each in known.price_variants or []]
    return [way for way, context in CONTEXTS.items() if not context or context in whens]


def source_cost(model: str, usage: Usage, way: str) -> int:
    """What genai-prices says, in nano-dollars; its input figure includes the cache."""
    written, read = usage.cache_creation_input_tokens or 0, usage.cache_read_input_tokens or 0
    calculation = genai_prices.calc_price(
        genai_prices.Usage(
            input_tokens=(usage.input_tokens or 0) + written + read,
            output_tokens=usage.output_tokens or 0,
            cache_write_tokens=written,
            cache_write_1h_tokens=usage.cache_creation_1h_input_tokens or 0,
            cache_read_tokens=read,
            web_searches=usage.web_search_requests or 0,
        ),
        model_ref=model,
        provider_id="anthropic",
        genai_request_timestamp=DAY,
        price_context=CONTEXTS[way],
    )
    return int((calculation.total_price * 10**9).to_integral_value(ROUND_HALF_UP))


CASES = [(model, way) for model in MODELS for way in ways_of(model)]


def usages(model: str) -> st.SearchStrategy[Usage]:
    """Usages of a model: about its thresholds, with every kind of token that the source prices."""
    edges = [tier["above_input_tokens"] for tier in MODELS[model].get("tiers", [])]
    size = st.integers(0, 1_200_000) | st.integers(0, 9)
    for edge in edges:
        size |= st.integers(edge - 3, edge + 3)
    none = st.just(0)
    cached = none if "cache_read" in MODELS[model].get("derived", []) else st.integers(0, 400_000)
    searches = st.integers(0, 100) if "web_search" in MODELS[model] else none

    def usage(size: int, out: int, short: int, long: int, read: int, searches: int) -> Usage:
        plain = max(size - short - long - read, 0)
        return Usage(plain, out, short + long, long, read, None, searches)

    return st.builds(usage, size, st.integers(0, 300_000), cached, cached, cached, searches)


@pytest.mark.parametrize(("model", "way"), CASES)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_the_table_agrees_with_its_source_to_the_nano_dollar(
    model: str, way: str, data: st.DataObject
) -> None:
    """Every shipped model costs what genai-prices says, however served, on every tier."""
    usage = data.draw(usages(model))
    nano, estimated = tariff(TABLE, model).cost(served(way, usage))
    assert nano == source_cost(model, usage, way)
    assert not estimated


@pytest.mark.parametrize("model", MODELS)
def test_a_call_at_a_threshold_agrees_with_the_source(model: str) -> None:
    """Exactly at a threshold the lower rates count, one token above it the higher ones."""
    for tier in MODELS[model].get("tiers", []):
        for more in (0, 1):
            usage = Usage(tier["above_input_tokens"] - 3 + more, 7, 2, 1, 1)
            for way in ways_of(model):
                nano, _ = tariff(TABLE, model).cost(served(way, usage))
                assert nano == source_cost(model, usage, way), (way, more)


def test_the_cases_cover_what_the_source_has() -> None:
    """Batch, fast, thresholds and searches are among the cases, so that test says something."""
    assert {way for _, way in CASES} == CONTEXTS.keys()
    assert any("tiers" in entry for entry in ENTRIES)
    assert any("tiers" in entry.get("service_tiers", {}).get("batch", {}) for entry in ENTRIES)
    contexts = {
        tuple(each.when.items()) for model in SOURCE.models for each in model.price_variants or []
    }
    assert contexts == {(("processing", "batch"),), (("speed", "fast"),)}


def test_no_model_of_the_source_is_left_out() -> None:
    """Every Anthropic model of the source is there; rates are derived for two old ones only."""
    assert list(TABLE.models("anthropic")) == [model.id for model in SOURCE.models]
    ours = {"geos", "thinks_unasked"}
    derived = {name: set(entry.get("derived", [])) - ours for name, entry in MODELS.items()}
    assert {name for name, fields in derived.items() if fields} == {"claude-2", "claude-v1"}


def test_the_shipped_file_is_what_its_generator_writes() -> None:
    """Nobody edits the generated prices by hand; corrections belong into an overlay."""
    done = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def generator() -> ModuleType:
    """Return the tool as a module."""
    spec = util.spec_from_file_location("make_prices", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_changes_that_are_known_to_come_are_written() -> None:
    """The source's future prices get an entry each, from their day on; past ones are left out."""
    document: dict[str, Any] = generator().document(datetime.date(2026, 3, 1))
    opus = [
        each for each in document["providers"]["anthropic"] if each["model"] == "claude-opus-4-6"
    ]
    assert [each.get("from") for each in opus] == [None, "2026-03-13", "2026-10-14"]
    assert [("tiers" in each, "service_tiers" in each) for each in opus] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert all("prefixes" not in each for each in opus[1:])


def test_models_that_think_unasked() -> None:
    """Since Opus 5 a request that leaves thinking open gets it; what is unknown counts as such."""
    thinkers = {name for name, entry in MODELS.items() if entry.get("thinks_unasked", True)}
    assert thinkers == {
        *("claude-fable-5", "claude-fable-5-1", "claude-fable-5-2", "claude-mythos-5-2"),
        *("claude-haiku-5-5", "claude-opus-5", "claude-opus-5-5"),
        *("claude-sonnet-5", "claude-sonnet-5-5"),
    }
    assert not find(TABLE, "claude-sonnet-4-5-20250929").thinks_unasked
    assert find(TABLE, "claude-opus-5-5").thinks_unasked


# -- OpenAI

OPENAI = {entry["model"]: entry for entry in SHIPPED["providers"]["openai"]}
(OPENAI_SOURCE,) = (provider for provider in providers if provider.id == "openai")
TIERS = ("standard", "flex", "priority", "fast")
OPENAI_CASES = [
    (name, tier)
    for name, entry in OPENAI.items()
    for tier in TIERS
    if tier == "standard" or tier in entry.get("service_tiers", {})
]


def openai_source_cost(model: str, usage: Usage, tier: str) -> int:
    """What genai-prices says, in nano-dollars; its input figure includes the cache."""
    written, read = usage.cache_creation_input_tokens or 0, usage.cache_read_input_tokens or 0
    calculation = genai_prices.calc_price(
        genai_prices.Usage(
            input_tokens=(usage.input_tokens or 0) + written + read,
            output_tokens=usage.output_tokens or 0,
            cache_write_tokens=written,
            cache_read_tokens=read,
            web_searches=usage.web_search_requests or 0,
        ),
        model_ref=model,
        provider_id="openai",
        genai_request_timestamp=DAY,
        price_context={} if tier == "standard" else {"service_tier": tier},
    )
    return int((calculation.total_price * 10**9).to_integral_value(ROUND_HALF_UP))


def openai_usages(model: str, tier: str) -> st.SearchStrategy[Usage]:
    """Usages about the thresholds, with every kind of token that the source prices."""
    entry = OPENAI[model]
    size = st.integers(0, 1_200_000) | st.integers(0, 9)
    for each in entry.get("tiers", []):
        edge = each["above_input_tokens"]
        size |= st.integers(edge - 3, edge + 3)
    derived = entry.get("derived", [])
    none = st.just(0)
    cached = none if "cache_read" in derived else st.integers(0, 400_000)
    written = none if "cache_write" in derived else st.integers(0, 400_000)
    out = none if model.startswith("text-embedding") else st.integers(0, 300_000)
    searches = st.integers(0, 100) if "web_search" in entry else none

    def usage(size: int, out: int, written: int, read: int, searches: int) -> Usage:
        plain = max(size - written - read, 0)
        return Usage(plain, out, written, None, read, None, searches, service_tier=tier)

    return st.builds(usage, size, out, written, cached, searches)


@pytest.mark.parametrize(("model", "tier"), OPENAI_CASES)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_openai_agrees_with_its_source_to_the_nano_dollar(
    model: str, tier: str, data: st.DataObject
) -> None:
    """Every shipped model costs what genai-prices says, in every tier and on both sides of it."""
    usage = data.draw(openai_usages(model, tier))
    price = TABLE.find("openai", model, NOW)
    assert price is not None
    nano, estimated = Tariff(price, TABLE.at("openai", NOW)).cost(usage)
    assert nano == openai_source_cost(model, usage, tier)
    assert not estimated


def test_openai_cases_cover_what_the_source_has() -> None:
    """All tiers, thresholds, writes to the cache and searches are among the cases."""
    assert {tier for _, tier in OPENAI_CASES} == set(TIERS)
    for name in ("tiers", "web_search", "service_tiers"):
        assert any(name in entry for entry in OPENAI.values())
    assert any("cache_write" not in entry["derived"] for entry in OPENAI.values())


def test_what_is_no_text_has_no_price() -> None:
    """Models that hear, speak, draw or search for every request are refused: no usage tells it."""
    unpriced = (
        *("gpt-4o-audio-preview", "gpt-audio", "gpt-realtime", "whisper-1", "tts-1"),
        *("gpt-image-1", "gpt-4o-search-preview", "gpt-4o-mini-search-preview"),
        *("gpt-5-search-api", "o3-deep-research", "omni-moderation-latest"),
    )
    assert [name for name in unpriced if TABLE.find("openai", name, NOW) is not None] == []
    assert [name for name in OPENAI if "search" in name or "audio" in name] == []


def test_what_costs_the_same_is_not_the_same() -> None:
    """B40: a scope that names one model is not widened to others that the source lists with it."""
    named = TABLE.names(Detail("openai", ("chat_completions",), ("gpt-5.1", "gpt-4o"))).models
    assert set(named) == {
        *("gpt-5.1", "gpt-5.1-2025-11-13", "gpt-5.1-20*"),
        *("gpt-4o", "gpt-4o-2024-08-06", "gpt-4o-2024-11-20", "gpt-4o-20*"),
    }
    dated = TABLE.names(Detail("openai", ("chat_completions",), ("o3-2025-04-16",))).models
    assert dated == ("o3-2025-04-16", "o3")


def test_openai_models_that_reason_unasked() -> None:
    """All but the families known not to count as models that do."""
    for name in ("gpt-4o", "gpt-4.1-mini", "gpt-3.5-turbo", "text-embedding-3-small"):
        assert OPENAI[name]["thinks_unasked"] is False
    for name in ("o3", "gpt-5", "gpt-6-sol", "codex-mini", "gpt-oss-20b"):
        assert "thinks_unasked" not in OPENAI[name]
