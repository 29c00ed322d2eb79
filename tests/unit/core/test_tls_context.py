"""A renewed certificate is what new connections get; one that cannot be used changes nothing."""

import asyncio
import logging
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest
import uvicorn
from uvicorn.lifespan.off import LifespanOff

from daypass_core import server
from daypass_core.tls_context import BadCertificate, Certificate, TlsFiles
from tests.servers.ca import Authority
from tests.support import eventually

SERVED = """
    import sys
    from pathlib import Path

    from daypass_core.log import configure
    from daypass_core.server import Listener, TlsFiles, run, serve
    from daypass_core.settings import Listen


    async def app(scope, receive, send):
        await receive()
        await send({"type": f"{scope['type']}.startup.complete"})
        await receive()
        await send({"type": f"{scope['type']}.shutdown.complete"})

    configure("test", "info")
    file = Path(sys.argv[1])
    run(serve([Listener(app, Listen("127.0.0.1", 0), tls=TlsFiles(file, file))]))
"""


def files(folder: Path) -> tuple[Authority, TlsFiles]:
    """A certificate and its key, in one file, and who can sign another."""
    authority = Authority(folder)
    authority.server("localhost")
    return authority, TlsFiles(folder / "localhost.pem", folder / "localhost.pem")


def shown(port: int, authority: Authority) -> int:
    """The serial number of the certificate that a real client is shown, and believes."""
    trusted = ssl.create_default_context(cafile=str(authority.file))
    with (
        socket.create_connection(("127.0.0.1", port), 10) as sock,
        trusted.wrap_socket(sock, server_hostname="localhost") as link,
    ):
        found = link.getpeercert()
    assert found is not None
    return int(str(found["serialNumber"]), 16)


def mixed(tls: TlsFiles, other: TlsFiles) -> Certificate:
    """The certificate of one with the key of the other."""
    text, foreign = tls.cert.read_text(), other.cert.read_text()
    at = text.index("-----BEGIN CERTIFICATE")
    key = tls.cert.parent / "key.pem"
    key.write_text(foreign[: foreign.index("-----BEGIN CERTIFICATE")])
    cert = tls.cert.parent / "cert.pem"
    cert.write_text(text[at:])
    return Certificate(TlsFiles(cert, key))


def test_what_has_not_changed_is_left_alone(tmp_path: Path) -> None:
    """The same files are read once."""
    _, tls = files(tmp_path)
    assert not Certificate(tls).renew()


def test_a_bad_renewal_is_told_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn file, or one that is gone, keeps the certificate before; a good one is taken then."""
    authority, tls = files(tmp_path)
    certificate = Certificate(tls)
    good = tls.cert.read_bytes()
    for content in (good[:300], b"", None):
        caplog.clear()
        if content is None:
            tls.cert.unlink()
        else:
            tls.cert.write_bytes(content)
        with caplog.at_level(logging.INFO):
            assert not certificate.renew()
            assert not certificate.renew()
        assert [record.msg for record in caplog.records] == ["certificate_kept"]
    authority.server("localhost")
    os.utime(tls.cert, (1, 1))  # by a coarse clock it could be of the same moment as the first
    with caplog.at_level(logging.INFO):
        assert certificate.renew()
    assert caplog.records[-1].msg == "certificate_renewed"


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    """Certificate and key have to belong together, at the start and later."""
    _, tls = files(tmp_path)
    (tmp_path / "other").mkdir()
    _, other = files(tmp_path / "other")
    with pytest.raises(BadCertificate, match="not a certificate and its key"):
        mixed(tls, other)


def test_a_torn_renewal_leaves_the_context_whole(tmp_path: Path) -> None:
    """A certificate without its key does not reach those who connect: they see the one before."""
    authority, tls = files(tmp_path)
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    split(tls.cert, key, cert)
    certificate = Certificate(TlsFiles(cert, key))
    before = handshake(certificate.context, authority)
    authority.server("localhost")
    split(tls.cert, tmp_path / "unused.pem", cert)
    os.utime(cert, (1, 1))  # by a coarse clock it could be of the same moment as the first
    assert not certificate.renew()
    assert handshake(certificate.context, authority) == before
    split(tls.cert, key, cert)
    os.utime(key, (1, 1))
    assert certificate.renew()
    assert handshake(certificate.context, authority) != before


def split(both: Path, key: Path, cert: Path) -> None:
    """Write key and certificate of one file into one each."""
    text = both.read_text()
    at = text.index("-----BEGIN CERTIFICATE")
    key.write_text(text[:at])
    cert.write_text(text[at:])


def handshake(server: ssl.SSLContext, authority: Authority) -> str:
    """The serial number that a client of this context is shown, without a network."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusted = ssl.create_default_context(cafile=str(authority.file))
    client = trusted.wrap_bio(down, up, server_hostname="localhost")
    ours = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (client, ours):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    found = client.getpeercert()
    assert found
    return str(found["serialNumber"])


async def test_who_says_nothing_before_tls_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 17: a connection that never begins its handshake loses its descriptor at the bound."""
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.2)
    _, tls = files(tmp_path)
    config = uvicorn.Config(lambda: None, lifespan="off", log_config=None)
    config.load()
    config.ssl = Certificate(tls).context
    serving = uvicorn.Server(config)
    serving.lifespan = LifespanOff(config)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        await server._accept(serving, [sock])
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        async with asyncio.timeout(5):
            assert await reader.read(1) == b""
        writer.close()
        await serving.shutdown()


def test_a_running_service_shows_a_renewed_certificate(tmp_path: Path) -> None:
    """Renewed as Kubernetes does it, by a link that leads elsewhere, and SIGHUP: no restart."""
    authority = Authority(tmp_path)
    for version in ("one", "two"):
        authority.server("localhost")
        (tmp_path / version).mkdir()
        shutil.move(tmp_path / "localhost.pem", tmp_path / version / "tls.pem")
    current = tmp_path / "current"
    current.symlink_to("one")
    script = tmp_path / "served.py"
    script.write_text(textwrap.dedent(SERVED))
    log = tmp_path / "log"
    with log.open("wb") as out:
        command = [sys.executable, str(script), str(current / "tls.pem")]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        told = re.compile(r'"event":"listening".*"127\.0\.0\.1:([0-9]+)"')
        (port,) = map(int, eventually(lambda: told.findall(log.read_text()), timeout=20))
        before = shown(port, authority)
        os.symlink("two", tmp_path / "next")
        os.replace(tmp_path / "next", current)
        process.send_signal(signal.SIGHUP)
        eventually(lambda: shown(port, authority) != before)
        eventually(lambda: '"event":"certificate_renewed"' in log.read_text())
    finally:
        process.terminate()
        assert process.wait(20) == 0
