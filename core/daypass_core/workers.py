"""Several worker processes of one service: started, watched, replaced and ended together.

`supervise` runs in the parent, which serves nothing: it has no event loop and no thread, so it can
fork at any time. A worker tells once a second that it lives (`Pulse`), from its beginning on, and
once that it serves. One that ends is replaced, one that is silent is killed and replaced, and all
of them end with the parent, however that ends (ADR 27).
"""

import ctypes
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from daypass_core.log import event, failed, flush, get_logger

log = get_logger(__name__)

EXIT_CANNOT_START = 2
BEAT_SECONDS = 1.0
WEDGED_SECONDS = 45.0
"""Silence after which a worker is killed: no check of ours holds a loop for a second."""
STEADY_SECONDS = 60.0
"""A worker that served for so long is replaced at once; one that did not, after a pause."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
_LOOK_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


_BEAT, _READY = b".", b"!"


class Pulse:
    """A worker's way to say how it is. Call `beat` once a second, and `ready` when it serves."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)

    def beat(self) -> None:
        """Say that it lives; does nothing when the parent does not listen."""
        self._say(_BEAT)

    def ready(self) -> None:
        """Say that it serves."""
        self._say(_READY)

    def _say(self, word: bytes) -> None:
        try:
            os.write(self._descriptor, word)
        except OSError:
            return


Work = Callable[[int, Pulse], int]
"""Serves as the worker of this number, from 0 on, until it is told to end; its exit status."""


@dataclass(slots=True)
class _Worker:
    """The place of one worker, whoever fills it. Times are monotonic seconds."""

    number: int
    pid: int = 0
    pulse: int = -1
    ready_at: float | None = None
    heard_at: float = 0.0
    due: float | None = None
    pauses: int = 0


def supervise(
    count: int, work: Work, *, end_seconds: float, on_ending: Callable[[], None] = lambda: None
) -> int:
    """Run `count` workers until a signal; return the exit status of the service.

    `end_seconds` is how long they may take to end after SIGTERM before they are killed;
    `on_ending` runs when none will be started any more. Returns 2 when one cannot start at all, 1
    when one did not end well.
    """
    return _Supervisor(count, work, end_seconds, on_ending).run()


