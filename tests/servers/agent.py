"""Unmodified official clients as processes of their own: `Agent`."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
AGENT = ROOT / "tests" / "clients" / "agent.py"
PYTHONS = {
    "anthropic 2.x": Path(sys.executable),
    "anthropic 1.x": ROOT / ".cache" / "clients" / "anthropic1" / "bin" / "python",
}


@dataclass
class Agent:
    """A running agent process."""

    process: subprocess.Popen[str]

    @classmethod
    def start(
        cls,
        client: str,
        environment: Mapping[str, str],
        *,
        seconds: float = 0,
        pause: float = 0.2,
        model: str = "claude-sonnet-4-5",
    ) -> "Agent":
        """Start the agent in an environment that holds these variables and nothing else."""
        bare = {"PATH": os.defpath, "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
        return cls(
            subprocess.Popen(
                [str(PYTHONS[client]), "-I", str(AGENT), str(seconds), str(pause), model],
                env=bare | dict(environment),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    def reports(self, timeout: float = 180) -> list[dict[str, Any]]:
        """Wait for its end and read what it reported."""
        out, err = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, err
        return [json.loads(line) for line in out.splitlines()]
