"""Every command of the README runs, as it is written there."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib

from tests.canary import CANARY
from tests.servers.ports import free_port
from tests.servers.stub import StubUpstream
from tests.support import eventually

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    """The command lines of the README, without their remarks."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [text for line in lines if (text := re.sub(r"\s+#.*$", "", line).strip())]


class Home:
    """A machine of a newcomer: an empty HOME, the command on PATH, a running `daypass up`."""

    def __init__(self, folder: Path, stub: StubUpstream) -> None:
        self.folder = folder
        self.ports = free_port(), free_port()
        self.variables = {
            "PATH": f"{BIN}{os.pathsep}{os.defpath}",
            "HOME": str(folder),
            "ANTHROPIC_API_KEY": f"sk-ant-{CANARY}-acme",
        }
        self.up: subprocess.Popen[bytes] | None = None
        self.stub = stub

    def start(self) -> None:
        """`daypass up`, on ports that are free and with the stub as provider."""
        more = ["--port", str(self.ports[0]), "--admin-port", str(self.ports[1])]
        more += ["--anthropic-url", self.stub.url]
        said = self.folder / "up.log"
        with said.open("wb") as log:
            self.up = subprocess.Popen(
                ["daypass", "up", *more], env=self.variables, stdout=log, stderr=log
            )
        eventually(lambda: "daypass is up" in said.read_text(), timeout=60)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run one command line of the README."""
        return subprocess.run(
            shlex.split(command),
            env=self.variables,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def stop(self) -> None:
        """End `daypass up`."""
        if self.up is not None:
            self.up.terminate()
            assert self.up.wait(20) == 0


@pytest.fixture
def home(tmp_path: Path, stub: StubUpstream) -> Iterator[Home]:
    """A newcomer's machine on which daypass runs."""
    newcomer = Home(tmp_path, stub)
    try:
        newcomer.start()
        yield newcomer
    finally:
        newcomer.stop()


# Run elsewhere: `make demo` in test_demo.py, the install in tests/packaging, `make test` is this.
ELSEWHERE = {"make demo", "make test", "pip install 'daypass[server]'", "daypass up"}


def test_every_command_runs(home: Home) -> None:
    """The commands for orchestrator and admin work in the order in which they are shown."""
    (home.folder / "policy.yaml").write_text(blocks("yaml")[0])
    ran = []
    for command in commands():
        if command in ELSEWHERE or re.match(r"(export )?[A-Z_]+=", command):
            continue
        if "sbx_…" in command:
            created = home.run("daypass sandbox list --json").stdout
            found = re.search(r"sbx_[a-z0-9]+", created)
            assert found
            command = command.replace("sbx_…", found.group())
        done = home.run(command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        ran.append(command)
    assert len(ran) >= 4
    applied = home.run("daypass apply -f policy.yaml")
    assert applied.returncode == 0, applied.stderr


def test_the_four_variables_are_those_the_broker_hands_out(home: Home) -> None:
    """The variables in the README are the ready environment of a sandbox."""
    shown = dict(line.split("=", 1) for line in blocks("sh")[-1].splitlines())
    created = json.loads(home.run("daypass sandbox create --json").stdout)
    assert set(shown) == set(created["environment"])
    for name in ("ANTHROPIC_FEDERATION_RULE_ID", "ANTHROPIC_ORGANIZATION_ID"):
        assert shown[name] == created["environment"][name]
    assert shown["ANTHROPIC_IDENTITY_TOKEN_FILE"] in created["files"]


def test_the_python_example_runs(home: Home) -> None:
    """The Python block works with a sandbox's environment."""
    created = json.loads(home.run("daypass sandbox create --json").stdout)
    credential = home.folder / "launch.jwt"
    credential.write_text(created["launch"]["credential"])
    variables = created["environment"] | {"ANTHROPIC_IDENTITY_TOKEN_FILE": str(credential)}
    program = blocks("python")[0] + "\nprint(message.content[0].text)\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": os.defpath, "HOME": str(home.folder)} | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "Hello\n", done.stderr


def test_the_figures_are_those_of_the_files() -> None:
    """The hostile requests and the checks are as many as it says."""
    files = (ROOT / "tests" / "vectors" / "raw").glob("*.json")
    requests = sum(len(json.loads(file.read_text(encoding="utf-8"))["requests"]) for file in files)
    listed = (ROOT / "tests" / "mutations" / "mutations.toml").read_text(encoding="utf-8")
    assert f"{requests} hostile requests" in README
    assert f"each of {len(tomllib.loads(listed)['mutation'])} checks" in README
