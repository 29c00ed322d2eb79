"""Saying regularly that a sandbox lives, in a thread of its own, for as long as a block runs.

The broker ends a sandbox with a heartbeat of which nobody says so: its orchestrator has died.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from daypass._errors import DaypassError


@contextmanager
def beating(beat: Callable[[], object], seconds: float | None) -> Iterator[None]:
    """Call `beat` three times in `seconds` while the block runs; never when there are none.

    What it raises is left alone, for the next one may get through: a sandbox that has ended tells
    whoever uses it.
    """
    if seconds is None:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(
        target=_beat, args=(beat, seconds / 3, over), name="daypass-heartbeat", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _beat(beat: Callable[[], object], pause: float, over: threading.Event) -> None:
    while not over.wait(pause):
        with suppress(DaypassError):
            beat()
