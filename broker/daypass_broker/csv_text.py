"""Rows as CSV (RFC 4180), made to be opened by a spreadsheet without being obeyed by it.

A text that a spreadsheet would read as a formula gets an apostrophe in front. That is done to texts
alone: our own numbers never begin with a sign.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence

MEDIA_TYPE = "text/csv; charset=utf-8"
# As OWASP lists them, with the full-width forms that some spreadsheets take for the same.
_FORMULAS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def write(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Return a heading and a line for each row, with these columns; raises ValueError for others.

    Absent values are empty, lists and objects JSON, truth values `true` and `false`.
    """
    text = io.StringIO()
    lines = csv.DictWriter(text, columns, lineterminator="\r\n")
    lines.writeheader()
    lines.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str):
        is_formula = value.startswith(_FORMULAS) or value.lstrip().startswith(_FORMULAS)
        return f"'{value}" if is_formula else value
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
