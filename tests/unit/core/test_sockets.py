"""Listening sockets: taken, stale, closed to others."""

import os
import socket
import stat
from pathlib import Path

import pytest

from daypass_core.settings import Listen
from daypass_core.sockets import CannotListen, address_of, listening


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the Unix socket goes."""
    return str(tmp_path / "s.sock")


def connects(path: str) -> bool:
    """Say whether somebody listens there."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def test_unix_socket(path: str) -> None:
    """A Unix socket is open to its owner only, and its file is removed at the end."""
    with listening(Listen(path=path)) as (sock,):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert connects(path)
        assert address_of(sock) == Listen(path=path)
    assert not os.path.exists(path)


def test_mode(path: str) -> None:
    """Another file mode can be asked for, and the process's umask is as before."""
    before = os.umask(0o022)
    with listening(Listen(path=path), mode=0o660):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    assert os.umask(before) == 0o022


def test_stale_file(path: str) -> None:
    """The file a killed predecessor left is taken over."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    assert os.path.exists(path)
    with listening(Listen(path=path)):
        assert connects(path)


def test_live_predecessor(path: str) -> None:
    """A socket somebody listens on is left alone."""
    with (
        listening(Listen(path=path)),
        pytest.raises(CannotListen, match="already in use; choose another with DAYPASS_X"),
        listening(Listen(path=path), setting="DAYPASS_X"),
    ):
        pass
    assert not os.path.exists(path)


def test_other_files_are_kept(path: str) -> None:
    """A file that is no socket is not removed."""
    Path(path).write_text("precious")
    with pytest.raises(CannotListen, match="no socket"), listening(Listen(path=path)):
        pass
    assert Path(path).read_text() == "precious"


def test_successor_is_kept(path: str) -> None:
    """The end of one server does not remove the socket file of its successor."""
    with listening(Listen(path=path)):
        os.unlink(path)
        successor = socket.socket(socket.AF_UNIX)
        successor.bind(path)
    assert os.path.exists(path)
    successor.close()


@pytest.mark.parametrize(
    ("name", "reason"), [("no/such/folder.sock", "No such file"), ("x" * 200, "longer than 107")]
)
def test_bad_paths(tmp_path: Path, name: str, reason: str) -> None:
    """A path that cannot be a socket is one sentence with the path in it."""
    listen = Listen(path=str(tmp_path / name))
    with pytest.raises(CannotListen, match=reason) as caught, listening(listen):
        pass
    assert str(listen) in str(caught.value)


def test_tcp() -> None:
    """A port of 0 is answered with the port that was given."""
    with listening(Listen("127.0.0.1", 0)) as (sock,):
        address = address_of(sock)
        assert address.host == "127.0.0.1"
        assert address.port > 0


def test_taken_port() -> None:
    """A taken port is one sentence that names address and setting."""
    with listening(Listen("127.0.0.1", 0)) as (sock,):
        taken = address_of(sock)
        with (
            pytest.raises(CannotListen) as caught,
            listening(taken, setting="DAYPASS_PROXY_LISTEN"),
        ):
            pass
    assert str(caught.value) == (
        f"cannot listen on {taken}: address already in use; "
        "choose another with DAYPASS_PROXY_LISTEN"
    )


def test_every_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with several addresses is bound on each, or on none when one is taken."""
    family = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    found = [(*family, ("127.0.0.1", 0)), (*family, ("127.0.0.2", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with listening(Listen("both.test", 0)) as socks:
        assert [address_of(sock).host for sock in socks] == ["127.0.0.1", "127.0.0.2"]
        found[1] = (*family, socks[0].getsockname())
        with pytest.raises(CannotListen, match="in use"), listening(Listen("both.test", 0)):
            pass


def test_ipv6() -> None:
    """An IPv6 address is bound for IPv6 alone."""
    with listening(Listen("::1", 0)) as (sock,):
        assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
        assert str(address_of(sock)).startswith("[::1]:")


def test_address_of_somebody_else() -> None:
    """An address this machine does not have is one sentence."""
    with pytest.raises(CannotListen, match="Cannot assign"), listening(Listen("192.0.2.1", 8700)):
        pass


def test_name_that_does_not_resolve() -> None:
    """A host name nobody knows is one sentence."""
    listen = Listen("no-such-host.invalid", 8700)
    with pytest.raises(CannotListen, match=r"no-such-host\.invalid"), listening(listen):
        pass
