"""The names of a model: a dated id and its alias are the same model, in scope and in price (B40).

Place in the flow: `price.table` widens a scope's exact models by them, and looks for a contract
rate under every name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# Anthropic's snapshots are called after a day as 20250929, OpenAI's as 2025-09-29.
_DATED = re.compile(r"(?P<base>.+)(?:[-@]20[0-9]{6}|-20[0-9]{2}-[0-9]{2}-[0-9]{2})")
_LATEST = "-latest"


def undated(name: str) -> str | None:
    """Return a dated name without its date; None for one that has none."""
    match = _DATED.fullmatch(name)
    return match["base"] if match else None


def other_names(name: str, ids: Iterable[str]) -> Iterator[str]:
    """Yield how else the model may be called that the scope calls `name`.

    `ids` are the model's whole names. A dated `name` means that snapshot and the names without a
    date; one without means every snapshot: the last of its names are patterns (`…-20*`).
    """
    ids = list(ids)
    base = undated(name)
    if name not in ids and base not in {_plain(each) for each in ids}:
        return  # priced by a rule of its own kind: who knows what else is called so
    plain = [each for each in ids if undated(each) is None]
    if base is not None:
        yield from plain
        return
    yield from ids
    for each in dict.fromkeys(map(_plain, (name, *plain))):
        yield f"{each}-20*"


def _plain(name: str) -> str:
    return undated(name) or name.removesuffix(_LATEST)
