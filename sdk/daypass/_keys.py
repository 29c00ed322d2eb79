"""The commands about signing keys: `daypass keys list`, `daypass keys rotate`."""

from __future__ import annotations

from argparse import Namespace

from daypass._commands import broker
from daypass._render import Column, show_json, table

_KEYS: tuple[Column, ...] = (
    ("kid", "KEY"),
    ("purpose", "SIGNS"),
    ("state", "STATE"),
    ("store", "IN"),
    ("usable_at", "SIGNS FROM"),
    ("retired_at", "RETIRED"),
    ("verifies_until", "KNOWN UNTIL"),
)


def show_all(options: Namespace) -> int:
    """List the keys of one purpose, or of all."""
    answer = broker(options).keys(purpose=options.purpose)
    if options.json:
        show_json(answer)
        return 0
    rows = [{**key, "state": _state(key)} for key in answer.get("keys", [])]
    print(table(rows, _KEYS, none="no keys"))
    return 0


def rotate(options: Namespace) -> int:
    """Prepare the next key, and say when it signs."""
    answer = broker(options).rotate_keys(options.purpose, now=options.now)
    if options.json:
        show_json(answer)
        return 0
    for key in answer.get("keys", []):
        if key["state"] == "prepared":
            print(f"{key['kid']} is published, and signs {key['purpose']} from {key['usable_at']}")
    return 0


def _state(key: dict[str, object]) -> str:
    return f"{key['state']}, revoked" if key.get("revoked") else str(key["state"])
