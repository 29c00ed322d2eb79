"""The processes that check large bodies: what they hold, how they end, who takes their place."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from daypass_core.problem import Code, Refusal
from daypass_proxy.body.spool import SPOOL_ABOVE, Spool
from daypass_proxy.checkers import pool as body_pool
from daypass_proxy.checkers.pool import SHARE, BodyPool, Worker
from daypass_proxy.providers import Asked
from tests.canary import CANARY
from tests.fakes.anthropic import PLAIN, SONNET, detail
from tests.support import aeventually, eventually

GOOD = Asked((SONNET,), 64, False, 0, 0, writers=1, hour_cache=False)


def body(size: int = 1000, **changes: Any) -> Spool:
    """A request of about so many bytes."""
    messages = [{"role": "user", "content": "x" * size}]
    return Spool.of(json.dumps({**PLAIN, "messages": messages, **changes}).encode())


async def ask(pool: BodyPool, spool: Spool | None = None, sandbox: str = "sb_1") -> Asked:
    """Have one body of a sandbox checked."""
    return await pool.check(sandbox, "anthropic", spool or body(), detail(), max_tokens_needed=True)


async def refused(checking: Any) -> Code:
    """Return why a body was refused."""
    with pytest.raises(Refusal) as caught:
        await checking
    return caught.value.problem.code


@pytest_asyncio.fixture
async def pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BodyPool]:
    """A pool of one worker, started in an environment with a key."""
    monkeypatch.setenv("KEY_OF_TESTS", CANARY)
    made = BodyPool(1)
    made.start()
    assert await ask(made) == GOOD
    yield made
    pids = [worker.process.pid for worker in made.workers]
    await made.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def only(pool: BodyPool) -> Worker:
    """The one worker."""
    (worker,) = pool.workers
    return worker


async def test_small_large_good_and_bad(pool: BodyPool) -> None:
    """B43: a worker says of every size what the service itself would say."""
    for size in (1, SPOOL_ABOVE - 500, SPOOL_ABOVE + 1, 20 * SPOOL_ABOVE):
        assert await ask(pool, body(size)) == GOOD
        assert await refused(ask(pool, body(size, model="m"))) is Code.MODEL_NOT_ALLOWED
        assert await refused(ask(pool, body(size, thread={}))) is Code.THREAD_UNSUPPORTED
    assert await refused(ask(pool, Spool.of(b"[" * SPOOL_ABOVE * 2))) is Code.INVALID_REQUEST
    assert pool.waiting == 0


async def test_a_worker_holds_nothing_of_ours(pool: BodyPool) -> None:
    """B04: the process that reads hostile text has no variable, no file and no socket of ours."""
    folder = Path(f"/proc/{only(pool).process.pid}")
    try:
        environment = (folder / "environ").read_bytes()
        held = {os.readlink(each) for each in (folder / "fd").iterdir()}
    except PermissionError:
        return  # it is closed even to its own user, and we are not root
    assert environment.startswith(b"PYTHONPATH=")
    assert CANARY.encode() not in environment
    assert environment.count(b"\0") == 1
    assert {name.partition(":")[0] for name in held} == {"socket", "/dev/null"}
    assert len(held - {"/dev/null"}) == 1


async def test_a_worker_that_is_killed_is_replaced(pool: BodyPool) -> None:
    """A crash is 503 for the body it was at; the next one finds another process."""
    first = only(pool).process
    first.send_signal(signal.SIGSTOP)
    checking = asyncio.create_task(ask(pool))
    await aeventually(lambda: pool.waiting and not pool.turns.idle)
    first.kill()
    assert await refused(checking) is Code.OVERLOADED
    assert await ask(pool) == GOOD
    assert only(pool).process.pid != first.pid
    assert pool.waiting == 0


async def test_a_body_that_takes_too_much_time_is_refused(pool: BodyPool) -> None:
    """Row 17: a worker that used up its CPU time takes its body along: 400, not "try again"."""
    first = only(pool).process
    first.send_signal(signal.SIGSTOP)
    checking = asyncio.create_task(ask(pool))
    await aeventually(lambda: pool.waiting and not pool.turns.idle)
    first.send_signal(signal.SIGPROF)
    first.send_signal(signal.SIGCONT)
    assert await refused(checking) is Code.INVALID_REQUEST
    assert await ask(pool) == GOOD


async def test_a_worker_that_hangs_is_replaced(
    pool: BodyPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that does not come back is ended."""
    first = only(pool).process
    first.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(body_pool, "CHECK_SECONDS", 0.05)
    assert await refused(ask(pool)) is Code.OVERLOADED
    assert first.poll() == -signal.SIGKILL
    monkeypatch.setattr(body_pool, "CHECK_SECONDS", 30.0)
    assert await ask(pool) == GOOD


async def test_a_worker_that_died_idle_costs_nobody_an_answer(pool: BodyPool) -> None:
    """A body that has not begun waits for the next process."""
    first = only(pool).process
    first.kill()
    first.wait()
    assert await ask(pool) == GOOD
    assert only(pool).process.pid != first.pid


