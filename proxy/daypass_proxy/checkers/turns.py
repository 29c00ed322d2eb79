"""Whose body is checked next: sandboxes take turns, whatever each has sent.

Held by `pool`. In one line for all, a sandbox that sends a few of the dearest bodies would let
everybody else's wait for as long as those take (attack row 17). So each has a line of its own. A
worker goes to a sandbox with nothing at work, the one that has waited longest for its turn; only
when no such sandbox waits does one get a second worker.
"""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Turns(Generic[T]):
    """Workers of type T: the idle ones, and the places of those that wait for one, by sandbox."""

    idle: deque[T] = field(default_factory=deque)
    # In the order of their turns; no line is empty.
    _lines: dict[str, deque[asyncio.Future[T]]] = field(default_factory=dict)
    _at_work: Counter[str] = field(default_factory=Counter)

    async def take(self, sandbox: str) -> T:
        """Return a worker for one body of `sandbox`, to be followed by `done`."""
        place: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(sandbox, deque()).append(place)
        self._match()
        try:
            return await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._leave(sandbox, place)
            else:  # the worker came in the same moment
                self.done(sandbox)
                self.offer(place.result())
            raise

    def offer(self, worker: T) -> None:
        """Let a worker be taken that is ready for a body."""
        self.idle.append(worker)
        self._match()

    def done(self, sandbox: str) -> None:
        """Note that a body of `sandbox` is no longer at work."""
        self._at_work[sandbox] -= 1
        if not self._at_work[sandbox]:
            del self._at_work[sandbox]

    def _match(self) -> None:
        while self.idle and self._lines:
            sandbox = self._next()
            line = self._lines.pop(sandbox)
            place = line.popleft()
            if line:
                self._lines[sandbox] = line  # behind all others
            if not place.done():
                self._at_work[sandbox] += 1
                place.set_result(self.idle.popleft())

    def _next(self) -> str:
        # At most as many sandboxes are at work as there are workers, so this looks at few.
        for sandbox in self._lines:
            if sandbox not in self._at_work:
                return sandbox
        return min(self._lines, key=self._at_work.__getitem__)

    def _leave(self, sandbox: str, place: asyncio.Future[T]) -> None:
        line = self._lines.get(sandbox)
        if line is not None and place in line:
            line.remove(place)
            if not line:
                del self._lines[sandbox]
