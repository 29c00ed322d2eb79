"""B29: a silent stream is kept alive by comments, which stand where no client minds them."""

import asyncio
import itertools
import zlib

import pytest

from daypass_proxy.ledger import Outcome, Usage
from daypass_proxy.relay import KEEP_ALIVE_SECONDS
from daypass_proxy.streams import CutReason
from daypass_proxy.transport import UpstreamBroken
from tests.fakes.call import MODEL
from tests.fakes.relayed import START, WHOLE, Run, torn
from tests.fakes.transport import JSON, STREAM
from tests.servers.wire import MESSAGE_STOP, PING, message_stream, text_delta

COMMENT = b": keep-alive\n\n"
DELTA = text_delta("Hello")


def test_pace() -> None:
    """B29: comments come often enough for balancers that cut after 60 s, and for those at 20 s."""
    assert 10 <= KEEP_ALIVE_SECONDS <= 20


async def test_silent_stream() -> None:
    """B29: each time the upstream is silent too long, a comment is sent; the bytes stay theirs."""
    run = await Run(None, START, None, None, *WHOLE[1:]).relay()
    assert run.client.body == COMMENT + START + COMMENT * 2 + b"".join(WHOLE[1:])
    assert run.attempt.outcome is Outcome.COMPLETE
    assert run.attempt.bill().usage == Usage(1000, 15)


async def test_comment_before_the_first_byte() -> None:
    """B29: a comment of ours is not the provider's first byte and not counted among its bytes."""
    gate = asyncio.Event()
    run = Run(None, gate, *WHOLE)
    task = run.start()
    await run.answer.waiting.wait()
    assert run.client.body == COMMENT
    assert run.attempt.first_byte_at is None
    assert run.attempt.meter is not None
    assert run.attempt.meter.fed == 0
    gate.set()
    await task
    assert run.attempt.first_byte_at is not None
    assert run.attempt.meter.fed == len(b"".join(WHOLE))


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
async def test_only_between_events(newline: bytes) -> None:
    """B29: whatever byte a stream falls silent at, a comment is sent only between two events."""
    stream = b"".join(message_stream(MODEL, ["안녕"])).replace(b"\n", newline)
    pieces = itertools.chain.from_iterable((None, stream[at : at + 1]) for at in range(len(stream)))
    run = await Run(*pieces).relay()
    end = newline * 2
    events = [event + end for event in stream.removesuffix(end).split(end)]
    assert run.client.body == COMMENT + COMMENT.join(events)


@pytest.mark.parametrize(
    "torn_event",
    [
        DELTA[:-1],
        DELTA[:-2],
        DELTA[:9],
        DELTA + b": a comment\n",
        DELTA + b"id: 7\n",
        DELTA + b"\r",
    ],
)
async def test_never_inside_an_event(torn_event: bytes) -> None:
    """B29: not after the first line of an event, nor before its blank line, nor in a line end."""
    run = await Run(START, torn_event, None, UpstreamBroken("reset")).relay()
    assert COMMENT not in run.client.body
    assert run.said["type"] == "api_error"


@pytest.mark.parametrize("last", [MESSAGE_STOP, b'event: error\ndata: {"type":"error"}\n\n'])
async def test_never_after_the_last_word(last: bytes) -> None:
    """B29: after message_stop or an error of the provider nothing of ours follows."""
    run = await torn(last, None, None).relay()
    assert run.client.body == START + DELTA + last


async def test_never_in_a_compressed_stream() -> None:
    """B26, B29: plain words in a compressed stream would be noise."""
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH) for part in WHOLE]
    steps = itertools.chain.from_iterable((None, piece) for piece in pieces)
    run = await Run(*steps, headers=(*STREAM, (b"content-encoding", b"gzip"))).relay()
    assert run.client.body == b"".join(pieces)


async def test_never_in_a_whole_answer() -> None:
    """B29: an answer that does not stream has no place for a comment."""
    run = await Run(None, b'{"type":', None, b'"message"}', headers=JSON).relay()
    assert run.client.body == b'{"type":"message"}'


async def test_pings_of_the_provider() -> None:
    """B29: the provider's pings pass at once, and silence after them counts anew."""
    gate = asyncio.Event()
    run = Run(START, PING, gate, *WHOLE[1:])
    task = run.start()
    await run.answer.waiting.wait()
    assert run.client.chunks == [START, PING]
    gate.set()
    await task


async def test_silence_has_an_end() -> None:
    """B25 (c), B29: comments do not make a stalled stream live; its limit ends it in words."""
    run = await torn(None, None, UpstreamBroken("silent", stalled=True)).relay()
    assert run.client.body.startswith(START + DELTA + COMMENT * 2)
    assert run.said["type"] == "overloaded_error"


async def test_client_that_does_not_read() -> None:
    """B29: comments do not pile up in front of a client that does not read."""
    run = torn(*[None] * 50)
    run.client.reads.clear()
    task = run.start()
    await run.client.got_chunk.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert run.client.chunks == [START]
    run.client.reads.set()
    run.attempt.live.cut(CutReason.SHUTDOWN)
    await task
