"""The two services of `daypass up` as child processes: start, wait until ready, end.

A child runs in a session of its own, so Ctrl-C reaches it through us, once; on Linux it is also
ended by the kernel if we are killed. Its output goes to its log file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue

from daypass._errors import DaypassError, ServiceFailed
from daypass._http import Answer, Origin

READY_SECONDS = 30.0
POLL_SECONDS = 0.05
# Asked to end, then told to, then made to. Told, a service cuts its calls and closes within 13 s
# (UNWIND_SECONDS and CLOSE_SECONDS of daypass_core.server).
ASKED_SECONDS, TOLD_SECONDS = 6.0, 15.0
LAST_LINES = 15


class Service:
    """One child process, `python -m MODULE serve`."""

    def __init__(
        self, name: str, module: str, env: Mapping[str, str], log: Path, cwd: Path
    ) -> None:
        self.name = name
        self.log = log
        with open(log, "ab") as output:
            self.log_start = output.seek(0, 2)
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "serve"],
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_parent(),  # no threads run yet
            )

    def report(self, events: SimpleQueue[object]) -> None:
        """Put this service into `events` when it ends."""

        def wait() -> None:
            self.process.wait()
            events.put(self)

        threading.Thread(target=wait, name=f"wait-{self.name}", daemon=True).start()

    def events(self, name: str) -> list[dict[str, object]]:
        """The log events of one name since this start, oldest first."""
        found = []
        with open(self.log, "rb") as file:
            file.seek(self.log_start)
            for line in file:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if isinstance(event, dict) and event.get("event") == name:
                    found.append(event)
        return found

    def failed(self, what: str) -> ServiceFailed:
        """The error for a service that ended or never got ready, with its last log lines."""
        lines = tail(self.log, since=self.log_start)
        return ServiceFailed(
            f"the {self.name} {what}", hint=f"last lines of {self.log}:\n{lines or '(nothing)'}"
        )

    def await_ready(self, origin: Origin, tick: Callable[[], None]) -> None:
        """Wait until `/readyz` answers 200, or misses provider keys alone; raises `ServiceFailed`.

        Which key cannot be read is told as a warning: it may come later, without a new start.
        """
        give_up = time.monotonic() + READY_SECONDS
        while True:
            if self.process.poll() is not None:
                raise self.failed(f"ended with exit code {self.process.returncode}")
            try:
                answer = origin.call("GET", "/readyz")
                if answer.status == 200 or _misses_keys_alone(answer):
                    return
            except DaypassError:
                pass
            if time.monotonic() > give_up:
                raise self.failed(f"was not ready within {READY_SECONDS:.0f} s")
            tick()
            time.sleep(POLL_SECONDS)


def _misses_keys_alone(answer: Answer) -> bool:
    document = answer.json()
    missing = document.get("missing") if isinstance(document, dict) else None
    return (
        isinstance(missing, list)
        and bool(missing)
        and all(str(each).startswith("provider keys") for each in missing)
    )


def end(services: list[Service]) -> None:
    """End all services, the youngest first asked; nothing is left running."""
    for service in reversed(services):
        service.process.terminate()
    for seconds, more in ((ASKED_SECONDS, "terminate"), (TOLD_SECONDS, "kill")):
        give_up = time.monotonic() + seconds
        for service in services:
            if not _ended(service, give_up):
                getattr(service.process, more)()
    for service in services:
        service.process.wait()


def _ended(service: Service, give_up: float) -> bool:
    try:
        service.process.wait(max(0.0, give_up - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def tail(path: Path, lines: int = LAST_LINES, since: int = 0) -> str:
    """The last lines of a log file."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(since, file.tell() - 16_384))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _end_with_parent() -> Callable[[], None] | None:
    """On Linux, what makes the kernel end the child when we are gone (PR_SET_PDEATHSIG)."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes
    import signal

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arrange() -> None:
        prctl(1, signal.SIGTERM, 0, 0, 0)

    return arrange
