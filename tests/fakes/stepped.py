"""A coroutine taken step by step: something may happen at each point where it lets go of the loop.

`paced` makes fakes let go where the real thing would: before and after each of their awaits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Stepped(Generic[T]):
    """Awaits a coroutine, counting in `steps` how often it let go; calls `act` at number `at`."""

    def __init__(self, work: Coroutine[Any, Any, T], at: int, act: Callable[[], None]) -> None:
        self._work = work
        self._at = at
        self._act = act
        self.steps = 0

    def __await__(self) -> Generator[Any, Any, T]:
        """Run it; `act` is called while it is suspended, as another task's turn would."""
        error: BaseException | None = None
        while True:
            try:
                waited_for = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            self.steps += 1
            if self.steps == self._at:
                self._act()
            error = None
            try:
                yield waited_for
            except BaseException as thrown:
                error = thrown


def paced(target: object, *names: str) -> None:
    """Have these coroutine functions of `target` let go of the loop before and after their work."""
    for name in names:
        setattr(target, name, _paced(getattr(target, name)))


def _paced(function: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    async def wrapper(*arguments: Any, **named: Any) -> T:
        await asyncio.sleep(0)
        result = await function(*arguments, **named)
        await asyncio.sleep(0)
        return result

    return wrapper
