"""The price table: exact sums, the shipped data against its source, overlays and their mistakes."""

import datetime
import json
import subprocess
import sys
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal, localcontext
from importlib import resources
from pathlib import Path
from typing import Any

import genai_prices
import pytest
from genai_prices.data import providers
from hypothesis import given
from hypothesis import strategies as st

from daypass_proxy.ledger import Usage
from daypass_proxy.price import Price, PriceError, PriceTable, Rates

SHIPPED = json.loads(resources.files("daypass_proxy").joinpath("prices.json").read_bytes())
MODELS = {entry["model"]: entry for entry in SHIPPED["providers"]["anthropic"]}
# The prices of the cases: 3.00 in, 15.00 out, 3.75 and 6.00 for writes, 0.30 for reads.
CASE = {
    "model": "case-model",
    "context_window": 200_000,
    "input": "3.00",
    "output": "15.00",
    "cache_write": "3.75",
    "cache_write_1h": "6.00",
    "cache_read": "0.30",
}


def overlay(folder: Path, *entries: Any, **more: Any) -> Path:
    """Write an overlay file for the provider anthropic."""
    path = folder / "overlay.json"
    path.write_text(json.dumps({"providers": {"anthropic": entries}, **more}))
    return path


def find(table: PriceTable, model: str) -> Price:
    """Find a price that must be there."""
    price = table.find("anthropic", model)
    assert price is not None
    return price


def test_b34_cache_writes_are_not_counted_as_input_too(tmp_path: Path) -> None:
    """B34: 3 in, 12,304 written and 550 out cost 0.054399 USD, not 0.0913."""
    price = find(PriceTable.load(overlay(tmp_path, CASE)), "case-model")
    assert price.cost(Usage(3, 550, 12_304, None, 0)) == 54_399_000


def test_b34_each_kind_of_input_has_its_own_rate(tmp_path: Path) -> None:
    """B34: 100 in, 700 written, 200 read cost 0.000300 + 0.002625 + 0.000060 USD."""
    price = find(PriceTable.load(overlay(tmp_path, CASE)), "case-model")
    assert price.cost(Usage(input_tokens=100)) == 300_000
    assert price.cost(Usage(cache_creation_input_tokens=700)) == 2_625_000
    assert price.cost(Usage(cache_read_input_tokens=200)) == 60_000
    assert price.cost(Usage(100, 0, 700, 0, 200)) == 2_985_000


def test_b34_one_hour_writes_cost_twice_the_input_rate(tmp_path: Path) -> None:
    """B34: 600,000 written for 5 minutes and 400,000 for 1 hour at base 5.00 cost 7.75 USD."""
    base = {"model": "base-5", "context_window": 200_000, "input": "5.00", "output": "25.00"}
    price = find(PriceTable.load(overlay(tmp_path, base)), "base-5")
    assert price.cost(Usage(0, 0, 1_000_000, 400_000, 0)) == 7_750_000_000


def test_what_the_provider_left_out_costs_nothing() -> None:
    """Missing figures and zeros are both free, and a one-hour figure alone is charged."""
    price = find(PriceTable.load(), "claude-opus-5")
    assert price.cost(Usage()) == price.cost(Usage(0, 0, 0, 0, 0)) == 0
    assert price.cost(Usage(cache_creation_1h_input_tokens=10)) == 100_000


def test_rounding_happens_once_and_half_up(tmp_path: Path) -> None:
    """Three parts of half a nano-dollar are 1.5 and round to 2, not to 3 or 0."""
    half = {**CASE, "input": "0.0005", "output": "0.0005", "cache_read": "0.0005"}
    price = find(PriceTable.load(overlay(tmp_path, half)), "case-model")
    assert price.cost(Usage(input_tokens=1)) == 1
    assert price.cost(Usage(1, 1, 0, 0, 1)) == 2


def source_cost(model: str, usage: Usage) -> int:
    """What genai-prices says, in nano-dollars; its input figure includes the cache."""
    written, read = usage.cache_creation_input_tokens or 0, usage.cache_read_input_tokens or 0
    calculation = genai_prices.calc_price(
        genai_prices.Usage(
            input_tokens=(usage.input_tokens or 0) + written + read,
            output_tokens=usage.output_tokens or 0,
            cache_write_tokens=written,
            cache_write_1h_tokens=usage.cache_creation_1h_input_tokens or 0,
            cache_read_tokens=read,
        ),
        model_ref=model,
        provider_id="anthropic",
        genai_request_timestamp=datetime.datetime.fromisoformat(SHIPPED["as_of"] + "T12:00Z"),
    )
    return int((calculation.total_price * 10**9).to_integral_value(ROUND_HALF_UP))


CACHED = [
    Usage(12, 9, 7, 2, 30),
    Usage(1, 1, 1, 0, 1),
    Usage(0, 0, 333_333, 111_111, 0),
    Usage(99_998, 64_001, 1, 1, 1),  # exactly at the first threshold of the tiered models
    Usage(99_999, 64_001, 1, 1, 1),
    Usage(150_000, 5, 25_000, 10_000, 25_000),
    Usage(150_000, 5, 25_000, 10_000, 25_001),
    Usage(900_001, 128_000, 17, 3, 99_999),
]
PLAIN = [Usage(1, 0), Usage(0, 1), Usage(12_345, 678), Usage(200_000, 1), Usage(200_001, 1)]


