"""A request that comes in one read behind a known head is taken in one step, and no other is."""

from typing import Any

from tests.fakes.connection import Connection
from tests.fakes.guarded import EchoApp, answer


def request(body: bytes) -> bytes:
    """One request of a client that keeps its connection; the length is five digits."""
    return b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Length: %05d\r\n\r\n%b" % (
        len(body),
        body,
    )


async def test_a_large_body_behind_a_known_head_is_held_back() -> None:
    """Row 17: a body that came in one read counts as held like any other: the client waits."""
    paused: list[bool] = []

    async def reply(_scope: Any, receive: Any, send: Any) -> None:
        paused.append(connection.protocol.flow.read_paused)
        app.bodies.append((await receive())["body"])
        paused.append(connection.protocol.flow.read_paused)
        await answer(send, b"ok")

    app = EchoApp(reply=reply)
    connection = Connection(app)
    sizes = [10_000, 90_000, 90_000, 10_000, 0]
    for size in sizes:
        connection.feed([request(b"x" * size)])
        await connection.settle()
    assert [len(body) for body in app.bodies] == sizes
    assert paused == [False, False, *[True, False] * 2, *[False, False] * 2]
    await connection.hang_up()


async def test_what_follows_a_body_behind_a_known_head_is_no_body() -> None:
    """Row 4: a second request in the same read is refused, not taken for a part of the first."""
    connection = Connection(app := EchoApp())
    for data in (request(b"first"), request(b"[]"), request(b"{}") + request(b"{}")):
        connection.feed([data])
        await connection.settle()
    assert app.bodies == [b"first", b"[]", b"{}"]
    assert connection.statuses == [200] * 3
    assert connection.transport.closing
