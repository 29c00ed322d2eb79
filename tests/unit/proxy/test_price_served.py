"""How a call was served sets its price: tier, speed, place, searches, passes of other models."""

from pathlib import Path
from typing import Any

import pytest

from daypass_proxy.ledger import Pass, Usage
from daypass_proxy.meter import StreamMeter
from daypass_proxy.price import Cost, PriceTable
from tests.fakes.prices import CASE, find, overlay, tariff
from tests.servers.wire import message_delta, message_start

TABLE = PriceTable.load()
RATES = {"cache_write": "0", "cache_write_1h": "0", "cache_read": "0"}


def plan(per_input: str, per_output: str) -> dict[str, Any]:
    """Rates of tokens that are not cached."""
    return {"input": per_input, "output": per_output, **RATES}


# In nano-dollars: 1000 in, 2000 out; batch half; fast six times; flex dear in, cheap out.
SERVED = {
    "model": "served",
    "context_window": 200_000,
    **plan("1", "2"),
    "service_tiers": {"batch": plan("0.5", "1"), "flex": plan("7", "0.1")},
    "speeds": {"fast": plan("6", "12")},
    "geos": {"us": "1.1", "moon": "2.5"},
    "web_search": "0.01",
}
OTHER = {
    "model": "other",
    "context_window": 200_000,
    **plan("100", "200"),
    "geos": {"us": "2"},
    "web_search": "0.5",
}
ONE = Usage(1, 1)


@pytest.fixture
def table(tmp_path: Path) -> PriceTable:
    """A table with a model that is served in many ways, and a dear one."""
    return PriceTable.load(overlay(tmp_path, SERVED, OTHER, CASE))


@pytest.mark.parametrize(
    ("said", "nano", "estimated"),
    [
        ({}, 3_000, False),
        (
            {"service_tier": "standard", "speed": "standard", "inference_geo": "global"},
            3_000,
            False,
        ),
        ({"inference_geo": "not_available"}, 3_000, False),
        ({"service_tier": "batch"}, 1_500, False),
        ({"service_tier": "flex"}, 7_100, False),
        ({"speed": "fast"}, 18_000, False),
        ({"inference_geo": "us"}, 3_300, False),
        ({"speed": "fast", "inference_geo": "us"}, 19_800, False),
        # Both at once has no price of its own: the dearer one.
        ({"service_tier": "batch", "speed": "fast"}, 18_000, True),
        # A commitment without a rate of its own is not dearer than the ordinary price.
        ({"service_tier": "priority"}, 3_000, True),
        ({"service_tier": "brand_new"}, 18_000, True),
        ({"speed": "ludicrous"}, 18_000, True),
        ({"inference_geo": "mars"}, 7_500, True),
        ({"service_tier": "brand_new", "inference_geo": "mars"}, 45_000, True),
    ],
)
def test_how_a_call_was_served_sets_its_price(
    table: PriceTable, said: dict[str, str], nano: int, estimated: bool
) -> None:
    """Each tier, speed and place has its rate; an unknown one costs the dearest, as an estimate."""
    usage = Usage(1, 1, **said)  # type: ignore[arg-type]
    assert tariff(table, "served").cost(usage) == Cost(nano, estimated)


def test_no_unknown_word_is_cheaper_than_a_known_one() -> None:
    """For every shipped model, what nobody knows costs at least what anybody knows."""
    figures = (150_000, 2_000, 30_000, 20_000, 40_000)
    for model in TABLE.models("anthropic"):
        sold = tariff(TABLE, model)
        plain = sold.cost(Usage(*figures)).nano
        served = [sold.cost(Usage(*figures, speed="fast")).nano] if sold.price.speeds else []
        placed = [sold.cost(Usage(*figures, inference_geo=geo)).nano for geo in sold.price.geos]
        for unknown, known in (
            (Usage(*figures, service_tier="brand_new"), served),
            (Usage(*figures, speed="brand_new"), served),
            (Usage(*figures, inference_geo="brand_new"), placed),
        ):
            nano, estimated = sold.cost(unknown)
            assert nano >= max([plain, *known]), unknown
            assert estimated


def test_what_was_asked_for_counts_where_the_provider_is_silent(table: PriceTable) -> None:
    """A fast call that broke before its first word is priced as fast; a word of it counts more."""
    asked = tariff(table, "served", speed="fast", inference_geo="us")
    assert asked.cost(ONE) == Cost(19_800)
    assert asked.cost(Usage(1, 1, speed="standard", inference_geo="global")) == Cost(3_000)


def test_searches_have_a_fee_each(table: PriceTable) -> None:
    """A search costs its fee beside its tokens; no place or tier changes it."""
    sold = tariff(table, "served")
    assert sold.cost(Usage(web_search_requests=3)) == Cost(30_000_000)
    usage = Usage(1, 1, web_search_requests=1, service_tier="batch", inference_geo="us")
    assert sold.cost(usage) == Cost(10_001_650)


def test_a_search_without_a_price_costs_the_dearest(table: PriceTable) -> None:
    """What the provider counts and nobody priced is booked at the dearest fee, as an estimate."""
    assert tariff(table, "case-model").cost(Usage(web_search_requests=2)) == Cost(10**9, True)
    assert tariff(table, "case-model").cost(Usage(web_search_requests=0)) == Cost(0)


