"""A Containerfile as data, and its build stage carried out without a container.

Each COPY and RUN of the stage happens in a folder of its own: the paths that the file names are led
there, and what would install uv is left to the uv that is here. So a source that is not there, a
lock that does not fit, or a wheel that does not build fails a test, not a release.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stage:
    """One FROM with what follows: instruction and argument, in their order."""

    base: str
    name: str
    steps: tuple[tuple[str, str], ...] = field(default=())

    def all(self, instruction: str) -> list[str]:
        """The arguments of every such instruction."""
        return [argument for name, argument in self.steps if name == instruction]

    def one(self, instruction: str) -> str:
        """The argument of the only such instruction."""
        (argument,) = self.all(instruction)
        return argument


def parse(text: str) -> tuple[dict[str, str], list[Stage]]:
    """The global ARGs and the stages of a Containerfile; raises ValueError."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    joined = re.sub(r"\\\n\s*", " ", text)
    for line in joined.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        instruction, _, argument = line.partition(" ")
        if instruction != instruction.upper() or not argument:
            raise ValueError(f"not an instruction: {line}")
        if instruction == "FROM":
            base, _, name = argument.partition(" AS ")
            stages.append(Stage(_filled(base, arguments), name))
        elif not stages:
            if instruction != "ARG":
                raise ValueError(f"before the first FROM: {line}")
            name, _, default = argument.partition("=")
            arguments[name] = _filled(default, arguments)
        else:
            last = stages[-1]
            stages[-1] = Stage(last.base, last.name, (*last.steps, (instruction, argument)))
    return arguments, stages


def _filled(text: str, arguments: Mapping[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], text)


def build(
    stage: Stage, context: Path, root: Path, uv: Path, environment: Mapping[str, str]
) -> None:
    """Carry out the COPY and RUN of a build stage below `root`; raises AssertionError.

    `/src`, `/opt/daypass` and `/var/lib/daypass` are the places it may name.
    """
    source = root / "src"
    source.mkdir(parents=True)
    for instruction, argument in stage.steps:
        if instruction == "COPY":
            *wanted, target = argument.split()
            for each in wanted:
                _copy(context / each, source / target, into=target.endswith("/") or len(wanted) > 1)
        elif instruction == "RUN" and not argument.startswith("python -m pip install"):
            _run(argument, root, uv, environment)


def _copy(found: Path, target: Path, *, into: bool) -> None:
    assert found.exists(), f"COPY of {found}, which is not there"
    if found.is_dir():
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(found, target, ignore=ignore, dirs_exist_ok=True)
        return
    target = target / found.name if into else target
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(found, target)


def _run(command: str, root: Path, uv: Path, environment: Mapping[str, str]) -> None:
    for place in ("/opt/daypass", "/var/lib/daypass"):
        command = command.replace(place, f"{root}{place}")
    command = re.sub(r"^uv ", f"{uv} ", command)
    done = subprocess.run(
        ["/bin/sh", "-ec", command],
        cwd=root / "src",
        env=dict(environment),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
