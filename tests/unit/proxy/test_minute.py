"""The sliding minute: never more than was meant in any 60 s, and room again as soon as may be."""

from hypothesis import given
from hypothesis import strategies as st

from daypass_proxy.ledger.minute import MINUTE_MS, SLICE_MS, Minute

NOW = 1_800_000_000_000


def test_b36_ten_at_once_fit_again_after_a_minute_and_not_later() -> None:
    """B36: ten calls in one second block for 60 s after the last of them, to the millisecond."""
    text = "[]"
    for moment in (NOW + 1, NOW + 9, NOW + 900):
        minute = Minute(text, moment)
        minute.add(calls=3)
        text = minute.text()
    minute = Minute(text, NOW + 950)
    assert (minute.calls, minute.resets_at()) == (9, NOW + 900 + MINUTE_MS)
    assert minute.calls_fit_at(8) == NOW + 900 + MINUTE_MS
    assert Minute(text, NOW + 900 + MINUTE_MS - 1).calls == 9
    assert Minute(text, NOW + 900 + MINUTE_MS).calls == 0


def test_when_so_many_fit_is_said_slice_by_slice() -> None:
    """Calls and tokens leave on their own: each says when what is spare for it is enough."""
    minute = Minute("[]", NOW)
    minute.add(calls=2, tokens=50)
    later = Minute(minute.text(), NOW + 10 * SLICE_MS)
    later.add(calls=1, tokens=500)
    assert (later.calls, later.tokens) == (3, 550)
    assert later.calls_fit_at(3) == NOW + 10 * SLICE_MS
    assert later.calls_fit_at(2) == later.calls_fit_at(1) == NOW + MINUTE_MS
    assert later.tokens_fit_at(499) == NOW + 10 * SLICE_MS + MINUTE_MS
    assert later.tokens_fit_at(500) == NOW + MINUTE_MS
    assert later.calls_fit_at(-1) is None
    assert later.tokens_fit_at(-1) is None
    assert Minute("[]", NOW).resets_at() is None


def test_after_the_clock_went_back_a_minute_is_no_longer_than_one() -> None:
    """Slices of the future count from now, so that they are gone 60 s from now."""
    ahead = Minute("[]", NOW)
    ahead.add(calls=5)
    back = Minute(ahead.text(), NOW - 3_600_000)
    assert (back.calls, back.resets_at()) == (5, NOW - 3_600_000 + MINUTE_MS)
    back.add(calls=1)
    assert len(back.slices) == 1


steps = st.lists(
    st.tuples(st.integers(0, 20_000), st.integers(1, 4), st.integers(0, 90)), max_size=60
)


@given(steps, st.integers(1, 12))
def test_no_minute_holds_more_than_the_limit(steps: list[tuple[int, int, int]], limit: int) -> None:
    """B36: of calls at any times, those that the minute lets through never pass it in any 60 s.

    Nor is one refused that 60 s and the length of a slice would have let through.
    """
    text, now = "[]", NOW
    admitted: list[tuple[int, int]] = []
    for pause, calls, _ in steps:
        now += pause
        minute = Minute(text, now)
        fits = minute.calls + calls <= limit
        exact = sum(number for at, number in admitted if at > now - MINUTE_MS)
        assert minute.calls >= exact
        wide = sum(number for at, number in admitted if at > now - MINUTE_MS - SLICE_MS)
        assert fits or wide + calls > limit
        if fits:
            minute.add(calls=calls)
            admitted.append((now, calls))
            text = minute.text()
    for start, _ in admitted:
        assert sum(n for at, n in admitted if start <= at < start + MINUTE_MS) <= limit


@given(steps)
def test_a_minute_is_short_and_reads_what_it_wrote(steps: list[tuple[int, int, int]]) -> None:
    """However much happens, 61 slices are the most; the sums survive being written."""
    text, now = "[]", NOW
    for pause, calls, tokens in steps:
        now += pause
        minute = Minute(text, now)
        minute.add(calls=calls, tokens=tokens)
        assert len(minute.slices) <= MINUTE_MS // SLICE_MS + 1
        again = Minute(text := minute.text(), now)
        assert (again.calls, again.tokens, again.slices) == (
            minute.calls,
            minute.tokens,
            minute.slices,
        )
