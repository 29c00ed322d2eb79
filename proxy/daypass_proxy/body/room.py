"""What calls hold of the proxy until they end: bytes of bodies, in all and for one sandbox, and how
many calls one sandbox may have open.

Held in `Services`, entered by `forward` before it reads a body and left when the call is over. A
body costs its sender nothing until it is admitted, so without a bound one sandbox could send large
ones slowly, many at a time, until the proxy of everybody is out of memory (attack row 17).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from daypass_core.problem import Code, refuse

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

MAX_CALLS = 500
MAX_BYTES = 1024 * 1024 * 1024
MAX_PER_SANDBOX = 256 * 1024 * 1024
# These never meet the bound over all sandboxes, so that large ones cannot keep everybody out.
SMALL_BYTES = 1024 * 1024


@dataclass(slots=True)
class BodyRoom:
    """Bytes promised to bodies, in all and by sandbox, and open calls by sandbox.

    `most_calls` is how many of those one sandbox may have here; `turned_away` counts the others.
    """

    most_calls: int = MAX_CALLS
    total: int = 0
    sandboxes: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    turned_away: int = 0

    def enter(self, sandbox: str, most: int) -> Held:
        """Hold `most` bytes for a body while a block runs.

        The block is given the function that takes the body's real size, once read. Raises Refusal:
        rate_limited (429) when the sandbox holds too much or has too many calls, overloaded (503)
        for a large body when all of them together do.
        """
        if self.calls.get(sandbox, 0) >= self.most_calls:
            self.turned_away += 1
            raise refuse(
                Code.RATE_LIMITED,
                f"this sandbox has {self.most_calls} calls open; let some end before the next",
            )
        if self.sandboxes.get(sandbox, 0) + most > MAX_PER_SANDBOX:
            raise refuse(
                Code.RATE_LIMITED,
                "this sandbox has too many large requests under way; send fewer at once",
            )
        if most > SMALL_BYTES and self.total + most > MAX_BYTES:
            raise refuse(Code.OVERLOADED)
        return Held(self, sandbox, most)

    def add(self, sandbox: str, size: int) -> None:
        """Count `size` bytes more, or fewer when negative."""
        self.total += size
        mine = self.sandboxes.get(sandbox, 0) + size
        if mine:
            self.sandboxes[sandbox] = mine
        else:
            self.sandboxes.pop(sandbox, None)


class Held:
    """The bytes held for one body, from the beginning of the block to its end."""

    __slots__ = ("_held", "_room", "_sandbox")

    def __init__(self, room: BodyRoom, sandbox: str, most: int) -> None:
        self._room = room
        self._sandbox = sandbox
        self._held = most

    def __enter__(self) -> Callable[[int], None]:
        calls = self._room.calls
        calls[self._sandbox] = calls.get(self._sandbox, 0) + 1
        self._room.add(self._sandbox, self._held)
        return self._take

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        calls = self._room.calls
        left = calls[self._sandbox] - 1
        if left:
            calls[self._sandbox] = left
        else:
            del calls[self._sandbox]
        self._room.add(self._sandbox, -self._held)

    def _take(self, size: int) -> None:
        if size != self._held:
            self._room.add(self._sandbox, size - self._held)
            self._held = size
