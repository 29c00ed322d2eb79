"""The receiving half of a request: the body in messages, and the word that the client is gone."""

import asyncio
from typing import Any

import pytest

from daypass_proxy.cycle import ReadingCycle
from daypass_proxy.exchange import GONE_EXTENSION
from tests.fakes.guarded import EchoApp, Server, serving
from tests.support import aeventually

WHOLE = b"POST /v1/messages HTTP/1.1\r\nHost: proxy.test\r\nContent-Length: 2\r\n\r\n{}"


class Flow:
    """A flow control that notes whether the client is being read from."""

    reading = True

    def pause_reading(self) -> None:
        """Stop."""
        self.reading = False

    def resume_reading(self) -> None:
        """Go on."""
        self.reading = True


def make_cycle() -> tuple[ReadingCycle, Flow]:
    """Return a request of which nothing but the head has come."""
    flow: Any = Flow()
    unused: Any = None
    cycle = ReadingCycle(
        scope={}, transport=unused, flow=flow, logger=unused, default_headers=[],
        expect_100_continue=False, keep_alive=True, on_response=lambda: None,
    )  # fmt: skip
    return cycle, flow


def end_body(cycle: ReadingCycle) -> None:
    """Let the body be whole, as the guard does."""
    cycle.more_body = False
    cycle.set()


async def test_body_in_one_piece() -> None:
    """A body that came in one piece is handed on as the same object, and once."""
    cycle, _ = make_cycle()
    piece = b"x" * 1000
    cycle.take(piece)
    end_body(cycle)
    message = await cycle.receive()
    assert message["body"] is piece
    assert message["more_body"] is False
    waiting = asyncio.create_task(cycle.receive())
    await asyncio.sleep(0)
    assert not waiting.done()
    cycle.disconnected = True
    cycle.set()
    assert (await waiting)["type"] == "http.disconnect"


async def test_a_whole_body_at_once() -> None:
    """A body that is all here is handed out without a message, as the same object, and once."""
    cycle, flow = make_cycle()
    piece = b"x" * 70_000
    cycle.take(piece)
    end_body(cycle)
    assert not flow.reading
    assert cycle.whole_body(69_999) is None
    assert cycle.whole_body(70_000) is piece
    assert flow.reading
    assert cycle.whole_body(70_000) is None
    waiting = asyncio.create_task(cycle.receive())
    await asyncio.sleep(0)
    assert not waiting.done()
    cycle.disconnected = True
    cycle.set()
    assert (await waiting)["type"] == "http.disconnect"


async def test_no_body_at_once_that_is_not_whole() -> None:
    """What is to come, was begun, is invited, or is of a client that is gone, takes a message."""
    cycle, _ = make_cycle()
    cycle.take(b"a")
    assert cycle.whole_body(100) is None  # more may come
    assert (await cycle.receive())["body"] == b"a"
    cycle.take(b"b")
    end_body(cycle)
    assert cycle.whole_body(100) is None  # it is not all of it
    assert await cycle.receive() == {"type": "http.request", "body": b"b", "more_body": False}
    for name in ("disconnected", "response_complete", "waiting_for_100_continue"):
        cycle, _ = make_cycle()
        cycle.take(b"a")
        end_body(cycle)
        setattr(cycle, name, True)
        assert cycle.whole_body(100) is None
        setattr(cycle, name, False)
        assert cycle.whole_body(100) == b"a"


async def test_body_that_is_waited_for() -> None:
    """Whoever waits is woken by the next piece, and again by the end, even an empty one."""
    cycle, _ = make_cycle()
    waiting = asyncio.create_task(cycle.receive())
    await asyncio.sleep(0)
    cycle.set()  # nothing new
    cycle.take(b"a")
    cycle.take(b"b")
    cycle.take(b"c")
    assert await waiting == {"type": "http.request", "body": b"abc", "more_body": True}
    waiting = asyncio.create_task(cycle.receive())
    await asyncio.sleep(0)
    end_body(cycle)
    assert await waiting == {"type": "http.request", "body": b"", "more_body": False}


async def test_body_in_many_pieces_is_grown_in_place() -> None:
    """A body of single bytes is neither copied anew nor an object for each (attack row 17)."""
    cycle, _ = make_cycle()
    pieces = [bytes([each % 256]) for each in range(1000)]
    large = b"x" * 5000
    for piece in (*pieces, large, *pieces):
        cycle.take(piece)
    assert len(cycle.body) == 4
    assert (await cycle.receive())["body"] == b"".join((*pieces, large, *pieces))


