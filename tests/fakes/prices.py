"""Price files for tests: overlays of a few entries, and the prices of the cases."""

import json
from pathlib import Path
from typing import Any

from daypass_proxy.price import Price, PriceTable, Tariff

NOW = 1_796_000_000.0
"""A moment of 2026-11-30, after the day of the shipped table."""
# The prices of the cases: 3.00 in, 15.00 out, 3.75 and 6.00 for writes, 0.30 for reads.
CASE: dict[str, Any] = {
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


def find(table: PriceTable, model: str, now: float = NOW) -> Price:
    """Find a price that must be there."""
    price = table.find("anthropic", model, now)
    assert price is not None
    return price


def tariff(table: PriceTable, model: str, now: float = NOW, **asked: str) -> Tariff:
    """Return the tariff of a call of this model, as a quote would make it."""
    return Tariff(find(table, model, now), table.at("anthropic", now), **asked)