class _Supervisor:
    def __init__(
        self, count: int, work: Work, end_seconds: float, on_ending: Callable[[], None]
    ) -> None:
        self._workers = [_Worker(number) for number in range(count)]
        self._work = work
        self._end_seconds = end_seconds
        self._on_ending = on_ending
        self._status = 0
        self._served = False
        """All of them have served at the same time, so the settings are good."""
        self._ends: float | None = None
        self._wakes, self._waked = os.pipe()
        for end in (self._wakes, self._waked):
            os.set_blocking(end, False)

    def run(self) -> int:
        before = {number: signal.signal(number, _noted) for number in (*_PASSED_ON, signal.SIGCHLD)}
        woken_before = signal.set_wakeup_fd(self._waked, warn_on_full_buffer=False)
        try:
            for worker in self._workers:
                self._start(worker)
            while any(worker.pid or worker.due is not None for worker in self._workers):
                self._turn()
        finally:
            self._signal_all(signal.SIGKILL)  # none is left unless something of ours broke
            signal.set_wakeup_fd(woken_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wakes)
            os.close(self._waked)
        return self._status

    def _turn(self) -> None:
        """Wait for something to happen, and do what is due."""
        now = time.monotonic()
        for number in self._wait(self._pause(now)):
            self._on_signal(number)
        after = time.monotonic()
        if after - now > 2 * _LOOK_SECONDS:
            # We were stopped ourselves, or the machine was: their silence is not theirs.
            for worker in self._workers:
                worker.heard_at = after
        self._reap(after)
        for worker in self._workers:
            if worker.due is not None and worker.due <= after:
                self._start_again(worker, after)
            silent = after - worker.heard_at
            if worker.pid and silent > WEDGED_SECONDS:
                event(
                    log, "worker_wedged", level=logging.ERROR, worker=worker.number,
                    pid=worker.pid, seconds=round(silent),
                )  # fmt: skip
                worker.heard_at = after
                os.kill(worker.pid, signal.SIGKILL)
        if self._ends is not None and after > self._ends:
            self._status, self._ends = 1, after + self._end_seconds
            event(log, "workers_killed", level=logging.ERROR)
            self._signal_all(signal.SIGKILL)

    def _pause(self, now: float) -> float:
        due = [worker.due for worker in self._workers if worker.due is not None]
        due += [] if self._ends is None else [self._ends]
        return max(min([now + _LOOK_SECONDS, *due]) - now, 0.0)

    def _wait(self, seconds: float) -> bytes:
        """Wait for a signal or a sign of life; return the numbers of the signals that came."""
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        known = {worker.pulse: worker for worker in self._workers if worker.pulse >= 0}
        for descriptor in known:
            poll.register(descriptor, select.POLLIN)
        signals = b""
        for descriptor, _ in poll.poll(seconds * 1000):
            if descriptor == self._wakes:
                signals = os.read(descriptor, 4096)
            elif words := os.read(descriptor, 4096):
                self._heard(known[descriptor], words)
            else:
                self._close_pulse(known[descriptor])
        return signals

    def _heard(self, worker: _Worker, words: bytes) -> None:
        worker.heard_at = time.monotonic()
        if worker.ready_at is None and _READY in words:
            worker.ready_at = worker.heard_at
            event(log, "worker_ready", worker=worker.number, pid=worker.pid)
            self._served = self._served or all(one.ready_at is not None for one in self._workers)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._signal_all(signal.SIGHUP)
        elif number in (signal.SIGTERM, signal.SIGINT):
            self._end()

    def _end(self) -> None:
        """Let all of them end; a second time they hear it again, and end at once."""
        self._signal_all(signal.SIGTERM)
        for worker in self._workers:
            worker.due = None
        if self._ends is None:
            self._ends = time.monotonic() + self._end_seconds
            self._on_ending()

    def _signal_all(self, number: int) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, number)

    def _reap(self, now: float) -> None:
        for worker in self._workers:
            if worker.pid:
                pid, status = os.waitpid(worker.pid, os.WNOHANG)
                if pid:
                    self._ended(worker, os.waitstatus_to_exitcode(status), now)

    def _ended(self, worker: _Worker, status: int, now: float) -> None:
        served, worker.ready_at = worker.ready_at, None
        pid, worker.pid = worker.pid, 0
        self._close_pulse(worker)
        if self._ends is not None:
            # One that has not begun to serve has no other way to end at our word.
            if status not in (0, -signal.SIGTERM) and not self._status:
                self._status = 1
            return
        if served is None and not self._served:
            # It has said why. What does not work for the first time will not for the second.
            event(
                log, "worker_not_started", level=logging.ERROR, worker=worker.number, status=status
            )
            self._status = EXIT_CANNOT_START
            self._end()
            return
        worker.pauses = (
            0 if served is not None and now - served >= STEADY_SECONDS else worker.pauses
        )
        pause = min(FIRST_PAUSE * 2 ** (worker.pauses - 1), LONGEST_PAUSE) if worker.pauses else 0.0
        worker.pauses = min(worker.pauses + 1, 16)
        worker.due = now + pause
        event(
            log, "worker_ended", level=logging.ERROR, worker=worker.number, pid=pid,
            status=status, restart_seconds=pause,
        )  # fmt: skip

    def _close_pulse(self, worker: _Worker) -> None:
        if worker.pulse >= 0:
            os.close(worker.pulse)
            worker.pulse = -1

    def _start_again(self, worker: _Worker, now: float) -> None:
        """Fill a place anew; while there is no process to be had, the others go on without it."""
        try:
            self._start(worker)
        except OSError as error:
            worker.due = now + LONGEST_PAUSE
            event(
                log, "worker_not_forked", level=logging.ERROR, worker=worker.number,
                reason=error.strerror, restart_seconds=LONGEST_PAUSE,
            )  # fmt: skip

    def _start(self, worker: _Worker) -> None:
        """Fork; nothing of the parent's loop goes on in the child."""
        reading, writing = os.pipe()
        parent = os.getpid()
        flush()
        every = signal.valid_signals()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, every)
        try:
            pid = os.fork()
            if not pid:
                os.close(reading)
                self._be(worker.number, parent, Pulse(writing), before)
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writing)
        os.set_blocking(reading, False)
        worker.pid, worker.pulse, worker.due = pid, reading, None
        worker.heard_at = time.monotonic()
        event(log, "worker_started", worker=worker.number, pid=pid)

    def _be(self, number: int, parent: int, pulse: Pulse, mask: set[int | signal.Signals]) -> None:
        """Be the worker; does not return."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for one in (*_PASSED_ON, signal.SIGCHLD):
                signal.signal(one, signal.SIG_DFL)
            # It is about certificates, which are not read yet: no reason to end, as by default.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            # Ctrl-C at a terminal goes to the parent alone, which passes it on once.
            os.setpgid(0, 0)
            for worker in self._workers:
                self._close_pulse(worker)
            os.close(self._wakes)
            os.close(self._waked)
            _end_with(parent)
            status = self._work(number, pulse)
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException as error:
            failed(log, "worker_failed", error)
        finally:
            flush()
            os._exit(status)


def _end_with(parent: int) -> None:
    """Be killed by the kernel when the parent ends, in whatever way (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the kernel was told


def _noted(number: int, frame: object) -> None:
    """Let the signal wake the wait; it is handled there."""
