"""`daypass up` as the demo runs it: in a directory of its own, on ports it keeps over a restart."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from demo.services.process import ServiceProcess, Stoppable, free_port

START_SECONDS = 60.0
GONE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class UpSettings:
    """What `daypass up` is told; ports are fixed here, so a second start has the same ones."""

    directory: Path
    anthropic_url: str
    keys: Mapping[str, str]
    policy: Path
    prices: Path
    vault_address: str
    vault_token_file: Path
    port: int
    admin_port: int

    @property
    def argv(self) -> list[str]:
        """The command line; it names where secrets are, and holds none."""
        words = [sys.executable, "-m", "daypass", "up", "--json", "--dir", str(self.directory)]
        words += ["--port", str(self.port), "--admin-port", str(self.admin_port)]
        words += ["--anthropic-url", self.anthropic_url]
        for tenant, reference in self.keys.items():
            words += ["--anthropic-key", f"{tenant}={reference}"]
        words += ["--policy", str(self.policy), "--prices", str(self.prices)]
        words += ["--vault-addr", self.vault_address]
        return [*words, "--vault-token-file", str(self.vault_token_file)]


class DaypassUp(Stoppable):
    """A running broker and proxy; leave the block (or `stop`) to end both."""

    def __init__(self, settings: UpSettings) -> None:
        """Start the process; `start` is the public way in and also waits until it is up."""
        self._ready = threading.Event()
        self.proxy_url = self.admin_url = ""
        self.proxy_socket = self.credential_file = Path()
        self.pids: dict[str, int] = {}
        self._process = ServiceProcess(
            "daypass",
            settings.argv,
            settings.directory.parent,
            environment={},
            on_line=self._take_line,
        )

    @classmethod
    def start(cls, settings: UpSettings) -> DaypassUp:
        """Start both services and wait until they are ready; ServiceError if they are not."""
        up = cls(settings)
        try:
            up._process.wait_until(up._ready.is_set, START_SECONDS)
        except BaseException:
            up.stop()
            raise
        return up

    def kill_proxy(self) -> None:
        """End the proxy as a crash would, and wait until `daypass up` has noticed and ended."""
        os.kill(self.pids["proxy"], signal.SIGKILL)
        self._process.wait_for_end(GONE_SECONDS)

    def stop(self) -> None:
        """End both services; may be called twice."""
        self._process.stop()

    def _take_line(self, line: str) -> bool:
        if line.startswith('{"proxy_url"'):
            found = json.loads(line)
            self.proxy_url, self.admin_url = found["proxy_url"], found["admin_url"]
            self.proxy_socket = Path(found["proxy_socket"])
            self.credential_file = Path(found["credential_file"])
            self.pids = found["pids"]
            self._ready.set()
        return True


def two_ports() -> tuple[int, int]:
    """Two free ports, not the same."""
    first = free_port(pair=True)
    return first, first + 1
