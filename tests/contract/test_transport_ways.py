"""The way to an upstream: addresses of a name, and an egress proxy."""

import asyncio
import contextlib
import socket
import traceback
from dataclasses import dataclass, field

import pytest

from daypass_proxy.transport import Timeouts, UpstreamUnreachable, addresses, dial
from daypass_proxy.transport.addresses import Address
from daypass_proxy.transport.dial import trust
from daypass_proxy.transport.egress import Egress
from tests.canary import CANARY
from tests.contract.transports import KEY, PATIENT, Make, read_all, request_to, whole
from tests.servers.ca import Authority
from tests.servers.raw import RawServer, answering
from tests.servers.stub import read_request

SECRET = f"Basic {CANARY}".encode()


@dataclass
class Names:
    """A DNS of the test's own, and how often it was asked."""

    known: dict[str, list[str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def look_up(self, host: str, port: int) -> list[Address]:
        self.asked.append(host)
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, f"{host} is not known")
        return [(socket.AF_INET, (address, port)) for address in self.known[host]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Replaces the system's resolver."""
    names = Names()
    monkeypatch.setattr(addresses, "look_up", names.look_up)
    return names


def named(server: RawServer, name: str = "upstream.test") -> str:
    """The server's URL under another name."""
    return server.url.replace("127.0.0.1", name)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0"])
async def test_private_address_is_refused(make: Make, names: Names, address: str) -> None:
    """Row 13: a name that leads into our own network is not followed, and nothing is sent."""
    names.known["upstream.test"] = [address]
    async with RawServer(answering(whole(b"ok"))) as server:
        request = request_to(named(server))
        with pytest.raises(UpstreamUnreachable, match="DAYPASS_UPSTREAM_PRIVATE") as caught:
            await make(PATIENT).send(request)
        assert (request.sent, server.connections) == (False, 0)
        assert address not in str(caught.value)


async def test_private_address_is_allowed(make: Make, names: Names) -> None:
    """Where the settings allow it, such a name is followed."""
    names.known["upstream.test"] = ["127.0.0.1"]
    async with RawServer(answering(whole(b"ok"))) as server:
        transport = make(PATIENT, inside=True)
        assert await read_all(await transport.send(request_to(named(server)))) == b"ok"


async def test_public_addresses_of_a_mixed_answer(names: Names) -> None:
    """Row 13: of several addresses the private ones are never tried."""
    names.known["upstream.test"] = ["10.0.0.1", "8.8.8.8", "127.0.0.1", "1.1.1.1"]
    found = await addresses.resolve("upstream.test", 443, inside=False)
    assert [sockaddr[0] for _, sockaddr in found] == ["8.8.8.8", "1.1.1.1"]


async def test_localhost_is_meant(make: Make, names: Names) -> None:
    """Who writes localhost or an address into the settings means it; no DNS is asked for one."""
    names.known["localhost"] = ["127.0.0.1"]
    async with RawServer(answering(whole(b"ok"))) as server:
        transport = make(PATIENT)
        for name in ("localhost", "127.0.0.1"):
            assert await read_all(await transport.send(request_to(named(server, name)))) == b"ok"
    assert names.asked == ["localhost"]


async def test_each_connection_asks_anew(make: Make, names: Names) -> None:
    """A name is looked up for each new connection, and for no other call."""
    names.known["upstream.test"] = ["127.0.0.1"]
    kept = answering(whole(b"ok"), whole(b"ok", ("connection", "close")))
    async with RawServer(kept) as server:
        transport = make(PATIENT, inside=True)
        for _ in range(3):
            await read_all(await transport.send(request_to(named(server))))
        assert (len(names.asked), server.connections) == (2, 2)


async def test_unknown_name(make: Make, names: Names) -> None:
    """A name that does not exist is unreachable; the message does not repeat it."""
    request = request_to("http://nowhere.test:1")
    with pytest.raises(UpstreamUnreachable) as caught:
        await make(PATIENT).send(request)
    assert not request.sent
    assert "nowhere" not in "".join(traceback.format_exception(caught.value))


async def test_next_address(make: Make, names: Names) -> None:
    """An address where nobody listens leads on to the next one."""
    names.known["upstream.test"] = ["127.0.0.2", "127.0.0.1"]
    async with RawServer(answering(whole(b"ok"))) as server:
        transport = make(PATIENT, inside=True)
        assert await read_all(await transport.send(request_to(named(server)))) == b"ok"


async def test_silent_address(make: Make, names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that does not answer leaves time for the next one: it has its half of all."""
    real, timeout, limits = dial._open, asyncio.timeout, list[float]()

    async def connect(address: Address) -> socket.socket:
        if address[1][0] == "127.0.0.2":
            await asyncio.Event().wait()
        return await real(address)

    def passing(seconds: float) -> asyncio.Timeout:
        limits.append(seconds)
        return timeout(seconds if len(limits) == 1 else 0.01)  # its half has passed

    monkeypatch.setattr(dial, "_open", connect)
    names.known["upstream.test"] = ["127.0.0.2", "127.0.0.1"]
    async with RawServer(answering(whole(b"ok"))) as server:
        transport = make(Timeouts(40, 10, 10), inside=True)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "timeout", passing)
            answer = await transport.send(request_to(named(server)))
        assert await read_all(answer) == b"ok"
    assert limits[0] == 40
    assert 0 < limits[1] <= 20
    assert len(limits) == 2


async def test_slow_look_up(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DNS that does not answer is within the limit to a ready connection."""

    async def look_up(host: str, port: int) -> list[Address]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(addresses, "look_up", look_up)
    with pytest.raises(UpstreamUnreachable, match="not ready in time"):
        await make(Timeouts(0.1, 10, 10)).send(request_to("http://upstream.test"))


class EgressServer:
    """A proxy that leads every name to one port, and notes what it was asked."""

    def __init__(self, port: int = 0, refusal: bytes = b"") -> None:
        self.port = port
        self.refusal = refusal
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        if self.refusal:
            writer.write(self.refusal)
            return
        above, below = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"HTTP/1.1 200 Connection established\r\nvia: x\r\n\r\n")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, below))
                group.create_task(self._copy(above, writer))
        finally:
            below.close()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()


