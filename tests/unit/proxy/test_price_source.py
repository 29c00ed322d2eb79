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

from daypass_proxy.ledger import Usage
from daypass_proxy.price import PriceTable
from tests.fakes.prices import find, tariff

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
