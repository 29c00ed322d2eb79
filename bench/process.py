"""Processes of the bench: started pinned to a core, read through /proc, ended with all children."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PROXY_CORE, LOAD_CORE = 0, 1
"""What is measured runs alone on the first core; generator and upstream share the second."""
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """The bench cannot go on; the message is for a person."""


class Process:
    """A running program in a session of its own; its output goes to `log`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        *,
        core: int = PROXY_CORE,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.name, self.log = name, log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                ["taskset", "-c", str(core), *map(str, command)],
                env={"PATH": os.defpath} | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_port(self, port: int, seconds: float = 60) -> None:
        """Wait until it accepts on a loopback port; raises BenchError with the end of its log."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.05)
        tail = self.log.read_text(errors="replace")[-1500:]
        raise BenchError(f"{self.name} does not listen on port {port}; its log ends:\n{tail}")

    def stop(self) -> None:
        """End it and what it started: asked first, then killed."""
        for number, patience in ((signal.SIGTERM, 3), (signal.SIGKILL, 10)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        # A second time for children that outlived their parent's ordinary end.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def allow_descriptors() -> int:
    """Raise the soft limit of open files to the hard one, for us and our children; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def free_port() -> int:
    """A loopback port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tree(pid: int) -> list[int]:
    """The process and everything below it."""
    found = [pid]
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += tree(int(child))
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time of a process tree so far, of threads and children that have ended too.

    Living processes to the nanosecond, by the kernel's clock of each; ended children to 10 ms.
    """
    total = 0.0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            total += time.clock_gettime(_cpu_clock(process))
            after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += (int(after_name[13]) + int(after_name[14])) / TICKS
    return total


def _cpu_clock(pid: int) -> int:
    """The clock that clock_getcpuclockid(3) gives for a process, which Python does not offer."""
    return ~pid << 3 | 2


def thread_seconds(pid: int) -> dict[int, float]:
    """CPU time of each thread of one process; the main one has the number of the process."""
    found = {}
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            told = Path(f"/proc/{pid}/task/{task}/schedstat").read_text()
            found[int(task)] = int(told.split()[0]) / 1e9
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory of a process tree."""
    total = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE
    return total


def peak_bytes(pid: int) -> int:
    """Most resident memory of each process of a tree since `forget_peak`, added up."""
    total = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process}/status").read_text()
            total += int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return total


def forget_peak(pid: int) -> None:
    """Let `peak_bytes` start from what is resident now."""
    for process in tree(pid):
        with contextlib.suppress(OSError):
            Path(f"/proc/{process}/clear_refs").write_text("5")


def wait_settled(pid: int, seconds: float = 20) -> None:
    """Wait until a process tree does not grow any more; raises BenchError."""
    end = time.monotonic() + seconds
    seen = [*range(5)]
    while len(set(seen)) > 1:
        if time.monotonic() > end:
            raise BenchError("memory does not settle")
        seen = [*seen[1:], resident_bytes(pid)]
        time.sleep(0.1)


@contextlib.contextmanager
def running(*processes: Process) -> Iterator[None]:
    """Stop these at the end, the last one first."""
    try:
        yield
    finally:
        for process in reversed(processes):
            process.stop()
