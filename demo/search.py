"""The search for a secret in everything a cell holds, from outside, where nothing is hidden.

Looks into the command line, the environment and the memory of every process in the cell, and into
every file in it that can be written or is newer than a given moment. The processes are stopped
meanwhile, so nothing moves away from under the search. What it is worth is shown by planting a
decoy and finding it (`demo/inside/decoy.py`).
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHUNK_BYTES = 4 << 20
# Pages of the kernel's that are mapped into every process and cannot be read this way.
KERNEL_PAGES = ("[vvar", "[vsyscall]")
KERNEL_TREES = ("/proc", "/sys")
ESCAPED_SPACE = "\\040"


@dataclass(frozen=True, slots=True)
class Hit:
    """One place that holds a secret: its name, the kind of place, and which one."""

    secret: str
    place: str
    where: str


@dataclass
class Findings:
    """What was looked through, and what was found there."""

    hits: list[Hit] = field(default_factory=list)
    processes: int = 0
    memory_bytes: int = 0
    files: int = 0

    def places(self, secret: str) -> set[str]:
        """The kinds of place in which a secret was found."""
        return {hit.place for hit in self.hits if hit.secret == secret}


class Search:
    """One search for several secrets, each in every form it may have taken."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """`secrets` maps the name a secret has in the findings to its text."""
        self.findings = Findings()
        self._forms = [(name, form) for name, text in secrets.items() for form in forms(text)]
        self._overlap = max(len(form) for _, form in self._forms) - 1

    def look(self, place: str, where: str, data: bytes) -> None:
        """Note each secret that `data` holds."""
        for name in {name for name, form in self._forms if form in data}:
            hit = Hit(name, place, where)
            if hit not in self.findings.hits:
                self.findings.hits.append(hit)

    def process(self, pid: int) -> None:
        """Look through command line, environment, open deleted files and memory of one process."""
        self.findings.processes += 1
        base = Path(f"/proc/{pid}")
        self.look("command line", f"process {pid}", (base / "cmdline").read_bytes())
        self.look("environment", f"process {pid}", (base / "environ").read_bytes())
        for entry in (base / "fd").iterdir():
            # A file without a name is in no directory; it is only to be had through its holder.
            if stat.S_ISREG(entry.stat().st_mode) and not entry.stat().st_nlink:
                self.file(str(entry), f"process {pid}, open file without a name")
        with (base / "mem").open("rb", buffering=0) as memory:
            for start, end in readable_regions(pid):
                self._region(pid, memory.fileno(), start, end)

    def file(self, path: str, where: str, root: int | None = None) -> None:
        """Look through one file; one that even we may not read is as closed to the cell."""
        self.findings.files += 1
        with contextlib.suppress(PermissionError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK, dir_fd=root)
            self._content(descriptor, where)

    def _content(self, descriptor: int, where: str) -> None:
        with open(descriptor, "rb", buffering=0) as content:
            tail = b""
            while chunk := content.read(CHUNK_BYTES):
                self.look("file", where, tail + chunk)
                tail = chunk[-self._overlap :]

    def _region(self, pid: int, memory: int, start: int, end: int) -> None:
        """Look through one stretch of memory, in chunks that overlap by the longest form."""
        self.findings.memory_bytes += end - start
        position = start
        while position < end:
            data = os.pread(memory, min(CHUNK_BYTES, end - position), position)
            if not data:
                raise OSError(f"memory of process {pid} ends at {position:#x}, before {end:#x}")
            self.look("memory", f"process {pid}", data)
            position += len(data)
            if position < end:
                position = max(position - self._overlap, start + 1)


def search_processes(
    pids: Sequence[int], secrets: Mapping[str, str], *, newer_than: float, root: str
) -> Findings:
    """Search these processes and the file system below `root`, with the processes stopped.

    `newer_than` is in seconds since the epoch. OSError if a part cannot be read: a search that
    could not look must not say that it found nothing.
    """
    search = Search(secrets)
    with stopped(pids):
        for pid in pids:
            search.process(pid)
        descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
        try:
            for path in files_of_interest(descriptor, pids[0], newer_than):
                search.file(f"./{path}", path, descriptor)
        finally:
            os.close(descriptor)
    return search.findings


@contextlib.contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Stop these processes for the length of the block."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def readable_regions(pid: int) -> Iterator[tuple[int, int]]:
    """Start and end of each stretch of memory that the process itself may read."""
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        span, access, *rest = line.split(maxsplit=5)
        if access.startswith("r") and not (rest and rest[-1].startswith(KERNEL_PAGES)):
            start, end = span.split("-")
            yield int(start, 16), int(end, 16)


def files_of_interest(root: int, pid: int, newer_than: float) -> Iterator[str]:
    """Every regular file below the open directory `root` that is writable or newer than a moment.

    Writable means: on a mount that may be written to. Everything goes through the one descriptor,
    since each way through `/proc/PID/root` costs the kernel a check of its own.
    """
    mounts = writable_mounts(pid)
    waiting = [("", mounts.get("/", True))]
    while waiting:
        inside, writable = waiting.pop()
        directory = os.open(f"./{inside}", os.O_RDONLY | os.O_DIRECTORY, dir_fd=root)
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    path = f"{inside}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        if path not in KERNEL_TREES:
                            waiting.append((path, mounts.get(path, writable)))
                    elif is_interesting(entry, 0 if writable else newer_than):
                        yield path
        finally:
            os.close(directory)


def is_interesting(entry: os.DirEntry[str], newer_than: float) -> bool:
    """Whether a directory's entry is a regular file changed since `newer_than`."""
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    changed = max(status.st_mtime, status.st_ctime)
    return changed >= newer_than and stat.S_ISREG(status.st_mode)


def writable_mounts(pid: int) -> dict[str, bool]:
    """The mounts a process sees, and whether each may be written to."""
    mounts = {}
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        words = line.split()
        mounts[words[4].replace(ESCAPED_SPACE, " ")] = "rw" in words[5].split(",")
    return mounts


def forms(secret: str) -> list[bytes]:
    """The shapes in which a secret's bytes may lie about: halves, hex, base64, wide characters."""
    raw = secret.encode()
    middle = len(raw) // 2
    found = [raw[:middle], raw[middle:], raw.hex().encode(), secret.encode("utf-16-le")]
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            # Wherever it lies in the encoded text, these characters depend on the secret alone.
            text = encode(bytes(shift) + raw)[(shift * 8 + 5) // 6 : -4]
            if text not in found:
                found.append(text)
    return found
