"""Supervising workers: replaced after a pause, killed when silent, ended with a bound."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from daypass_core import workers
from daypass_core.workers import Pulse, supervise
from tests.support import eventually, full_pipe

PROGRAM = """
    import os, signal, sys, time
    from daypass_core import workers
    from daypass_core.log import configure

    how, folder = sys.argv[1], os.path.dirname(sys.argv[0])
    workers.FIRST_PAUSE, workers._LOOK_SECONDS = 0.1, 0.2
    if how in ("silent", "mute", "later mute"):  # no other is killed for what the machine does
        workers.WEDGED_SECONDS = 1.0
    forks = []

    def all_ready():
        with open(os.path.join(folder, "log")) as log:
            return log.read().count('"event":"worker_ready"') == 2

    def work(number, pulse):
        if how == "slow":
            for _ in range(20):
                pulse.beat()
                time.sleep(0.1)
        if how == "mute" and number == 0 or how == "later mute" and len(forks) == 3:
            time.sleep(60)
        if how == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        pulse.ready()
        while True:
            pulse.beat()
            if how == "later mute" and len(forks) == 1 and all_ready():
                return 3
            if how == "alone" and len(forks) == 1:
                time.sleep(0.3)
                return 3
            if how == "dies" and number == 0 and len(forks) < 6:
                time.sleep(0.1)
                return 3
            if how == "dies" and number == 0:
                open(os.path.join(folder, "stays"), "w").close()
            if how == "silent" and number == 0:
                time.sleep(60)
            time.sleep(0.05)

    def fork(real=os.fork):
        forks.append(1)
        if how == "alone" and len(forks) in (3, 4):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return real()

    os.fork = fork
    workers.LONGEST_PAUSE = 0.2 if how == "alone" else 30.0
    configure("test", "info", thread=False)
    sys.exit(workers.supervise(2, work, end_seconds=1.0 if how == "deaf" else 20.0))
"""


class Running:
    """The program above, and what it has said."""

    def __init__(self, folder: Path, how: str, told: int | None = None) -> None:
        script = folder / "supervised.py"
        script.write_text(textwrap.dedent(PROGRAM))
        self.log = folder / "log"
        with self.log.open("wb") as out:
            command = [sys.executable, str(script), how]
            self.process = subprocess.Popen(command, stdout=out, stderr=told or out)

    def said(self, event: str) -> int:
        """How often an event was told."""
        return self.log.read_text().count(f'"event":"{event}"')

    def end(self) -> int:
        """Ask it to end; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def test_one_that_dies_again_and_again_is_replaced_after_longer_pauses(tmp_path: Path) -> None:
    """The first time at once, then later and later; the other goes on, and the end is good."""
    running = Running(tmp_path, "dies")
    eventually(lambda: running.said("worker_ended") >= 4, timeout=20)
    pauses = [
        float(line.partition('"restart_seconds":')[2].rstrip("}\n"))
        for line in running.log.read_text().splitlines()
        if '"event":"worker_ended"' in line
    ]
    assert pauses[:4] == [0.0, 0.1, 0.2, 0.4]
    assert running.end() == 0


def test_one_that_is_silent_is_killed_and_replaced(tmp_path: Path) -> None:
    """B55: a wedged worker is found by its silence."""
    running = Running(tmp_path, "silent")
    eventually(lambda: running.said("worker_wedged") >= 1, timeout=20)
    eventually(lambda: running.said("worker_started") >= 3, timeout=20)
    assert running.end() in (0, 1)


def test_one_that_is_silent_from_the_beginning_is_replaced(tmp_path: Path) -> None:
    """A worker that hangs before it serves is found as well, and another takes its place."""
    running = Running(tmp_path, "later mute")
    eventually(lambda: running.said("worker_wedged") == 1, timeout=20)
    eventually(lambda: running.said("worker_ready") == 3, timeout=20)
    assert running.said("worker_started") == 4
    assert running.end() == 0


def test_a_first_start_that_hangs_ends_the_service(tmp_path: Path) -> None:
    """A worker that hangs at the very first start ends all of them with exit code 2."""
    running = Running(tmp_path, "mute")
    assert running.process.wait(20) == workers.EXIT_CANNOT_START
    assert running.said("worker_wedged") == 1
    assert running.said("worker_not_started") == 1


def test_a_log_that_nobody_reads_holds_up_nobody(tmp_path: Path) -> None:
    """With a full pipe for standard error workers are started, replaced and ended all the same."""
    with full_pipe() as into:
        running = Running(tmp_path, "dies", into)
        eventually((tmp_path / "stays").exists, timeout=20)
        assert running.end() == 0


def test_without_a_process_for_one_the_others_go_on(tmp_path: Path) -> None:
    """A system that has no process to give does not end the service; the place is filled later."""
    running = Running(tmp_path, "alone")
    eventually(lambda: running.said("worker_not_forked") == 2, timeout=20)
    eventually(lambda: running.said("worker_ready") >= 3, timeout=20)
    assert running.end() == 0


def test_a_renewal_of_certificates_does_not_end_what_only_begins(tmp_path: Path) -> None:
    """SIGHUP to a service whose workers do not serve yet leaves them alone."""
    running = Running(tmp_path, "slow")
    eventually(lambda: running.said("worker_started") == 2, timeout=20)
    running.process.send_signal(signal.SIGHUP)
    eventually(lambda: running.said("worker_ready") == 2, timeout=20)
    assert running.said("worker_not_started") == 0
    assert running.end() == 0


def test_an_end_before_the_beginning_is_a_good_end(tmp_path: Path) -> None:
    """SIGTERM ends workers that do not serve yet, and the service with 0."""
    running = Running(tmp_path, "slow")
    eventually(lambda: running.said("worker_started") == 2, timeout=20)
    assert running.end() == 0


def test_those_that_do_not_end_are_killed(tmp_path: Path) -> None:
    """B89: workers that ignore SIGTERM end the service with 1, within its bound."""
    running = Running(tmp_path, "deaf")
    eventually(lambda: running.said("worker_ready") == 2, timeout=20)
    began = time.monotonic()
    assert running.end() == 1
    assert time.monotonic() - began < 10
    assert running.said("workers_killed") == 1


def test_a_pulse_without_a_listener_is_no_failure() -> None:
    """A worker whose parent does not read goes on."""
    reading, writing = os.pipe()
    pulse = Pulse(writing)
    for _ in range(100_000):
        pulse.beat()
    pulse.ready()
    os.close(reading)
    pulse.beat()
    os.close(writing)


def test_the_first_start_that_fails_is_the_last(capfd: pytest.CaptureFixture[str]) -> None:
    """A worker that ends before it served ends all of them with exit code 2."""
    assert supervise(2, lambda _number, _pulse: 2, end_seconds=5.0) == workers.EXIT_CANNOT_START
