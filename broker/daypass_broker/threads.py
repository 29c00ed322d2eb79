"""The threads in which requests ask the store: a few less than connections, and no long queue.

Place in the flow: everything that answers a request and needs the store runs it here. While all
threads wait for a store that is slow, a request that comes gets none within seconds and is answered
with 503, instead of waiting behind all those before it. A request that is given up keeps its
thread, and so its connection, only until the store has answered (case B32).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, ParamSpec, TypeVar

from daypass_broker.db import CONNECTIONS, StoreInDoubt, StoreUnavailable

_P = ParamSpec("_P")
_R = TypeVar("_R")

THREADS: Final = CONNECTIONS - 4
"""What is left are connections for the broker's own rounds and for the question if it is ready."""
WAIT_SECONDS: Final = 3.0
"""How long a request waits for a thread."""


class Threads:
    """`THREADS` threads of one event loop, made when they are needed."""

    def __init__(self, wait_seconds: float = WAIT_SECONDS) -> None:
        self._free = asyncio.Semaphore(THREADS)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="store")
        self._wait_seconds = wait_seconds

    async def run(self, work: Callable[_P, _R], *args: _P.args, **more: _P.kwargs) -> _R:
        """Return what `work` returns, done in a thread; raises StoreUnavailable where none is free.

        Raises StoreInDoubt where the system gives us none: another may still come to do the work.
        Cancelling it does not stop work that has begun.
        """
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._free.acquire()
        except TimeoutError:
            raise StoreUnavailable("the store is slow: no thread is free for a request") from None
        loop = asyncio.get_running_loop()

        def done(_: Future[_R]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._free.release)

        try:
            running = self._pool.submit(copy_context().run, lambda: work(*args, **more))
        except RuntimeError as error:
            self._free.release()
            raise StoreInDoubt(f"no thread for a request: {error}") from None
        running.add_done_callback(done)
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """Let the threads end, each when it has done what it does; nothing can be run any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
