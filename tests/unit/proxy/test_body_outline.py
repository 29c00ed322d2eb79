"""Counting outside the strings of a JSON text: exact, in slices, whatever is escaped where."""

import json
import mmap
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.body import outline
from daypass_proxy.body.outline import (
    count_colons,
    count_up_to,
    has_few,
    has_long_number,
    may_hold_values,
    members,
    spells_colons,
)

NASTY = st.text(st.sampled_from('\\":,[]{} 0a\u00e9\U0001f600\n'), max_size=40)
VALUES = st.recursive(
    NASTY | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NASTY, inner, max_size=4),
    max_leaves=20,
)
WRITERS = st.sampled_from(
    [
        {"separators": (",", ":")},
        {"ensure_ascii": False, "separators": (",", ":")},
        {"indent": 1},
        {"separators": (" , ", " : "), "ensure_ascii": False},
    ]
)


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text is many slices, so that each kind of border occurs."""
    monkeypatch.setattr(outline, "_SLICE", 32)
    monkeypatch.setattr(outline, "_ONE_PIECE", 0)
    monkeypatch.setattr(outline, "_SMALL", 0)


def count_members(value: Any) -> int:
    """Count name-value pairs the obvious way."""
    if isinstance(value, dict):
        return len(value) + sum(map(count_members, value.values()))
    return sum(map(count_members, value)) if isinstance(value, list) else 0


def count_separators(value: Any) -> int:
    """Count the commas and opening brackets that stand outside strings."""
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(len(value) - 1, 0) + sum(map(count_separators, inner))


def mapped(data: bytes) -> mmap.mmap:
    """The same bytes, mapped."""
    mapping = mmap.mmap(-1, len(data))
    mapping.write(data)
    return mapping


def forms(data: bytes) -> Iterator[bytes | mmap.mmap]:
    """A body as it is found in the service and in a worker."""
    yield data
    with mapped(data) as mapping:
        yield mapping


@settings(max_examples=150, deadline=None)
@given(VALUES, WRITERS)
def test_the_counts_are_exact(value: Any, writer: dict[str, Any]) -> None:
    """Members and values are those of the document, wherever slices and escapes fall."""
    data = json.dumps({"a": value}, **writer).encode()
    wanted = count_separators({"a": value})
    for body in forms(data):
        assert members(body) == count_members({"a": value})
        assert may_hold_values(body, wanted)
        assert not may_hold_values(body, wanted - 1)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 40), st.integers(120, 140), st.sampled_from(["", "1.", "-", '"', '\\\\"', '\\"'])
)
def test_long_numbers_are_found(shift: int, digits: int, before: str) -> None:
    """A run of more than 128 digits is found at any offset, and only outside strings."""
    number = "7" * digits
    text = " " * shift + (
        f'{{"a":"{before.replace(chr(34), "")}{number}"}}'
        if '"' in before
        else f"[{before}{number}]"
    )
    for body in forms(text.encode()):
        assert has_long_number(body, 128) == (digits > 128 and '"' not in before)


@pytest.mark.parametrize("shift", [1, 2])
@pytest.mark.parametrize("near", [b"7,", b"7" * 127 + b",", b"7" * 95 + b","])
def test_near_misses_hide_no_long_number(near: bytes, shift: int) -> None:
    """Runs that are too short, however many, are not taken for one, nor hide one (row 17)."""
    start = b" " * shift + b"[" + near * 4000
    assert not has_long_number(start + b"7]", 128)
    assert has_long_number(start + b"7" * 129 + b"]", 128)


def test_long_numbers_after_strings() -> None:
    """Digits of two numbers with a string between them are no long number."""
    half = "1" * 100
    for body in forms(f'[{half},"",{half},"{half}{half}"]'.encode()):
        assert not has_long_number(body, 128)
    for body in forms(f'["{half}",{half}{half}]'.encode()):
        assert has_long_number(body, 128)


def test_has_few() -> None:
    """Few are few up to the number given."""
    many = b"," * 1000
    assert has_few(b",[", many, 1000)
    assert not has_few(b",[", many, 999)
    assert not has_few(b"[,", many + b"[", 1000)
    assert has_few(b",[", b"a,b[c,", 3)
    assert not has_few(b",[", b"a,b[c,", 2)
    assert has_few(b",[", b"", 0)


@pytest.mark.parametrize("apart", [1, 2, 50, 63, 64, 65, 1000])
@pytest.mark.parametrize("most", [0, 31, 32, 33, 200, 100_000])
def test_counting_stops_where_it_may(apart: int, most: int) -> None:
    """However dense a byte is, its count is exact up to the number given, and beyond it larger."""
    body = (b"," + b"x" * (apart - 1)) * 300 + b"x" * 5000
    found = count_up_to(b",", body, most)
    assert found == 300 if most >= 300 else found > most


@pytest.mark.parametrize("spelled", [rb"\u003a", rb"\u003A"])
@pytest.mark.parametrize("at", [0, 100, 262_136, 262_139, 262_141, 262_143, 262_144, 524_285])
def test_spelled_colons_are_found(spelled: bytes, at: int) -> None:
    """A colon spelled as an escape is found wherever slices fall, what is like it is none."""
    text = b"a" * at + rb"\u003c\n" + b"b" * 9
    for body in forms(text + b"c" * (600_000 - at)):
        assert not spells_colons(body)
    for body in forms(text.replace(rb"\u003c", spelled) + b"c" * (600_000 - at)):
        assert spells_colons(body)
    for body in forms(text[:300].replace(rb"\u003c", spelled) + rb"\u003c" + spelled):
        assert spells_colons(body)


def test_colons_are_counted() -> None:
    """Every colon counts, in a string or not, few or many."""
    for text in (b'{"a":"::' + b"x" * 40 + b':"}', b'{"a":"' + b":x" * 900 + b'"}', b"{}"):
        for body in forms(text):
            assert count_colons(body) == text.count(b":")