async def test_tls_through_an_egress_proxy(make: Make, authority: Authority, names: Names) -> None:
    """The egress proxy is told the upstream's name and our credential for it, and nothing else."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            request = await read_request(reader)
            assert request is not None
            seen.append(request.raw)
            writer.write(whole(b"ok"))
        await reader.read()

    async with RawServer(serve, tls=authority.server("upstream.test")) as upstream:
        egress = EgressServer(upstream.port)
        async with RawServer(egress.serve) as proxy:
            way = Egress("127.0.0.1", proxy.port, SECRET)
            transport = make(PATIENT, egress=way, tls=trust(authority.file))
            for _ in range(2):
                answer = await transport.send(request_to(named(upstream)))
                assert await read_all(answer) == b"ok"
            await transport.close()
    authority_form = f"upstream.test:{upstream.port}".encode()
    assert egress.heads == [
        b"CONNECT %b HTTP/1.1\r\nhost: %b\r\nproxy-authorization: %b\r\n\r\n"
        % (authority_form, authority_form, SECRET)
    ]
    assert names.asked == []
    assert len(seen) == 2
    assert all(b"proxy-authorization" not in raw.lower() for raw in seen)
    assert SECRET.decode() not in repr(way)


async def test_plain_through_an_egress_proxy(make: Make, names: Names) -> None:
    """A plain upstream is asked for in absolute form, with its own host."""
    requests = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await read_request(reader):
            requests.append(request)
            writer.write(whole(b"ok"))

    async with RawServer(serve) as proxy:
        for secret in (SECRET, b""):
            transport = make(PATIENT, egress=Egress("127.0.0.1", proxy.port, secret))
            answer = await transport.send(request_to("http://upstream.test:81", path="/x?y=z"))
            assert await read_all(answer) == b"ok"
            await transport.close()
    assert [request.target for request in requests] == ["http://upstream.test:81/x?y=z"] * 2
    assert [request.header("host") for request in requests] == [["upstream.test:81"]] * 2
    assert [request.header("proxy-authorization") for request in requests] == [
        [SECRET.decode()],
        [],
    ]


@pytest.mark.parametrize(
    "refusal",
    [
        b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 502 Bad Gateway\r\n\r\n" + CANARY.encode(),
        b"HTTP/1.1 301 Moved\r\nlocation: http://x/\r\n\r\n",
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 2",
        b"HTTP/1.1 200 OK\r\n\r\nearly bytes",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000,
    ],
)
async def test_egress_proxy_refuses(make: Make, refusal: bytes) -> None:
    """B58: without a tunnel nothing is sent, and the failure names its kind and no secret."""
    egress = EgressServer(refusal=refusal)
    async with RawServer(egress.serve) as proxy:
        transport = make(PATIENT, egress=Egress("127.0.0.1", proxy.port, SECRET))
        request = request_to("https://upstream.test")
        with pytest.raises(UpstreamUnreachable, match="egress proxy") as caught:
            await transport.send(request)
        assert not request.sent
        text = "".join(traceback.format_exception(caught.value))
        assert all(word not in text for word in (CANARY, KEY, "upstream.test", "location"))


async def test_egress_proxy_is_slow(make: Make) -> None:
    """The tunnel is within the limit to a ready connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await reader.read()

    async with RawServer(serve) as proxy:
        transport = make(Timeouts(0.1, 10, 10), egress=Egress("127.0.0.1", proxy.port))
        with pytest.raises(UpstreamUnreachable, match="not ready in time"):
            await transport.send(request_to("https://upstream.test"))


async def test_no_egress_proxy(make: Make) -> None:
    """Where the egress proxy does not listen, the upstream is not tried directly."""
    async with RawServer(answering(whole(b"ok"))) as server:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            egress = Egress("127.0.0.1", unused.getsockname()[1])
            with pytest.raises(UpstreamUnreachable):
                await make(PATIENT, egress=egress).send(request_to(server.url))
        assert server.connections == 0
