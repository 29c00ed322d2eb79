"""The processes that check large bodies, and the queue in front of them.

Made by `app` before any secret is read, asked by `providers` for bodies whose check would hold the
event loop. A worker is a fresh interpreter (`worker`) with an empty environment and one
socket, also when it replaces one that ended, so no memory of ours is ever in it. Bodies go over as
sealed memory without a copy. What waits is bounded in bytes, in all and for one sandbox; sandboxes
take turns (`turns`), and a client that is gone gives up its place.
"""

import asyncio
import logging
import signal
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from os import getpid, pathsep

import msgspec

from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Problem, Refusal, refuse
from daypass_core.scope import Detail
from daypass_proxy.body.spool import AVAILABLE, Spool, return_large_blocks
from daypass_proxy.checkers.turns import Turns
from daypass_proxy.checkers.worker import PACKET, READY, Question, Verdict
from daypass_proxy.providers import Asked

log = get_logger(__name__)

MAX_WAITING = 768 * 1024 * 1024
"""Bytes of bodies that are checked or wait for it; above it new ones are answered 503.

Two workers take some ten seconds for so much of the dearest kind, which is less than QUEUE_SECONDS.
"""
SHARE = 4
"""One sandbox may have so great a part of that: a quarter."""
START_SECONDS = 30.0
CHECK_SECONDS = 30.0
"""Time of the clock, not of the CPU: a worker that was stopped or starved is replaced."""
QUEUE_SECONDS = 30.0
_PAUSE_SECONDS = 1.0
_VERDICTS = msgspec.json.Decoder(Verdict)


class WorkerEnded(Exception):
    """A worker ended, or was ended, before it gave its verdict."""


@dataclass(eq=False, slots=True)
class Worker:
    """One process and our end of its socket."""

    process: subprocess.Popen[bytes]
    link: socket.socket

    @classmethod
    def start(cls) -> "Worker":
        """Start a process that shares nothing with this one but a socket; raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "daypass_proxy.checkers.worker", str(getpid())],
                    # Where modules lie, and not one variable of ours: some of them are keys.
                    env={"PYTHONPATH": pathsep.join(sys.path)},
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        return cls(process, ours)

    async def receive(self, seconds: float) -> bytes:
        """Return the next packet; raises WorkerEnded."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                packet = await loop.sock_recv(self.link, PACKET)
        except (OSError, TimeoutError):
            packet = b""
        if not packet:
            raise WorkerEnded
        return packet

    async def end(self) -> int:
        """Kill the process and return its exit status, negative for a signal."""
        self.link.close()
        return await asyncio.to_thread(self._wait)

    def _wait(self) -> int:
        try:
            # The socket closes a moment before a process is over that ends by itself.
            return self.process.wait(0.2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@dataclass(slots=True)
class BodyPool:
    """`size` workers and what waits for them. `waiting` counts bytes, those at work included."""

    size: int
    max_waiting: int = MAX_WAITING
    waiting: int = 0
    workers: set[Worker] = field(default_factory=set)
    turns: Turns[Worker] = field(default_factory=Turns)
    _waiting_of: Counter[str] = field(default_factory=Counter)
    _tasks: set[asyncio.Task[object]] = field(default_factory=set)

    def start(self) -> None:
        """Start the processes; bodies that come before they are ready wait.

        Only on Linux, whose memory files and limits they need.
        """
        if not AVAILABLE:
            return
        return_large_blocks()
        for _ in range(self.size):
            self._keep(asyncio.create_task(self._bring_up()))

    async def check(
        self, sandbox: str, dialect: str, body: Spool, detail: Detail, *, max_tokens_needed: bool
    ) -> Asked:
        """Return what `body` asks for; raises Refusal: of the check (400), 429 or overloaded (503).

        A caller that is cancelled gives up its place; a check that has begun ends by itself.
        """
        if self._waiting_of[sandbox] + len(body) > self.max_waiting // SHARE:
            raise refuse(
                Code.RATE_LIMITED,
                "this sandbox has too many large requests under way; send fewer at once",
            )
        if self.waiting + len(body) > self.max_waiting:
            raise refuse(Code.OVERLOADED)
        question = Question(dialect, len(body), max_tokens_needed, detail)
        body.seal()
        self._count(sandbox, len(body))
        try:
            worker = await self._begin(sandbox, question, body)
        except BaseException:
            self._count(sandbox, -len(body))
            raise
        work = asyncio.create_task(self._finish(sandbox, worker, len(body)))
        self._keep(work)
        verdict = await asyncio.shield(work)
        if verdict.asked is None:
            raise Refusal(verdict.problem or Problem.of(Code.INTERNAL_ERROR))
        return verdict.asked

    async def close(self) -> None:
        """End every process; nothing that waits is answered any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for worker in self.workers:
            worker.process.kill()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self.workers))
        self.workers.clear()

    def _count(self, sandbox: str, size: int) -> None:
        self.waiting += size
        self._waiting_of[sandbox] += size
        if not self._waiting_of[sandbox]:
            del self._waiting_of[sandbox]

    async def _begin(self, sandbox: str, question: Question, body: Spool) -> Worker:
        """Give the body to a worker, when there is one; raises Refusal overloaded."""
        packet = msgspec.json.encode(question)
        try:
            async with asyncio.timeout(QUEUE_SECONDS):
                while True:
                    worker = await self.turns.take(sandbox)
                    try:
                        socket.send_fds(worker.link, [packet], [body.fd])
                        return worker
                    except OSError:  # it ended while it was idle
                        self.turns.done(sandbox)
                        self._keep(asyncio.create_task(self._replace(worker, 0)))
        except TimeoutError:
            raise refuse(Code.OVERLOADED) from None

    async def _finish(self, sandbox: str, worker: Worker, size: int) -> Verdict:
        """Wait for the verdict; also when nobody wants it any more, since the worker is at it."""
        try:
            verdict = _VERDICTS.decode(await worker.receive(CHECK_SECONDS))
        except (WorkerEnded, msgspec.DecodeError):
            self.turns.done(sandbox)
            return Verdict(problem=await self._replace(worker, size))
        else:
            self.turns.done(sandbox)
            self.turns.offer(worker)
            return verdict
        finally:
            self._count(sandbox, -size)

    async def _replace(self, worker: Worker, size: int) -> Problem:
        """Start another worker for one that did not answer; return what its client is told."""
        self.workers.discard(worker)
        self._keep(asyncio.create_task(self._bring_up()))
        status = await worker.end()
        event(log, "body_worker_ended", level=logging.WARNING, status=status, bytes=size)
        if status == -signal.SIGPROF:
            # It used up its CPU time: of no use to send it again.
            return Problem.of(Code.INVALID_REQUEST, "request body takes too long to check")
        return Problem.of(Code.OVERLOADED)

    async def _bring_up(self) -> None:
        """Start a worker and put it to the idle ones; try until it works.

        No failure may end this: each worker that is not brought up is missing for good.
        """
        while True:
            try:
                worker = Worker.start()
            except OSError as error:  # no process, descriptor or memory to be had just now
                _not_started(None, error.strerror)
            else:
                self.workers.add(worker)
                try:
                    if await worker.receive(START_SECONDS) == READY:
                        self.turns.offer(worker)
                        return
                except WorkerEnded:
                    pass
                self.workers.discard(worker)
                status = await worker.end()
                _not_started(status, None)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _keep(self, task: "asyncio.Task[object]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _not_started(status: int | None, reason: str | None) -> None:
    """Tell the status of a process that ended early, or why there was none."""
    event(log, "body_worker_not_started", level=logging.ERROR, status=status, reason=reason)
