"""The forwarder: bytes come out as they went in, and ends stay ends."""

import hashlib
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daypass import DaypassError, SettingsError
from daypass.forward import Forwarder, parse_listen, raise_loopback
from tests.unit.sdk.token_server import LAUNCH, token_server

# A namespace of its own, in which `lo` is down; then the forwarder must be able to listen.
FRESH = """
import ctypes, os, socket, sys
from pathlib import Path
from daypass.forward import Forwarder, raise_loopback
if ctypes.CDLL(None).unshare(0x40000000) != 0:
    print("not allowed")
    sys.exit()
print(raise_loopback())
forwarder = Forwarder(("127.0.0.1", 0), Path("/nowhere"))
socket.create_connection(forwarder.address, 5).close()
print("listens")
"""


@contextmanager
def upstream(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """A Unix socket at `path`; `serve` gets each connection."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)


@contextmanager
def forwarding(target: Path) -> Iterator[tuple[str, int]]:
    """A running forwarder to `target`."""
    forwarder = Forwarder(("127.0.0.1", 0), target)
    forwarder.start()
    try:
        yield forwarder.address
    finally:
        forwarder.close()


def connected(address: tuple[str, int]) -> socket.socket:
    """A client of the forwarder."""
    return socket.create_connection(address, 10)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the other side is done."""
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def test_bytes_are_exact_and_a_half_closed_connection_stays_half_open(tmp_path: Path) -> None:
    """8 MiB go up, and only after our end is closed does the answer to all of them come down."""
    data = random.Random(1).randbytes(8 * 1024 * 1024)

    def serve(connection: socket.socket) -> None:
        with connection:
            received = read_all(connection)
            connection.sendall(hashlib.sha256(received).digest() + received)

    path = tmp_path / "p.sock"
    with upstream(path, serve), forwarding(path) as address, connected(address) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        answer = read_all(client)
    assert answer == hashlib.sha256(data).digest() + data


def test_the_other_half_may_close_first(tmp_path: Path) -> None:
    """When the proxy has said everything, the client can still speak."""
    heard: list[bytes] = []
    done = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.sendall(b"last word")
            connection.shutdown(socket.SHUT_WR)
            heard.append(read_all(connection))
            done.set()

    path = tmp_path / "p.sock"
    with upstream(path, serve), forwarding(path) as address:
        with connected(address) as client:
            assert read_all(client) == b"last word"
            client.sendall(b"one more thing")
        assert done.wait(20)
    assert heard == [b"one more thing"]


def test_a_client_that_breaks_off_breaks_the_proxys_side(tmp_path: Path) -> None:
    """A reset on one side ends the other, so the proxy learns that nobody listens any more."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while connection.recv(1024):
                    connection.sendall(b"x" * 1024)
            except OSError:
                pass
            ended.set()

    path = tmp_path / "p.sock"
    with upstream(path, serve), forwarding(path) as address:
        client = connected(address)
        client.sendall(b"hello")
        assert client.recv(1)
        # Closing with unread bytes sends a reset.
        client.sendall(b"hello")
        client.close()
        assert ended.wait(20)


def test_without_a_proxy_the_connection_is_reset(tmp_path: Path) -> None:
    """A client sees an error, not an empty answer."""
    broken = pytest.raises(ConnectionResetError)
    with forwarding(tmp_path / "none.sock") as address, broken, connected(address) as client:
        read_all(client)


def test_many_connections_at_once(tmp_path: Path) -> None:
    """Thirty-two conversations do not mix."""

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.sendall(read_all(connection)[::-1])

    path = tmp_path / "p.sock"
    with upstream(path, serve), forwarding(path) as address:
        clients = [connected(address) for _ in range(32)]
        for number, client in enumerate(clients):
            client.sendall(f"client {number}".encode())
        for number, client in enumerate(clients):
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == f"client {number}".encode()[::-1]
            client.close()


def test_it_runs_as_a_program(tmp_path: Path) -> None:
    """`python -m daypass.forward` says where it listens, serves, and ends when interrupted."""
    path = tmp_path / "p.sock"
    with token_server(path) as server:
        command = [sys.executable, "-m", "daypass.forward", "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(
            [*command, "--socket", str(path)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            assert words[0] == "forwarding"
            from daypass import TokenProvider

            assert TokenProvider(f"http://{words[1]}", launch=LAUNCH, cache=False).token()
            assert server.exchanges == 1
        finally:
            process.terminate()
            process.communicate(timeout=10)


@pytest.mark.parametrize("listen", ["0.0.0.0:8788", "8788", "127.0.0.1:x", "::8788", "h:70000"])
def test_only_loopback_is_listened_on(listen: str) -> None:
    """Whoever reaches the forwarder uses the socket, so it stays on this machine."""
    with pytest.raises(SettingsError):
        parse_listen(listen)


def test_loopback_addresses_are_read() -> None:
    """IPv4, IPv6 and the name are all loopback."""
    assert parse_listen("127.0.0.1:8788") == ("127.0.0.1", 8788)
    assert parse_listen("[::1]:0") == ("::1", 0)
    assert parse_listen("localhost:1") == ("localhost", 1)


def test_a_taken_port_is_said_plainly(tmp_path: Path) -> None:
    """Two forwarders on one port: the second names the port and the flag."""
    with forwarding(tmp_path / "x") as address, pytest.raises(DaypassError, match="--listen"):
        Forwarder(address, tmp_path / "x")


def test_the_loopback_interface_is_raised_in_a_fresh_namespace() -> None:
    """Where the system gives a network namespace, `lo` is brought up in it, without any tool."""
    assert raise_loopback()
    done = subprocess.run(
        [sys.executable, "-c", FRESH], capture_output=True, text=True, timeout=30, check=True
    )
    allowed = os.geteuid() == 0
    assert done.stdout.split("\n")[0] == ("True" if allowed else "not allowed"), done.stdout
    assert ("listens" in done.stdout) is allowed
