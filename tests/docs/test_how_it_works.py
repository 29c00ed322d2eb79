"""The two walks of docs/how-it-works.md name symbols that exist, and all that belong to them."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
SYMBOL = re.compile(r"`(daypass(?:_core|_broker|_proxy|_migrations)?(?:\.\w+)+)(?:\(\))?`")

ONE_CALL = [
    "daypass_proxy.guard",
    "daypass_proxy.app",
    "daypass_proxy.forward",
    "daypass_proxy.authenticate",
    "daypass_core.verify",
    "daypass_core.revocation",
    "daypass_proxy.body",
    "daypass_proxy.providers",
    "daypass_proxy.estimate",
    "daypass_proxy.admit",
    "daypass_proxy.ledger",
    "daypass_proxy.streams",
    "daypass_proxy.upstream",
    "daypass_proxy.keyring",
    "daypass_proxy.transport",
    "daypass_proxy.relay",
    "daypass_proxy.meter",
    "daypass_proxy.price",
]
ONE_TOKEN = [
    "daypass_proxy.token",
    "daypass_broker.app",
    "daypass_broker.oauth",
    "daypass_broker.attest",
    "daypass_broker.policy",
    "daypass_broker.lineage",
    "daypass_broker.issue",
    "daypass_broker.signing",
]


def exists(dotted: str) -> bool:
    """Whether a dotted name leads to a module or to an attribute of one."""
    parts = dotted.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for name in parts[split:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def test_every_named_symbol_exists() -> None:
    """Each symbol in the prose can be found in the code."""
    symbols = set(SYMBOL.findall(PAGE))
    assert len(symbols) >= 40
    assert [symbol for symbol in sorted(symbols) if not exists(symbol)] == []


def test_both_walks_are_complete() -> None:
    """Every station of a call and of an issuance is named, in the order it is reached."""
    for heading, stations in (("## One call", ONE_CALL), ("## One token", ONE_TOKEN)):
        part = PAGE.partition(heading)[2].partition("\n## ")[0]
        places = [part.find(f"`{station}") for station in stations]
        assert -1 not in places, stations[places.index(-1)]


def test_a_made_up_symbol_is_found_out() -> None:
    """The check itself fails for a name that does not exist."""
    assert exists("daypass_core.verify.verify_access")
    assert not exists("daypass_core.verify.verify_nothing")
    assert not exists("daypass_core.nowhere")
