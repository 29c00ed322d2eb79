"""The demo's view of one agent: the process in its cell, asked questions and listened to.

The agent itself is `demo/inside/agent.py`. Nothing here goes into the cell but the question.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from demo.cell import Cell, CellProcess
from demo.layout import INSIDE

FOUR_VARIABLES = (
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_IDENTITY_TOKEN_FILE",
    "ANTHROPIC_FEDERATION_RULE_ID",
    "ANTHROPIC_ORGANIZATION_ID",
)


class AgentGone(Exception):
    """The agent's process ended; the message is what it last wrote on standard error."""


@dataclass
class Answer:
    """How a question ended: whole, or with an error of the official client."""

    text: str = ""
    pieces: int = 0
    stop_reason: str | None = None
    error: str | None = None
    status: int | None = None
    message: str = ""
    body: Any = None
    failed_at: float = 0.0
    usage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """The sentence of an error as the provider's format carries it, else the client's own."""
        body = self.body if isinstance(self.body, dict) else {}
        inner = body.get("error")
        if isinstance(inner, dict) and inner.get("message"):
            return str(inner["message"])
        return str(body.get("error_description") or self.message)


class Agent:
    """One running agent with one official client, which it keeps for its whole life."""

    def __init__(self, cell: Cell, environment: Mapping[str, str], model: str) -> None:
        """Start it in `cell` with nothing but the four variables out of `environment`."""
        self.model = model
        variables = {name: environment[name] for name in FOUR_VARIABLES}
        script = str(INSIDE / "agent.py")
        self._process: CellProcess = cell.start([sys.executable, script], variables)

    def wait_until_ready(self) -> str:
        """The version of the official client, once it is there."""
        return str(next(self._lines())["ready"])

    def ask(
        self,
        text: str,
        *,
        max_tokens: int,
        model: str | None = None,
        listen: Callable[[Answer], None] = lambda so_far: None,
    ) -> Answer:
        """Ask and wait for the end; `listen` hears the answer so far after each piece."""
        question = {"text": text, "max_tokens": max_tokens, "model": model or self.model}
        self._process.stdin.write(f"{json.dumps(question)}\n")
        self._process.stdin.flush()
        answer = Answer()
        for line in self._lines():
            if "text" in line:
                answer.text += line["text"]
                answer.pieces += 1
                listen(answer)
                continue
            answer.stop_reason, answer.usage = line.get("done"), line.get("usage") or {}
            answer.error, answer.status = line.get("error"), line.get("status")
            answer.message, answer.body = str(line.get("message") or ""), line.get("body")
            answer.failed_at = float(line.get("at") or 0.0)
            break
        return answer

    def _lines(self) -> Iterator[dict[str, Any]]:
        for line in self._process.stdout:
            yield json.loads(line)
        raise AgentGone(self._process.stderr.read().strip()[-500:])
