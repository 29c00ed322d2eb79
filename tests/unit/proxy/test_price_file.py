"""Price files: the overlay wins, effective dates, and every mistake named with its place."""

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from daypass_proxy.price import PriceError, PriceTable
from tests.fakes.prices import CASE, NOW, find, overlay

SHIPPED = PriceTable.load().models("anthropic")
RATES = {"input": "1", "output": "2"}


def test_an_overlay_wins_over_the_shipped_table(tmp_path: Path) -> None:
    """A contract rate and a prefix of one's own come before the shipped prices; the rest stays."""
    contract = {**CASE, "model": "claude-opus-5", "prefixes": ["claude-haiku-"]}
    own = {"model": "smollm2-135m-instruct", "context_window": 8192, **RATES}
    table = PriceTable.load(overlay(tmp_path, contract, own, source="contract of 2026"))
    assert find(table, "claude-opus-5").plan.rates.input == Decimal(3)
    assert find(table, "claude-haiku-4-5").plan.rates.input == Decimal(3)
    assert find(table, "claude-opus-5-5").plan.rates.input == Decimal(4)
    assert find(table, "smollm2-135m-instruct").context_window == 8192
    assert table.models("anthropic")[:2] == ("claude-opus-5", "smollm2-135m-instruct")
    assert len(table.models("anthropic")) == len(SHIPPED) + 1


def test_the_line_to_add_is_an_overlay_once_its_figures_are_filled(tmp_path: Path) -> None:
    """What an unpriced model is answered with works as a file after the two prices are written."""
    line = PriceTable.line_to_add("anthropic", 'new-"model"')
    assert "\n" not in line
    document = json.loads(line)
    document["providers"]["anthropic"][0] |= {"input": "1", "output": "2"}
    path = tmp_path / "overlay.json"
    path.write_text(json.dumps(document))
    assert find(PriceTable.load(path), 'new-"model"').plan.rates.output == Decimal(2)
    assert len(PriceTable.line_to_add("anthropic", "x" * 10_000)) < 400


def test_a_price_is_in_force_from_its_day(tmp_path: Path) -> None:
    """From midnight UTC of its day an entry counts, in whatever order the file has them."""
    later = {**CASE, "from": "2027-02-01", "input": "9"}
    table = PriceTable.load(
        overlay(tmp_path, later, {**CASE, "from": "2027-01-01", "input": "5"}, CASE)
    )

    def at(year: int, month: int, seconds: float = 0) -> Decimal:
        moment = datetime.datetime(year, month, 1, tzinfo=datetime.UTC).timestamp()
        return find(table, "case-model", moment + seconds).plan.rates.input

    assert at(2026, 6) == Decimal(3)
    assert at(2027, 1, seconds=-0.001) == Decimal(3)
    assert at(2027, 1) == Decimal(5)
    assert at(2027, 2, seconds=-1) == Decimal(5)
    assert at(2099, 1) == Decimal(9)


def test_before_the_first_day_the_shipped_price_counts(tmp_path: Path) -> None:
    """A contract that begins later leaves the table as it is until then; an own model has none."""
    begins = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC).timestamp()
    contract = {**CASE, "model": "claude-opus-5", "from": "2027-01-01"}
    table = PriceTable.load(overlay(tmp_path, contract, {**CASE, "from": "2027-01-01"}))
    assert find(table, "claude-opus-5", begins - 1).plan.rates.input == Decimal(5)
    assert find(table, "claude-opus-5", begins).plan.rates.input == Decimal(3)
    assert table.find("anthropic", "case-model", begins - 1) is None


def without(name: str) -> dict[str, Any]:
    """The case's entry with one field left out."""
    return {key: value for key, value in CASE.items() if key != name}


PLACE = "$.providers.anthropic[0]"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (without("input"), f"{PLACE}: object missing required field `input`"),
        (without("context_window"), "missing required field `context_window`"),
        ({**CASE, "input": 3.0}, f"{PLACE}.input: expected `str`, got `float`"),
        ({**CASE, "input": "-3"}, f"{PLACE}.input: "),
        ({**CASE, "input": "3e2"}, f"{PLACE}.input: "),
        ({**CASE, "output": "NaN"}, f"{PLACE}.output: "),
        ({**CASE, "output": "15.00\n"}, f"{PLACE}.output: "),
        ({**CASE, "inputs": "3"}, "unknown field `inputs`"),
        ({**CASE, "context_window": 0}, f"{PLACE}.context_window: "),
        ({**CASE, "context_window": 200}, f"{PLACE}.context_window: "),
        ({**CASE, "thinks_unasked": "no"}, f"{PLACE}.thinks_unasked: "),
        ({**CASE, "model": ""}, f"{PLACE}.model: "),
        ({**CASE, "ids": "one"}, f"{PLACE}.ids: "),
        ({**CASE, "ids": [f"id-{number}" for number in range(17)]}, f"{PLACE}.ids: "),
        ({**CASE, "patterns": ["ok", "("]}, f"{PLACE}: patterns[1]: not a regular"),
        ({**CASE, "tiers": [{"above_input_tokens": 5}]}, f"{PLACE}.tiers[0]: "),
        (
            {**CASE, "tiers": [{"above_input_tokens": n, **RATES} for n in (9, 5)]},
            f"{PLACE}: tiers: above_input_tokens must rise",
        ),
        ({**CASE, "from": "tomorrow"}, f"{PLACE}.from: "),
        ({**CASE, "service_tiers": {"flex": {"input": "1"}}}, f"{PLACE}.service_tiers[...]: "),
        ({**CASE, "service_tiers": {"standard": RATES}}, "service_tiers: standard is what"),
        ({**CASE, "speeds": {"standard": RATES}}, "speeds: standard is what"),
        ({**CASE, "speeds": {"fast": {**RATES, "rate": "1"}}}, "unknown field `rate`"),
        ({**CASE, "geos": {"us": "1.12345"}}, f"{PLACE}.geos[...]: "),
        ({**CASE, "web_search": 0.01}, f"{PLACE}.web_search: "),
        ({**CASE, "code_execution": "0.01"}, "unknown field `code_execution`"),
        ({**CASE, "ids": ["a", "a", CASE["model"]]}, None),
        ("case-model", f"{PLACE}: expected `object`, got `str`"),
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
        ('{"providers": {"Anthropic": []}}', "$.providers.Anthropic: no such provider"),
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


@pytest.mark.parametrize(
    "second",
    [
        {**CASE, "model": "other", "ids": ["case-model"]},
        CASE,
        {**CASE, "model": "other", "ids": ["case-model"], "from": "2027-01-01"},
    ],
)
def test_one_model_twice_in_a_file_is_refused(tmp_path: Path, second: dict[str, Any]) -> None:
    """Two entries for one id and day would make the price depend on their order."""
    with pytest.raises(PriceError, match=r'anthropic\[1\]: "case-model" is priced twice'):
        PriceTable.load(overlay(tmp_path, CASE, second))


def test_a_missing_overlay_is_refused(tmp_path: Path) -> None:
    """A path that leads nowhere is an error, not an empty overlay."""
    with pytest.raises(PriceError, match=r"none\.json: cannot be read: No such file"):
        PriceTable.load(tmp_path / "none.json")


def test_another_provider_has_no_price() -> None:
    """A provider without a table prices nothing and lists nothing."""
    table = PriceTable.load()
    assert table.find("elsewhere", "claude-opus-5", NOW) is None
    assert table.models("elsewhere") == ()
    assert table.at("elsewhere", NOW).every() == ()
