"""The meter: the same usage for every way of cutting the bytes, and never more than was said."""

import gzip
import itertools
import json
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.ledger import Usage
from daypass_proxy.meter import JsonMeter, Meter, StreamMeter, media_type, meter_for
from daypass_proxy.transport.inflate import Inflate, UnknownCoding, inflate
from tests.fakes.said import MODEL, encode, iterations, start_with_cache, tool_delta
from tests.servers.wire import (
    BLOCK_START,
    BLOCK_STOP,
    MESSAGE_STOP,
    PING,
    event,
    message_delta,
    message_json,
    message_stream,
    text_delta,
)

TEXT = b"".join(
    [
        start_with_cache(),
        BLOCK_START,
        PING,
        *(text_delta(text) for text in ("Hel", "lo 안녕 ", "😀", "é\n", "data: x\\")),
        BLOCK_STOP,
        message_delta({"output_tokens": 15}),
        message_delta({"output_tokens": 22, "input_tokens": None}),
        MESSAGE_STOP,
    ]
)
TOOL = b"".join(
    [
        start_with_cache(),
        BLOCK_START,
        tool_delta('{"city": "' + "x" * 2000 + '"}'),
        BLOCK_STOP,
        message_delta({"output_tokens": 9}, "tool_use"),
        MESSAGE_STOP,
    ]
)
PASSES = b"".join([start_with_cache(), PING, message_delta(iterations()), MESSAGE_STOP])
FAILED = b"".join(
    [
        start_with_cache(),
        text_delta("Hello"),
        event("error", {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}),
    ]
)
TORN = b"".join([start_with_cache(), BLOCK_START, text_delta("Hello "), text_delta("there")])[:-9]
STREAMS = {
    "text": TEXT,
    "tool": TOOL,
    "passes": PASSES,
    "failed": FAILED,
    "torn": TORN,
    "crlf": TEXT.replace(b"\n", b"\r\n"),
    "tight": TEXT.replace(b"data: ", b"data:").replace(b"event: ", b"event:"),
    "nameless": b"".join(line for line in TEXT.splitlines(True) if not line.startswith(b"event")),
    "comments": TEXT.replace(b"event: ping", b": keep-alive\nid: 7\nretry: 10\nevent: ping"),
    "many lines": TEXT.replace(b',"message":', b',\ndata:"message":'),
}


def all_of(meter: Meter) -> tuple[Any, ...]:
    """Everything a meter tells."""
    return (
        meter.usage,
        meter.deltas,
        meter.text_bytes,
        meter.output_bound,
        meter.finished,
        meter.final,
        meter.failed,
        meter.unreadable,
    )


def run(stream: bytes, cuts: list[int] | None = None) -> tuple[Any, ...]:
    """Meter a stream cut at these positions."""
    meter = StreamMeter()
    edges = [0, *sorted(cuts or []), len(stream)]
    for start, end in itertools.pairwise(edges):
        meter.feed(stream[start:end])
    before = all_of(meter)
    meter.end()
    return before, all_of(meter)


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_split(name: str, data: st.DataObject) -> None:
    """B27: however a stream is cut into chunks, the meter says the same of it."""
    stream = STREAMS[name]
    positions = st.integers(0, len(stream))
    cuts = data.draw(st.lists(positions, max_size=12))
    assert run(stream, cuts) == run(stream)


@pytest.mark.parametrize("name", STREAMS)
def test_one_byte_writes(name: str) -> None:
    """B27: a stream that arrives byte by byte is metered like the whole one."""
    stream = STREAMS[name]
    assert run(stream, list(range(1, len(stream)))) == run(stream)


@pytest.mark.parametrize("name", ["text", "crlf", "tight", "nameless", "comments", "many lines"])
def test_cumulative_usage(name: str) -> None:
    """B33: of each figure the last one said counts; nothing is added up; null says nothing."""
    _, (usage, deltas, *_) = run(STREAMS[name])
    assert usage == Usage(12, 22, 7, 2, 30, service_tier="standard")
    assert deltas == 5


def test_whole_stream() -> None:
    """A stream with its message_stop is finished, and not before its last byte."""
    before, after = run(TEXT[:-1])
    assert not before[4]
    assert not after[4], "an unclosed message_stop would not reach the client either"
    meter = StreamMeter()
    meter.feed(TEXT)
    assert meter.finished
    assert meter.final


def test_provider_error() -> None:
    """A stream in which the provider says error is failed and not finished."""
    meter = StreamMeter()
    meter.feed(FAILED)
    assert meter.failed
    assert not meter.finished
    assert not meter.final


def test_text_that_passed() -> None:
    """The estimate counts deltas, or the bytes of their text; no envelope, no signature."""
    meter = StreamMeter()
    for text in ("a" * 40, "b" * 39):
        meter.feed(text_delta(text))
    assert (meter.deltas, meter.text_bytes, meter.output_seen) == (2, 79, 20)
    signature = {"type": "signature_delta", "signature": "s" * 4000}
    meter.feed(event("content_block_delta", {"type": "content_block_delta", "delta": signature}))
    assert (meter.deltas, meter.text_bytes) == (3, 79)
    meter.feed(event("content_block_start", {"type": "content_block_start", "x": "y" * 400}))
    assert meter.output_seen == 20


