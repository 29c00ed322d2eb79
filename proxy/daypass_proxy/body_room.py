"""How many bytes of request bodies are held in memory: in all, and for one sandbox.

Held in `Services`, entered by `forward` before it reads a body and left when the call is over. A
body costs its sender nothing until it is admitted, so without a bound one sandbox could send large
ones slowly, many at a time, until the proxy of everybody is out of memory (attack row 17).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from daypass_core.problem import Code, refuse

MAX_BYTES = 1024 * 1024 * 1024
MAX_PER_SANDBOX = 256 * 1024 * 1024
# These never meet the bound over all sandboxes, so that large ones cannot keep everybody out.
SMALL_BYTES = 1024 * 1024


@dataclass(slots=True)
class BodyRoom:
    """Bytes promised to bodies, in all and by sandbox."""

    total: int = 0
    sandboxes: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def enter(self, sandbox: str, most: int) -> Iterator[Callable[[int], None]]:
        """Hold `most` bytes for a body; give the function that takes its real size, once read.

        Raises Refusal: rate_limited (429) when the sandbox holds too much, overloaded (503) for a
        large body when all of them together do.
        """
        if self.sandboxes.get(sandbox, 0) + most > MAX_PER_SANDBOX:
            raise refuse(
                Code.RATE_LIMITED,
                "this sandbox has too many large requests under way; send fewer at once",
            )
        if most > SMALL_BYTES and self.total + most > MAX_BYTES:
            raise refuse(Code.OVERLOADED)
        held = most
        self._add(sandbox, held)

        def shrink(size: int) -> None:
            nonlocal held
            self._add(sandbox, size - held)
            held = size

        try:
            yield shrink
        finally:
            self._add(sandbox, -held)

    def _add(self, sandbox: str, size: int) -> None:
        self.total += size
        mine = self.sandboxes.get(sandbox, 0) + size
        if mine:
            self.sandboxes[sandbox] = mine
        else:
            self.sandboxes.pop(sandbox, None)
