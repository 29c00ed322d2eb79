"""A cell: processes with their own network, mounts, process numbers and users, one way out.

The demo opens one per sandbox. Inside there is a small read-only system (the host's programs and
this Python, an empty `/etc`, scratch space in memory) plus what `shared` maps in: the proxy's
socket and the launch credential. There is no network device but the cell's own `lo`. Made with
`unshare` (util-linux) or, where that is not allowed, `bwrap` (bubblewrap); where neither is, the
same processes run in the open and `Cell.kind` says so.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from demo.layout import CellError, Kind, command, make_layout
from demo.services.process import Stoppable

BASE_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/home", "LANG": "C.UTF-8"}
OPEN_SECONDS = 10.0
MESSAGE_BYTES = 1 << 16


@dataclass
class CellProcess:
    """One process started in a cell, with its pipes."""

    stdin: IO[str]
    stdout: IO[str]
    stderr: IO[str]
    _ended: threading.Event
    _exit: list[int]

    def wait(self, timeout: float) -> int:
        """The exit status; CellError when it still runs after `timeout` seconds."""
        if not self._ended.wait(timeout):
            raise CellError(f"a process in the cell still ran after {timeout:g} s")
        return self._exit[0]

    def close(self) -> None:
        """Close the three pipes."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()


class Cell(Stoppable):
    """An open cell; leave the block (or `stop`) to end every process in it."""

    def __init__(self, kind: Kind, directory: Path, shared: Mapping[str, Path]) -> None:
        """Open a cell of one kind; `Cell.open` tries them in order and is the public way in."""
        self.kind = kind
        self._waiting: dict[int, tuple[threading.Event, list[int]]] = {}
        self._running: list[CellProcess] = []
        directory.mkdir(parents=True, exist_ok=True)
        layout = make_layout(directory, shared)
        self._log = directory / "cell.log"
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            self._process = self._launch(command(kind, layout, theirs.fileno()), theirs)
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        try:
            if kind is Kind.UNSHARE:
                self._control.send(json.dumps(layout).encode())
            self.init_pid = self._await_hello()
        except BaseException:
            self.stop()
            raise
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @classmethod
    def open(
        cls, directory: Path, shared: Mapping[str, Path], *, kinds: Sequence[Kind] = tuple(Kind)
    ) -> Cell:
        """The first of `kinds` this system allows; `shared` maps paths inside to files outside.

        Everything shared is read-only inside. `directory` takes the log and the cell's mount
        point. CellError when none of `kinds` works.
        """
        reasons: list[str] = []
        for kind in kinds:
            cell = cls._attempt(kind, directory / kind, shared, reasons)
            if cell is not None:
                return cell
        raise CellError("no cell could be opened: " + "; ".join(reasons))

    @classmethod
    def _attempt(
        cls, kind: Kind, directory: Path, shared: Mapping[str, Path], reasons: list[str]
    ) -> Cell | None:
        try:
            return cls(kind, directory, shared)
        except (CellError, OSError) as error:
            reasons.append(f"{kind}: {error}")
            return None

    def start(
        self, argv: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> CellProcess:
        """Start a process inside, with nothing in its environment but what is given here."""
        number = len(self._waiting)
        ended: tuple[threading.Event, list[int]] = (threading.Event(), [])
        self._waiting[number] = ended
        request = {
            "id": number,
            "argv": list(argv),
            "env": {**BASE_ENVIRONMENT, **(environment or {})},
        }
        inner, outer = zip(*(socket.socketpair() for _ in range(3)), strict=True)
        try:
            socket.send_fds(
                self._control, [json.dumps(request).encode()], [end.fileno() for end in inner]
            )
            process = CellProcess(
                outer[0].makefile("w", encoding="utf-8"),
                outer[1].makefile("r", encoding="utf-8"),
                outer[2].makefile("r", encoding="utf-8"),
                *ended,
            )
        finally:
            for end in (*inner, *outer):
                end.close()
        self._running.append(process)
        return process

    def run(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        timeout: float = 30.0,
    ) -> subprocess.CompletedProcess[str]:
        """Start a process inside, wait for its end, give back what it wrote (64 KiB at most)."""
        process = self.start(argv, environment)
        process.stdin.close()
        status = process.wait(timeout)
        return subprocess.CompletedProcess(
            list(argv), status, process.stdout.read(), process.stderr.read()
        )

    def pids(self) -> list[int]:
        """Every process in the cell, by the host's numbers, its process 1 first."""
        return [self.init_pid, *sorted(set(members(self.init_pid, self.kind)) - {self.init_pid})]

    def stop(self) -> None:
        """End every process in the cell; may be called twice."""
        # A mere close would not reach the other end while the listener waits on this one.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        try:
            self._process.wait(OPEN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for process in self._running:
            process.close()

    def _launch(self, argv: Sequence[str], control: socket.socket) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                argv,
                pass_fds=[control.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=BASE_ENVIRONMENT,
                start_new_session=True,
            )

    def _await_hello(self) -> int:
        """The host's number of the cell's process 1, which the kernel attaches to its greeting."""
        self._control.settimeout(OPEN_SECONDS)
        message, ancillary, _, _ = self._control.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(12))
        self._control.settimeout(None)
        for level, kind, data in ancillary:
            if message and (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                return int.from_bytes(data[:4], sys.byteorder)
        raise CellError(self._log.read_text(errors="replace").strip().rpartition("\n")[2])

    def _listen(self) -> None:
        """Note every ended process until the control socket closes."""
        while True:
            try:
                message = self._control.recv(MESSAGE_BYTES)
            except OSError:
                return
            if not message:
                return
            report = json.loads(message)
            event, status = self._waiting[report["id"]]
            status.append(report["exit"])
            event.set()


def members(init_pid: int, kind: Kind) -> list[int]:
    """The processes of the cell: those of its process namespace, or the descendants of its init."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    if kind.sealed:
        namespace = Path(f"/proc/{init_pid}/ns/pid").readlink()
        return [pid for pid in pids if link_of(pid) == namespace]
    parents = {pid: parent_of(pid) for pid in pids}
    found = {init_pid}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return list(found)


def link_of(pid: int) -> Path | None:
    """The process namespace of a process, None if it is gone or not ours to see."""
    try:
        return Path(f"/proc/{pid}/ns/pid").readlink()
    except OSError:
        return None


def parent_of(pid: int) -> int:
    """The parent of a process, 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
