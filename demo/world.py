"""Everything the demo starts, in one place, so that one `close` ends it whatever happened.

The steps (`demo/steps_*.py`) take a `World` and leave in it what later steps need.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from daypass.broker import Broker, Sandbox
from demo.agents import Agent
from demo.cell import Cell
from demo.services.llm import Counters, LocalLlm
from demo.services.openbao import OpenBao
from demo.services.up import DaypassUp, UpSettings
from demo.terminal import Terminal


class StepFailed(Exception):
    """Something the demo shows did not hold; the message says what was seen instead."""


class Stoppable(Protocol):
    """Anything that is to be ended with the demo."""

    def stop(self) -> None:
        """End it; may be called twice."""


Kept = TypeVar("Kept", bound=Stoppable)


def expect(held: bool, otherwise: str) -> None:
    """StepFailed with `otherwise` unless it held."""
    if not held:
        raise StepFailed(otherwise)


@dataclass
class Tenant:
    """One customer of the platform: a real provider key, a sandbox, a cell and the agent in it."""

    name: str
    key: str
    broker: Broker
    sandbox: Sandbox
    door: Path
    cell: Cell
    agent: Agent


class World:
    """The running servers, the tenants, and the directory all of it lies in."""

    bao: OpenBao
    llm: LocalLlm
    up: DaypassUp
    up_settings: UpSettings
    admin: Broker
    cut: Counters

    def __init__(self, terminal: Terminal) -> None:
        """An empty world in a new directory under the system's temporary one."""
        self.terminal = terminal
        self.directory = Path(tempfile.mkdtemp(prefix="daypass-demo-"))
        self.started = time.time()
        self.keys = {
            name: f"sk-ant-demo-{secrets.token_urlsafe(36)}" for name in ("acme", "globex")
        }
        self.tenants: dict[str, Tenant] = {}
        self._kept: list[Stoppable] = []
        self._lock = threading.Lock()

    def keep(self, started: Kept) -> Kept:
        """Have something stopped at the end, in reverse order; callable from any thread."""
        with self._lock:
            self._kept.append(started)
        return started

    def close(self, *, keep_logs: bool) -> None:
        """End every process; remove the directory unless its logs are still wanted."""
        for started in reversed(self._kept):
            # One that does not end tidily must not keep the others from being ended.
            with contextlib.suppress(Exception):
                started.stop()
        if not keep_logs:
            shutil.rmtree(self.directory, ignore_errors=True)

    def write(self, name: str, content: str) -> Path:
        """A private file in the world's directory."""
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_text(content)
        return path
