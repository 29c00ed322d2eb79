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
PROVIDERS = ("anthropic", "openai")
# Our field and the data set's field.
RATES = (
    ("input", "input_mtok"),
    ("output", "output_mtok"),
    ("cache_write", "cache_write_mtok"),
    ("cache_write_1h", "cache_write_1h_mtok"),
    ("cache_read", "cache_read_mtok"),
)
# What the provider publishes as a multiple of the input rate. OpenAI takes nothing for writing to
# the cache where no rate says so, and there is one rate for however long that lives.
MULTIPLES = {
    "anthropic": {"cache_write": "1.25", "cache_write_1h": "2", "cache_read": "1"},
    "openai": {"cache_write": "1", "cache_write_1h": "1", "cache_read": "1"},
}
# Our field, the data set's condition, our name for it.
WAYS = {
    "anthropic": (
        ("service_tiers", "processing", "batch", "batch"),
        ("speeds", "speed", "fast", "fast"),
    ),
    "openai": (
        ("service_tiers", "service_tier", "flex", "flex"),
        ("service_tiers", "service_tier", "priority", "priority"),
        ("service_tiers", "service_tier", "fast", "fast"),
    ),
}
# What the data set prices beside text; a model with any of it may cost what no figure here says.
TEXT_ONLY = frozenset({*(theirs for _, theirs in RATES), "web_searches_kcount", "requests_kcount"})
TEXT_ONLY |= {"storage_searches_kcount"}  # a fee of tools that are refused
# These search for every request, for a fee that no usage tells.
SEARCHES_ALWAYS = re.compile(r"search|deep-research")
# The data set knows no places: from these models on, inference within the US has a surcharge.
GEOS = {"us": "1.1"}
GEO_SINCE = re.compile(r"^claude-(?:[a-z]+-4-[6-9]|[a-z]+-[5-9])")
# Nor does it know which models think although a request does not say so: all but these.
THINKS_IF_ASKED = {
    "anthropic": re.compile(r"^claude-(?:2|v1|3-|[a-z]+-4-[0-8]$)"),
    "openai": re.compile(r"^(?:chatgpt-4|gpt-3|gpt-4|text-embedding-)"),
}
# An id with its date, as OpenAI writes it.
SNAPSHOT = re.compile(r"(?P<base>.+)-20[0-9]{2}-[0-9]{2}-[0-9]{2}")
# Only retired models lack a window; the largest of their time reserves enough for a document.
RETIRED_WINDOW = 200_000


def document(as_of: datetime.date) -> dict[str, Any]:
    """Return the whole file as it stands on a day, with the changes that are known to come."""
    known = {provider.id: provider for provider in providers}
    return {
        "source": f"genai-prices {version('genai-prices')}",
        "as_of": as_of.isoformat(),
        "providers": {
            name: [
                each
                for model in known[name].models
                if name != "openai" or sold_as_text(model, as_of)
                for each in entries(name, model, as_of)
            ]
            for name in PROVIDERS
        },
    }


def sold_as_text(model: Any, day: datetime.date) -> bool:
    """Say whether every part of what a model costs is a rate of text, and its window is known."""
    prices = vars(model.get_prices(noon(day)))
    priced = {name for name, value in prices.items() if value is not None}
    whole = "input_mtok" in priced and priced <= TEXT_ONLY and model.context_window is not None
    return whole and not SEARCHES_ALWAYS.search(model.id)


def entries(provider: str, model: Any, as_of: datetime.date) -> list[dict[str, Any]]:
    """Return one model: its names, and what it costs, once for each day on which that changes.

    The data set lists with OpenAI's what costs the same, though it be another model, so there each
    name is an entry of its own, together with its snapshots only.
    """
    found: dict[str, Any] = {"ids": [], "prefixes": [], "patterns": []}
    collect(model.match, found)
    if provider != "openai":
        found["ids"] = [name for name in found["ids"] if name != model.id]
        return dated(provider, model, model.id, found, as_of)
    named: dict[str, list[str]] = {}
    for name in found["ids"]:
        if not SEARCHES_ALWAYS.search(name):
            snapshot = SNAPSHOT.fullmatch(name)
            named.setdefault(snapshot["base"] if snapshot else name, []).append(name)
    grouped: list[dict[str, Any]] = []
    for base, ids in named.items():
        own = base if base in ids else ids[0]
        names = {
            "ids": [name for name in ids if name != own],
            "patterns": [
                each
                for each in found["patterns"]
                if each.replace("\\.", ".").startswith(f"{base}-\\d")
            ],
        }
        grouped += dated(provider, model, own, names, as_of)
    return grouped


