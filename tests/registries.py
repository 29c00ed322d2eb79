"""Commands that ask package registries: `ask`, which asks again when there is no good answer.

A registry, or the way to it, may be away for a moment. That is nothing that a test is about, so a
command has three attempts, each with an end, and a pause before the next one.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PAUSES = (10.0, 30.0)
"""Seconds before another attempt."""
SECONDS = 600.0
"""What one attempt may take."""


def ask(command: Sequence[str], folder: Path, extra: Mapping[str, str] | None = None) -> str:
    """Run a command in a folder and return what it printed; AssertionError with its last words."""
    for pause in (*PAUSES, None):
        good, said = _once(command, folder, extra or {})
        if good:
            return said
        if pause is None:
            break
        time.sleep(pause)
    raise AssertionError(f"{len(PAUSES) + 1} times: {' '.join(command)}: {said[-2000:]}")


def _once(command: Sequence[str], folder: Path, extra: Mapping[str, str]) -> tuple[bool, str]:
    """Whether it went well, and what it printed then, or all that it said."""
    environment = os.environ | {"UV_PYTHON_DOWNLOADS": "never"} | dict(extra)  # noqa: TID251 - as uv and npm read it
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with what it started
            out, err = process.communicate()
            err += f"\ngoes on after {SECONDS:g} s"
    return (True, out) if process.returncode == 0 else (False, out + err)
