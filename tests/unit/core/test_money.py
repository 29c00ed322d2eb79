"""Money at the edge: decimal dollars outside, integer nano-dollars inside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypass_core.money import MAX_USD, NANO, format_usd, parse_usd


@pytest.mark.parametrize(
    ("written", "nano"),
    [
        ("0", 0),
        ("2.50", 2_500_000_000),
        ("0.000000001", 1),
        ("0.1", 100_000_000),
        (3, 3_000_000_000),
        ("007", 7_000_000_000),
        (str(MAX_USD), MAX_USD * NANO),
    ],
)
def test_amounts_are_read_exactly(written: object, nano: int) -> None:
    """A decimal string or an integer is read without any rounding."""
    assert parse_usd(written) == nano


@pytest.mark.parametrize(
    "written",
    [
        *(2.5, True, None, [], "", "-1", "+1", "1.", ".5", "1e3", "1_000", "1,5", " 1", "1\n"),
        *("٣", "NaN", "0.0000000001", str(MAX_USD + 1), MAX_USD + 1, -1, "9" * 11),
    ],
)
def test_what_is_no_exact_amount_is_refused(written: object) -> None:
    """Floats, booleans, signs, exponents, more than nine decimals and too much are refused."""
    with pytest.raises(ValueError, match="must be"):
        parse_usd(written)


@given(st.integers(min_value=0, max_value=MAX_USD * NANO))
def test_written_amounts_are_read_back(nano: int) -> None:
    """What `format_usd` writes, `parse_usd` reads as the same number."""
    assert parse_usd(format_usd(nano)) == nano


@pytest.mark.parametrize(
    ("nano", "written"),
    [(0, "0.00"), (2_500_000_000, "2.50"), (1, "0.000000001"), (-1_500_000_000, "-1.50")],
)
def test_amounts_are_written_with_two_places_or_more(nano: int, written: str) -> None:
    """At least cents are shown, and no digit that counts is dropped."""
    assert format_usd(nano) == written
