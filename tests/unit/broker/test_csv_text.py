"""Rows as CSV: read back as they were, obeyed by no spreadsheet."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypass_broker import csv_text

texts = st.text(st.characters(exclude_characters="\x00", codec="utf-8"))


@given(st.lists(st.tuples(texts, texts)))
def test_every_text_comes_back(pairs: list[tuple[str, str]]) -> None:
    """Commas, quotes and line ends are quoted (RFC 4180); a formula has one apostrophe more."""
    rows = [{"a": a, "b": b} for a, b in pairs]
    written = csv_text.write(rows, ("a", "b"))
    heading, *found = csv.reader(io.StringIO(written, newline=""))
    assert heading == ["a", "b"]
    for shown, pair in zip(found, pairs, strict=True):
        for cell, text in zip(shown, pair, strict=True):
            assert cell in (text, f"'{text}")
            assert not cell.lstrip().startswith(tuple("=+-@\uff1d\uff0b\uff0d\uff20"))


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", "\t=1", "\r=1", "\n1", " =1", "\uff1d1"])
def test_a_formula_is_a_text(text: str) -> None:
    """Whatever a spreadsheet may calculate gets an apostrophe in front."""
    (_, (cell,)) = csv.reader(io.StringIO(csv_text.write([{"a": text}], ("a",)), newline=""))
    assert cell == f"'{text}"


def test_other_values_are_written_plainly() -> None:
    """Numbers as they are, nothing for nothing, JSON for what has parts."""
    row = {"a": 1, "b": None, "c": True, "d": [{"x": None}]}
    assert csv_text.write([row], tuple(row)) == 'a,b,c,d\r\n1,,true,"[{""x"":null}]"\r\n'


def test_an_unknown_column_is_an_error() -> None:
    """A row with more than the heading says is not cut short in silence."""
    with pytest.raises(ValueError, match="not in fieldnames"):
        csv_text.write([{"a": 1, "z": 2}], ("a",))
