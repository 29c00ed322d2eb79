"""What the bench installs itself: its two C programs, Debian packages, the pinned peers."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.process import BenchError
from bench.site import CACHE, ROOT

HERE = Path(__file__).resolve().parent


def compiled(name: str) -> Path:
    """Compile bench/NAME.c unless that was done for this source; return the program."""
    source, program = HERE / f"{name}.c", CACHE / name
    newest = max(file.stat().st_mtime for file in (source, *HERE.glob("*.h")))
    if program.exists() and program.stat().st_mtime > newest:
        return program
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BenchError("needs a C compiler (cc): on Debian, apt-get install gcc libc6-dev")
    CACHE.mkdir(parents=True, exist_ok=True)
    run([compiler, "-O2", "-o", str(program), str(source)])
    return program


def found(name: str) -> str | None:
    """Where a program is; Debian puts servers where ordinary users do not look."""
    return shutil.which(name, path=os.defpath + ":/usr/sbin:/usr/local/sbin:/sbin")


def apt(package: str) -> str:
    """Return the program of a Debian package, installed when it is missing."""
    program = found(package)
    if program is not None:
        return program
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise BenchError(f"needs {package}: install it, or run as root where there is apt-get")
    say(f"installing {package}")
    run(["apt-get", "update", "-qq"])
    run(["apt-get", "install", "-qq", "-y", "--no-install-recommends", package])
    program = found(package)
    if program is None:
        raise BenchError(f"the package {package} brought no program of that name")
    return program


def python_peer(name: str) -> Path:
    """A virtual environment with what peers/NAME.txt lists; returns its folder."""
    wanted, folder = HERE / "peers" / f"{name}.txt", CACHE / "peers" / name
    if _changed(wanted, folder):
        say(f"installing {name}")
        uv = str(ROOT / ".cache" / "uv" / "bin" / "uv")
        python = str(folder / "bin" / "python")
        run([uv, "venv", "-q", "--allow-existing", "--python", sys.executable, str(folder)])
        run([uv, "pip", "sync", "-q", "--python", python, str(wanted)])
        shutil.copy(wanted, folder)
    return folder


def node_peer(name: str) -> Path:
    """A folder with what peers/NAME_npm/package-lock.json lists; returns it."""
    source, folder = HERE / "peers" / f"{name}_npm", CACHE / "peers" / name
    lock = source / "package-lock.json"
    if shutil.which("npm") is None:
        raise BenchError(f"needs node and npm for {name}")
    if _changed(lock, folder):
        say(f"installing {name}")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / "package.json", folder)
        shutil.copy(lock, folder)
        try:
            run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], folder)
        except BenchError:
            (folder / lock.name).unlink()
            raise
    return folder


def _changed(wanted: Path, folder: Path) -> bool:
    """Say whether the folder was made from something else; its copy is laid when it is done."""
    copy = folder / wanted.name
    return not copy.exists() or copy.read_bytes() != wanted.read_bytes()


def say(line: str) -> None:
    """A line of progress; results alone go to standard output."""
    print(f"bench: {line}", file=sys.stderr, flush=True)


def run(
    command: Sequence[str],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end and return what it wrote; raises BenchError when it fails."""
    inherited = {**os.environ, **(environment or {})}  # noqa: TID251 - proxies and caches
    try:
        done = subprocess.run(command, cwd=folder, env=inherited, capture_output=True, text=True)
    except FileNotFoundError:
        raise BenchError(f"there is no {command[0]}; run make setup first") from None
    if done.returncode:
        tail = (done.stdout + done.stderr)[-2000:]
        raise BenchError(f"{' '.join(command)} failed:\n{tail}")
    return done.stdout
