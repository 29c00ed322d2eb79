"""What a cell consists of: the kinds of cell, the file system inside, the command that opens one.

`demo/cell.py` runs that command and speaks to `demo/inside/init.py`, the first process inside.
Nothing of the host is writable inside, and of the host's own files only programs are there at all.
"""

from __future__ import annotations

import enum
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
INSIDE = REPOSITORY / "demo" / "inside"
# Programs and libraries; what lies in /usr/share or /usr/include is of no use inside.
SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec"),
    "/usr/local",
)
LINKER = ("/etc/ld.so.cache", "/etc/alternatives")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
SCRATCH = {"/tmp": "64m", "/home": "64m", "/run": "16m", "/dev/shm": "16m"}
ETC = {
    "/etc/passwd": "agent:x:0:0:agent:/home:/bin/sh\n",
    "/etc/group": "agent:x:0:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
}
NAMESPACES = ("--user", "--map-root-user", "--net", "--mount", "--pid", "--ipc", "--uts")


class CellError(Exception):
    """No cell could be opened this way, or a process in it could not be waited for."""


class Kind(enum.StrEnum):
    """How a cell is made, best first."""

    UNSHARE = "unshare"
    BUBBLEWRAP = "bubblewrap"
    OPEN = "open"

    @property
    def sealed(self) -> bool:
        """True if the cell has its own namespaces."""
        return self is not Kind.OPEN


def make_layout(directory: Path, shared: Mapping[str, Path]) -> dict[str, Any]:
    """What `root.py` builds: links, scratch space, binds (inside → outside) and devices."""
    base = directory / "root"
    base.mkdir(exist_ok=True)
    links = {path: str(Path(path).readlink()) for path in SYSTEM if Path(path).is_symlink()}
    binds = {path: path for path in SYSTEM if path not in links and Path(path).exists()}
    binds |= {path: path for path in LINKER if Path(path).exists()}
    # This Python, its packages (the official client among them) and the scripts that run inside.
    python = (sys.base_prefix, str(Path(sys.base_prefix).resolve()), sys.prefix)
    for part in (*python, str(REPOSITORY / "sdk"), str(INSIDE)):
        if part != "/usr" and not part.startswith("/usr/local"):
            binds[part] = part
    for path, content in ETC.items():
        source = directory / path.strip("/").replace("/", "-")
        source.write_text(content)
        binds[path] = str(source)
    binds |= {path: str(source) for path, source in shared.items()}
    return {
        "base": str(base),
        "links": links,
        "scratch": SCRATCH,
        "binds": dict(sorted(binds.items())),
        "devices": [path for path in DEVICES if Path(path).exists()],
        "init": [sys.executable, "-I", "-S", str(INSIDE / "init.py")],
    }


def command(kind: Kind, layout: Mapping[str, Any], control: int) -> list[str]:
    """The command line that opens a cell of this kind around `init.py`; CellError if not here."""
    init = [*layout["init"], str(control)]
    if kind is Kind.OPEN:
        return init
    program = shutil.which("unshare" if kind is Kind.UNSHARE else "bwrap")
    if program is None:
        raise CellError("not installed")
    if kind is Kind.UNSHARE:
        root = [sys.executable, "-I", "-S", str(INSIDE / "root.py"), str(control)]
        return [program, *NAMESPACES, "--fork", "--kill-child", "--", *root]
    words = [program, "--unshare-all", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL"]
    words += ["--clearenv", "--hostname", "cell", "--proc", "/proc", "--dev", "/dev"]
    for path in SCRATCH:
        words += ["--tmpfs", path]
    for link, text in layout["links"].items():
        words += ["--symlink", text, link]
    for target, source in layout["binds"].items():
        words += ["--ro-bind", source, target]
    return [*words, "--remount-ro", "/", "--chdir", "/", "--", *init]
