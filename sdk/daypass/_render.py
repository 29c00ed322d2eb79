"""What people see: tables and sheets of plain text. Programs ask for `--json` instead."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

Column = tuple[str, str]  # key in the row, heading


def show_json(value: object) -> None:
    """Print a value as one line of JSON."""
    print(json.dumps(value), flush=True)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], *, none: str) -> str:
    """Rows under headings, numbers to the right; `none` when there are no rows."""
    if not rows:
        return none
    cells = [[text(row.get(key)) for key, _ in columns] for row in rows]
    heads = [heading for _, heading in columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    right = [all(_is_number(row.get(key)) for row in rows) for key, _ in columns]

    def line(parts: Sequence[str]) -> str:
        padded = (
            part.rjust(width) if to_right else part.ljust(width)
            for part, width, to_right in zip(parts, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join(line(parts) for parts in (heads, *cells))


def sheet(row: Mapping[str, Any]) -> str:
    """One thing, a line for each of its fields."""
    width = max((len(key) for key in row), default=0)
    return "\n".join(f"{key.ljust(width)}  {text(value)}" for key, value in row.items())


def text(value: object) -> str:
    """One cell: control characters harmless, absent values as a dash."""
    if value is None or value == "" or value == {} or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping) and not any(isinstance(v, (dict, list)) for v in value.values()):
        shown = " ".join(f"{key}={text(item)}" for key, item in value.items())
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        shown = ", ".join(value)
    elif isinstance(value, (dict, list)):
        shown = json.dumps(value)
    else:
        shown = str(value)
    # Labels and reasons come from elsewhere; a terminal must not obey them.
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)


def note(message: str) -> None:
    """Say something to the person, beside the output proper."""
    print(f"daypass: {message}", file=sys.stderr, flush=True)


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return value.replace(".", "", 1).lstrip("-").isdigit()
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
