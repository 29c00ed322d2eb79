"""What a cluster puts before its pods: probes that say who is ready, and one address for all.

`Service.pick` is the client's way in: any pod that is ready, at random, as kube-proxy picks.
`relay` makes the same of an address, for those that know one address only (a proxy and its broker).
"""

import asyncio
import contextlib
import random
import ssl
import time
from dataclasses import dataclass, field

PROPAGATION_SECONDS = 1.0
"""How long the cluster takes to tell everybody that a pod is to end."""

REACH_SECONDS = 2.0
"""How long a pod that answers is looked for."""


@dataclass(frozen=True)
class Probe:
    """How the kubelet asks; times in seconds."""

    path: str
    port: int
    scheme: str = "HTTP"
    period: float = 1.0
    timeout: float = 1.0
    failures: int = 2


@dataclass
class Endpoint:
    """One pod behind a service."""

    name: str
    host: str
    port: int
    ready_probe: Probe
    live_probe: Probe
    ready: bool = False
    leaving: bool = False
    probes: int = 0
    """How often it was asked."""
    not_alive: list[float] = field(default_factory=list)
    """When liveness failed for more than a moment."""
    unwatched: float | None = 0.0
    """Since when liveness is not held against it: it starts, or a fault has stopped or ended it."""

    def unwatch(self) -> None:
        """Hold no liveness against it until it is ready again."""
        self.unwatched = time.monotonic()


class Service:
    """Some endpoints, probed for as long as the service is open. All in one event loop."""

    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._servers: list[asyncio.Server] = []
        self._passing: set[asyncio.Task[None]] = set()
        self._minding: asyncio.Task[None] | None = None

    def add(self, endpoint: Endpoint) -> None:
        """Begin to probe a pod."""
        self.endpoints[endpoint.name] = endpoint
        self._probing[endpoint.name] = asyncio.ensure_future(_watch(endpoint))

    async def leave(self, name: str) -> None:
        """Take a pod out that is to end, as soon as everybody has heard of it."""
        self.endpoints[name].unwatch()
        await asyncio.sleep(PROPAGATION_SECONDS)
        self.endpoints[name].leaving = True

    def remove(self, name: str) -> None:
        """Forget a pod."""
        self._probing.pop(name).cancel()
        del self.endpoints[name]

    def pick(self) -> tuple[str, int] | None:
        """A pod that takes new connections; None without one."""
        able = [one for one in self.endpoints.values() if one.ready and not one.leaving]
        if not able:
            return None
        chosen = random.choice(able)
        return chosen.host, chosen.port

    async def relay(self, host: str) -> int:
        """Pass each connection to a port of `host` on to some pod; return the port.

        Nobody listens there while no pod is ready: a service without endpoints refuses.
        """
        server = await asyncio.start_server(self._pass_on, host, 0)
        port = int(server.sockets[0].getsockname()[1])
        self._servers.append(server)
        self._minding = asyncio.ensure_future(self._mind(server, host, port))
        return port

    async def _mind(self, server: asyncio.Server | None, host: str, port: int) -> None:
        while True:
            await asyncio.sleep(0.1)
            if server is not None and self.pick() is None:
                server.close()
                server = None
            elif server is None and self.pick() is not None:
                server = await asyncio.start_server(self._pass_on, host, port)
                self._servers.append(server)

    async def close(self) -> None:
        """Stop everything."""
        for task in (*self._probing.values(), *self._passing, self._minding):
            if task is not None:
                task.cancel()
        for server in self._servers:
            server.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await self._reach()
            await asyncio.gather(_copy(reader, there), _copy(back, writer))
        except (OSError, TimeoutError):
            pass
        finally:
            self._passing.discard(task)
            for one in (writer, there):
                if one is not None:
                    one.close()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a pod.

        One that has just died would refuse in a cluster, and whoever asks would come again. Here it
        is accepted already, and closing it would say that something had been sent.
        """
        async with asyncio.timeout(REACH_SECONDS):
            while True:
                where = self.pick()
                with contextlib.suppress(OSError):
                    if where is not None:
                        return await asyncio.open_connection(*where)
                await asyncio.sleep(0.2)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()


async def _watch(endpoint: Endpoint) -> None:
    """Probe on, as a kubelet does: ready with one success, not with several failures.

    Liveness is asked as often, and held to as many failures in a row: a kubelet has more patience.
    """
    failed = dead = 0
    while True:
        began = time.monotonic()
        good, alive = await asyncio.gather(
            asks(endpoint.host, endpoint.ready_probe), asks(endpoint.host, endpoint.live_probe)
        )
        failed = 0 if good else failed + 1
        if good or failed >= endpoint.ready_probe.failures:
            endpoint.ready = good
        if good and endpoint.unwatched is not None and began > endpoint.unwatched:
            endpoint.unwatched = None
        dead = dead + 1 if endpoint.unwatched is None and not alive else 0
        if dead >= endpoint.ready_probe.failures:
            endpoint.not_alive.append(time.monotonic())
        endpoint.probes += 1
        await asyncio.sleep(max(0.0, began + endpoint.ready_probe.period - time.monotonic()))


async def asks(host: str, probe: Probe) -> bool:
    """One probe: whether the answer is 2xx and comes in time."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(probe.timeout):
            tls = _unverified() if probe.scheme == "HTTPS" else None
            reader, writer = await asyncio.open_connection(host, probe.port, ssl=tls)
            head = f"GET {probe.path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            return (await reader.readline()).split(b" ")[1][:1] == b"2"
    except (OSError, TimeoutError, IndexError):
        return False
    finally:
        if writer is not None:
            writer.close()


def _unverified() -> ssl.SSLContext:
    """Kubelets verify no certificates."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
