"""Listening sockets: bound before anything starts, so that failures are one sentence.

`server` binds every address of a service through `listening` and hands the sockets to uvicorn.
Unix sockets are born closed to others, and the file a killed predecessor left is taken over.
"""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator

from daypass_core.settings import Listen

BACKLOG = 2048
_UNSENT = 128 * 1024
_MAX_UNIX_PATH = 107  # sun_path on Linux, without its final zero byte


class CannotListen(Exception):
    """An address cannot be listened on; the message is one sentence that says what to change."""


@contextlib.contextmanager
def listening(
    listen: Listen, *, mode: int = 0o600, setting: str = "", shares_port: bool = False
) -> Iterator[list[socket.socket]]:
    """Hold the listening sockets of one address; raises CannotListen.

    `mode` is the file mode of a Unix socket, whose file is removed at the end. `setting` is the
    variable that names the address, for the message. With `shares_port` other processes of this
    user may listen at the same port, and the kernel shares connections out (SO_REUSEPORT).
    """
    try:
        if listen.is_unix:
            socks = [_bind_unix(listen.path, mode)]
        else:
            socks = _bind_tcp(listen.host, listen.port, shares_port, listens=True)
    except OSError as error:
        remedy = f"; choose another with {setting}" if setting else ""
        reason = "address already in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise CannotListen(f"cannot listen on {listen}: {reason}{remedy}") from None
    inode = os.stat(listen.path).st_ino if listen.is_unix else 0
    try:
        yield socks
    finally:
        for sock in socks:
            sock.close()
        if listen.is_unix:
            with contextlib.suppress(OSError):
                # Only our own file: a successor may have put its socket there already.
                if os.stat(listen.path).st_ino == inode:
                    os.unlink(listen.path)


@contextlib.contextmanager
def reserved(listen: Listen, *, setting: str = "") -> Iterator[Listen]:
    """Hold a port for processes that will share it, without listening; raises CannotListen.

    Who has it already must not be one of another service that shares its port too, so it is bound
    alone first. Yields the address with its port, for one that the kernel was to choose.
    """
    with listening(listen, setting=setting) as socks:
        port = socks[0].getsockname()[1]
    socks = _bind_tcp(listen.host, port, shares_port=True, listens=False)
    try:
        yield Listen(listen.host, port)
    finally:
        for sock in socks:
            sock.close()


def _bind_tcp(host: str, port: int, shares_port: bool, *, listens: bool) -> list[socket.socket]:
    """Bind every address the host stands for."""
    socks: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            sock = socket.socket(family, socket.SOCK_STREAM)
            socks.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections have it from here: what a client does not read waits with us, where it is
            # bounded and watched, and not by the megabyte in the kernel.
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # not on every platform
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
            if shares_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            if listens:
                sock.listen(BACKLOG)
            sock.setblocking(False)
    except OSError:
        for sock in socks:
            sock.close()
        raise
    return socks


def _bind_unix(path: str, mode: int) -> socket.socket:
    if len(os.fsencode(path)) > _MAX_UNIX_PATH:
        raise OSError(errno.ENAMETOOLONG, f"path is longer than {_MAX_UNIX_PATH} bytes")
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Nobody may connect between bind and chmod, so the file is born closed.
    before = os.umask(0o177)
    try:
        sock.bind(path)
        os.chmod(path, mode)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock


def _remove_stale(path: str) -> None:
    """Remove the socket file a killed predecessor left; raises OSError when one still listens."""
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise OSError(errno.EEXIST, "a file that is no socket is in the way")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:  # full backlog, not permitted: somebody lives there
            raise OSError(errno.EADDRINUSE, "address already in use") from None
        else:
            raise OSError(errno.EADDRINUSE, "address already in use")


def address_of(sock: socket.socket) -> Listen:
    """Return where a socket really listens: the port is known even when 0 was asked for.

    A Unix socket without a file has "@" before its name, as ss(8) shows it.
    """
    name = sock.getsockname()
    if isinstance(name, bytes):
        name = "@" + name[1:].decode("ascii", "replace")
    return Listen(path=name) if isinstance(name, str) else Listen(host=name[0], port=name[1])