async def test_row_17_what_waits_is_bounded(pool: BodyPool) -> None:
    """Row 17: above the cap the answer is 503 at once; what waited is served."""
    first, spool = only(pool).process, body()
    pool.max_waiting = SHARE * len(spool)
    first.send_signal(signal.SIGSTOP)
    checks = [asyncio.create_task(ask(pool, sandbox=f"sb_{n}")) for n in range(SHARE)]
    await aeventually(lambda: pool.waiting == SHARE * len(spool))
    assert await refused(ask(pool, sandbox="sb_other")) is Code.OVERLOADED
    first.send_signal(signal.SIGCONT)
    assert await asyncio.gather(*checks) == [GOOD] * SHARE
    assert pool.waiting == 0


async def test_row_17_one_sandbox_has_its_share(pool: BodyPool) -> None:
    """Row 17: a sandbox above its share is told so, 429; others are served as if it were not."""
    first, spool = only(pool).process, body()
    pool.max_waiting = SHARE * len(spool)
    first.send_signal(signal.SIGSTOP)
    mine = asyncio.create_task(ask(pool))
    await aeventually(lambda: pool.waiting == len(spool))
    assert await refused(ask(pool)) is Code.RATE_LIMITED
    other = asyncio.create_task(ask(pool, sandbox="sb_2"))
    first.send_signal(signal.SIGCONT)
    assert await mine == await other == GOOD
    assert await ask(pool) == GOOD


async def test_row_17_sandboxes_take_turns(pool: BodyPool) -> None:
    """Row 17: who has sent one body waits behind one turn of another, not all its bodies."""
    first, served = only(pool).process, []

    async def one(sandbox: str) -> None:
        assert await ask(pool, sandbox=sandbox) == GOOD
        served.append(sandbox)

    first.send_signal(signal.SIGSTOP)
    checks = [asyncio.create_task(one("sb_greedy")) for _ in range(4)]
    await aeventually(lambda: pool.waiting == 4 * len(body()))
    checks.append(asyncio.create_task(one("sb_other")))
    await aeventually(lambda: pool.waiting == 5 * len(body()))
    first.send_signal(signal.SIGCONT)
    await asyncio.gather(*checks)
    assert served.index("sb_other") == 2  # behind the one at work, and one turn


async def test_a_caller_that_is_gone_leaves_nothing(pool: BodyPool) -> None:
    """B30: who waits gives up its place; what has begun ends by itself and is forgotten."""
    first = only(pool).process
    first.send_signal(signal.SIGSTOP)
    begun, waits = (asyncio.create_task(ask(pool, body(model="m"))) for _ in range(2))
    await aeventually(lambda: pool.waiting == 2 * len(body(model="m")))
    for task in (begun, waits):
        task.cancel()
    await asyncio.gather(begun, waits, return_exceptions=True)
    assert pool.waiting == len(body(model="m"))
    first.send_signal(signal.SIGCONT)
    await aeventually(lambda: pool.waiting == 0)
    assert await ask(pool) == GOOD
    assert only(pool).process.pid == first.pid


async def test_signals_to_the_group_are_the_services_to_handle(pool: BodyPool) -> None:
    """B44: Ctrl-C and SIGTERM reach workers too; they work on until the service lets go."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        only(pool).process.send_signal(number)
    assert await ask(pool) == GOOD
    assert only(pool).process.poll() is None


async def test_workers_that_cannot_start_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that fails is tried again after a pause, and what waits is served then."""
    monkeypatch.setattr(body_pool, "_PAUSE_SECONDS", 0.0)
    executables = [sys.executable, "/bin/false"]
    start = Worker.start

    def start_next() -> Worker:
        monkeypatch.setattr(sys, "executable", executables.pop())
        return start()

    monkeypatch.setattr(Worker, "start", start_next)
    made = BodyPool(1)
    made.start()
    assert await ask(made) == GOOD
    assert executables == []
    await made.close()


async def test_a_system_without_processes_to_spare_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failure of the system itself costs no worker for good, nor a descriptor."""
    monkeypatch.setattr(body_pool, "_PAUSE_SECONDS", 0.0)
    failures = [OSError(errno.EMFILE, "Too many open files"), BlockingIOError(errno.EAGAIN, "busy")]
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    made = BodyPool(1)
    made.start()
    try:
        await aeventually(lambda: made.turns.idle)
        assert failures == []
        assert await ask(made) == GOOD
    finally:
        await made.close()


ORPHANS = """
import asyncio, sys
from daypass_proxy.checkers.pool import BodyPool
async def main():
    pool = BodyPool(2)
    pool.start()
    while len(pool.turns.idle) < 2:
        await asyncio.sleep(0.01)
    print(*(worker.process.pid for worker in pool.workers), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_no_worker_outlives_the_service() -> None:
    """B44: when the service is killed without a word, its workers end as well."""
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = parent.stdout.readline().split()
        assert len(pids) == 2
        parent.kill()
    eventually(lambda: not any(alive(int(pid)) for pid in pids))


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be noticed does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


LIMITS = """
from daypass_proxy.checkers import worker
worker.CPU_SECONDS = 0.05
begin = worker.limits()
begin(1000)
try:
    bytes(200 * 1024 * 1024)
except MemoryError:
    begin(40 * 1024 * 1024)
    bytes(200 * 1024 * 1024)
    begin(0)
    while True:
        pass
"""


def test_row_17_a_worker_is_limited_in_memory_and_time() -> None:
    """Row 17: memory grows with the body and no further; CPU time ends the process."""
    done = subprocess.run([sys.executable, "-c", LIMITS], timeout=30)
    assert done.returncode == -signal.SIGPROF