def dated(
    provider: str, model: Any, name: str, names: dict[str, Any], as_of: datetime.date
) -> list[dict[str, Any]]:
    """Return the entries of one name, without what is empty."""
    first = {"model": name, **names, **entry(provider, model, as_of)}
    later = [
        {"model": name, "from": day.isoformat(), **entry(provider, model, day)}
        for day in days(model)
        if day > as_of
    ]
    return [
        {name: value for name, value in each.items() if value not in ([], {})}
        for each in (first, *later)
    ]


def days(model: Any) -> list[datetime.date]:
    """Return the days from which something of a model costs otherwise."""
    prices = model.prices if isinstance(model.prices, list) else []
    limits = [each.constraint for each in (*prices, *(model.price_variants or []))]
    return sorted({limit.start_date for limit in limits if limit is not None})


def noon(day: datetime.date) -> datetime.datetime:
    """Return the middle of a day in UTC."""
    return datetime.datetime.combine(day, datetime.time(12), tzinfo=datetime.UTC)


def entry(provider: str, model: Any, day: datetime.date) -> dict[str, Any]:
    """Return what one model costs on a day: window, rates and tiers, each way it is served."""
    moment = noon(day)
    prices = model.get_prices(moment)
    ordinary, derived = plan(provider, prices)
    if model.context_window is None:
        derived.append("context_window")
    found = {"context_window": model.context_window or RETIRED_WINDOW, **ordinary}
    for name, key, value, ours in WAYS[provider]:
        served = model.get_prices(moment, {key: value})
        if any(each.when == {key: value} for each in active(model, moment)):
            found.setdefault(name, {})[ours] = plan(provider, served)[0]
    if prices.web_searches_kcount is not None:
        found["web_search"] = text(prices.web_searches_kcount / 1000)
    if provider == "anthropic" and GEO_SINCE.search(model.id):
        found["geos"] = GEOS
        derived.append("geos")
    if THINKS_IF_ASKED[provider].search(model.id):
        found["thinks_unasked"] = False
        derived.append("thinks_unasked")
    return found | {"derived": derived}


def active(model: Any, moment: datetime.datetime) -> list[Any]:
    """Return the variants of a model that are in force."""
    variants = model.price_variants or []
    return [each for each in variants if not each.constraint or each.constraint.active(moment)]


def plan(provider: str, prices: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the rates and tiers of one way of serving a model, and the names of derived rates."""
    rates, derived = rates_at(provider, prices, tier=None)
    tiers = [
        {"above_input_tokens": start, **rates_at(provider, prices, tier=start)[0]}
        for start in starts(prices)
    ]
    return {**rates, **({"tiers": tiers} if tiers else {})}, derived


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
        for _, name in RATES
        if (value := getattr(prices, name)) is not None
    }
    if len(found) != 1:
        raise SystemExit(f"genai-prices has rates of one model with different tiers: {prices}")
    return list(found.pop())


def rates_at(provider: str, prices: Any, tier: int | None) -> tuple[dict[str, str], list[str]]:
    """Return the rates of one tier (None: below the first) and the names of the derived ones."""
    rates: dict[str, Decimal] = {}
    derived = []
    for ours, theirs in RATES:
        value = getattr(prices, theirs)
        multiple = MULTIPLES[provider].get(ours)
        if value is None and ours == "output":
            rates[ours] = Decimal(0)  # embeddings: nothing is written
        elif value is None and ours == "cache_write_1h" and provider == "openai":
            rates[ours] = rates["cache_write"]
            derived.append(ours)
        elif value is None and multiple is not None:
            rates[ours] = rates["input"] * Decimal(multiple)
            derived.append(ours)
        elif hasattr(value, "tiers"):
            rates[ours] = {None: value.base, **{t.start: t.price for t in value.tiers}}[tier]
        else:
            rates[ours] = value
    return {name: text(rate) for name, rate in rates.items()}, derived


def text(amount: Decimal) -> str:
    """Return an amount without needless zeros."""
    return format(amount.normalize(), "f")


def main() -> int:
    """Write the file, or say with `--check` that it differs (exit code 1)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--as-of", type=datetime.date.fromisoformat)
    arguments = parser.parse_args()
    as_of = arguments.as_of or datetime.datetime.now(datetime.UTC).date()
    if arguments.check:
        as_of = datetime.date.fromisoformat(json.loads(TARGET.read_bytes())["as_of"])
    content = json.dumps(document(as_of), indent=1) + "\n"
    if not arguments.check:
        TARGET.write_text(content)
    elif TARGET.read_text() != content:
        sys.stderr.write("prices.json is not what genai-prices says; run `make prices`\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
