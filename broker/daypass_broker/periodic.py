"""What the broker does by itself: one loop a task; `app` holds the one list of them.

The work is a plain function, run in a thread of its own, because everything it asks blocks. What it
raises is logged and it is done again the next time: a store that is away must not end a loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from daypass_broker import db
from daypass_core.log import event, failed, get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Periodic:
    """One task: `work` is done again `seconds` after it ended; it may raise StoreUnavailable."""

    name: str
    seconds: float
    work: Callable[[], object]


async def repeat(
    task: Periodic, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> None:
    """Do a task until cancelled, the first time after its pause."""
    waiting = False
    while True:
        await sleep(task.seconds)
        try:
            await asyncio.to_thread(task.work)
            waiting = False
        except db.StoreUnavailable:
            # Once until it is back: some tasks are done every second.
            if not waiting:
                event(log, "task_waits_for_store", level=logging.WARNING, task=task.name)
            waiting = True
        except Exception as error:
            failed(log, "task_failed", error)
