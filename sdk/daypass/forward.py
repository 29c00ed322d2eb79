"""The loopback forwarder: official clients speak http to 127.0.0.1, the proxy is a Unix socket.

For sandboxes without a network, where the proxy's socket is mounted in. It copies bytes and
understands none of them: a half-closed connection stays half-open, a broken one breaks on both
sides. Runs inside `daypass run`, or alone as
`python -m daypass.forward --listen 127.0.0.1:8788 --socket /run/daypass/proxy/proxy.sock`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from pathlib import Path

from daypass._errors import DaypassError, SettingsError

DEFAULT_LISTEN = "127.0.0.1:8788"
_CHUNK = 65_536
_RESET = struct.pack("ii", 1, 0)  # close() sends RST instead of a tidy end


def parse_listen(value: str) -> tuple[str, int]:
    """Read `host:port`; raises `SettingsError` for anything but a loopback address."""
    host, _, port = value.rpartition(":")
    host = host.strip("[]")
    if not port.isdigit() or int(port) > 65_535:
        raise SettingsError(f"{value!r} is not HOST:PORT", hint=f"write {DEFAULT_LISTEN}")
    if host not in ("localhost", "::1") and not host.startswith("127."):
        raise SettingsError(
            f"{value!r} is not a loopback address", hint="whoever reaches the forwarder may use it"
        )
    return host, int(port)


def raise_loopback() -> bool:
    """Bring `lo` up, which a fresh network namespace has down; False if that is not allowed."""
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            request = struct.pack("16sH14x", b"lo", 0)
            found = fcntl.ioctl(handle, 0x8913, request)  # SIOCGIFFLAGS
            flags = struct.unpack("16sH14x", found)[1]
            if not flags & 1:  # IFF_UP
                fcntl.ioctl(handle, 0x8914, struct.pack("16sH14x", b"lo", flags | 1))
    except (ImportError, OSError):
        return False
    return True


def check_proxy(path: Path) -> None:
    """Raise `DaypassError`, naming the socket, when no proxy answers there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError as error:
            raise DaypassError(
                f"no proxy answers at {path}: {error.strerror or error}",
                hint="mount the folder of the proxy's socket there, or name it with --socket",
            ) from error


class Forwarder:
    """Listens on loopback and pipes every connection to the Unix socket at `target`."""

    def __init__(self, listen: tuple[str, int], target: Path) -> None:
        self._target = str(target)
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self._server = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._server.bind(listen)
            self._server.listen(128)
        except OSError as error:
            self._server.close()
            raise DaypassError(
                f"cannot listen on {listen[0]}:{listen[1]}: {error.strerror}",
                hint="choose another address with --listen",
            ) from error
        self.address: tuple[str, int] = self._server.getsockname()[:2]

    def start(self) -> None:
        """Accept connections in a background thread."""
        threading.Thread(target=self.serve, name="daypass-forward", daemon=True).start()

    def serve(self) -> None:
        """Accept connections until `close`."""
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Stop accepting; open connections go on until either side ends them."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _join(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as proxy:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                proxy.connect(self._target)
            except OSError:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                return
            up = threading.Thread(target=_copy, args=(client, proxy), daemon=True)
            up.start()
            _copy(proxy, client)
            up.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Copy until `source` ends, then half-close `sink`; on an error break both at once."""
    try:
        while data := source.recv(_CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RD)  # wakes the other copier without a tidy FIN


def main(argv: list[str] | None = None) -> int:
    """Run the forwarder alone until it is interrupted."""
    import argparse
    import sys

    parser = argparse.ArgumentParser(prog="python -m daypass.forward", description=__doc__)
    parser.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT")
    parser.add_argument("--socket", required=True, metavar="PATH")
    options = parser.parse_args(argv)
    try:
        listen = parse_listen(options.listen)
        raise_loopback()
        forwarder = Forwarder(listen, Path(options.socket))
    except DaypassError as error:
        print(f"daypass: {error}", file=sys.stderr)
        return error.exit_code
    host, port = forwarder.address
    print(f"forwarding {host}:{port} to {options.socket}", flush=True)
    try:
        forwarder.serve()
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
