"""Reading settings from the environment: once, strictly, all problems in one message.

Each service's `settings.py` makes a `Reader`, reads its names into a frozen dataclass and calls
`done()`. A name without a default is required. Problems name the variable and the expected form,
never the value, since people paste secrets into the wrong variable. An empty value counts as unset.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Literal, TypeVar
from urllib.parse import urlsplit

_T = TypeVar("_T")
_D = TypeVar("_D")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]")
_FLAGS = {"1": True, "true": True, "yes": True, "on": True}
_FLAGS |= {"0": False, "false": False, "no": False, "off": False}


class _Required(Enum):
    TOKEN = 0


REQUIRED: Final = _Required.TOKEN
"""Default of a setting that has none."""
Required = Literal[_Required.TOKEN]


class SettingsError(Exception):
    """Every setting at fault, one a line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("settings are not usable:\n  " + "\n  ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen: a host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_unix(self) -> bool:
        """Say whether this is a Unix socket."""
        return bool(self.path)

    @classmethod
    def parse(cls, text: str) -> "Listen":
        """Read `127.0.0.1:8700`, `[::1]:8700` or `unix:/path`; raises ValueError."""
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path.startswith("/") or "\x00" in path:
                raise ValueError("must be unix:/ and an absolute path")
            return cls(path=path)
        host, separator, port = text.rpartition(":")
        if not separator or not _HOST.fullmatch(host):
            raise ValueError("must be host:port, [ipv6]:port or unix:/path")
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError("port must be a number from 0 to 65535")
        return cls(host=host.strip("[]"), port=int(port))

    def __str__(self) -> str:
        if self.is_unix:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def environment() -> Mapping[str, str]:
    """Return the environment of this process; services hand it to their Reader."""
    return dict(os.environ)  # noqa: TID251  this is the one settings file of core


class Reader:
    """Reads typed settings and collects what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._problems: list[str] = []

    def text(self, name: str, default: _D | Required = REQUIRED) -> str | _D:
        """Return the value as it is, without surrounding blanks."""
        return self._read(name, str, "", default)

    def integer(
        self,
        name: str,
        default: _D | Required = REQUIRED,
        *,
        least: int = 0,
        most: int | None = None,
    ) -> int | _D:
        """Return a whole number between `least` and `most`."""

        def parse(value: str) -> int:
            if not re.fullmatch(r"-?[0-9]{1,18}", value):
                raise ValueError("must be a whole number")
            return _within(int(value), least, most)

        return self._read(name, parse, least, default)

    def seconds(
        self,
        name: str,
        default: _D | Required = REQUIRED,
        *,
        least: float = 0.0,
        most: float | None = None,
    ) -> float | _D:
        """Return a time span in seconds; fractions are allowed."""

        def parse(value: str) -> float:
            if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
                raise ValueError("must be a number of seconds")
            return _within(float(value), least, most)

        return self._read(name, parse, least, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a switch: 1, true, yes, on or 0, false, no, off."""

        def parse(value: str) -> bool:
            if value.lower() not in _FLAGS:
                raise ValueError("must be 1 or 0 (true, false, yes, no, on, off)")
            return _FLAGS[value.lower()]

        return self._read(name, parse, default, default)

    def path(self, name: str, default: _D | Required = REQUIRED) -> Path | _D:
        """Return a path of the file system; nothing is checked there."""

        def parse(value: str) -> Path:
            if "\x00" in value:
                raise ValueError("must be a path")
            return Path(value)

        return self._read(name, parse, Path(), default)

    def url(
        self,
        name: str,
        default: _D | Required = REQUIRED,
        *,
        schemes: Sequence[str] = ("https", "http"),
    ) -> str | _D:
        """Return an absolute URL without credentials, query, fragment and final slash."""
        return self._read(name, lambda value: _parse_url(value, schemes), "", default)

    def listen(self, name: str, default: _D | Required = REQUIRED) -> Listen | _D:
        """Return one address to listen on."""
        return self._read(name, Listen.parse, Listen(), default)

    def listens(self, name: str, default: _D | Required = REQUIRED) -> tuple[Listen, ...] | _D:
        """Return several addresses, separated by commas."""

        def parse(value: str) -> tuple[Listen, ...]:
            return tuple(Listen.parse(part.strip()) for part in value.split(","))

        none: tuple[Listen, ...] = ()
        return self._read(name, parse, none, default)

    def choice(
        self, name: str, options: Sequence[str], default: _D | Required = REQUIRED
    ) -> str | _D:
        """Return one of `options`."""

        def parse(value: str) -> str:
            if value not in options:
                raise ValueError(f"must be one of {', '.join(options)}")
            return value

        return self._read(name, parse, "", default)

    def parsed(
        self,
        name: str,
        parse: Callable[[str], _T],
        placeholder: _T,
        default: _D | Required = REQUIRED,
    ) -> _T | _D:
        """Return what `parse` makes of the value; its ValueError must not repeat the value."""
        return self._read(name, parse, placeholder, default)

    def problem(self, name: str, reason: str) -> None:
        """Note a problem found outside, as between two settings; `reason` repeats no value."""
        self._problems.append(f"{name}: {reason}")

    def done(self) -> None:
        """Raise SettingsError when anything was wrong."""
        if self._problems:
            raise SettingsError(self._problems)

    def _read(
        self, name: str, parse: Callable[[str], _T], placeholder: _T, default: _D | Required
    ) -> _T | _D:
        """Return the parsed value; `placeholder` keeps the types until done() raises."""
        value = self._environ.get(name, "").strip()
        if not value:
            if default is REQUIRED:
                self.problem(name, "is not set")
                return placeholder
            return default
        try:
            return parse(value)
        except ValueError as error:
            self.problem(name, str(error))
            return placeholder


_Number = TypeVar("_Number", int, float)


def _within(number: _Number, least: _Number, most: _Number | None) -> _Number:
    if number < least:
        raise ValueError(f"must be at least {least}")
    if most is not None and number > most:
        raise ValueError(f"must be at most {most}")
    return number


def _parse_url(value: str, schemes: Sequence[str]) -> str:
    expected = f"must be a URL that starts with {' or '.join(f'{s}://' for s in schemes)}"
    if not re.fullmatch(r"[!-~]+", value):
        raise ValueError(expected)
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise ValueError(expected) from None
    if parts.scheme not in schemes or not parts.hostname:
        raise ValueError(expected)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("must be a URL without user, query and fragment")
    return value.rstrip("/")
