"""Serving: several listeners, draining, forcing, failing to start."""

import asyncio
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat
from cryptography.x509.oid import NameOID

from daypass_core import server
from daypass_core.server import Drain, Listener, TlsFiles, serve
from daypass_core.settings import Listen
from tests.support import aeventually, signing_key

LENGTH = [(b"content-length", b"4")]
DONE = b"\r\n\r\ndone"


class App:
    """An ASGI app that answers at once, or holds the request until told to go on."""

    def __init__(self) -> None:
        self.lifespan: list[str] = []
        self.ended: list[str] = []
        self.holding = asyncio.Event()
        self.go_on = asyncio.Event()
        self.fail = False
        self.client: object = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.live(receive, send)
            return
        self.client = scope["client"]
        try:
            if scope["path"] == "/hold":
                self.holding.set()
                await self.go_on.wait()
            await send({"type": "http.response.start", "status": 200, "headers": LENGTH})
            await send({"type": "http.response.body", "body": b"done"})
            self.ended.append("done")
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.ended.append("cancelled")
            raise

    async def live(self, receive: Any, send: Any) -> None:
        await receive()
        self.lifespan.append("startup")
        if self.fail:
            await send({"type": "lifespan.startup.failed", "message": "no"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.lifespan.append("shutdown")
        await send({"type": "lifespan.shutdown.complete"})


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the Unix socket goes."""
    return str(tmp_path / "s.sock")


@asynccontextmanager
async def serving(*listeners: Listener, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """Serve in this loop until the block ends or the test has stopped it itself."""
    started = asyncio.Event()
    task = asyncio.create_task(serve(listeners, on_started=started.set, **options))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    yield task
    if not task.done():
        os.kill(os.getpid(), signal.SIGTERM)
        await task


async def get(path: str, target: str = "/") -> bytes:
    """Send one request over a Unix socket and return everything that comes back."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


def stop(number: signal.Signals = signal.SIGTERM) -> None:
    """Send this process a signal."""
    os.kill(os.getpid(), number)


async def test_several_listeners_of_one_app(path: str) -> None:
    """One app on two listeners answers on both and is started and closed once."""
    app = App()
    second = f"{path}2"
    async with serving(Listener(app, Listen(path=path)), Listener(app, Listen(path=second))):
        assert (await get(path)).endswith(DONE)
        assert (await get(second)).endswith(DONE)
        assert app.lifespan == ["startup"]
    assert app.lifespan == ["startup", "shutdown"]
    assert not os.path.exists(path)
    assert not os.path.exists(second)


async def test_two_apps(path: str) -> None:
    """Two apps on two listeners each live their own life."""
    one, two = App(), App()
    async with serving(
        Listener(one, Listen(path=path)), Listener(two, Listen("127.0.0.1", 0), http="httptools")
    ):
        await get(path)
        assert one.ended == ["done"]
        assert two.ended == []
    assert one.lifespan == two.lifespan == ["startup", "shutdown"]


async def test_headers_of_the_server(path: str) -> None:
    """Answers carry a date and do not say what server they come from."""
    async with serving(Listener(App(), Listen(path=path))):
        answer = (await get(path)).lower()
    assert b"\r\ndate: " in answer
    assert b"\r\nserver:" not in answer


async def test_forwarded_headers_are_not_believed(path: str) -> None:
    """A client cannot choose its peer address by X-Forwarded-For (row 5)."""
    app = App()
    async with serving(Listener(app, Listen(path=path))):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET / HTTP/1.0\r\nX-Forwarded-For: 10.9.8.7\r\n\r\n")
        await reader.read()
        writer.close()
    assert "10.9.8.7" not in str(app.client)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_first_signal_drains(path: str, number: signal.Signals) -> None:
    """After the first signal a request in flight ends in peace, and new ones are not taken."""
    app = App()
    stopping: list[str] = []
    async with serving(
        Listener(app, Listen(path=path)), on_stopping=lambda: stopping.append("now")
    ) as task:
        held = asyncio.create_task(get(path, "/hold"))
        await app.holding.wait()
        stop(number)
        await aeventually(lambda: stopping)
        await aeventually(lambda: refused(path))
        assert not held.done()
        app.go_on.set()
        assert (await held).endswith(DONE)
        await task
    assert app.ended == ["done"]
    assert app.lifespan == ["startup", "shutdown"]


async def test_drain_is_bounded(path: str) -> None:
    """A request that does not end within the bound is cancelled, and unwinds in full."""
    async with stopped_while_holding(path, drain_seconds=0.2) as app:
        pass
    assert app.ended == ["cancelled"]
    assert app.lifespan == ["startup", "shutdown"]


async def test_second_signal_forces(path: str) -> None:
    """A second signal does not wait for requests in flight."""
    async with stopped_while_holding(path, drain_seconds=60) as app:
        await aeventually(lambda: refused(path))
        stop(signal.SIGINT)
    assert app.ended == ["cancelled"]


async def test_a_signal_that_comes_by_two_ways_is_one(path: str) -> None:
    """B53: what a worker hears from systemd and from its parent cuts nothing."""
    drain = Drain(0.0, 60, one_word_seconds=5.0)
    async with stopped_while_holding(path, 60, drain) as app:
        stop(signal.SIGTERM)
        await aeventually(lambda: refused(path))
        app.go_on.set()
    assert app.ended == ["done"]


@asynccontextmanager
async def stopped_while_holding(
    path: str, drain_seconds: float, drain: Drain | None = None
) -> AsyncIterator[App]:
    """Stop a server while a request is held; after the block, wait for the server's end."""
    app = App()
    listener = Listener(app, Listen(path=path))
    async with serving(listener, drain=drain or Drain(0.0, drain_seconds)) as task:
        held = asyncio.create_task(get(path, "/hold"))
        await app.holding.wait()
        stop()
        yield app
        await asyncio.wait_for(task, 30)
        await held


async def refused(path: str) -> bool:
    """Say whether nobody accepts connections there."""
    return not await accepts(path)


async def accepts(path: str) -> bool:
    """Say whether somebody does: a socket's file is there a moment before."""
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True


async def test_app_that_does_not_start(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An app that fails to start ends the service with code 2 and a sentence."""
    app = App()
    app.fail = True
    with pytest.raises(SystemExit) as caught:
        await serve([Listener(app, Listen(path=path), name="proxy")])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "daypass: proxy did not start; see the log above\n"
    assert not os.path.exists(path)


async def test_taken_address(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A taken address ends the service before any app was started."""
    app, other = App(), App()
    async with serving(Listener(other, Listen(path=path))):
        with pytest.raises(SystemExit) as caught:
            await serve([Listener(app, Listen(path=path), setting="DAYPASS_PROXY_LISTEN")])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        f"daypass: cannot listen on unix:{path}: address already in use; "
        "choose another with DAYPASS_PROXY_LISTEN\n"
    )
    assert app.lifespan == []


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_bad_tls_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    """TLS files that cannot be used are one sentence that names them."""
    tls = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    if content is not None:
        tls.cert.write_text(content)
        tls.key.write_text(content)
    with pytest.raises(SystemExit) as caught:
        await serve([Listener(App(), Listen("127.0.0.1", 0), tls=tls)])
    assert caught.value.code == 2
    assert str(tls.cert) in capsys.readouterr().err


async def test_tls(tmp_path: Path) -> None:
    """A listener with TLS files speaks TLS 1.2 or newer, and nothing older or plain."""
    tls = certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=str(tls.cert))
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    async with serving(Listener(App(), Listen("127.0.0.1", port), tls=tls, bound=[sock])):
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trusted)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert DONE in await reader.read()
        assert writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert not (await reader.read()).startswith(b"HTTP")
        writer.close()
        with warnings.catch_warnings(action="ignore"):  # the old version is deprecated, rightly
            trusted.minimum_version = ssl.TLSVersion.TLSv1_1
            trusted.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("localhost", port, ssl=trusted)


