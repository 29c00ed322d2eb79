"""The gate: what is let in, what is turned away, and how its limit moves."""

import asyncio
import json
from typing import Any

import pytest

from daypass_proxy.gate import LEAST, Gate, Shed, busy
from daypass_proxy.guard import Limits
from tests.fakes.connection import Connection
from tests.fakes.guarded import GET, EchoApp, answer, serving

POST = b"POST /v1/messages HTTP/1.1\r\nHost: proxy.test\r\nContent-Length: 2\r\n\r\nhi"


def late(gate: Gate, ticks: int, lag: float, in_flight: int, busy: float = 1.0) -> None:
    """Let the loop be late for some ticks with so many requests in flight."""
    gate.requests = range(in_flight)
    for _ in range(ticks):
        gate.heed(lag, busy)


def test_a_single_pause_turns_nobody_away() -> None:
    """One long pause, as of a collection, leaves the limit alone; to stay late does not."""
    gate = Gate(1000, lag_seconds=0.02)
    late(gate, 1, 2.0, 500)
    late(gate, 50, 0.0, 500)
    assert gate.limit == 1000
    late(gate, 20, 0.5, LEAST)
    assert gate.limit == 1000, "so few do not make it late"
    late(gate, 20, 0.06, 500)
    assert gate.limit < 500
    assert gate.turns_away() is Shed.LAG


def test_who_waits_for_a_core_is_not_overloaded() -> None:
    """A loop that is late because others have the core turns nobody away, unless it is very late.

    The bound for a busy process counts again as soon as it is one.
    """
    gate = Gate(1000, lag_seconds=0.02)
    late(gate, 100, 0.2, 500, busy=0.5)
    assert gate.limit == 1000
    late(gate, 100, 0.6, 500, busy=0.5)
    assert gate.limit < 500
    late(gate, 200, 0.0, 10)
    late(gate, 30, 0.2, 500)
    assert gate.limit < 500


def test_the_limit_follows_what_is_in_flight_and_has_a_floor() -> None:
    """However late the loop is, a few calls are always let in."""
    gate = Gate(1000, lag_seconds=0.02)
    late(gate, 200, 1.0, 500)
    assert gate.limit == LEAST
    gate.requests = range(LEAST - 1)
    assert gate.turns_away() is None


def test_it_recovers_within_five_seconds() -> None:
    """From its floor the limit of one core's calls is back within 5 s of a loop that keeps up."""
    gate = Gate(1000, lag_seconds=0.02)
    late(gate, 200, 1.0, 500)
    late(gate, 5 * 20, 0.0, 10)
    assert gate.limit == 1000
    assert gate.look_from == 1000


def test_it_does_not_flap() -> None:
    """Where the loop is as late as calls are many, the limit settles: it moves a few percent."""
    gate = Gate(2000, lag_seconds=0.02)
    seen = []
    for _ in range(600):
        in_flight = min(gate.limit, 800)
        late(gate, 1, in_flight / 100 * 0.004, in_flight)  # 4 ms of work for each hundred
        seen.append(gate.limit)
    settled = seen[300:]
    assert min(settled) > 350
    assert max(settled) < 700
    assert max(settled) / min(settled) < 1.5


def test_without_a_bound_lag_turns_nobody_away() -> None:
    """DAYPASS_LAG_SECONDS=0 leaves the count of calls alone."""
    gate = Gate(1000)
    late(gate, 100, 5.0, 900)
    assert gate.limit == 1000
    gate.requests = range(1000)
    assert gate.turns_away() is Shed.CALLS


@pytest.mark.parametrize("known", [False, True])
async def test_a_call_too_many_is_told_at_once(known: bool) -> None:
    """B31: beyond the limit a call is answered 503 before its body; the connection stays usable."""
    gate = Gate()
    app = EchoApp()
    connection = Connection(app, gate=gate)
    if known:
        connection.feed([POST])
        await connection.settle()
    gate.look_from = gate._limit = 0
    begun = len(app.started)
    connection.feed([POST, POST])  # what had been read already is answered, too
    assert connection.statuses[-2:] == [503, 503]
    assert b"retry-after: 2" in connection.written
    assert b"overloaded_error" in connection.written
    assert len(app.started) == begun
    gate.look_from = gate._limit = 10
    connection.feed([POST])
    await connection.settle()
    assert connection.statuses[-1] == 200
    assert gate.shed[Shed.LAG] == 2


async def test_the_body_of_a_call_too_many_is_drained() -> None:
    """What is left of the body of a call that was turned away is no next request."""
    gate = Gate()
    gate.look_from = gate._limit = 0
    connection = Connection(EchoApp(), gate=gate)
    head = b"POST /v1/messages HTTP/1.1\r\nHost: proxy.test\r\nContent-Length: 6\r\n\r\n"
    connection.feed([head + b"GET", b" /x", POST])
    assert connection.statuses == [503, 503]


async def test_probes_are_never_turned_away() -> None:
    """What is no call passes however many calls there are, and however the end is near."""
    gate = Gate()
    gate.look_from = gate._limit = 0
    gate.close()
    connection = Connection(EchoApp(), gate=gate, is_call=lambda method, _path: method == "POST")
    connection.feed([GET])
    await connection.settle()
    assert connection.statuses == [200]
    assert b"connection: close" in connection.written


async def test_an_end_closes_connections_after_their_next_answer() -> None:
    """B53: while a service says that it is not ready, it serves, and connections end."""
    gate = Gate()
    async with serving(EchoApp(), gate=gate) as server:
        client = await server.connect()
        await client.send(POST)
        assert "connection" not in (await client.response())[1]
        gate.close()
        await client.send(POST)
        status, headers, _ = await client.response()
        assert (status, headers.get("connection")) == (200, "close")
        assert await client.ended() == b""
        client.close()


async def test_resting_connections_make_room() -> None:
    """Row 18: a new connection ends one that rests between requests, or it gets no call."""
    gate = Gate(most_connections=2)

    async def reply(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await answer(send, b"ok")

    async with serving(EchoApp(reply=reply), Limits(header_seconds=60.0), gate=gate) as server:
        resting, silent = await server.connect(GET), await server.connect()
        assert (await resting.response())[0] == 200
        third = await server.connect(POST)
        assert (await third.response())[0] == 200
        assert await resting.ended() == b""
        await third.send(POST[:20])  # not at rest any more
        fourth = await server.connect(POST)
        status, headers, body = await fourth.response()
        assert (status, headers.get("connection")) == (503, "close")
        assert json.loads(body)["error"]["type"] == "overloaded_error"
        assert gate.shed[Shed.CONNECTIONS] == 1
        for client in (resting, silent, third, fourth):
            client.close()


def test_what_is_said_may_be_retried() -> None:
    """Stock clients try again after what `retry-after` says."""
    assert (busy().status, busy().retry_after, busy().should_retry) == (503, 2, None)


async def test_who_asks_again_at_once_is_not_read_for_a_moment() -> None:
    """A connection that does not wait as it was told cannot keep the loop busy: 10 a second."""
    gate = Gate()
    gate.look_from = gate._limit = 0
    async with serving(EchoApp(), gate=gate) as server:
        client = await server.connect()
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(6):
            await client.send(POST)
            assert (await client.response())[0] == 503
        # Four pauses; who comes half a pause late has waited as long as he was told.
        assert loop.time() - began >= 0.29
        client.close()
