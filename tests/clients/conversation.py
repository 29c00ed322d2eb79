"""Official clients that take turns in one process for as long as a test wants: `TALKERS`.

The SDKs run in an agent of a few lines (turns.py, turns.mjs), Claude Code as a program of its own
with its prompts on standard input. What came of a turn is what the client's user would see.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.installed import claude_code
from tests.clients.stock import MODEL, PATIENCE, typescript_agent
from tests.servers.agent import PYTHONS

HERE = Path(__file__).resolve().parent
DAYPASS_RUN = (sys.executable, "-m", "daypass", "run", "--")


@dataclass(frozen=True)
class Told:
    """What a client's user sees of one turn."""

    ok: bool
    text: str


@dataclass(frozen=True)
class Talker:
    """A client: how to start it in a folder of its own, and how to speak to it.

    `margin` is how many seconds before the end of its token it asks for the next one when it
    exchanges a launch credential itself, `profile_margin` when `daypass run` gave it a profile.
    """

    command: Callable[[Path], Sequence[str]]
    margin: int
    profile_margin: int
    prompt: Callable[[str], str] = str
    told: Callable[[dict[str, Any]], Told | None] = lambda line: Told(line["ok"], line["text"])

    def start(
        self, variables: Mapping[str, str], folder: Path, within: Sequence[str] = ()
    ) -> "Conversation":
        """Start it with these variables and nothing else, `within` another command if given."""
        return Conversation(self, [*within, *self.command(folder)], variables, folder)


class Conversation:
    """One running client; a context manager that ends it."""

    def __init__(
        self, talker: Talker, command: Sequence[str], variables: Mapping[str, str], folder: Path
    ) -> None:
        bare = {"PATH": os.defpath, "HOME": str(folder), "LANG": "C.UTF-8", "NO_COLOR": "1"}
        # Without the flag Claude Code also asks hosts of its maker, which no test reaches.
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "TERM": "dumb"}
        self._talker = talker
        self._errors = (folder / "stderr.txt").open("w+")
        self._process = subprocess.Popen(
            command,
            env=bare | quiet | {"PYTHONDONTWRITEBYTECODE": "1"} | dict(variables),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def turn(self, prompt: str) -> Told:
        """Say something and wait for what comes of it; fails after PATIENCE or at its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        too_long = threading.Timer(PATIENCE, self._process.kill)
        too_long.start()
        try:
            self._process.stdin.write(self._talker.prompt(prompt) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                told = self._talker.told(json.loads(line)) if line.startswith("{") else None
                if told is not None:
                    return told
        finally:
            too_long.cancel()
        raise AssertionError(f"no answer to {prompt!r}: {self.complaints()}")

    def complaints(self) -> str:
        """What it wrote to standard error so far."""
        self._errors.seek(0)
        return self._errors.read()

    def end(self) -> int:
        """Say no more and wait for its end; gives its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(PATIENCE)

    def __enter__(self) -> "Conversation":
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()  # `daypass run` passes it on
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._errors):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()


def _python(name: str) -> Callable[[Path], Sequence[str]]:
    return lambda folder: [str(PYTHONS[name]), "-I", str(HERE / "turns.py"), MODEL]


def _claude_code(folder: Path) -> Sequence[str]:
    streams = ["--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
    return [str(claude_code()), "-p", *streams, "--model", MODEL]


def _claude_prompt(prompt: str) -> str:
    return json.dumps({"type": "user", "message": {"role": "user", "content": prompt}})


def _claude_told(line: dict[str, Any]) -> Told | None:
    if line["type"] != "result":
        return None
    return Told(not line["is_error"], line["result"])


TALKERS = {
    # With a profile the Python client asks when a token has ended; `daypass run` is sooner.
    "anthropic 1.x": Talker(_python("anthropic 1.x"), margin=120, profile_margin=1),
    "anthropic 2.x": Talker(_python("anthropic 2.x"), margin=120, profile_margin=1),
    "typescript": Talker(typescript_agent, margin=120, profile_margin=30),
    # It keeps the tokens of federation in a file, and asks when that one has 30 s left.
    "claude code": Talker(_claude_code, 30, 30, _claude_prompt, _claude_told),
}
