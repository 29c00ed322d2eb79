"""What a client is to the matrix: `Client`, the `Errand` it is sent on, and how it `Ended`.

Place in the flow: `cells` makes an errand, the client says what to start for it, `run` starts that
with an empty home and the given variables and nothing else, and judges from outside.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE = 300.0
"""Seconds after which a client that still runs counts as one that goes on, and is ended."""
CLAUDE = "claude-sonnet-4-6"
GPT = "gpt-4o"


@dataclass(frozen=True)
class Errand:
    """One use of a client: where, with what credential, what to ask and how.

    `mode` is plain, stream or tool; `federation` are the four variables, empty without a sandbox.
    """

    anthropic_url: str
    openai_url: str
    token: str
    prompt: str
    mode: str
    folder: Path
    federation: Mapping[str, str]


@dataclass(frozen=True)
class Start:
    """A program to start, and the variables it needs."""

    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Client:
    """A client in one configuration.

    `figures` names its row of figures, `modes` what it can do beside asking, `asks` how many
    requests one prompt is. `install` raises AssertionError where the registries lack something.
    """

    name: str
    figures: str
    install: Callable[[], object]
    start: Callable[[Errand], Start]
    modes: frozenset[str] = frozenset({"plain", "stream", "tool"})
    asks: int = 1


@dataclass(frozen=True)
class Ended:
    """How a run ended; `code` is None for one that had to be ended."""

    code: int | None
    out: str
    err: str
    seconds: float


def run(start: Start, folder: Path, patience: float = PATIENCE) -> Ended:
    """Run to the end, or to the end of our patience."""
    bare = {"PATH": os.defpath, "HOME": str(folder), "LANG": "C.UTF-8", "NO_COLOR": "1"}
    bare |= {"TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        start.command,
        env=bare | dict(start.variables),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    code: int | None
    try:
        out, err = process.communicate(timeout=patience)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with what it started
        out, err = process.communicate()
        code = None
    return Ended(code, out, err, time.monotonic() - began)


def written(path: Path, text: str) -> Path:
    """Write a settings file of a client, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
