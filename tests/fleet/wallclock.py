"""Wall clocks that can be moved: a small library that processes are started with.

`compiled` makes it (with any C compiler), `environment` gives it to a process, `move` moves the
clocks of all processes that were given the same folder, at once.
"""

import functools
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
_LIBRARY, _OFF = "wallclock.so", "off"


def compiler() -> str | None:
    """Where a C compiler is; None without one."""
    return shutil.which("cc") or shutil.which("gcc")


@functools.cache
def compiled() -> bytes:
    """The library."""
    found = compiler()
    assert found is not None, "no C compiler: install gcc"
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / _LIBRARY
        words = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(made), str(SOURCE)]
        subprocess.run([found, *words], check=True)
        return made.read_bytes()


def prepare(folder: Path) -> None:
    """Put into a folder what `environment` names; the clock is right to begin with."""
    folder.mkdir(exist_ok=True)
    (folder / _LIBRARY).write_bytes(compiled())
    (folder / _OFF).write_bytes(struct.pack("=q", 0))


def environment(folder: Path) -> dict[str, str]:
    """What starts a process with such a clock; `folder` as the process sees it."""
    return {"LD_PRELOAD": f"{folder}/{_LIBRARY}", "FLEET_CLOCK": f"{folder}/{_OFF}"}


def move(folder: Path, seconds: int) -> None:
    """Let the clock be so far off, in this instant; fails where a process would not see it."""
    with (folder / _OFF).open("r+b", buffering=0) as file:
        file.write(struct.pack("=q", seconds))
    words = ["date", "+%s"]
    seen = subprocess.run(words, env=environment(folder), capture_output=True, check=True).stdout
    assert abs(int(seen) - time.time() - seconds) < 5, "the clock did not move"
