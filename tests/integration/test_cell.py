"""The demo's cell: it reaches the socket it is given and nothing else, and hides nothing."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.cell import Cell
from demo.layout import INSIDE, CellError, Kind
from demo.search import Findings, Search, search_processes
from tests.support import eventually

SOCKET_INSIDE = "/run/daypass/proxy/proxy.sock"
FILE_INSIDE = "/run/daypass/launch.jwt"


def allowed(kind: Kind, directory: Path) -> bool:
    """Whether this system lets us open a cell of this kind."""
    try:
        Cell.open(directory, {}, kinds=[kind]).stop()
    except CellError:
        return False
    return True


class Echo(socketserver.StreamRequestHandler):
    """Stands in for the proxy: says back what it hears."""

    def handle(self) -> None:
        """One line."""
        self.wfile.write(self.rfile.readline())


class EchoServer(socketserver.ThreadingUnixStreamServer):
    """Echo on a Unix socket."""

    daemon_threads = True


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """The host's side: a folder with a Unix socket that echoes, and a TCP port that answers."""
    folder = tmp_path / "proxy"
    folder.mkdir()
    with (
        EchoServer(str(folder / "proxy.sock"), Echo) as server,
        socket.create_server(("127.0.0.1", 0)) as tcp,
    ):
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield folder, tcp.getsockname()[1]
        server.shutdown()


@pytest.fixture(params=[Kind.UNSHARE, Kind.BUBBLEWRAP])
def cell(
    request: pytest.FixtureRequest, tmp_path: Path, outside: tuple[Path, int]
) -> Iterator[Cell]:
    """A cell of each kind; where the system does not allow that kind, the best it does allow."""
    launch = tmp_path / "launch.jwt"
    launch.write_text("launch")
    shared = {"/run/daypass/proxy": outside[0], FILE_INSIDE: launch}
    kind: Kind = request.param
    kinds = [kind] if allowed(kind, tmp_path / "try") else list(Kind)
    with Cell.open(tmp_path / "cell", shared, kinds=kinds) as opened:
        yield opened


def script(cell: Cell, text: str) -> str:
    """Run a Python text in the cell and return what it printed."""
    done = cell.run([sys.executable, "-c", text])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def search(cell: Cell, since: float, **wanted: str) -> Findings:
    """Search the whole cell."""
    root = f"/proc/{cell.init_pid}/root"
    return search_processes(cell.pids(), wanted, newer_than=since, root=root)


def test_a_cell_reaches_the_socket_and_nothing_else(cell: Cell, outside: tuple[Path, int]) -> None:
    """From inside, the shared socket answers through the forwarder, and no other address does."""
    forwarder = cell.start([sys.executable, "-m", "daypass.forward", "--socket", SOCKET_INSIDE])
    assert "forwarding" in forwarder.stdout.readline()
    host, public = f"127.0.0.1:{outside[1]}", "192.0.2.1:443"
    probe = cell.run([sys.executable, str(INSIDE / "probe.py"), "127.0.0.1:8788", host, public])
    seen = json.loads(probe.stdout)
    if not cell.kind.sealed:
        assert seen["connections"][host] == "open", "an open cell hides nothing, and says so"
        return
    assert seen == {
        "connections": {"127.0.0.1:8788": "open", host: "ECONNREFUSED", public: "ENETUNREACH"},
        "interfaces": ["lo"],
        "sockets": [SOCKET_INSIDE],
    }
    echo = (
        "import socket\n"
        "with socket.create_connection(('127.0.0.1', 8788)) as line:\n"
        "    line.sendall(b'hello\\n'); print(line.recv(6).decode())"
    )
    assert script(cell, echo) == "hello"


def test_the_host_cannot_be_changed_from_inside(cell: Cell) -> None:
    """Programs, configuration and what is shared are read-only; only scratch space is writable."""
    if not cell.kind.sealed:
        return
    attempt = (
        "import os\n"
        "def can(path):\n"
        "    try: open(path, 'a').close()\n"
        "    except OSError: return False\n"
        "    return True\n"
        f"paths = ['/usr/bin/x', '/etc/passwd', '/x', {FILE_INSIDE!r}, '/tmp/x']\n"
        "print([path for path in paths if can(path)])"
    )
    assert script(cell, attempt) == "['/tmp/x']"


