"""Writing lines out without making anybody wait: a bounded buffer and one thread that empties it.

Under `log`, which makes the lines. Whoever writes only appends to a list; a thread puts what has
gathered to the descriptor, after at most LINGER_SECONDS or BATCH_BYTES, at once when a line says
`soon`. A pipe that nobody reads makes the thread wait and nobody else: then lines are dropped,
counted, and the loss is told in a line of its own as soon as there is room again. What has not been
written when the process is killed is lost, at most LINGER_SECONDS of it; an ordinary end flushes.
"""

import os
import select
import threading
import weakref
from collections.abc import Callable

LINGER_SECONDS = 0.1
BATCH_BYTES = 256 * 1024
ROOM_BYTES = 4 * 1024 * 1024
"""Most bytes that wait, the batch being written included; further lines are dropped."""
CLOSE_SECONDS = 2.0
"""How long the end of the process waits for a reader that does not read."""


class LineWriter:
    """Writes to `descriptor`, in the order of the calls; may be used from any thread."""

    def __init__(
        self,
        descriptor: int,
        *,
        tell_dropped: Callable[[int], bytes],
        linger: float = LINGER_SECONDS,
        room: int = ROOM_BYTES,
    ) -> None:
        """`tell_dropped` makes the line, with its end, that says how many lines are missing."""
        self.descriptor = descriptor
        self.dropped = 0
        """Lines lost since the start, for want of room or because the descriptor failed."""
        self._tell_dropped = tell_dropped
        self._linger = linger
        self._room = room
        self._begin()
        _survive_fork(self)

    def _begin(self) -> None:
        # Whoever writes may be interrupted by the collector, and what that finds may write as well.
        self._lock = threading.RLock()
        self._progress = threading.Condition(self._lock)
        self._idle = True  # nothing was taken for as long as `_linger`
        self._hurried = False
        # The thread can be interrupted so too, and an event makes things with its lock in hand. So
        # these are plain locks, free as soon as the thread is to look, and is not to wait for more.
        self._some, self._due = threading.Lock(), threading.Lock()
        self._some.acquire()
        self._due.acquire()
        self._lines: list[bytes] = []
        self._queued = self._writing = 0  # bytes
        self._taken = self._done = 0  # lines
        self._untold = 0
        self._torn = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def write(self, line: bytes, *, soon: bool = False) -> None:
        """Take a line, with its end; never waits and never raises."""
        with self._lock:
            size = len(line)
            if self._queued + self._writing + size > self._room:
                self.dropped += 1
                self._untold += 1
                return
            self._lines.append(line)
            self._queued += size
            self._taken += 1
            if self._idle:
                self._look()
            if (soon or self._queued >= BATCH_BYTES) and not self._hurried:
                self._hurry()
            if self._thread is None:
                self._start()

    def flush(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Wait until all that was taken so far is written; False when that took too long."""
        with self._progress:
            goal = self._taken
            if self._done < goal:
                self._hurry()
                # After `close` there was a wait already, for a reader that does not read.
                self._progress.wait_for(lambda: self._done >= goal, 0 if self._closed else timeout)
            return self._done >= goal

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write what waits and end the thread; what cannot be written in time is lost."""
        with self._lock:
            thread = None if self._closed else self._thread
            self._closed = True
            self._hurry()
        if thread is not None:
            thread.join(timeout)

    def _look(self) -> None:
        """Have the thread look for lines; with the lock."""
        if self._idle:
            self._idle = False
            self._some.release()

    def _hurry(self) -> None:
        """Have it look at once; with the lock."""
        self._look()
        if not self._hurried:
            self._hurried = True
            self._due.release()

    def _start(self) -> None:
        """Start the thread, unless the interpreter is ending: then nobody is kept waiting."""
        self._thread = threading.Thread(target=self._run, name="log lines", daemon=True)
        try:
            if not self._closed:
                self._thread.start()
                return
        except RuntimeError:
            self._closed = True
        self._thread = None
        lines, self._lines, self._queued = self._lines, [], 0
        self._put(lines)
        self._done = self._taken

    def _run(self) -> None:
        lines: list[bytes] = []
        while self._thread is not None:
            if not lines:
                self._some.acquire()
            self._due.acquire(timeout=self._linger)
            fresh: list[bytes] = []  # not made with the lock in hand, for the same reason
            with self._lock:
                lines, self._lines = self._lines, fresh
                self._writing, self._queued = self._queued, 0
                untold, self._untold = self._untold, 0
                if self._hurried:
                    self._hurried = False
                    self._due.acquire(blocking=False)  # where it came after the wait
                # Only after a pause: to be woken for each first line costs more than to look.
                self._idle = not lines
            if untold:
                # They came after all that is in this batch, which had filled the room.
                self._put([*lines, self._tell_dropped(untold)], extra=1)
            elif lines:
                self._put(lines)
            with self._progress:
                self._writing = 0
                self._done += len(lines)
                self._progress.notify_all()
                if self._closed and not self._lines:
                    self._thread = None

    def _put(self, lines: list[bytes], extra: int = 0) -> None:
        """Write the lines; `extra` of them were never taken."""
        data = memoryview(b"".join([b"\n", *lines] if self._torn else lines))
        size = len(data)
        try:
            while data:
                data = data[self._write_some(data) :]
            self._torn = False
        except OSError:
            # A full disk or a reader that has gone. Some of it may be out, the last line torn.
            self.dropped += len(lines) - extra
            self._torn = self._torn or len(data) < size

    def _write_some(self, data: memoryview) -> int:
        try:
            return os.write(self.descriptor, data)
        except BlockingIOError:
            # Somebody who shares the descriptor has made it so; then we wait in our own way.
            poll = select.poll()
            poll.register(self.descriptor, select.POLLOUT)
            poll.poll(1000)
            return 0


def _survive_fork(writer: LineWriter) -> None:
    """Let a forked child begin anew: the thread and the waiting lines are its parent's."""
    known = weakref.ref(writer)

    def begin() -> None:
        if (found := known()) is not None:
            found._begin()

    os.register_at_fork(after_in_child=begin)
