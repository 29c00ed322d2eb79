"""Further ways to a proxy, each a process of its own: TLS with a CA of ours, and a Unix socket."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers.ports import free_port
from tests.servers.stack import Stack
from tests.support import eventually


@contextmanager
def tls_proxy(stack: Stack, folder: Path) -> Iterator[str]:
    """Run a second proxy over the same database that speaks TLS; its URL. `folder` has the CA."""
    stack.broker_command("tls", "--dir", str(folder), "--host", "localhost", "--host", "127.0.0.1")
    port = free_port()
    settings = stack.proxy_environment | {
        "DAYPASS_PROXY_LISTEN": f"127.0.0.1:{port}",
        "DAYPASS_PROXY_TLS_CERT": str(folder / "server.pem"),
        "DAYPASS_PROXY_TLS_KEY": str(folder / "server.key"),
    }
    with _running(["daypass_proxy", "serve"], settings, port, folder / "tls-proxy.log"):
        yield f"https://localhost:{port}"


@contextmanager
def forwarder(stack: Stack, folder: Path) -> Iterator[str]:
    """Run a loopback forwarder to the proxy's Unix socket; its URL."""
    port = free_port()
    words = ["--listen", f"127.0.0.1:{port}", "--socket", str(stack.proxy_socket)]
    command, bare = ["daypass.forward", *words], {"PATH": os.defpath}
    with _running(command, bare, port, folder / "forwarder.log"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _running(
    module: Sequence[str], environment: Mapping[str, str], port: int, log: Path
) -> Iterator[None]:
    command = [sys.executable, "-m", *module]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        eventually(lambda: _listens(port), timeout=90)
        yield
    finally:
        process.terminate()
        process.wait(40)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
    except OSError:
        return False
    return True
