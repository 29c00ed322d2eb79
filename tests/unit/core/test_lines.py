"""The line writer: order, bounds, and that nobody ever waits for a reader."""

import gc
import os
import select
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress

import pytest

from daypass_core.lines import BATCH_BYTES, LineWriter
from tests.support import eventually

SILENCE_SECONDS = 20.0


class Pipe:
    """A pipe and what was read from it."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        self.seen = b""

    def read(self, size: int = 1 << 20) -> bytes:
        """Read what there is, at least one byte; fails when nothing comes."""
        assert select.select([self.out], [], [], SILENCE_SECONDS)[0], "nothing more is written"
        self.seen += os.read(self.out, size)
        return self.seen

    def read_until(self, end: bytes) -> list[bytes]:
        """Read until something ends so; return the lines."""
        while not self.seen.endswith(end):
            self.read()
        return self.seen.splitlines()

    def hang_up(self) -> None:
        """Close the reading end."""
        os.close(self.out)
        self.out = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe, closed afterwards."""
    pipe = Pipe()
    yield pipe
    for descriptor in (pipe.out, pipe.into):
        if descriptor >= 0:
            os.close(descriptor)


def told_lost(pipe: Pipe) -> list[int]:
    """The losses that were told so far."""
    whole = pipe.seen[: pipe.seen.rfind(b"\n") + 1].splitlines()
    return [int(each.split()[1]) for each in whole if each.startswith(b"dropped ")]


def writer(pipe: Pipe, *, linger: float = 60.0, room: int = 1 << 20) -> LineWriter:
    """A writer that waits for ever unless it is told otherwise."""
    return LineWriter(
        pipe.into, tell_dropped=lambda count: b"dropped %d\n" % count, linger=linger, room=room
    )


def test_lines_come_in_the_order_they_were_written(pipe: Pipe) -> None:
    """Urgent and patient lines share one order; an urgent one takes those before it along."""
    lines = writer(pipe)
    for number in range(100):
        lines.write(b"%d\n" % number)
    lines.write(b"now\n", soon=True)
    assert pipe.read_until(b"now\n") == [*(b"%d" % number for number in range(100)), b"now"]
    lines.close()


def test_a_line_waits_a_little_for_others(pipe: Pipe) -> None:
    """Without urgency a line is written when its time is over, and at once when many wait."""
    patient = writer(pipe, linger=0.01)
    patient.write(b"alone\n")
    assert pipe.read_until(b"alone\n") == [b"alone"]
    patient.close()
    full = writer(pipe)
    full.write(b"x" * BATCH_BYTES + b"\n")
    assert pipe.read_until(b"x\n")
    full.close()


def test_a_line_is_written_whether_others_came_just_before_or_not(pipe: Pipe) -> None:
    """Soon after others the thread still looks for more, later it sleeps: each line is seen."""
    lines = writer(pipe, linger=0.01)
    for word in (b"first\n", b"soon after\n", b"at once\n"):
        lines.write(word)
        pipe.read_until(word)
    for word in (b"after a pause\n", b"after another\n"):
        eventually(lambda: lines._idle)
        lines.write(word)
        pipe.read_until(word)
    assert pipe.seen.count(b"\n") == 5
    lines.close()


def test_closing_writes_what_waits(pipe: Pipe) -> None:
    """Nothing that was taken is left behind; what is said after the end is written directly."""
    lines = writer(pipe)
    lines.write(b"one\n")
    lines.close(SILENCE_SECONDS)
    lines.write(b"two\n")
    assert pipe.read() == b"one\ntwo\n"


def test_flushing_waits_until_all_is_written(pipe: Pipe) -> None:
    """After a flush the lines are out, and further ones are taken."""
    lines = writer(pipe)
    lines.write(b"one\n")
    assert lines.flush(SILENCE_SECONDS)
    assert pipe.read() == b"one\n"
    assert lines.flush(SILENCE_SECONDS)
    lines.write(b"two\n")
    lines.close(SILENCE_SECONDS)
    assert pipe.read() == b"one\ntwo\n"


