"""Turns: a sandbox with much to check does not keep others waiting for all of it."""

import asyncio

import pytest

from daypass_proxy.checkers.turns import Turns
from tests.support import aeventually


class Bodies:
    """Bodies that take a worker each; `served` tells whose got one, in order."""

    def __init__(self) -> None:
        self.turns: Turns[int] = Turns()
        self.served: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def send(self, *sandboxes: str) -> None:
        """Let a body of each wait."""
        for sandbox in sandboxes:
            self.tasks.append(asyncio.create_task(self._one(sandbox)))
            await asyncio.sleep(0)

    async def _one(self, sandbox: str) -> None:
        await self.turns.take(sandbox)
        self.served.append(sandbox)

    async def gets(self, sandbox: str) -> None:
        """Wait until it was given a worker that stays at work."""
        count = len(self.served)
        self.turns.offer(0)
        await aeventually(lambda: len(self.served) > count)
        assert self.served[count:] == [sandbox]


async def test_row_17_sandboxes_take_turns() -> None:
    """Row 17: one body of each sandbox that waits, then the next of each, first come first."""
    bodies = Bodies()
    await bodies.send("a", "a", "a", "b", "b", "c")
    for sandbox in ("a", "b", "c", "a", "b", "a"):
        await bodies.gets(sandbox)
        bodies.turns.done(sandbox)
    assert not bodies.turns._lines
    assert not bodies.turns._at_work


async def test_row_17_no_second_worker_while_others_wait() -> None:
    """Row 17: whoever has a body at work is asked after those that have none."""
    bodies = Bodies()
    await bodies.send("a", "a", "a")
    await bodies.gets("a")
    await bodies.send("b", "b")
    await bodies.gets("b")
    # Both have one: again by turns. Of two with work, the one with less is first.
    await bodies.gets("a")
    await bodies.gets("b")
    bodies.turns.done("a")
    bodies.turns.done("a")
    await bodies.send("b")
    await bodies.gets("a")
    await bodies.gets("b")


async def test_row_17_with_nobody_else_all_workers_are_its_own() -> None:
    """A single sandbox is not held back."""
    bodies = Bodies()
    await bodies.send("a", "a")
    await bodies.gets("a")
    await bodies.gets("a")


async def test_b30_who_leaves_takes_no_turn() -> None:
    """B30: who is cancelled while it waits gets nothing, and its sandbox no line."""
    bodies = Bodies()
    await bodies.send("a", "b", "b")
    bodies.tasks[0].cancel()
    bodies.tasks[1].cancel()
    await asyncio.gather(*bodies.tasks[:2], return_exceptions=True)
    await bodies.gets("b")
    assert not bodies.turns._lines
    assert not bodies.turns.idle


async def test_b30_a_worker_given_in_the_moment_of_leaving_is_free_again() -> None:
    """B30: a worker that nobody takes up any more is neither lost nor counted as at work."""
    bodies = Bodies()
    await bodies.send("a")
    bodies.turns.offer(7)
    bodies.tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await bodies.tasks[0]
    assert list(bodies.turns.idle) == [7]
    assert not bodies.turns._at_work