def test_a_cell_sees_only_itself(cell: Cell) -> None:
    """No process, environment variable or capability of the host is to be had inside."""
    if not cell.kind.sealed:
        return
    processes = "import os; print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))"
    assert len(json.loads(script(cell, processes))) == 2, "process 1 and the one that asks"
    environment = "import os; print(sorted(os.environ))"
    assert script(cell, environment) == "['HOME', 'LANG', 'PATH']"
    descriptors = "import os; print(len(os.listdir('/proc/self/fd')))"
    assert script(cell, descriptors) == "4", "0, 1, 2 and the one that lists them"
    status = script(cell, "print(open('/proc/self/status').read())")
    for line in status.splitlines():
        if line.startswith(("CapEff", "CapPrm", "CapBnd")):
            assert int(line.split()[1], 16) == 0


def test_the_search_finds_a_decoy_and_nothing_that_is_not_there(cell: Cell) -> None:
    """A planted text turns up in every kind of place, one that nobody has in none."""
    since = time.time()
    planted, hidden, absent = (secrets.token_urlsafe(24) for _ in range(3))
    decoy = cell.start(
        [sys.executable, str(INSIDE / "decoy.py"), planted, "/tmp/notes.txt"], {"NOTE": planted}
    )
    decoy.stdin.write(f"{hidden[::-1]}\n")
    decoy.stdin.flush()
    assert decoy.stdout.readline() == "planted\n"
    if not cell.kind.sealed:
        return
    findings = search(cell, since, planted=planted, hidden=hidden, absent=absent)
    assert findings.places("planted") == {"command line", "environment", "memory", "file"}
    assert findings.places("hidden") == {"memory"}
    assert findings.places("absent") == set()
    assert findings.processes == len(cell.pids()) == 2
    decoy.stdin.close()
    assert decoy.wait(10) == 0, "the search lets the processes run on"


def test_a_text_that_is_inside_only_encoded_is_found() -> None:
    """Base64 at any offset, hex, wide characters and half of a text count as the text."""
    text = secrets.token_urlsafe(24)
    shapes = [
        *(base64.b64encode(b"x" * shift + text.encode() + b"tail") for shift in range(5)),
        text.encode().hex().encode(),
        text.encode("utf-16-le"),
        text.encode()[: len(text) // 2],
        text.encode()[len(text) // 2 :],
    ]
    for shape in shapes:
        search = Search({"key": text})
        search.look("file", "somewhere", b"before" + shape + b"after")
        assert search.findings.places("key") == {"file"}, shape


def test_closing_a_cell_ends_everything_in_it(tmp_path: Path) -> None:
    """A process that left its parent, its session and SIGTERM behind ends with its cell."""
    runaway = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); print('away', flush=True); signal.pause()"
    )
    with Cell.open(tmp_path, {}) as cell:
        process = cell.start([sys.executable, "-c", runaway])
        assert process.stdout.readline() == "away\n"
        assert process.wait(10) == 0
        pids = cell.pids()
        sealed = cell.kind.sealed
    assert len(pids) == (2 if sealed else 1)
    if sealed:
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), timeout=5)


def test_without_namespaces_the_processes_run_and_the_cell_says_so(tmp_path: Path) -> None:
    """The open kind runs the same processes and does not claim to be sealed."""
    with Cell.open(tmp_path, {}, kinds=[Kind.OPEN]) as cell:
        assert not cell.kind.sealed
        assert script(cell, "print(6 * 7)") == "42"
        sleeper = cell.start(
            [sys.executable, "-c", "import signal; print(1, flush=True); signal.pause()"]
        )
        sleeper.stdout.readline()
        assert len(cell.pids()) == 2
        pids = cell.pids()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):
            assert "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]


def test_a_cell_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    """The error names each way that was tried and what the system said to it."""
    missing = {"/run/daypass/launch.jwt": tmp_path / "nowhere"}
    with pytest.raises(CellError, match=r"unshare: .*nowhere"):
        Cell.open(tmp_path, missing, kinds=[Kind.UNSHARE])