@pytest.mark.parametrize("model", MODELS)
def test_the_table_agrees_with_its_source_to_the_nano_dollar(model: str) -> None:
    """Every shipped model costs what genai-prices says, plain and cached, on every tier."""
    price = find(PriceTable.load(), model)
    cached = [] if "derived" in MODELS[model] else CACHED
    for usage in PLAIN + cached:
        assert price.cost(usage) == source_cost(model, usage), usage


def test_no_model_of_the_source_is_left_out() -> None:
    """Every Anthropic model of the source is there; figures are derived for two old ones only."""
    (source,) = (provider for provider in providers if provider.id == "anthropic")
    assert list(PriceTable.load().models("anthropic")) == [model.id for model in source.models]
    derived = {name: entry["derived"] for name, entry in MODELS.items() if "derived" in entry}
    assert set(derived) == {"claude-2", "claude-v1"}


def test_the_shipped_file_is_what_its_generator_writes() -> None:
    """Nobody edits the generated prices by hand; corrections belong into an overlay."""
    tool = Path(__file__).parents[3] / "proxy" / "tools" / "make_prices.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("claude-opus-5", "claude-opus-5"),
        ("claude-opus-5-20260101", "claude-opus-5"),
        ("claude-opus-5-5", "claude-opus-5-5"),
        ("claude-opus-4-20250514", "claude-opus-4-0"),
        ("claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("anthropic.claude-v2:1", "claude-2"),
        ("claude-opus-5-20260101\n", None),
        ("claude-opus-5-2026", None),
        ("claude-opus-6", None),
        ("CLAUDE-OPUS-5", None),
        ("", None),
    ],
)
def test_a_name_finds_the_model_it_means_or_none(name: str, model: str | None) -> None:
    """Ids, prefixes and whole patterns match; anything else has no price."""
    price = PriceTable.load().find("anthropic", name)
    assert (price and price.model) == model


def test_another_provider_has_no_price() -> None:
    """A provider without a table prices nothing and lists nothing."""
    table = PriceTable.load()
    assert table.find("elsewhere", "claude-opus-5") is None
    assert table.models("elsewhere") == ()


tokens = st.integers(0, 2_000_000)


@given(
    model=st.sampled_from(sorted(MODELS)),
    plain=tokens,
    out=tokens,
    read=tokens,
    short=tokens,
    long=tokens,
)
def test_the_ceiling_is_never_below_the_cost(
    model: str, plain: int, out: int, read: int, short: int, long: int
) -> None:
    """However the input is split over cache and plain, the hold of that size covers the bill."""
    price = find(PriceTable.load(), model)
    usage = Usage(plain, out, short + long, long, read)
    assert price.cost(usage) <= price.ceiling(plain + short + long + read, out)


rate = st.decimals(0, 999_999_999, places=9) | st.sampled_from(
    list(map(Decimal, ("0", "0.3", "15")))
)
figure = st.none() | st.integers(-5, 10**9)


@given(st.tuples(rate, rate), st.lists(figure, min_size=5, max_size=5))
def test_integers_round_as_decimals_do(rates: tuple[Decimal, Decimal], said: list[Any]) -> None:
    """Cost and ceiling are those of decimal arithmetic, to the nano-dollar, for any rates."""
    plain, output = rates
    write, write_1h, read = plain * Decimal("1.25"), plain * 2, plain
    price = Price("m", 200_000, Rates(plain, output, write, write_1h, read))
    counts = [max(figure or 0, 0) for figure in said]
    with localcontext(prec=60):
        micro = (
            plain * counts[0]
            + output * counts[1]
            + write * max(counts[2] - counts[3], 0)
            + write_1h * counts[3]
            + read * counts[4]
        )
        cost = int((micro * 1000).to_integral_value(ROUND_HALF_UP))
        micro = max(plain, write, write_1h, read) * counts[0] + output * counts[1]
        ceiling = int((micro * 1000).to_integral_value(ROUND_CEILING))
    assert price.cost(Usage(*said)) == cost
    assert price.ceiling(counts[0], counts[1]) == ceiling


@pytest.mark.parametrize("wrong", ["0.000000000001", "-1"])
def test_a_rate_that_integers_cannot_hold_is_refused(wrong: str) -> None:
    """No rate is rounded on the quiet."""
    with pytest.raises(ValueError, match="decimals"):
        Rates(Decimal(wrong), *[Decimal(1)] * 4)


def test_the_ceiling_takes_the_dearest_input_rate() -> None:
    """The hold assumes that all input is written to the cache for an hour."""
    price = find(PriceTable.load(), "claude-opus-5")
    assert price.ceiling(1_000_000, 1_000) == 10_025_000_000
    assert price.ceiling(0, 0) == 0


