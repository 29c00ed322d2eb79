"""The helpers the other tests wait with."""

import pytest

from tests.support import aeventually, eventually


def test_eventually() -> None:
    """The first true result is returned, and a condition that stays false fails."""
    results = iter([0, "", "yes"])
    assert eventually(lambda: next(results)) == "yes"
    with pytest.raises(AssertionError, match="last result: 0"):
        eventually(lambda: 0, timeout=0.02)


async def test_aeventually() -> None:
    """The asynchronous form takes plain and coroutine functions."""
    results = iter([None, 7])

    async def later() -> int | None:
        return next(results)

    assert await aeventually(later) == 7
    assert await aeventually(lambda: "now") == "now"
    with pytest.raises(AssertionError, match="not true within"):
        await aeventually(lambda: None, timeout=0.02)