def test_a_reader_that_does_not_read_holds_nobody_up(pipe: Pipe) -> None:
    """A full pipe makes lines wait, then be dropped and counted; each loss is told in its place.

    There may be more than one: the pipe takes a little more each time that the thread is woken.
    """
    lines = writer(pipe, room=200_000)
    line = b"x" * 999 + b"\n"
    for _ in range(1_000):
        lines.write(line, soon=True)
    lost = lines.dropped
    assert 700 < lost < 1_000
    assert not lines.flush(0.01)
    while sum(told := told_lost(pipe)) < lost:
        pipe.read()
    assert sum(told) == lost
    assert pipe.seen.count(line) == 1_000 - lost
    assert pipe.seen.endswith(b"dropped %d\n" % told[-1])
    assert lines.flush(SILENCE_SECONDS)  # what was read counts as waiting until the thread says so
    lines.write(b"after\n", soon=True)
    assert pipe.read_until(b"after\n")[-1] == b"after"
    assert lines.dropped == lost
    lines.close()


def test_the_end_does_not_wait_for_ever(pipe: Pipe) -> None:
    """Closing over a full pipe comes back, and so does a flush after it."""
    os.set_blocking(pipe.into, False)
    with suppress(BlockingIOError):
        while os.write(pipe.into, b"y" * 65536):
            pass
    os.set_blocking(pipe.into, True)
    lines = writer(pipe)
    lines.write(b"never\n", soon=True)
    lines.close(0.01)
    assert not lines.flush()
    pipe.read_until(b"never\n")  # lets the thread go


def test_a_descriptor_that_does_not_block(pipe: Pipe) -> None:
    """Whoever shares the descriptor may have made it non-blocking: every line still comes."""
    os.set_blocking(pipe.into, False)
    lines = writer(pipe)
    for number in range(300):
        lines.write(b"%0999d\n" % number)
    lines.write(b"end\n", soon=True)
    assert pipe.read_until(b"end\n")[:300] == [b"%0999d" % number for number in range(300)]
    lines.close()


def test_lines_that_cannot_be_written_are_counted(pipe: Pipe) -> None:
    """A reader that is gone costs the lines and nothing else."""
    pipe.hang_up()
    lines = writer(pipe)
    lines.write(b"one\n", soon=True)
    eventually(lambda: lines.dropped == 1)
    lines.close()


def test_a_line_after_a_torn_one_begins_anew(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a batch breaks off in the middle, the next line does not stick to its stump."""
    real = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) == 8:
            return real(descriptor, data[:3])
        raise OSError

    lines = writer(pipe)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        lines.write(b"1234567\n", soon=True)
        eventually(lambda: lines.dropped == 1)
    lines.write(b"whole\n", soon=True)
    assert pipe.read_until(b"whole\n") == [b"123", b"whole"]
    lines.close()


def test_who_is_interrupted_by_the_collector_does_not_wait_for_himself(pipe: Pipe) -> None:
    """What the collector finds may write a line, also in the midst of the writing of another."""
    lines = writer(pipe, linger=0.01)

    class Found:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            lines.write(b"found\n")

    class Collecting(list[bytes]):
        def append(self, line: bytes) -> None:
            gc.collect()
            super().append(line)

    lines._lines = Collecting()
    Found()
    worker = threading.Thread(target=lines.write, args=(b"line\n",), daemon=True)
    worker.start()
    worker.join(SILENCE_SECONDS)
    assert not worker.is_alive()
    lines.close(SILENCE_SECONDS)
    assert sorted(pipe.read_until(b"\n")) == [b"found", b"line"]


def test_the_thread_that_is_interrupted_by_the_collector_goes_on(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the collector finds may write a line also while the thread begins to wait for more."""
    lines = writer(pipe, linger=0.01)
    make = threading._allocate_lock  # type: ignore[attr-defined]
    found: list[bool] = []

    def interrupted() -> object:
        if threading.current_thread() is lines._thread and not found:
            found.append(True)
            lines.write(b"found\n", soon=True)
        return make()

    monkeypatch.setattr(threading, "_allocate_lock", interrupted)
    for word in (b"one\n", b"two\n"):
        lines.write(word)
        pipe.read_until(word)
    lines.close(SILENCE_SECONDS)


def test_a_forked_child_begins_anew(pipe: Pipe) -> None:
    """A child writes its own lines, and not those that waited in its parent."""
    lines = writer(pipe)
    lines.write(b"parent\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
        child = os.fork()
    if child == 0:
        lines.write(b"child\n")
        lines.close(SILENCE_SECONDS)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    lines.close(SILENCE_SECONDS)
    assert pipe.read() == b"child\nparent\n"
