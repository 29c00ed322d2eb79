"""Reads a price file: strictly, and with the place of what is wrong in every message.

Place in the flow: `price.table` reads the shipped file and the overlay at the start of the proxy.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from daypass_core.scope import ENDPOINTS, endpoints_of
from daypass_proxy.price.entry import Entry, File
from daypass_proxy.price.shelf import Shelf


class PriceError(ValueError):
    """A price file that cannot be used; the message names the file and the path inside it."""


def read_shelves(content: bytes, source: str) -> dict[str, Shelf]:
    """Return the shelves of a file by provider; raises PriceError."""
    shelves: dict[str, Shelf] = {}
    where = "$"
    try:
        document = json.loads(content, object_pairs_hook=_no_duplicates)
        for provider, entries in msgspec.convert(document, File).providers.items():
            where = f"$.providers.{provider}"
            if endpoints_of(provider) is None:
                known = ", ".join(ENDPOINTS)
                raise ValueError(f"no such provider; there is {known}, and those of your own")
            shelf = shelves[provider] = Shelf()
            for index, each in enumerate(entries):
                where = f"$.providers.{provider}[{index}]"
                entry = msgspec.convert(each, Entry)
                if entry.per_second is not None and provider in ENDPOINTS:
                    raise ValueError("per_second: is for servers of your own")
                shelf.add(entry.starts, entry.price(), entry.ids, entry.rules())
    except (ValueError, RecursionError) as error:
        raise PriceError(f"{source}: {_with_path(str(error), where)}") from error
    return shelves


def _with_path(message: str, where: str) -> str:
    """Turn msgspec's `… - at `$.input`` into a path from the top of the file."""
    text, _, inner = message.partition(" - at `$")
    return f"{where}{inner.rstrip('`')}: {text[:1].lower()}{text[1:]}"


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'"{twice}" appears twice in one object; keep one')
    return fields
