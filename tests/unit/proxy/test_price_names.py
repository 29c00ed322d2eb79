"""The names of models: a dated id and its alias are one model, in price and in scope."""

from decimal import Decimal
from pathlib import Path

import pytest

from daypass_core.scope import Detail
from daypass_proxy.price import PriceTable
from tests.fakes.prices import CASE, NOW, find, overlay

TABLE = PriceTable.load()


def allowed(*models: str, table: PriceTable = TABLE) -> Detail:
    """Return a scope of these models, under all their names."""
    return table.names(Detail("anthropic", ("messages",), models))


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
    price = TABLE.find("anthropic", name, NOW)
    assert (price and price.model) == model


@pytest.mark.parametrize(
    ("scope", "asked"),
    [
        ("claude-haiku-4-5", "claude-haiku-4-5-20251001"),
        ("claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("claude-opus-4-0", "claude-opus-4-20250514"),
        ("claude-opus-4-20250514", "claude-opus-4"),
        ("claude-opus-5", "claude-opus-5-latest"),
        ("claude-3-7-sonnet-latest", "claude-3-7-sonnet-20250219"),
        ("claude-opus-5-5", "claude-opus-5-5-20261101"),
    ],
)
def test_b40_every_name_of_a_model_is_in_scope_and_has_its_price(scope: str, asked: str) -> None:
    """B40: a scope that names the alias or the dated id allows the other, at the same price."""
    assert allowed(scope).allows_model(asked)
    assert find(TABLE, scope) is find(TABLE, asked)


@pytest.mark.parametrize(
    ("scope", "other"),
    [
        ("claude-opus-5", "claude-opus-5-5"),
        ("claude-opus-5", "claude-opus-5-5-20261101"),
        ("claude-opus-4-0", "claude-opus-4-1"),
        ("claude-opus-4-0", "claude-opus-4-1-20250805"),
        ("claude-3-5-sonnet-20240620", "claude-3-5-sonnet-20241022"),
        ("claude-haiku-4-5", "claude-haiku-4-5-large"),
        ("claude-haiku-4-5-large", "claude-haiku-4-5"),
        ("anthropic.claude-v2:1", "claude-2"),
        ("claude-opus-6", "claude-opus-6-20270101"),
    ],
)
def test_b40_another_model_stays_out_of_scope(scope: str, other: str) -> None:
    """B40: neither a sibling, nor another dated snapshot, nor what only begins alike."""
    assert not allowed(scope).allows_model(other)


def test_b40_a_scope_keeps_its_own_words_first() -> None:
    """B40: wildcards and unknown models stay as they are, and a refusal begins with them."""
    scope = allowed("my-model", "claude-*", "claude-opus-5-5")
    assert scope.models[:3] == ("my-model", "claude-*", "claude-opus-5-5")
    assert scope.models[3:] == ("claude-opus-5-5-20*",)
    assert allowed("*").models == ("*",)


def test_b40_ids_of_an_overlay_are_names(tmp_path: Path) -> None:
    """B40: what an admin lists as `ids` of a model is the model, in scope and price."""
    table = PriceTable.load(overlay(tmp_path, {**CASE, "ids": ["coder", "fast-coder"]}))
    scope = allowed("coder", table=table)
    assert scope.models[:3] == ("coder", "case-model", "fast-coder")
    assert find(table, "fast-coder") is find(table, "case-model")


def test_b40_a_contract_rate_is_one_for_all_names(tmp_path: Path) -> None:
    """B40: an overlay that names the alias prices the dated id too, and no other model."""
    entries = [{**CASE, "model": "claude-opus-5-5"}, {**CASE, "model": "claude-opus-4"}]
    table = PriceTable.load(overlay(tmp_path, *entries))
    for name in ("claude-opus-5-5-20261101", "claude-opus-4-20250514", "claude-opus-4-0"):
        assert find(table, name).plan.rates.input == Decimal(3), name
    for name in ("claude-opus-5", "claude-opus-5-20261101", "claude-opus-4-1"):
        assert find(table, name).plan.rates.input != Decimal(3), name


def test_the_names_of_a_scope_are_found_once() -> None:
    """A scope is asked about for every call, so its names are remembered."""
    assert allowed("claude-opus-5") is allowed("claude-opus-5")
