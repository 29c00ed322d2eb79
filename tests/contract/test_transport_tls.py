"""TLS to the upstream: who is trusted, and what an end without goodbye means."""

import asyncio
import os
import socket
import ssl
from pathlib import Path

import pytest

from daypass_proxy.transport import UpstreamBroken, UpstreamUnreachable
from daypass_proxy.transport.dial import trust
from tests.contract.transports import OK, PATIENT, Make, read_all, request_to, whole
from tests.servers.ca import Authority
from tests.servers.raw import RawServer, answering
from tests.servers.stub import read_request


async def test_trusted_by_an_extra_file(make: Make, authority: Authority) -> None:
    """B86: whose CA is in the extra file is spoken to, over TLS 1.2 or later, never HTTP/2."""
    seen: list[tuple[str | None, str | None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls = writer.get_extra_info("ssl_object")
        seen.append((tls.version(), tls.selected_alpn_protocol()))
        await answering(whole(b"ok"), whole(b"ok"), stall=True)(reader, writer)

    context = authority.server("127.0.0.1")
    context.set_alpn_protocols(["h2", "http/1.1"])
    transport = make(PATIENT, tls=trust(authority.file))
    async with RawServer(serve, tls=context) as server:
        for _ in range(2):
            assert await read_all(await transport.send(request_to(server.url))) == b"ok"
    assert seen == [("TLSv1.3", "http/1.1")]


@pytest.mark.parametrize("why", ["unknown authority", "other name", "old version"])
async def test_not_trusted(make: Make, authority: Authority, tmp_path: Path, why: str) -> None:
    """A server that cannot prove to be the upstream, by today's rules, gets no byte."""
    context = authority.server("127.0.0.1" if why != "other name" else "127.0.0.2")
    if why == "old version":
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    file = Authority(tmp_path).file if why == "unknown authority" else authority.file
    transport = make(PATIENT, tls=trust(file))
    async with RawServer(answering(whole(b"ok")), tls=context) as server:
        request = request_to(server.url)
        with pytest.raises(UpstreamUnreachable):
            await transport.send(request)
        assert not request.sent
        assert not transport._open


def test_trust_of_the_system_stays(authority: Authority) -> None:
    """The extra file adds to the system's authorities, and a file without one is an error."""
    system, more = trust(), trust(authority.file)
    assert more.cert_store_stats()["x509_ca"] == system.cert_store_stats()["x509_ca"] + 1
    assert more.check_hostname
    assert more.verify_mode is ssl.CERT_REQUIRED
    assert more.minimum_version is ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError):
        trust(Path("/dev/null"))


def test_system_is_trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whom the system trusts is trusted without any setting of ours."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    subjects = [str(ca["subject"]) for ca in trust().get_ca_certs()]
    assert any("test authority" in subject for subject in subjects)


def test_session_keys_are_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A variable of the environment does not make TLS write its keys to a file."""
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    assert trust().keylog_filename is None


def cut(writer: asyncio.StreamWriter) -> None:
    """End a connection below TLS, as anybody on the way could."""
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as raw:
        raw.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("goodbye", [True, False], ids=["close_notify", "cut"])
async def test_end_of_a_body_that_only_the_end_ends(
    make: Make, authority: Authority, goodbye: bool
) -> None:
    """B25: under TLS only the server's own goodbye ends such a body; a bare end is a cut."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK + b"connection: close\r\n\r\nall of it")
        await writer.drain()
        if not goodbye:
            cut(writer)
            await reader.read()

    transport = make(PATIENT, tls=trust(authority.file))
    async with RawServer(serve, tls=authority.server("127.0.0.1")) as server:
        answer = await transport.send(request_to(server.url))
        if goodbye:
            assert await read_all(answer) == b"all of it"
            return
        assert await answer.read() == b"all of it"
        with pytest.raises(UpstreamBroken) as caught:
            await answer.read()
        assert not caught.value.stalled


async def test_counted_body_needs_no_goodbye(make: Make, authority: Authority) -> None:
    """A body that came whole is whole, however its connection ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(whole(b"all of it"))
        await writer.drain()
        cut(writer)
        await reader.read()

    transport = make(PATIENT, tls=trust(authority.file))
    async with RawServer(serve, tls=authority.server("127.0.0.1")) as server:
        assert await read_all(await transport.send(request_to(server.url))) == b"all of it"
