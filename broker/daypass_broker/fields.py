"""Strict reading of what people send us: JSON bodies and the policy file.

Everything is refused that could be read in two ways (duplicate keys, NaN, YAML aliases) or that we
would have to ignore (unknown fields); every error names the field, so nobody has to guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import yaml

from daypass_core.money import parse_usd

T = TypeVar("T")

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
_ABSENT = object()
_MAX_DEPTH = 32


class FieldError(ValueError):
    """One field is not as it must be; `field` is its path, as in `profiles.coding.budget_usd`."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class Fields:
    """The fields of one object, taken out one by one; `done` refuses what nobody took.

    Readers return None for an absent field; `must` refuses that. A field that is present with a
    wrong kind, null included, raises FieldError.
    """

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise FieldError(path or "body", "must be an object")
        for key in value:
            if not isinstance(key, str):
                raise FieldError(path or "body", f"names must be text: put {key} in quotes")
        self._left: dict[str, object] = dict(value)
        self.path = path

    def at(self, name: str) -> str:
        """Return the full path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, reason: str) -> FieldError:
        """Return the error that names a field, ready to raise."""
        return FieldError(self.at(name), reason)

    def must(self, name: str, value: T | None) -> T:
        """Return `value`; raise FieldError when the field was absent."""
        if value is None:
            raise self.error(name, "is missing")
        return value

    def raw(self, name: str) -> Any:
        """Take a field of any kind, None when absent."""
        value = self._left.pop(name, _ABSENT)
        if value is None:
            raise self.error(name, "must not be null: leave it out")
        return None if value is _ABSENT else value

    def null(self, name: str) -> bool:
        """Take a field that is null, and say whether it was; where null means "none"."""
        is_null = self._left.get(name, _ABSENT) is None
        if is_null:
            del self._left[name]
        return is_null

    def text(self, name: str, *, choices: tuple[str, ...] = (), longest: int = 256) -> str | None:
        """Take a non-empty text, one of `choices` when they are given."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.error(name, "must be text, in quotes where YAML would read it otherwise")
        if choices and value not in choices:
            raise self.error(name, f"must be one of {', '.join(choices)}")
        if not 0 < len(value) <= longest:
            raise self.error(name, f"must have 1 to {longest} characters")
        return value

    def name(self, name: str) -> str | None:
        """Take the name of a tenant, profile or orchestrator."""
        value = self.text(name)
        if value is not None and not NAME.fullmatch(value):
            raise self.error(name, f"must match {NAME.pattern}")
        return value

    def names(self, name: str) -> tuple[str, ...] | None:
        """Take a list of at least one different name."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list) or not value:
            raise self.error(name, "must be a list of at least one name")
        for i, item in enumerate(value):
            if not isinstance(item, str) or not NAME.fullmatch(item):
                raise self.error(f"{name}[{i}]", f"must be a name that matches {NAME.pattern}")
            if item in value[:i]:
                raise self.error(f"{name}[{i}]", "is given twice")
        return tuple(value)

    def integer(self, name: str, *, least: int, most: int) -> int | None:
        """Take an integer between two bounds, both included."""
        value = self.raw(name)
        if value is None:
            return None
        # type() and not isinstance(): true is an int in Python.
        if type(value) is not int or not least <= value <= most:
            raise self.error(name, f"must be an integer from {least} to {most}")
        return value

    def flag(self, name: str) -> bool | None:
        """Take true or false."""
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def usd(self, name: str) -> int | None:
        """Take an amount of US dollars, as nano-dollars."""
        value = self.raw(name)
        if value is None:
            return None
        try:
            return parse_usd(value)
        except ValueError as error:
            raise self.error(name, str(error)) from None

    def children(self, name: str) -> Iterator[tuple[str, Fields]]:
        """Take an object whose values are objects, as (name, its fields); none when absent."""
        value = self.raw(name)
        if value is None:
            return
        if not isinstance(value, dict):
            raise self.error(name, "must be an object")
        for key, item in value.items():
            path = f"{self.at(name)}.{str(key)[:64]}"
            if not isinstance(key, str) or not NAME.fullmatch(key):
                raise FieldError(path, f"is not a name: it must match {NAME.pattern}")
            yield key, Fields(item, path)

    def done(self) -> None:
        """Refuse the first field that nobody took."""
        for name in self._left:
            raise self.error(name[:64], "unknown field")


def read_json(data: bytes) -> object:
    """Read a JSON document strictly; raises FieldError."""
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except FieldError:
        raise
    except (ValueError, RecursionError):
        raise FieldError("body", "must be one JSON document in UTF-8") from None
    _check_text(value, _MAX_DEPTH)
    return value


def read_yaml(data: bytes) -> object:
    """Read a YAML document strictly; raises FieldError with the line."""
    try:
        value = yaml.load(data.decode("utf-8"), _StrictLoader)  # noqa: S506  it is a SafeLoader
    except FieldError:
        raise
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}" if error.problem_mark else "somewhere"
        raise FieldError(line, error.problem or "is not YAML") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise FieldError("policy", "must be one YAML document in UTF-8") from None
    _check_text(value, _MAX_DEPTH)
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            # Two readers would disagree about which one counts.
            raise FieldError(key[:64], "is given twice")
        found[key] = value
    return found


def _no_constant(name: str) -> object:
    raise FieldError("body", f"{name} is not a JSON number")


def _check_text(value: object, depth: int) -> None:
    """Refuse text no database takes (NUL, lone surrogates), and structures without end."""
    if depth == 0:
        raise FieldError("body", f"must not be nested deeper than {_MAX_DEPTH}")
    if isinstance(value, str):
        if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise FieldError("body", "text must not hold NUL or half of a surrogate pair")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key, depth - 1)
            _check_text(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _check_text(item, depth - 1)


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader without aliases (they multiply) and without duplicate keys."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise FieldError(
                f"line {event.start_mark.line + 1}", "aliases are not read: write it out"
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise FieldError(f"line {key.start_mark.line + 1}", f"{key.value} is given twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)