async def test_a_body_that_is_gathered() -> None:
    """Who has room for a body is woken once, by its end, and its client is not held back."""
    cycle, flow = make_cycle()
    pieces = [bytes([each]) * 70_000 for each in range(3)]
    cycle.gather(210_000)
    waiting = asyncio.create_task(cycle.receive())
    for piece in pieces:
        cycle.take(piece)
        await asyncio.sleep(0)
        assert flow.reading
        assert not waiting.done()
    end_body(cycle)
    assert await waiting == {
        "type": "http.request", "body": b"".join(pieces), "more_body": False,
    }  # fmt: skip
    assert cycle.body == b""


async def test_more_than_was_to_be_gathered() -> None:
    """A body is told of, and its client held back, once it is larger; what follows in pieces."""
    cycle, flow = make_cycle()
    cycle.gather(99_999)
    waiting = asyncio.create_task(cycle.receive())
    await asyncio.sleep(0)
    cycle.take(b"a" * 50_000)
    cycle.take(b"b" * 50_000)
    assert not flow.reading
    assert await waiting == {
        "type": "http.request", "body": b"a" * 50_000 + b"b" * 50_000, "more_body": True,
    }  # fmt: skip
    cycle.take(b"c")
    assert (await asyncio.wait_for(cycle.receive(), 1))["body"] == b"c"


async def test_a_client_that_is_gone_while_its_body_is_gathered() -> None:
    """The end of the connection is told of at once, however much was still to come."""
    cycle, _ = make_cycle()
    cycle.gather(1000)
    cycle.take(b"a")
    waiting = asyncio.create_task(cycle.receive())
    await asyncio.sleep(0)
    cycle.disconnected = True
    cycle.set()
    assert (await waiting)["type"] == "http.disconnect"


async def test_client_that_sends_faster_than_it_is_read() -> None:
    """A client is held back while a large piece waits, and let go on when it is fetched."""
    cycle, flow = make_cycle()
    cycle.take(b"x" * 70_000)
    assert not flow.reading
    await cycle.receive()
    assert flow.reading


async def test_waiter_that_is_cancelled() -> None:
    """After a wait that was cancelled the next piece still arrives."""
    cycle, _ = make_cycle()
    waiting = asyncio.create_task(cycle.receive())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    cycle.take(b"a")
    assert (await cycle.receive())["body"] == b"a"


async def test_told_that_the_client_is_gone() -> None:
    """Who asked is told once when the client goes; who asks later, at once."""
    cycle, flow = make_cycle()
    told: list[str] = []
    cycle.when_gone(lambda: told.append("first"))
    assert flow.reading
    cycle.disconnected = True
    cycle.set()
    cycle.set()
    assert told == ["first"]
    cycle.when_gone(lambda: told.append("later"))
    assert told == ["first", "later"]


async def test_asking_goes_on_reading() -> None:
    """Whoever asks has the client read from: an end that is not read is not noticed."""
    cycle, flow = make_cycle()
    flow.reading = False
    cycle.when_gone(lambda: None)
    assert flow.reading


async def test_not_told_after_a_complete_answer() -> None:
    """A client that goes after its whole answer is no news to the call that is over."""
    cycle, _ = make_cycle()
    told: list[str] = []
    cycle.when_gone(lambda: told.append("gone"))
    cycle.response_complete = True
    cycle.set()
    cycle.disconnected = True
    cycle.set()
    cycle.when_gone(lambda: told.append("gone"))
    assert told == []


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_over_a_real_connection(how: str) -> None:
    """A client that hangs up while the app works is told of without any task that waits for it."""
    told, busy = asyncio.Event(), asyncio.Event()

    async def reply(scope: Any, receive: Any, _send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        scope["extensions"][GONE_EXTENSION](told.set)
        busy.set()
        await told.wait()

    async with serving(EchoApp(reply=reply)) as server:
        client = await server.connect()
        await client.send(WHOLE)
        await busy.wait()
        assert len(asyncio.all_tasks()) == 2  # this test, and the request
        client.writer.transport.abort() if how == "abort" else client.close()
        await asyncio.wait_for(told.wait(), 5)
        await aeventually(lambda: idle(server))


def idle(server: Server) -> bool:
    """Whether nothing is left of any request."""
    return not server.uvicorn.server_state.tasks and server.connections == 0
