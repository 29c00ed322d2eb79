"""One line per step on standard error: what was done and how long it took.

On a terminal the line moves while the step lasts; in a log only the finished lines appear. A
step that fails leaves no line, its error says more.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FRAMES = "|/-\\"


class Progress:
    """Steps of a command that takes a while."""

    def __init__(self) -> None:
        self._moving = sys.stderr.isatty()
        self._frame = 0

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[], None]]:
        """One step; gives a function to call now and then while it lasts."""
        started = time.monotonic()

        def tick() -> None:
            if self._moving:
                self._frame += 1
                self._write(f"\r  {_FRAMES[self._frame % len(_FRAMES)]} {name}")

        tick()
        try:
            yield tick
        except BaseException:
            self._write(self._fresh_line())
            raise
        self._write(f"{self._fresh_line()}daypass: {name} ({time.monotonic() - started:.1f} s)\n")

    def _fresh_line(self) -> str:
        return "\r\033[K" if self._moving else ""

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
