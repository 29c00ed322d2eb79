"""The two walks of docs/how-it-works.md name symbols that exist, in the order they are reached."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
SYMBOL = re.compile(r"`(daypass(?:_core|_broker|_proxy|_migrations)?(?:\.\w+)+)(?:\(\))?`")
ROW = re.compile(r"^\| (`daypass_.+`) \| \[[^\]]+\]\(([^)]+)\).* \|$", re.MULTILINE)

ONE_CALL = [
    "daypass_proxy.guard",
    "daypass_proxy.edge",
    "daypass_proxy.forward",
    "daypass_proxy.authenticate",
    "daypass_core.verify",
    "daypass_core.revocation",
    "daypass_core.scope",
    "daypass_proxy.body.room",
    "daypass_proxy.providers",
    "daypass_proxy.body.strict",
    "daypass_proxy.admit",
    "daypass_proxy.price",
    "daypass_proxy.estimate",
    "daypass_proxy.ledger",
    "daypass_proxy.streams",
    "daypass_proxy.attempt",
    "daypass_proxy.upstream",
    "daypass_proxy.keyring",
    "daypass_proxy.transport",
    "daypass_proxy.relay",
    "daypass_proxy.meter",
]
ONE_TOKEN = [
    "daypass_broker.policy",
    "daypass_broker.handout",
    "daypass_proxy.token",
    "daypass_broker.app",
    "daypass_broker.issue",
    "daypass_broker.token_request",
    "daypass_broker.proof",
    "daypass_broker.attest",
    "daypass_broker.standing",
    "daypass_broker.tokens",
    "daypass_broker.lineage",
    "daypass_broker.delegate",
    "daypass_broker.audit",
    "daypass_broker.signing",
    "daypass_broker.oauth",
]
WALKS = [("## One call", ONE_CALL), ("## One token", ONE_TOKEN)]


def resolve(dotted: str) -> tuple[ModuleType, bool]:
    """The innermost module of a dotted name, and whether the rest is an attribute of it."""
    parts = dotted.split(".")
    for split in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        found: object = module
        for name in parts[split:]:
            if not hasattr(found, name):
                return module, False
            found = getattr(found, name)
        return module, True
    raise AssertionError(f"{dotted}: not even its package exists")


def walk(heading: str) -> str:
    """The text below one heading."""
    return PAGE.partition(f"{heading}\n")[2].partition("\n## ")[0]


def test_every_named_symbol_exists() -> None:
    """Each symbol in the prose can be found in the code."""
    symbols = set(SYMBOL.findall(PAGE))
    assert len(symbols) >= 40
    assert [symbol for symbol in sorted(symbols) if not resolve(symbol)[1]] == []


@pytest.mark.parametrize(("heading", "stations"), WALKS)
def test_a_walk_is_complete_and_in_order(heading: str, stations: list[str]) -> None:
    """Every station is named, in the order in which it is reached."""
    part = walk(heading)
    found = {station: re.search(rf"`{re.escape(station)}[.`]", part) for station in stations}
    assert [station for station, place in found.items() if place is None] == []
    places = {station: place.start() for station, place in found.items() if place}
    assert sorted(stations, key=lambda station: places[station]) == stations


@pytest.mark.parametrize("heading", [heading for heading, _ in WALKS])
def test_the_list_of_a_walk_maps_each_symbol_to_its_file(heading: str) -> None:
    """The list names exactly the symbols of the prose, each beside the file it stands in."""
    prose, _, rows = walk(heading).partition("| symbol | file |")
    listed: set[str] = set()
    for names, target in ROW.findall(rows):
        for symbol in SYMBOL.findall(names):
            file = resolve(symbol)[0].__file__
            assert file is not None
            assert (ROOT / "docs" / target).resolve() == Path(file).resolve(), symbol
            listed.add(symbol)
    assert listed == set(SYMBOL.findall(prose))


def test_a_made_up_symbol_is_found_out() -> None:
    """The check itself fails for a name that does not exist."""
    assert resolve("daypass_core.verify.verify_access")[1]
    assert not resolve("daypass_core.verify.verify_nothing")[1]
    assert not resolve("daypass_core.nowhere")[1]
