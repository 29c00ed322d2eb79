"""Times at the edge: RFC 3339 outside, epoch inside."""

import pytest

from daypass_broker.times import format_ms, format_second, parse_second


@pytest.mark.parametrize(
    "written",
    [
        1_800_000_000,
        "1800000000",
        "2027-01-15T08:00:00Z",
        "2027-01-15T08:00:00.999Z",
        "2027-01-15t09:00:00+01:00",
        "2027-01-15 03:00:00-05:00",
    ],
)
def test_every_way_to_write_a_moment_is_read(written: object) -> None:
    """Epoch seconds and RFC 3339 with any offset mean the same second; fractions are cut off."""
    assert parse_second(written) == 1_800_000_000


def test_a_date_is_its_first_second() -> None:
    """A date without a time starts at midnight UTC."""
    assert parse_second("2027-01-15") == 1_800_000_000 - 8 * 3600


@pytest.mark.parametrize(
    "written",
    [
        *("", "now", "2027-01-15T08:00:00", "2027-13-01", "2027-01-15T25:00:00Z", -1, 1.5),
        *("1969-12-31T23:59:59Z", "2027-01-15T08:00:00+99:99", 10**12, "٢٠٢٧", True, None),
    ],
)
def test_what_is_no_moment_is_refused(written: object) -> None:
    """A time without an offset, an impossible date or another kind is refused."""
    with pytest.raises(ValueError, match="must be a time"):
        parse_second(written)


def test_moments_are_written_in_utc() -> None:
    """Seconds and milliseconds end in Z."""
    assert format_second(1_800_000_000) == "2027-01-15T08:00:00Z"
    assert format_ms(1_800_000_000_007) == "2027-01-15T08:00:00.007Z"
