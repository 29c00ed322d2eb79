"""The fleet's own judgement: what it probes, and that what it finds counts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fleet.faults import FAULTS
from tests.fleet.load import Seen
from tests.fleet.report import judge
from tests.fleet.service import Endpoint, Probe, Service
from tests.fleet.truth import Books
from tests.support import aeventually

CALM = FAULTS[0]


def broken(books: Books, not_alive: int = 0) -> list[str]:
    """The bounds that do not hold after a fault that did nothing."""
    return judge(CALM, Seen(), books, (1.0, 2.0), not_alive).broken


def test_what_is_found_breaks_a_bound() -> None:
    """Of the liveness and of the trail too, each by its own name; nothing found breaks nothing."""
    assert broken(Books()) == []
    assert broken(Books(), not_alive=3) == ["3 liveness failures"]
    assert broken(Books(trail=["events 1 to 2"])) == ["1 events that are not what was sealed"]
    assert broken(Books(lost_rows=1, discrepancies=["x"])) == ["1 lost rows", "1 discrepancies"]


class Health:
    """A pod that answers probes as told."""

    def __init__(self) -> None:
        self.status = {"/readyz": 503, "/livez": 200}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        writer.write(f"HTTP/1.1 {self.status[path]} x\r\n\r\n".encode())
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def probed(health: Health) -> AsyncIterator[Endpoint]:
    """The endpoint of a pod that is probed every few milliseconds."""
    server = await asyncio.start_server(health.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ready, live = (Probe(path, port, period=0.005, timeout=10.0) for path in health.status)
    service, endpoint = Service(), Endpoint("proxy-1", "127.0.0.1", port, ready, live)
    service.add(endpoint)
    try:
        yield endpoint
    finally:
        probing = service._probing["proxy-1"]
        await service.close()
        await asyncio.gather(probing, return_exceptions=True)
        server.close()


async def test_a_pod_that_is_not_alive_is_found() -> None:
    """Not before it was ready for the first time; then also while it is not ready."""
    health = Health()
    health.status["/livez"] = 503
    async with probed(health) as endpoint:
        await _some_probes(endpoint)
        assert endpoint.not_alive == []
        health.status |= {"/readyz": 200, "/livez": 200}
        await aeventually(lambda: endpoint.ready)
        health.status |= {"/readyz": 503, "/livez": 503}
        await aeventually(lambda: endpoint.not_alive)


async def test_what_a_fault_has_ended_is_not_held_against_it() -> None:
    """Until it is ready again; from then on it is."""
    health = Health()
    health.status["/readyz"] = 200
    async with probed(health) as endpoint:
        await aeventually(lambda: endpoint.ready)
        endpoint.unwatch()
        health.status |= {"/readyz": 503, "/livez": 503}
        await aeventually(lambda: not endpoint.ready)
        await _some_probes(endpoint)
        assert endpoint.not_alive == []
        health.status |= {"/readyz": 200, "/livez": 200}
        await aeventually(lambda: endpoint.ready and endpoint.unwatched is None)
        health.status["/livez"] = 503
        await aeventually(lambda: endpoint.not_alive)


async def _some_probes(endpoint: Endpoint) -> None:
    """Let so many probes pass that failures in a row would have shown."""
    before = endpoint.probes
    await aeventually(lambda: endpoint.probes > before + 5)
