"""One server process of the demo: minimal environment, output to a log file, ended for sure.

`OpenBao` and `LocalLlm` stand on it. Nothing secret is ever put on a command line: secrets go in by
environment or standard input, and log lines that would repeat them are dropped before they reach
the disk.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

MINIMAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STOP_SECONDS = 12.0
POLL_SECONDS = 0.02


class ServiceError(Exception):
    """A server could not be started or did not answer; the message says where its log lies."""


class Stoppable:
    """Something that runs: as a context manager it is stopped at the end of the block."""

    def stop(self) -> None:
        """End it; may be called twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """The running thing itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Stop it."""
        self.stop()


def free_port(*, pair: bool = False) -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago; with `pair`, the next one was too."""
    while True:
        with socket.socket() as probe, socket.socket() as neighbour:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
            if not pair:
                return port
            with contextlib.suppress(OSError, OverflowError):
                neighbour.bind(("127.0.0.1", port + 1))
                return port


class ServiceProcess:
    """A child process whose output goes to `log`, line by line, minus the lines `drop` matches."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        directory: Path,
        *,
        environment: Mapping[str, str],
        on_line: Callable[[str], bool] | None = None,
        stdin: bool = False,
    ) -> None:
        """Start `argv` in `directory`; a line for which `on_line` says False is not logged."""
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = directory / f"{name}.log"
        self._on_line = on_line
        self._process = subprocess.Popen(
            list(argv),
            cwd=directory,
            env={"PATH": MINIMAL_PATH, "HOME": str(directory), **environment},
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A session of its own: Ctrl-C reaches the demo alone, which stops things in order.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._copy_log, args=(self._process.stdout,), daemon=True
        )
        self._reader.start()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes]:
        """The child's standard input; only for children started with `stdin=True`."""
        assert self._process.stdin is not None
        return self._process.stdin

    def running(self) -> bool:
        """True until the child has ended."""
        return self._process.poll() is None

    def wait_until(self, ready: Callable[[], bool], timeout: float) -> None:
        """Poll `ready` until true; ServiceError after `timeout` seconds or if the child ends."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running():
                raise ServiceError(f"{self.name} ended while starting, see {self.log}")
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} was not ready in {timeout:g} s, see {self.log}")
            time.sleep(POLL_SECONDS)

    def wait_for_end(self, timeout: float) -> None:
        """Wait until the child ends by itself; ServiceError after `timeout` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ServiceError(f"{self.name} still ran after {timeout:g} s") from None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the child; a child that has ended already is left alone."""
        if self.running():
            self._process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after twelve seconds; returns when the child is gone."""
        self.send_signal(signal.SIGCONT)
        self.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGKILL)
        self._gone()

    def kill(self) -> None:
        """SIGKILL at once, as a crash would be."""
        self.send_signal(signal.SIGKILL)
        self._gone()

    def _gone(self) -> None:
        self._process.wait()
        self._reader.join(STOP_SECONDS)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _copy_log(self, output: IO[bytes]) -> None:
        with output, self.log.open("ab", buffering=0) as log:
            self.log.chmod(0o600)
            for line in output:
                if self._on_line is None or self._on_line(line.decode(errors="replace")):
                    log.write(line)