@given(st.text(max_size=300), st.sampled_from([", ", ","]))
@settings(max_examples=60, deadline=None)
def test_text_length_is_exact(text: str, comma: str) -> None:
    """The text of a delta is counted as its JSON bytes, whatever is in it."""
    inner = json.dumps(text, ensure_ascii=False)
    data = '{"type":"content_block_delta"%s"delta":{"type":"text_delta"%s"text":%s}}'
    meter = StreamMeter()
    meter.feed(f"event: content_block_delta\ndata: {data % (comma, comma, inner)}\n\n".encode())
    assert meter.text_bytes == len(inner.encode()) - 2


def test_raw_json_tail() -> None:
    """B25 (d): a raw JSON error after some events is neither an event nor an end."""
    meter = StreamMeter()
    meter.feed(start_with_cache() + b'{"type":"error","error":{"type":"api_error"}}')
    meter.end()
    assert not meter.finished
    assert not meter.failed


def test_endless_line_is_not_kept() -> None:
    """A line without end takes a bounded memory and its event is not believed."""
    meter = StreamMeter()
    tracemalloc.start()
    meter.feed(b"event: message_start\ndata: ")
    for _ in range(64):
        meter.feed(b"x" * 1024 * 1024)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 1024 * 1024
    meter.feed(b"\n\n" + MESSAGE_STOP)
    assert meter.unreadable
    assert meter.finished


@pytest.mark.parametrize("coding", ["", "identity", "gzip", "deflate"])
def test_plain_json(coding: str) -> None:
    """A whole JSON message is metered, in any coding we can look into and any split."""
    usage = {"input_tokens": 25, "output_tokens": 15, "cache_read_input_tokens": 0}
    body = encode(coding, json.dumps(message_json(MODEL, usage=usage)).encode())
    media = media_type("Application/JSON; charset=utf-8")
    meter = meter_for(media, coding, billable=True)
    for byte in body:
        meter.feed(bytes([byte]))
    assert not meter.finished
    meter.end()
    assert meter.usage == Usage(25, 15, None, None, 0)
    assert meter.finished
    assert meter.final


def test_endless_figure_in_json() -> None:
    """A figure that no ledger can hold is not believed, though the answer is whole."""
    body = json.dumps(message_json(MODEL, usage={"input_tokens": 25, "output_tokens": 10**19}))
    meter = JsonMeter()
    meter.feed(body.encode())
    meter.end()
    assert meter.unreadable
    assert not meter.torn
    assert meter.usage == Usage()


def test_torn_json() -> None:
    """A JSON answer that breaks off says nothing and is estimated from its bytes."""
    meter = JsonMeter()
    meter.feed(json.dumps(message_json(MODEL, text="x" * 400)).encode()[:400])
    meter.end()
    assert meter.unreadable
    assert meter.usage == Usage()
    assert meter.output_seen == 100


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate"])
def test_coded_stream(coding: str) -> None:
    """B26: a stream compressed against our wish, flushed per event, is metered all the same."""
    bits = {"gzip": 31, "deflate": 15, "raw deflate": -15}[coding]
    packer = zlib.compressobj(wbits=bits)
    meter = StreamMeter(coding.removeprefix("raw "))
    for part in message_stream(MODEL):
        meter.feed(packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH))
    assert meter.usage == Usage(25, 15)
    assert meter.finished
    meter.feed(packer.flush())
    assert not meter.unreadable


def test_two_gzip_members() -> None:
    """A gzip body of several members is read to its end."""
    halves = gzip.compress(TEXT[:500]) + gzip.compress(TEXT[500:])
    meter = StreamMeter("gzip")
    meter.feed(halves)
    assert meter.usage == Usage(12, 22, 7, 2, 30, service_tier="standard")


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "aes"])
def test_unknown_coding(coding: str) -> None:
    """Row 29: a coding we cannot look into is refused before a byte is relayed."""
    for billable in (True, False):
        with pytest.raises(UnknownCoding):
            meter_for("text/event-stream", coding, billable=billable)
    assert inflate(coding, b"x") is None


def test_bomb() -> None:
    """Row 16: a bomb is given up on early, in little memory, and what came before it counts."""
    packer = zlib.compressobj(wbits=31)
    bomb = packer.compress(start_with_cache() + b"\0" * 200 * 1024 * 1024) + packer.flush()
    meter = StreamMeter("gzip")
    tracemalloc.start()
    for start in range(0, len(bomb), 64 * 1024):
        meter.feed(bomb[start : start + 64 * 1024])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert meter.unreadable
    assert peak < 32 * 1024 * 1024
    assert meter.usage.input_tokens == 12


def test_broken_coding() -> None:
    """Bytes that are not what their header says make the meter blind, not the relay fall."""
    inflater = Inflate("gzip")
    assert inflater.feed(b"not gzip at all") == b""
    assert inflater.blind
    assert inflater.feed(b"more") == b""
    assert inflate("gzip", b"nope") is None


def test_unbilled_answers_are_not_parsed() -> None:
    """The answer of an endpoint without a bill is passed on unread."""
    meter = meter_for("application/json", "", billable=False)
    meter.feed(b'{"input_tokens": 7}')
    assert meter.usage == Usage()
    meter.end()
    assert meter.finished