def test_an_overlay_wins_over_the_shipped_table(tmp_path: Path) -> None:
    """A contract rate and a prefix of one's own come before the shipped prices; the rest stays."""
    contract = {**CASE, "model": "claude-opus-5", "prefixes": ["claude-haiku-"]}
    own = {
        "model": "smollm2-135m-instruct",
        "context_window": 8192,
        "input": "0.1",
        "output": "0.2",
    }
    table = PriceTable.load(overlay(tmp_path, contract, own, source="contract of 2026"))
    assert find(table, "claude-opus-5").rates.input == Decimal(3)
    assert find(table, "claude-haiku-4-5").rates.input == Decimal(3)
    assert find(table, "claude-opus-5-5").rates.input == Decimal(4)
    assert find(table, "smollm2-135m-instruct").context_window == 8192
    assert table.models("anthropic")[:2] == ("claude-opus-5", "smollm2-135m-instruct")
    assert len(table.models("anthropic")) == len(MODELS) + 1


def test_the_line_to_add_is_an_overlay_once_its_figures_are_filled(tmp_path: Path) -> None:
    """What an unpriced model is answered with works as a file after the two prices are written."""
    line = PriceTable.line_to_add("anthropic", 'new-"model"')
    assert "\n" not in line
    document = json.loads(line)
    document["providers"]["anthropic"][0] |= {"input": "1", "output": "2"}
    path = tmp_path / "overlay.json"
    path.write_text(json.dumps(document))
    assert find(PriceTable.load(path), 'new-"model"').rates.output == Decimal(2)
    assert len(PriceTable.line_to_add("anthropic", "x" * 10_000)) < 400


def without(name: str) -> dict[str, Any]:
    """The case's entry with one field left out."""
    return {key: value for key, value in CASE.items() if key != name}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (without("input"), "$.providers.anthropic[0]: object missing required field `input`"),
        (without("context_window"), "missing required field `context_window`"),
        ({**CASE, "input": 3.0}, "$.providers.anthropic[0].input: expected `str`, got `float`"),
        ({**CASE, "input": "-3"}, "$.providers.anthropic[0].input: "),
        ({**CASE, "input": "3e2"}, "$.providers.anthropic[0].input: "),
        ({**CASE, "output": "NaN"}, "$.providers.anthropic[0].output: "),
        ({**CASE, "output": "15.00\n"}, "$.providers.anthropic[0].output: "),
        ({**CASE, "inputs": "3"}, "unknown field `inputs`"),
        ({**CASE, "context_window": 0}, "$.providers.anthropic[0].context_window: "),
        ({**CASE, "model": ""}, "$.providers.anthropic[0].model: "),
        ({**CASE, "ids": "one"}, "$.providers.anthropic[0].ids: "),
        ({**CASE, "patterns": ["ok", "("]}, "$.providers.anthropic[0]: patterns[1]: not a regular"),
        ({**CASE, "tiers": [{"above_input_tokens": 5}]}, "$.providers.anthropic[0].tiers[0]: "),
        (
            {
                **CASE,
                "tiers": [{"above_input_tokens": n, "input": "1", "output": "1"} for n in (9, 5)],
            },
            "$.providers.anthropic[0]: tiers: above_input_tokens must rise",
        ),
        ({**CASE, "ids": ["a", "a", CASE["model"]]}, None),
        ("case-model", "$.providers.anthropic[0]: expected `object`, got `str`"),
    ],
)
def test_a_bad_overlay_is_refused_naming_the_place(
    tmp_path: Path, entry: Any, words: str | None
) -> None:
    """A wrong figure, name or field stops the start with the file and the path in it."""
    path = overlay(tmp_path, entry)
    if words is None:
        PriceTable.load(path)
        return
    with pytest.raises(PriceError) as caught:
        PriceTable.load(path)
    assert str(caught.value).startswith(f"{path}: $")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("[]", "got `array`"),
        ("{}", "providers"),
        ('{"providers": {}, "provider": {}}', "unknown field"),
        ('{"providers": {"anthropic": {}}}', "expected `array`"),
        ('{"providers": {}, "providers": {}}', '"providers" appears twice'),
        ("[" * 100_000, "recursion"),
        ("\xff", ""),
    ],
)
def test_a_file_that_is_no_price_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Broken JSON, another shape and duplicate keys are refused with the file's name."""
    path = tmp_path / "overlay.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(PriceError, match=r"overlay\.json: ") as caught:
        PriceTable.load(path)
    assert words.lower() in str(caught.value).lower()


def test_one_model_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    """Two entries for one id would make the price depend on their order."""
    path = overlay(tmp_path, CASE, {**CASE, "model": "other", "ids": ["case-model"]})
    with pytest.raises(PriceError, match=r'anthropic\[1\]: "case-model" is priced twice'):
        PriceTable.load(path)


def test_a_missing_overlay_is_refused(tmp_path: Path) -> None:
    """A path that leads nowhere is an error, not an empty overlay."""
    with pytest.raises(PriceError, match=r"none\.json: cannot be read: No such file"):
        PriceTable.load(tmp_path / "none.json")
