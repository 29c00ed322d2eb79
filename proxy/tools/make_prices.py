"""Write `daypass_proxy/prices.json` from the genai-prices data set (`make prices`).

The data set is a build-time dependency only: the proxy reads the JSON file and nothing else. Prices
are taken as they stand on `--as-of`; figures the data set lacks are derived from what the provider
publishes and named in `derived`. `--check` compares instead of writing, for CI.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

from genai_prices.data import providers

TARGET = Path(__file__).parent.parent / "daypass_proxy" / "prices.json"
PROVIDERS = ("anthropic",)
# Our field, the data set's field, and what the provider publishes as a multiple of the input rate.
RATES = (
    ("input", "input_mtok", None),
    ("output", "output_mtok", None),
    ("cache_write", "cache_write_mtok", Decimal("1.25")),
    ("cache_write_1h", "cache_write_1h_mtok", Decimal(2)),
    ("cache_read", "cache_read_mtok", Decimal(1)),
)
# Only retired models lack a window; the largest of their time reserves enough for a document.
RETIRED_WINDOW = 200_000


def document(as_of: datetime.date) -> dict[str, Any]:
    """Return the whole file as it stands on a day."""
    known = {provider.id: provider for provider in providers}
    moment = datetime.datetime.combine(as_of, datetime.time(12), tzinfo=datetime.UTC)
    return {
        "source": f"genai-prices {version('genai-prices')}",
        "as_of": as_of.isoformat(),
        "providers": {
            name: [entry(model, moment) for model in known[name].models] for name in PROVIDERS
        },
    }


def entry(model: Any, moment: datetime.datetime) -> dict[str, Any]:
    """Return one model: its names, window, rates and tiers."""
    prices = model.get_prices(moment)
    rates, derived = rates_at(prices, tier=None)
    found: dict[str, Any] = {"model": model.id, "ids": [], "prefixes": [], "patterns": []}
    collect(model.match, found)
    found["ids"] = [name for name in found["ids"] if name != model.id]
    if model.context_window is None:
        derived.append("context_window")
    found |= {"context_window": model.context_window or RETIRED_WINDOW, **rates}
    found["tiers"] = [
        {"above_input_tokens": start, **rates_at(prices, tier=start)[0]} for start in starts(prices)
    ]
    found["derived"] = derived
    return {name: value for name, value in found.items() if value != []}


def collect(clause: Any, found: dict[str, Any]) -> None:
    """Sort the data set's match clauses into whole ids, prefixes and anchored patterns."""
    match type(clause).__name__:
        case "ClauseOr":
            for part in clause.or_:
                collect(part, found)
        case "ClauseEquals":
            found["ids"].append(clause.equals)
        case "ClauseStartsWith":
            found["prefixes"].append(clause.starts_with)
        case "ClauseContains":
            found["patterns"].append(f".*{re.escape(clause.contains)}.*")
        case "ClauseRegex" if clause.regex.startswith("^") and clause.regex.endswith("$"):
            found["patterns"].append(clause.regex[1:-1])
        case other:
            raise SystemExit(f"genai-prices has a match rule we cannot write: {other} {clause}")


def starts(prices: Any) -> list[int]:
    """Return the thresholds of the tiers; every rate of a model has the same ones."""
    found = {
        tuple(tier.start for tier in value.tiers) if hasattr(value, "tiers") else ()
        for _, name, _ in RATES
        if (value := getattr(prices, name)) is not None
    }
    if len(found) != 1:
        raise SystemExit(f"genai-prices has rates of one model with different tiers: {prices}")
    return list(found.pop())


def rates_at(prices: Any, tier: int | None) -> tuple[dict[str, str], list[str]]:
    """Return the rates of one tier (None: below the first) and the names of the derived ones."""
    rates: dict[str, Decimal] = {}
    derived = []
    for ours, theirs, multiple in RATES:
        value = getattr(prices, theirs)
        if value is None and multiple is not None:
            rates[ours] = rates["input"] * multiple
            derived.append(ours)
        elif hasattr(value, "tiers"):
            rates[ours] = {None: value.base, **{t.start: t.price for t in value.tiers}}[tier]
        else:
            rates[ours] = value
    return {name: format(rate.normalize(), "f") for name, rate in rates.items()}, derived


def main() -> int:
    """Write the file, or say with `--check` that it differs (exit code 1)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--as-of", type=datetime.date.fromisoformat)
    arguments = parser.parse_args()
    as_of = arguments.as_of or datetime.datetime.now(datetime.UTC).date()
    if arguments.check:
        as_of = datetime.date.fromisoformat(json.loads(TARGET.read_bytes())["as_of"])
    text = json.dumps(document(as_of), indent=1) + "\n"
    if not arguments.check:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        sys.stderr.write("prices.json is not what genai-prices says; run `make prices`\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