def certificate(folder: Path) -> TlsFiles:
    """Make a certificate of its own for localhost."""
    key = signing_key().private
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    day = timedelta(days=1)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - day)
        .not_valid_after(datetime.now(UTC) + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = TlsFiles(folder / "cert.pem", folder / "key.pem")
    files.cert.write_bytes(built.public_bytes(Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


async def test_app_that_does_not_close(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app whose closing hangs does not keep the process alive for ever."""
    monkeypatch.setattr(server, "CLOSE_SECONDS", 0.05)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.Event().wait()

    async with serving(Listener(app, Listen(path=path))) as task:
        stop()
        await asyncio.wait_for(task, 30)


PROGRAM = """
    import sys
    from daypass_core.log import configure
    from daypass_core.hardening import harden
    from daypass_core.server import Listener, run, serve
    from daypass_core.settings import Listen

    async def app(scope, receive, send):
        import asyncio
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        loop = type(asyncio.get_running_loop()).__module__
        await send({"type": "http.response.body", "body": loop.encode()})

    configure("proxy")
    harden()
    listen = Listen.parse(sys.argv[1])
    run(serve([Listener(app, listen, http=sys.argv[2], setting="DAYPASS_PROXY_LISTEN")]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a small service as a process of its own."""
    script = tmp_path / "service.py"
    script.write_text(textwrap.dedent(PROGRAM))

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(script), *arguments], stderr=subprocess.PIPE, text=True
        )

    return start


@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_as_a_process(
    path: str, program: Callable[..., subprocess.Popen[str]], http: str
) -> None:
    """A service on uvloop and a Unix socket serves, hides its memory, and ends with code 0."""
    process = program(f"unix:{path}", http)
    await aeventually(lambda: accepts(path), timeout=20)
    answer = await get(path)
    assert b"uvloop" in answer
    assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (0, 0)
    # A process that is not dumpable belongs to root in /proc, whoever runs it.
    assert os.stat(f"/proc/{process.pid}/mem").st_uid == 0
    process.send_signal(signal.SIGTERM)
    _, err = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0
    assert '"event":"listening"' in err
    assert '"event":"stopped"' in err
    assert "Traceback" not in err


async def test_taken_address_as_a_process(
    path: str, program: Callable[..., subprocess.Popen[str]]
) -> None:
    """A taken address is exit code 2 and one line, never a traceback."""
    async with serving(Listener(App(), Listen(path=path))):
        process = program(f"unix:{path}", "h11")
        _, err = await asyncio.to_thread(process.communicate)
    assert process.returncode == 2
    assert err == (
        f"daypass: cannot listen on unix:{path}: address already in use; "
        "choose another with DAYPASS_PROXY_LISTEN\n"
    )
