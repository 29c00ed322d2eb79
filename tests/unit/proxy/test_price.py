"""The arithmetic of prices: exact sums, each kind of token at its own rate, rounded once."""

from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from daypass_proxy.ledger import Usage
from daypass_proxy.price import PARTS, Cost, Plan, Price, PriceTable, Rates, Tariff
from tests.fakes.prices import CASE, overlay, tariff


def cost(folder: Path, entry: dict[str, Any], usage: Usage) -> int:
    """Return what usage costs at the prices of this entry alone, known exactly."""
    nano, estimated = tariff(PriceTable.load(overlay(folder, entry)), entry["model"]).cost(usage)
    assert not estimated
    return nano


def test_b34_cache_writes_are_not_counted_as_input_too(tmp_path: Path) -> None:
    """B34: 3 in, 12,304 written and 550 out cost 0.054399 USD, not 0.0913."""
    assert cost(tmp_path, CASE, Usage(3, 550, 12_304, None, 0)) == 54_399_000


def test_b34_each_kind_of_input_has_its_own_rate(tmp_path: Path) -> None:
    """B34: 100 in, 700 written, 200 read cost 0.000300 + 0.002625 + 0.000060 USD."""
    assert cost(tmp_path, CASE, Usage(input_tokens=100)) == 300_000
    assert cost(tmp_path, CASE, Usage(cache_creation_input_tokens=700)) == 2_625_000
    assert cost(tmp_path, CASE, Usage(cache_read_input_tokens=200)) == 60_000
    assert cost(tmp_path, CASE, Usage(100, 0, 700, 0, 200)) == 2_985_000


def test_b34_one_hour_writes_cost_twice_the_input_rate(tmp_path: Path) -> None:
    """B34: 600,000 written for 5 minutes and 400,000 for 1 hour at base 5.00 cost 7.75 USD."""
    base = {"model": "base-5", "context_window": 200_000, "input": "5.00", "output": "25.00"}
    assert cost(tmp_path, base, Usage(0, 0, 1_000_000, 400_000, 0)) == 7_750_000_000


def test_thinking_is_a_part_of_the_output(tmp_path: Path) -> None:
    """Thinking is billed once, as output; how much of it there was changes nothing."""
    usage = Usage(output_tokens=100, thinking_tokens=90)
    assert cost(tmp_path, CASE, usage) == cost(tmp_path, CASE, Usage(output_tokens=100))


def test_what_the_provider_left_out_costs_nothing() -> None:
    """Missing figures and zeros are both free, and a one-hour figure alone is charged."""
    opus = tariff(PriceTable.load(), "claude-opus-5")
    assert opus.cost(Usage()) == opus.cost(Usage(0, 0, 0, 0, 0)) == Cost(0)
    assert opus.cost(Usage(cache_creation_1h_input_tokens=10)) == Cost(100_000)


def test_rounding_happens_once_and_half_up(tmp_path: Path) -> None:
    """Three parts of half a nano-dollar are 1.5 and round to 2, not to 3 or 0."""
    half = {**CASE, "input": "0.0005", "output": "0.0005", "cache_read": "0.0005"}
    assert cost(tmp_path, half, Usage(input_tokens=1)) == 1
    assert cost(tmp_path, half, Usage(1, 1, 0, 0, 1)) == 2


def test_a_multiple_is_rounded_with_the_sum(tmp_path: Path) -> None:
    """A tenth more of 5 nano-dollars is 5.5 and rounds to 6: the multiple comes before."""
    dear = {**CASE, "input": "0.005", "geos": {"us": "1.1"}}
    assert cost(tmp_path, dear, Usage(1, inference_geo="us")) == 6
    assert cost(tmp_path, dear, Usage(1)) == 5


rate = st.decimals(0, 999_999_999, places=9) | st.sampled_from(
    list(map(Decimal, ("0", "0.3", "15")))
)
figure = st.none() | st.integers(-5, 10**9)


@given(st.tuples(rate, rate), st.lists(figure, min_size=5, max_size=5), st.integers(0, 30_000))
def test_integers_round_as_decimals_do(
    rates: tuple[Decimal, Decimal], said: list[Any], multiple: int
) -> None:
    """Cost and ceiling are those of decimal arithmetic, to the nano-dollar, for any rates."""
    plain, output = rates
    write, write_1h, read = plain * Decimal("1.25"), plain * 2, plain
    plan = Plan(Rates(plain, output, write, write_1h, read))
    price = Price("m", 200_000, plan, geos={"there": multiple})
    counts = [max(figure or 0, 0) for figure in said]
    with localcontext(prec=80):
        micro = (
            plain * counts[0]
            + output * counts[1]
            + write * max(counts[2] - counts[3], 0)
            + write_1h * counts[3]
            + read * counts[4]
        )
        exact = micro * 1000 * multiple / 10**4
        expected = int(exact.to_integral_value(ROUND_HALF_UP))
        dearest = max(plain, write, write_1h, read) * 1000
        ceiling = int(
            (dearest * counts[0] + output * counts[1] * 1000).to_integral_value(ROUND_CEILING)
        )
    usage = replace(Usage(*said), inference_geo="there")
    assert Tariff(price).cost(usage) == Cost(expected)
    per_in, per_out = plan.dearest(counts[0])
    assert -(-(per_in * counts[0] + per_out * counts[1]) // PARTS) == ceiling


@pytest.mark.parametrize("wrong", ["0.000000000001", "-1"])
def test_a_rate_that_integers_cannot_hold_is_refused(wrong: str) -> None:
    """No rate is rounded on the quiet."""
    with pytest.raises(ValueError, match="decimals"):
        Rates(Decimal(wrong), *[Decimal(1)] * 4)


tokens = st.integers(0, 2_000_000)
MODELS = PriceTable.load().models("anthropic")


@given(st.sampled_from(MODELS), tokens, tokens, tokens, tokens, tokens)
def test_the_dearest_rate_is_never_below_the_cost(
    model: str, plain: int, out: int, read: int, short: int, long: int
) -> None:
    """However the input is split over cache and plain, the dearest rate covers the bill."""
    price = tariff(PriceTable.load(), model).price
    usage = Usage(plain, out, short + long, long, read)
    for plan in price.all_plans:
        size = plain + short + long + read
        per_in, per_out = plan.dearest(size)
        assert plan.cost(usage) <= per_in * size + per_out * out
