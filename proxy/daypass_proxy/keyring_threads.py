"""The threads in which keys are read: few, and nobody waits for one that never comes back.

Place in the flow: `keyring` has everything that blocks done here. A file of a dead file system or a
Vault that sends a byte a second hangs for ever; it holds one thread, until it ends, and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from daypass_proxy.key_forms import Unusable

_T = TypeVar("_T")

THREADS = 4
"""All that reading keys may ever hold, whatever hangs."""
READ_SECONDS = 20.0
"""For one read; a Vault that refuses and is logged in to once more in between takes less."""


class ReadThreads:
    """`THREADS` threads, made when they are needed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "keyring")
        self._under_way: dict[Hashable, Future[Any]] = {}

    async def run(self, what: Hashable, work: Callable[..., _T], *values: object) -> _T:
        """Return what `work` returns. `what` names it: it is not done twice at the same time.

        Raises TimeoutError when it takes too long, and Unusable while it does still.
        """
        before = self._under_way.get(what)
        if before is not None and not before.done():
            raise Unusable("an earlier read has not come back")
        # The context goes along: it has the id of the request that waits for this.
        running = self._pool.submit(copy_context().run, work, *values)
        self._under_way[what] = running
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await asyncio.wrap_future(running)
        finally:
            if running.done():
                self._under_way.pop(what, None)  # it holds a key

    def close(self) -> None:
        """Begin nothing any more; what hangs is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
