"""What one sandbox may hold of the proxy: bytes of bodies and open calls."""

import pytest

from daypass_core.problem import Refusal
from daypass_proxy.body.room import BodyRoom


def test_open_calls_of_a_sandbox_are_bounded() -> None:
    """B31: one call too many is 429 with a sentence; others pass, and an end makes room."""
    room = BodyRoom(most_calls=2)
    with room.enter("one", 0):
        with room.enter("one", 0):
            with pytest.raises(Refusal) as caught:
                room.enter("one", 0)
            with room.enter("two", 0):
                assert room.calls == {"one": 2, "two": 1}
        with room.enter("one", 10):
            assert room.calls == {"one": 2}
    problem = caught.value.problem
    assert (problem.status, problem.retry_after) == (429, 2)
    assert problem.title == "this sandbox has 2 calls open; let some end before the next"
    assert (room.calls, room.sandboxes, room.turned_away) == ({}, {}, 1)
