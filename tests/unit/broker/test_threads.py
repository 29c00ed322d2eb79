"""The threads in which requests ask the store."""

import asyncio
import threading

import pytest

from daypass_broker.db import StoreInDoubt, StoreUnavailable
from daypass_broker.threads import THREADS, Threads
from tests.support import aeventually


async def test_work_is_done_in_a_thread_and_its_error_is_the_caller_s() -> None:
    """What it returns or raises comes back; arguments go along."""
    threads = Threads()
    assert await threads.run(int, "7f", base=16) == 127
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 1, 0)


async def test_who_finds_all_threads_busy_is_refused_in_time() -> None:
    """B32: while every thread waits for the store, one more is refused; then it has room again."""
    threads, gate = Threads(wait_seconds=0.05), threading.Event()
    busy = [asyncio.ensure_future(threads.run(gate.wait, 10)) for _ in range(THREADS)]
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="no thread is free"):
        await threads.run(int)
    gate.set()
    assert await asyncio.gather(*busy) == [True] * THREADS
    assert await threads.run(int) == 0


async def test_a_request_that_is_given_up_frees_its_thread_when_it_is_done() -> None:
    """B32: cancelling does not give the thread to another before the store has answered, and does
    afterwards."""
    threads, gate = Threads(wait_seconds=0.05), threading.Event()
    begun = threading.Semaphore(0)

    def wait() -> None:
        begun.release()
        gate.wait(10)

    busy = [asyncio.ensure_future(threads.run(wait)) for _ in range(THREADS)]
    for _ in busy:
        await aeventually(lambda: begun.acquire(blocking=False))
    for one in busy:
        one.cancel()
    await asyncio.gather(*busy, return_exceptions=True)
    with pytest.raises(StoreUnavailable):
        await threads.run(int)
    gate.set()

    async def works() -> bool:
        try:
            return await threads.run(int) == 0
        except StoreUnavailable:
            return False

    await aeventually(works)


async def test_a_thread_that_cannot_be_had_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system starts no thread, requests fail, and there is room again when it does."""
    threads = Threads(wait_seconds=0.05)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        for _ in range(THREADS + 1):
            with pytest.raises(StoreInDoubt, match="no thread for a request"):
                await threads.run(int)
    assert await threads.run(int) == 0
    threads.close()


async def test_closed_threads_end() -> None:
    """After `close` none is left, and nothing can be run."""
    threads, ran = Threads(), []
    await threads.run(lambda: ran.append(threading.current_thread()))
    threads.close()
    await aeventually(lambda: not ran[0].is_alive())
    with pytest.raises(StoreInDoubt):
        await threads.run(int)
