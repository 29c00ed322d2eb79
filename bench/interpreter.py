"""The Python that is measured: the one a user would deploy, in an environment of the bench's own.

HAProxy, nginx and Envoy are measured as their distributions build them, so the proxy runs on the
distribution's Python, not on the one the project is developed with. It gets the locked
dependencies of `daypass-proxy` and nothing else; our own packages come from the checkout.
"""

import json
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from bench.install import run, say
from bench.process import BenchError
from bench.site import CACHE, ROOT

DISTRIBUTION = Path("/usr/bin/python3")
OLDEST = (3, 11)
UV = ROOT / ".cache" / "uv" / "bin" / "uv"
_ASK = """
import json, platform, sys, sysconfig
told = sysconfig.get_config_var
print(json.dumps({
    "version": platform.python_version(),
    "debian": "with-wheel-pkg-dir=/usr/share/python-wheels" in (told("CONFIG_ARGS") or ""),
    "flags": [told("CONFIG_ARGS") or "", told("PY_CFLAGS") or "", told("PY_CORE_CFLAGS") or ""],
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python and what it says of its build; `path` is the program itself."""

    path: Path
    version: str
    build: str

    @property
    def new_enough(self) -> bool:
        """Whether the proxy runs on it."""
        return tuple(map(int, self.version.split(".")[:2])) >= OLDEST

    def __str__(self) -> str:
        inside = self.path.is_relative_to(ROOT)
        path = self.path.relative_to(ROOT) if inside else self.path
        return f"{self.version} ({path}: {self.build})"


def chosen(asked: Path | None, distribution: Path = DISTRIBUTION) -> Interpreter:
    """The Python asked for, else the distribution's when new enough, else the one we run on.

    Raises BenchError when the one asked for cannot be had or is too old.
    """
    if asked is not None:
        found = read(asked)
        if not found.new_enough:
            raise BenchError(f"{asked} is Python {found.version}; the proxy needs 3.11 or newer")
        return found
    if distribution.exists() and (found := read(distribution)).new_enough:
        return found
    return read(Path(sys.executable))


def other(than: Interpreter, distribution: Path = DISTRIBUTION) -> Interpreter | None:
    """The first of the distribution's and the project's Python that is another program."""
    for found in (chosen(None, distribution), read(Path(sys.executable))):
        if found.path.resolve() != than.path.resolve():
            return found
    return None


def read(path: Path) -> Interpreter:
    """Ask a Python who it is; raises BenchError."""
    try:
        told = json.loads(run([str(path), "-I", "-c", _ASK]))
    except ValueError:
        raise BenchError(f"{path} is not a Python that can be asked for its version") from None
    return Interpreter(path, told["version"], build_of(told["flags"], debian=told["debian"]))


def build_of(flags: list[str], *, debian: bool) -> str:
    """How a Python was optimised, in words: by its own record of configure arguments and flags.

    Debian and Ubuntu build the program and the shared library apart, and keep the library's
    record, so theirs says nothing of the program.
    """
    if debian:
        return "Debian's build, which keeps no record of PGO and LTO"
    arguments, flags_, core = flags
    level = next((word for word in reversed(flags_.split()) if word.startswith("-O")), "no -O")
    pgo = "--enable-optimizations" in arguments or "-fprofile-use" in core
    lto = "--with-lto" in arguments or "-flto" in core
    return f"{level}, {'PGO' if pgo else 'no PGO'}, {'LTO' if lto else 'no LTO'}"


def environment(interpreter: Interpreter, lock: Path = ROOT / "uv.lock") -> Path:
    """The Python of an environment with the locked proxy in it, made anew when the lock changes."""
    told = f"{interpreter.path.resolve()} {interpreter.version}"
    folder = CACHE / "python" / sha256(told.encode()).hexdigest()[:12]
    python, made = folder / "bin" / "python", folder / "made-for"
    wanted = f"{told}\n{sha256(lock.read_bytes()).hexdigest()}\n"
    if made.exists() and made.read_text() == wanted and python.exists():
        return python
    say(f"installing the locked proxy for Python {interpreter}")
    made.unlink(missing_ok=True)
    # Our own packages are installed as links into the checkout, so what is measured is its code.
    words = ["sync", "-q", "--locked", "--package", "daypass-proxy", "--no-default-groups"]
    run(
        [str(UV), *words, "--project", str(ROOT), "--python", str(interpreter.path)],
        environment={"UV_PROJECT_ENVIRONMENT": str(folder), "UV_PYTHON_DOWNLOADS": "never"},
    )
    made.write_text(wanted)
    return python
