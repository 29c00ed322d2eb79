"""The two tables of docs/reference/headers.md, as rules that a test can apply to what it saw."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "headers.md"
PASSES, STAYS, SET = "as it came", "stays here", "set"
Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Rules:
    """One direction: what happens to each name or pattern."""

    rows: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, direction: str) -> "Rules":
        """Read the table under the heading that starts with `direction`."""
        part = PAGE.read_text("utf-8").partition(f"## {direction}:")[2].partition("\n## ")[0]
        rows: list[tuple[str, str]] = []
        for names, words in re.findall(r"^\| (`.+?`) \| (.+) \|$", part, re.MULTILINE):
            verdict = next(one for one in (PASSES, STAYS, SET) if words.startswith(one))
            rows += [(name, verdict) for name in re.findall(r"`([^`]+)`", names)]
        return cls(tuple(rows))

    def names(self, verdict: str) -> set[str]:
        """The names and patterns of one verdict."""
        return {name for name, found in self.rows if found == verdict}

    def verdict(self, name: str) -> str:
        """What happens to a header; one that no row names stays."""
        found = {verdict for pattern, verdict in self.rows if fnmatchcase(name.lower(), pattern)}
        return next((one for one in (STAYS, SET, PASSES) if one in found), STAYS)

    def passed(self, headers: Iterable[tuple[str, str]]) -> Pairs:
        """What passes of these headers, in order, names in lower case."""
        return [(k.lower(), v) for k, v in headers if self.verdict(k) == PASSES]

    def added(self, headers: Iterable[tuple[str, str]]) -> Pairs:
        """What of these headers the proxy set."""
        return [(k.lower(), v) for k, v in headers if self.verdict(k) == SET]

    def unexplained(self, headers: Iterable[tuple[str, str]]) -> Pairs:
        """What of these headers should not be here."""
        return [(k, v) for k, v in headers if self.verdict(k) == STAYS]
