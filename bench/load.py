"""One run of the load generator against one target, with the target's CPU time beside it."""

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.process import LOAD_CORE, BenchError, cpu_seconds, resident_bytes


@dataclass(frozen=True)
class Load:
    """What load.c is asked for; its usage text explains each. `body` None means GET."""

    body: Path | None
    connections: int = 16
    active: int = 0
    seconds: float = 1.5
    warm: float = 0.5
    rate: float = 0
    ramp: float = 0
    settle: float = 0
    answers: int = 0
    skips: bool = False
    path: str = "/v1/messages"
    tokens: Path | None = None
    back_off_ms: int = 0

    def words(self, port: int, headers: Sequence[str]) -> list[str]:
        """The generator's arguments."""
        words = ["-p", port, "-c", self.connections, "-d", self.seconds, "-w", self.warm]
        words += ["-P", self.path]
        if self.body is not None:
            words += ["-b", self.body]
        optional = (
            ("-a", self.active),
            ("-r", self.rate),
            ("-R", self.ramp),
            ("-S", self.settle),
            ("-n", self.answers),
            ("-T", self.tokens),
            ("-B", self.back_off_ms),
        )
        for flag, value in optional:
            if value:
                words += [flag, value]
        if self.skips:
            words.append("-k")
        for header in headers:
            words += ["-H", header]
        return [str(word) for word in words]


@dataclass
class Figures:
    """What one run showed. Times in microseconds; `cpu` is the share of a core."""

    cpu: float
    resident: int  # bytes, while everything was open
    seconds: float
    done: int
    bad: int
    errors: int
    events: int
    all_done: int  # warm-up included
    all_events: int
    active: int
    latency: list[int]
    first_byte: list[int]
    event_delay: list[int]
    turned_away: list[int] = field(default_factory=list)
    """Latency of answers that said 429 or 5xx; `latency` is that of the others."""
    statuses: dict[str, int] = field(default_factory=dict)

    @property
    def us_request(self) -> float | None:
        """CPU of the target per request."""
        return self.cpu * self.seconds / self.done * 1e6 if self.done else None

    @property
    def us_event(self) -> float | None:
        """CPU of the target per event of an SSE stream."""
        return self.cpu * self.seconds / self.events * 1e6 if self.events else None


class Running:
    """A generator that runs: `begun()` waits until it measures, `ended()` until it is done."""

    def __init__(self, program: Path, load: Load, port: int, headers: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            ["taskset", "-c", str(LOAD_CORE), str(program), *load.words(port, headers)],
            env={"PATH": os.defpath},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def _expect(self, word: bytes) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.strip() != word:
            self.kill()
            raise BenchError(f"the load generator said {line!r} instead of {word!r}")

    def begun(self) -> None:
        self._expect(b"start")

    def stopped(self) -> None:
        self._expect(b"stop")

    def figures(self) -> dict[str, Any]:
        """Let it go and read what it printed."""
        out, _ = self._process.communicate(b"\n", timeout=60)
        figures: dict[str, Any] = json.loads(out)
        return figures

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def measure(
    program: Path, load: Load, port: int, headers: Sequence[str], pid: int | None
) -> Figures:
    """Run the load to its end; `pid` is the target's first process (None: CPU is not read)."""
    running = Running(program, load, port, headers)
    try:
        running.begun()
        cpu_before, before = (cpu_seconds(pid) if pid else 0.0), time.monotonic()
        running.stopped()
        cpu_after, after = (cpu_seconds(pid) if pid else 0.0), time.monotonic()
        resident = resident_bytes(pid) if pid else 0
        told = running.figures()
    except BaseException:
        running.kill()
        raise
    return Figures(
        cpu=(cpu_after - cpu_before) / (after - before),
        resident=resident,
        seconds=told["seconds"],
        done=told["done"],
        bad=told["bad"],
        errors=told["errors"] + told["connect_errors"],
        events=told["events"],
        all_done=told["all_done"],
        all_events=told["all_events"],
        active=told["active"],
        latency=told["latency"],
        first_byte=told["first_byte"],
        event_delay=told["event_delay"],
        turned_away=told["turned_away"],
        statuses=told["statuses"],
    )
