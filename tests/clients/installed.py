"""Official clients that are no Python packages, installed once below .cache/clients.

`npm` comes from a Python package and Claude Code from npm, both pinned with hashes beside this
file, so a test needs nothing but the registries. A folder is made whole under another name and then
moved into place: two runs at once do not meet, and a broken download leaves nothing behind.
A newer Claude Code: change its version in claude_code/package.json, then
`.cache/clients/npm/bin/npm install --package-lock-only --ignore-scripts` in that folder.
"""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache"
UV = CACHE / "uv" / "bin" / "uv"
PACKAGES = {"x86_64": "claude-code-linux-x64", "aarch64": "claude-code-linux-arm64"}
SECONDS = 300.0


def claude_code() -> Path:
    """The program of Claude Code; about 10 s when it is not installed yet."""
    lock = HERE / "claude_code" / "package-lock.json"
    folder = _made("claude-code", lock, _install_claude_code)
    package = PACKAGES[platform.machine()]
    return folder / "node_modules" / "@anthropic-ai" / package / "claude"


def _install_claude_code(folder: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / "claude_code" / name, folder)
    # The program is in the package; its install script would only copy those 400 MB once more.
    command = [str(_npm()), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    extra = {"PATH": f"{_npm().parent}:{os.defpath}"}
    authorities = os.environ.get("SSL_CERT_FILE")  # noqa: TID251 - of the registries, as uv reads it
    _run(command, folder, {"NODE_EXTRA_CA_CERTS": authorities, **extra} if authorities else extra)


def _npm() -> Path:
    return _made("npm", HERE / "npm.txt", _install_npm) / "bin" / "npm"


def _install_npm(folder: Path) -> None:
    # Scripts of an environment name its folder, so it must not be moved with absolute paths in it.
    _run([str(UV), "venv", "-q", "--allow-existing", "--relocatable", str(folder)], HERE)
    python = ["--python", str(folder / "bin" / "python")]
    _run([str(UV), "pip", "sync", "-q", *python, "--require-hashes", str(HERE / "npm.txt")], HERE)


def _made(name: str, lock: Path, install: Callable[[Path], None]) -> Path:
    """The folder that `install` makes of this lock file, made when it is not there yet."""
    wanted = lock.read_bytes()
    folder = CACHE / "clients" / name
    copy = folder / ".lock"
    if copy.exists() and copy.read_bytes() == wanted:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder.parent) as scratch:
        made, old = Path(scratch) / "made", Path(scratch) / "old"
        made.mkdir()
        install(made)
        (made / ".lock").write_bytes(wanted)
        if folder.exists():
            folder.rename(old)
        made.rename(folder)
    return folder


def _run(command: Sequence[str], folder: Path, extra: Mapping[str, str] | None = None) -> None:
    environment = os.environ | {"UV_PYTHON_DOWNLOADS": "never"} | dict(extra or {})  # noqa: TID251 - registries
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, f"{' '.join(command)}: {(done.stdout + done.stderr)[-2000:]}"
