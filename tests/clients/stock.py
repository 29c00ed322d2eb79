"""Official clients by name, each driven as its users drive it: `CLIENTS`.

A client gets an empty home, the variables that the broker hands out, and nothing else. What it did
is judged from outside: exit code, seconds, and the words that it showed.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.installed import claude_code, node, typescript_sdk
from tests.servers.agent import AGENT, PYTHONS

HERE = Path(__file__).resolve().parent
MODEL = "claude-sonnet-4-6"
PATIENCE = 180.0
"""Seconds after which a client counts as one that does not give up."""


@dataclass(frozen=True)
class Place:
    """Where a client runs: the proxy's URL, its sandbox, its access token, a folder of its own."""

    url: str
    sandbox: Mapping[str, Any]
    token: str
    folder: Path

    def federation(self) -> dict[str, str]:
        """The four variables, with the launch credential as a file."""
        credential = self.folder / "launch.jwt"
        credential.write_text(self.sandbox["launch"]["credential"])
        return dict(self.sandbox["environment"]) | {
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_IDENTITY_TOKEN_FILE": str(credential),
        }


@dataclass(frozen=True)
class Ended:
    """How a client ended; `said` is all that it showed, `seconds` how long it took."""

    code: int
    said: str
    seconds: float


Client = Callable[[Place], Ended]


def python_client(name: str) -> Client:
    """The Python package: one call, then a streamed one, until one of them fails."""

    def run(place: Place) -> Ended:
        command = [str(PYTHONS[name]), "-I", str(AGENT), "0", "0", MODEL]
        ended = _run(command, place.federation(), place.folder)
        reports = [json.loads(line) for line in ended.said.splitlines() if line.startswith("{")]
        assert reports, ended
        # The agent catches the client's exceptions: what it reports is what its user would see.
        failed = not all(report["ok"] for report in reports)
        return Ended(int(failed), reports[-1].get("text", ""), ended.seconds)

    return run


def typescript_client(place: Place) -> Ended:
    """The TypeScript package: one call."""
    command = typescript_agent(place.folder)
    return _run(command, place.federation(), place.folder, "Say hi.\n")


def typescript_agent(folder: Path) -> Sequence[str]:
    """The command of the agent in turns.mjs, put beside its packages as they lie in a project."""
    shutil.copy(HERE / "turns.mjs", folder)
    (folder / "node_modules").symlink_to(typescript_sdk())
    return [str(node()), str(folder / "turns.mjs"), MODEL]


def claude_with_four_variables(place: Place) -> Ended:
    """Claude Code with the federation variables: it renews its token itself."""
    return _claude(place, place.federation())


def claude_with_a_token(place: Place) -> Ended:
    """Claude Code with an access token as a fixed bearer."""
    return _claude(place, {"ANTHROPIC_BASE_URL": place.url, "ANTHROPIC_AUTH_TOKEN": place.token})


def claude_with_a_helper(place: Place) -> Ended:
    """Claude Code with a command that prints the access token (`apiKeyHelper`)."""
    settings = place.folder / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"apiKeyHelper": f"printf %s {place.token}"}))
    return _claude(place, {"ANTHROPIC_BASE_URL": place.url})


CLIENTS: dict[str, Client] = {
    **{name: python_client(name) for name in PYTHONS},
    "typescript": typescript_client,
    "claude code, four variables": claude_with_four_variables,
    "claude code, token": claude_with_a_token,
    "claude code, helper": claude_with_a_helper,
}


def _claude(place: Place, variables: Mapping[str, str]) -> Ended:
    # Without the flag it also asks hosts of its maker, which no test reaches.
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    command = [str(claude_code()), "-p", "Say hi.", "--model", MODEL]
    return _run(command, dict(variables) | quiet, place.folder)


def _run(
    command: Sequence[str], variables: Mapping[str, str], folder: Path, typed: str = ""
) -> Ended:
    """Run to the end with this on standard input, or fail after PATIENCE with what was said."""
    bare = {"PATH": os.defpath, "HOME": str(folder), "LANG": "C.UTF-8", "NO_COLOR": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        env=bare | {"TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"} | dict(variables),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(typed, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with what it started
        said, _ = process.communicate()
        raise AssertionError(f"goes on after {PATIENCE} s: {said[-2000:]}") from None
    return Ended(process.returncode, said, time.monotonic() - began)