def test_case_of_the_wire() -> None:
    """12 in, 5 + 2 written, 30 read, 9 out and 2 searches of Opus 5.5 cost 0.020275 USD."""
    usage = Usage(12, 9, 7, 2, 30, None, 2)
    assert tariff(TABLE, "claude-opus-5-5").cost(usage) == Cost(20_275_000)


# -- passes


def test_row_33_passes_beside_the_totals_have_their_own_rates(table: PriceTable) -> None:
    """Row 33: totals at the request's model, a compaction there too, advice at the advisor's."""
    usage = Usage(
        10, 10,
        passes=(
            Pass("compaction", None, 4, 5),
            Pass("advisor_message", "other", 2, 3),
            Pass("advisor_message", "served", 1, 1),
        ),
    )  # fmt: skip
    expected = 30_000 + 14_000 + 800_000 + 3_000
    assert tariff(table, "served").cost(usage) == Cost(expected)


def test_row_33_a_stream_with_advice_and_a_compaction() -> None:
    """Row 33: 250 + 4,000 in, 60 + 500 out of Sonnet 4.6, 900 and 300 of Opus 5.5, 2 searches."""
    passes = [
        {"type": "message", "model": "claude-sonnet-4-6", "input_tokens": 100, "output_tokens": 20},
        {"type": "advisor_message", "model": "claude-opus-5-5", "input_tokens": 900}
        | {"output_tokens": 300, "cache_read_input_tokens": 0},
        {"type": "compaction", "input_tokens": 4000, "output_tokens": 500},
        {"type": "message", "model": "claude-sonnet-4-6", "input_tokens": 150, "output_tokens": 40},
    ]
    tools = {"web_search_requests": 2, "web_fetch_requests": 1}
    said = {"input_tokens": 250, "output_tokens": 60, "server_tool_use": tools}
    meter = StreamMeter()
    meter.feed(
        message_start("claude-sonnet-4-6", {"input_tokens": 100, "service_tier": "standard"})
    )
    meter.feed(message_delta({"output_tokens": 20}) + message_delta(said | {"iterations": passes}))
    expected = 1_650_000 + 19_500_000 + 9_600_000 + 20_000_000
    assert tariff(TABLE, "claude-sonnet-4-6").cost(meter.usage) == Cost(expected)
    assert meter.usage.tokens == 310 + 1200 + 4500


def test_row_33_with_a_fallback_each_pass_is_priced_instead_of_the_totals(
    table: PriceTable,
) -> None:
    """Row 33: when another model answered, every pass costs its own model's rates."""
    usage = Usage(
        1000, 1000,
        passes=(
            Pass("message", "served", 10, 1),
            Pass("message", None, 1, 0),
            Pass("compaction", None, 2, 0),
            Pass("fallback_message", "other", 10, 4),
        ),
    )  # fmt: skip
    assert tariff(table, "served").cost(usage) == Cost(12_000 + 1_000 + 2_000 + 1_800_000)


def test_passes_are_served_as_the_call_was(table: PriceTable) -> None:
    """Tier, speed and place are the whole call's; another model is fast only where it can be."""
    usage = Usage(
        0, 0, speed="fast", inference_geo="us",
        passes=(Pass("compaction", None, 1, 0), Pass("advisor_message", "other", 1, 0)),
    )  # fmt: skip
    assert tariff(table, "served").cost(usage) == Cost(6_600 + 200_000)


def test_a_pass_of_an_unknown_model_or_kind_is_an_estimate(table: PriceTable) -> None:
    """A model that nobody priced costs the dearest of all; an unknown kind is billed beside."""
    sold = tariff(table, "served")
    dearest = max(
        each.cost(Usage(1, 1))
        for price in table.at("anthropic", 1.8e9).every()
        for each in price.all_plans
    )
    unknown = Usage(0, 0, passes=(Pass("advisor_message", "brand-new", 1, 1),))
    nano, estimated = sold.cost(unknown)
    assert estimated
    assert nano >= dearest // 10**8
    assert nano >= 300_000
    assert sold.cost(Usage(0, 0, passes=(Pass("dream", None, 1, 1),))) == Cost(3_000, True)


def test_each_pass_has_its_own_threshold(tmp_path: Path) -> None:
    """A pass pays the rates of its own size, not of all passes together."""
    tiers = [{"above_input_tokens": 100, **plan("10", "20")}]
    table = PriceTable.load(overlay(tmp_path, {**SERVED, "tiers": tiers}))
    sold = tariff(table, "served")
    assert sold.cost(Usage(100, passes=(Pass("compaction", None, 100),))) == Cost(200_000)
    assert sold.cost(Usage(100, passes=(Pass("compaction", None, 101),))) == Cost(1_110_000)


def test_a_tariff_is_of_the_model_under_any_name() -> None:
    """Its model is the one id that all names share, as metrics want it."""
    assert tariff(TABLE, "claude-opus-5-5-20261101").model == "claude-opus-5-5"
    assert tariff(TABLE, "claude-opus-5-5").context_window == 1_000_000
    assert find(TABLE, "claude-opus-5-5-20261101").model == "claude-opus-5-5"
