"""Every setting and command of docs/clients.md works, as it is written there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.installed import claude_code, node, typescript_sdk
from tests.clients.stock import PATIENCE, Place
from tests.servers.agent import PYTHONS
from tests.servers.ports import free_port
from tests.servers.stack import Stack

pytestmark = pytest.mark.sdk

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
SHELLS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


class Sandbox:
    """A sandbox with every client on its PATH, and no way out but to the proxy."""

    def __init__(self, stack: Stack, folder: Path, launch: str = "reusable") -> None:
        self.folder = folder
        handout = stack.sandbox(launch=launch)
        self.given = set(handout["environment"])
        tools = folder / "bin"
        tools.mkdir()
        for name, program in (("claude", claude_code()), ("node", node())):
            (tools / name).symlink_to(program)
        path = [str(tools), str(Path(sys.executable).parent), os.defpath]
        self.variables = Place(stack.proxy_url, handout, "", folder).federation() | {
            "PATH": os.pathsep.join(path),
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(folder),
            "LANG": "C.UTF-8",
            "HTTPS_PROXY": f"http://127.0.0.1:{free_port()}",
            "NO_PROXY": "127.0.0.1",
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it to its end."""
        return subprocess.run(
            command,
            env=self.variables,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )


@pytest.fixture
def sandbox(stack: Stack, tmp_path: Path) -> Sandbox:
    """A sandbox with a reusable launch credential."""
    return Sandbox(stack, tmp_path)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What a command printed; it must have ended well."""
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def test_the_variables_are_those_of_a_sandbox(sandbox: Sandbox) -> None:
    """The first block is the ready environment, by its names."""
    assert set(re.findall(r"export (\w+)=", SHELLS[0])) == sandbox.given


@pytest.mark.parametrize("launch", ["reusable", "single_use"])
@pytest.mark.parametrize("command", SHELLS[1:])
def test_every_command_runs(stack: Stack, tmp_path: Path, command: str, launch: str) -> None:
    """Each block does what it says; with a single-use credential those of ours do."""
    ours = "daypass " in command
    if launch == "single_use" and not ours:
        launch = "reusable"
    out = said(Sandbox(stack, tmp_path, launch).run("sh", "-euc", command))
    wanted = {"claude": "Hello\n", "/v1/models": '"claude-', "doctor": "ok       network"}
    (found,) = [text for name, text in wanted.items() if name in command]
    assert found in out


@pytest.mark.parametrize("client", PYTHONS)
def test_the_python_program_runs(sandbox: Sandbox, client: str) -> None:
    """The official client as it is, in both majors."""
    assert said(sandbox.run(str(PYTHONS[client]), "-Ic", PROGRAMS[0])) == "Hello\n"


def test_our_python_program_runs(sandbox: Sandbox) -> None:
    """The official client with our provider."""
    assert said(sandbox.run(sys.executable, "-c", PROGRAMS[1])) == "Hello\n"


def test_the_typescript_program_runs(sandbox: Sandbox) -> None:
    """The block is a module beside its packages."""
    (program,) = re.findall(r"```js\n(.*?)```", PAGE, re.DOTALL)
    (sandbox.folder / "program.mjs").write_text(program)
    (sandbox.folder / "node_modules").symlink_to(typescript_sdk())
    assert said(sandbox.run("node", "program.mjs")) == "Hello\n"


def test_the_helper_of_claude_code_works(sandbox: Sandbox) -> None:
    """With the settings of the page and without federation it gets its tokens from `daypass`."""
    (settings,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert json.loads(settings).keys() == {"apiKeyHelper"}
    (sandbox.folder / ".claude").mkdir()
    (sandbox.folder / ".claude" / "settings.json").write_text(settings)
    file = sandbox.variables.pop("ANTHROPIC_IDENTITY_TOKEN_FILE")
    for name in ("ANTHROPIC_FEDERATION_RULE_ID", "ANTHROPIC_ORGANIZATION_ID"):
        del sandbox.variables[name]
    sandbox.variables["DAYPASS_LAUNCH_FILE"] = file
    (command,) = [block for block in SHELLS if block.splitlines()[-1].startswith("claude ")]
    assert said(sandbox.run("sh", "-euc", command)) == "Hello\n"
