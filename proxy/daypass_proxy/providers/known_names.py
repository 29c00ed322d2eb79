"""Refuses what a body names that nobody here knows: scopes whose `body` is "strict" (row 32).

Place in the flow: the checks of all dialects come here last, with a body that is otherwise allowed.
`names.json` is written from the types of the official clients by `proxy/tools/make_names.py`, and
a test compares the two, so that what is new there is noticed.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from daypass_core.scope import Detail
from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.providers.places import Chain, not_allowed, shown, unrolled, words

STRICT = "strict"
_TABLE: dict[str, Any] = json.loads(
    resources.files(__package__).joinpath("names.json").read_bytes()
)


@dataclass(frozen=True, slots=True)
class Names:
    """What bodies of one dialect may say.

    `free` are the names whose contents are the caller's own, such as the input of its tools.
    """

    keys: frozenset[str]
    types: frozenset[str]
    free: frozenset[str]

    @classmethod
    def of(cls, dialect: str, more: Iterable[str] = ()) -> "Names":
        """Return what the table has of a dialect, and `more` keys."""
        table = _TABLE[dialect]
        own = table["own"]
        keys = frozenset({*table["keys"], *own["keys"], *more})
        return cls(keys, frozenset(table["types"]), frozenset({*table["free"], *own["free"]}))


class Headers:
    """What the headers of one dialect may say that begin with `prefix`."""

    def __init__(self, dialect: str, prefix: bytes, flags: bytes, others: Iterable[bytes]) -> None:
        """`flags` is the header that lists flags, `others` are those that say anything else."""
        self._prefix, self._flags = prefix, flags
        self._names = frozenset({flags, *others})
        listed = (*_TABLE[dialect]["betas"], *_TABLE[dialect]["own"]["betas"])
        self._known = frozenset(each.encode() for each in listed)

    def refuse_unknown(self, headers: HeaderPairs) -> None:
        """Refuse a header or flag that is not listed; raises Refusal."""
        for name, value in headers:
            if name.startswith(self._prefix) and name not in self._names:
                header = shown(name.decode("latin-1"))
                raise not_allowed(header, f"header {header} {_unknown()}")
            if name == self._flags:
                for flag in map(bytes.strip, value.split(b",")):
                    if flag and flag not in self._known:
                        header, said = name.decode(), shown(flag.decode("latin-1"))
                        raise not_allowed(header, f"{header} {said} {_unknown()}")


def refuse_unknown(body: dict[str, Any], detail: Detail, names: Names, top: frozenset[str]) -> None:
    """Refuse a name or kind that is not listed, wherever it stands; raises Refusal.

    `top` are the names that stand at the top of this endpoint's body. `null` counts as absent.
    """
    features = set(detail.features)
    for where, value in _objects(body, names):
        known = names.keys if where else top
        if not known.issuperset(value):
            for name in value:
                if name in known or name in features or value[name] is None:
                    continue
                place = words(unrolled((where, shown(name))))
                raise not_allowed(place, f"{place} {_unknown(name)}")
        kind = value.get("type")
        if isinstance(kind, str) and kind not in names.types and kind not in features:
            place = words(unrolled((where, "type")))
            raise not_allowed(place, f"{place} {shown(kind)} {_unknown(kind)}")


def _unknown(feature: str = "") -> str:
    by = f'the feature "{shown(feature)}" or ' if feature else ""
    return f'is not known here, and the scope has body "strict"; it needs {by}another body'


def _objects(body: dict[str, Any], names: Names) -> Iterator[tuple[Chain, dict[str, Any]]]:
    """Yield every object of a body with its place, but for those in what is free."""
    waiting: list[tuple[Chain, Any]] = [((), body)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, dict):
            yield where, value
            inside: Iterable[tuple[str | int, Any]] = value.items()
        else:
            inside = enumerate(value)
        for step, each in inside:
            if isinstance(each, dict | list) and step not in names.free:
                waiting.append(((where, step), each))
