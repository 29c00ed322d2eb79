"""The meters of OpenAI's API: usage as said, the text that passed, and any way to cut the bytes."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.ledger import Usage
from daypass_proxy.meter import Meter, meter_for
from daypass_proxy.meter.openai_chat import ChatMeter
from daypass_proxy.transport.inflate import UnknownCoding
from tests.servers import openai_wire as wire

WORDS = ["Hello", " w\u00f6rld", ' "quoted" \\ \n', " \u20ac\U0001f600", "", " end"]
TOOL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
PIECE = {"index": 0, "function": {"arguments": '{"a":1'}}
MIXED = [
    wire.chunk({"role": "assistant", "content": None}),
    wire.chunk({"reasoning_content": "hm"}),
    wire.chunk({"reasoning_content": " so"}),
    *(wire.chunk({"content": word}, padding="a" * number) for number, word in enumerate(WORDS)),
    wire.chunk({"tool_calls": [TOOL]}),
    *(wire.chunk({"tool_calls": [PIECE]}) for _ in range(3)),
    wire.chunk({"content": "b"}, index=1),
    wire.chunk({}, finish="tool_calls"),
    wire.figures(),
    wire.DONE,
]
CHAT_STREAMS = {
    "plain": wire.chat_stream(WORDS),
    "padded": wire.chat_stream(WORDS * 4, padded=True),
    "without usage": wire.chat_stream(WORDS, usage=None),
    "mixed": MIXED,
}
SAID = Usage(20, 15, None, None, 5, 4, service_tier="standard")


def fed(dialect: str, chunks: list[bytes], media: str = "text/event-stream") -> Any:
    """A meter of this dialect that has read all of these."""
    meter = meter_for(media, "", billable=True, dialect=dialect)
    for chunk in chunks:
        meter.feed(chunk)
    return meter


def state(meter: Meter) -> tuple[Any, ...]:
    """All that a meter says."""
    return (
        meter.usage, meter.deltas, meter.text_bytes, meter.blocks, meter.finished, meter.final,
        meter.failed, meter.unreadable, meter.between_events, meter.output_seen, meter.output_bound,
    )  # fmt: skip


# -- chat completions


@pytest.mark.parametrize(("total", "output"), [(40, 15), (340, 315), (0, 15), (24, 15), (None, 15)])
def test_reasoning_beside_the_output_is_output(total: int | None, output: int) -> None:
    """Some servers count reasoning in the total alone; what it has beyond both is billed too."""
    usage = {"prompt_tokens": 25, "completion_tokens": 15, "total_tokens": total}
    whole = fed(
        "openai_chat", [json.dumps(wire.chat_json(usage=usage)).encode()], "application/json"
    )
    whole.end()
    for meter in (whole, fed("openai_chat", wire.chat_stream(usage=usage))):
        assert (meter.usage.input_tokens, meter.usage.output_tokens) == (25, output)
    said = {"input_tokens": 25, "output_tokens": 15, "total_tokens": total}
    assert fed("openai_responses", wire.response_stream(usage=said)).usage.output_tokens == output


@pytest.mark.parametrize("name", ["plain", "padded", "mixed"])
def test_b33_a_chat_stream_tells_its_usage(name: str) -> None:
    """B33: the figures are those of the last chunk; what was cached is not counted twice."""
    meter = fed("openai_chat", CHAT_STREAMS[name])
    assert meter.usage == SAID
    assert meter.usage.tokens == 40
    assert (meter.finished, meter.final, meter.failed, meter.unreadable) == (
        True,
        True,
        False,
        False,
    )


def test_missing_differs_from_zero() -> None:
    """Row 28: what nobody said is not zero, and zero is."""
    silent = fed("openai_chat", CHAT_STREAMS["without usage"])
    assert silent.usage == Usage(service_tier="standard")
    assert (silent.finished, silent.final) == (True, False)
    zero = wire.figures({"prompt_tokens": 0, "completion_tokens": 0})
    assert fed("openai_chat", [zero]).usage == Usage(0, 0, service_tier="standard")


def test_text_is_counted_as_it_passes() -> None:
    """What was generated so far is known to the byte, and every delta is one."""
    meter = fed("openai_chat", [])
    assert isinstance(meter, ChatMeter)
    seen = 0
    for event in wire.chat_stream(["abc", "defg", "h", "\u20ac\u20ac"])[:-2]:
        meter.feed(event)
    seen = meter.text_bytes
    assert seen == 3 + 4 + 1 + 6
    assert meter.deltas == 4
    assert meter.output_seen == 4
    assert meter.output_bound == seen


def test_every_kind_of_text_counts() -> None:
    """Words, reasoning and the input of tools are output; a call of a tool has a frame beside."""
    meter = fed("openai_chat", MIXED[:-2])
    words = sum(len(json.dumps(word, ensure_ascii=False).encode()) - 2 for word in WORDS)
    assert meter.text_bytes >= len("hm so") + words - 6 + 3 * len('{"a":1') + 1
    assert meter.text_bytes <= len("hm so") + words + 3 * len('{\\"a\\":1') + 1
    assert meter.blocks == 1


def test_the_text_of_a_usual_delta_is_never_less_than_it_is() -> None:
    """Whatever stands behind the usual text, an event with more in it is not taken for usual."""
    first = wire.chunk({"content": "ab"})
    more = first.replace(b'"ab"}', b'"ab","reasoning_content":"' + b"x" * 500 + b'"}')
    assert more != first
    meter = fed("openai_chat", [first, first, more])
    assert meter.text_bytes >= 2 + 2 + 502
    figures = first.replace(b'"usage":null', b'"usage":{"prompt_tokens":9,"completion_tokens":8}')
    told = fed("openai_chat", [first, first, figures])
    assert (told.usage.input_tokens, told.usage.output_tokens) == (9, 8)
    two = json.loads(first[6:])
    two["choices"] *= 2
    both = b"data: " + json.dumps(two, separators=(",", ":")).encode() + b"\n\n"
    assert fed("openai_chat", [first, both]).text_bytes == 2 + 4


@pytest.mark.parametrize("name", CHAT_STREAMS)
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_b27_chunks_make_no_difference(name: str, ends: str) -> None:
    """B27: cut at any byte, and with whatever line ends, a stream says the same."""
    data = b"".join(CHAT_STREAMS[name]).replace(b"\n", ends.encode())
    # A carriage return at the very end may be half a line end.
    whole = state(fed("openai_chat", CHAT_STREAMS[name]))
    for at in range(0, len(data), 3):
        assert state(fed("openai_chat", [data[:at], data[at:], b": x\n\n"])) == whole, at
    single = [data[at : at + 1] for at in range(len(data))]
    assert state(fed("openai_chat", [*single, b": x\n\n"])) == whole


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_b27_any_chunks(sizes: list[int]) -> None:
    """B27: in chunks of whatever sizes, both kinds of streams say the same."""
    for dialect, events in (("openai_chat", MIXED), ("openai_responses", wire.response_stream())):
        data, chunks = b"".join(events), []
        for size in itertools.cycle(sizes):
            if not data:
                break
            chunks.append(data[:size])
            data = data[size:]
        assert state(fed(dialect, chunks)) == state(fed(dialect, events))


def test_marks_comments_and_other_fields() -> None:
    """A byte-order mark, comments, retry lines and several data lines are read as the rules say."""
    figures = wire.figures().removeprefix(b"data: ").rstrip(b"\n")
    left, right = figures.split(b'"choices":', 1)
    stream = [
        b"\xef\xbb\xbf: hello\n\n",
        b"retry: 5\nid: 1\n\n",
        b"data: " + left + b'"choices":\ndata:' + right + b"\n\n",
        b"event: done\ndata: [DONE]\n\n",
    ]
    meter = fed("openai_chat", stream)
    assert (meter.usage, meter.finished, meter.unreadable) == (SAID, True, False)


def test_a_last_word_without_its_end() -> None:
    """A server that ends with `[DONE]` and no empty line has ended all the same."""
    for end in (b"data: [DONE]", b"data: [DONE]\n"):
        assert fed("openai_chat", [*CHAT_STREAMS["plain"][:-1], end]).finished
    assert not fed("openai_chat", [*CHAT_STREAMS["plain"][:-1], b"data: [DONE"]).finished


def test_b25_a_torn_chat_is_not_whole() -> None:
    """B25: without its last word a stream is not whole, whatever it said before."""
    meter = fed("openai_chat", CHAT_STREAMS["plain"][:-1])
    meter.end()
    assert (meter.finished, meter.final) == (False, True)
    torn = fed("openai_chat", [*CHAT_STREAMS["plain"][:-2], wire.figures()[:-2]])
    torn.end()
    assert (torn.usage, torn.finished) == (SAID, False)


@pytest.mark.parametrize(
    "event", [b'data: {"error":{"message":"x","type":"server_error"}}\n\n', b"event: error\n"]
)
def test_an_error_in_the_stream(event: bytes) -> None:
    """The provider's own error is its last word."""
    assert fed("openai_chat", [event]).failed == event.startswith(b"data")


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"choices":3}', b'{"usage":{"prompt_tokens":-1}}'])
def test_what_cannot_be_read(data: bytes) -> None:
    """An event that cannot be read may have told the usage: the bill is an estimate."""
    meter = fed("openai_chat", [b"data: " + data + b"\n\n"])
    assert meter.unreadable
    assert meter.text_bytes == len(data)


def test_tiers_by_our_names() -> None:
    """The ordinary tier is `standard` here; `auto` says nothing; what is no word has no price."""
    for told, ours in (("default", "standard"), ("auto", None), ("flex", "flex"), (3, "unknown")):
        answer = wire.chat_json() | {"service_tier": told}
        meter = fed("openai_chat", [json.dumps(answer).encode()], "application/json")
        meter.end()
        assert meter.usage.service_tier == ours


# -- whole answers


def test_a_whole_chat() -> None:
    """B33: a whole answer says the same as its stream."""
    meter = fed("openai_chat", [json.dumps(wire.chat_json()).encode()], "application/json")
    meter.end()
    assert (meter.usage, meter.finished, meter.final, meter.failed) == (SAID, True, True, False)
    error = fed("openai_chat", [b'{"error":{"message":"x"}}'], "application/json")
    error.end()
    assert (error.failed, error.final) == (True, False)


def test_embeddings_have_no_output() -> None:
    """Nobody says the output of embeddings: there is none, so they are never an estimate."""
    body = json.dumps(wire.embeddings_json("m", 2)).encode()
    meter = fed("openai_embeddings", [body], "application/json")
    meter.end()
    assert (meter.usage, meter.final) == (Usage(14, 0), True)
    assert meter.output_seen == 0
    with pytest.raises(UnknownCoding):
        meter_for("text/event-stream", "", billable=True, dialect="openai_embeddings")


def test_b25_half_an_answer() -> None:
    """B25: what is no whole JSON is torn."""
    whole = json.dumps(wire.chat_json()).encode()
    for dialect in ("openai_chat", "openai_responses", "openai_embeddings"):
        meter = fed(dialect, [whole[:-5]], "application/json")
        meter.end()
        assert meter.torn


# -- responses


RESPONSE_SAID = Usage(18, 15, 2, None, 5, 4, 0, service_tier="standard")


@pytest.mark.parametrize("end", ["completed", "incomplete"])
def test_a_response_stream(end: str) -> None:
    """The last event tells the usage; writes to the cache stand apart from the input."""
    meter = fed("openai_responses", wire.response_stream(end=end))
    assert meter.usage == RESPONSE_SAID
    assert (meter.finished, meter.final, meter.failed) == (True, True, False)
    assert meter.text_bytes == len("".join(wire.WORDS))
    assert (meter.deltas, meter.blocks) == (len(wire.WORDS), 1)


def test_a_failed_response() -> None:
    """A response that failed is told as such, with the usage it had."""
    meter = fed("openai_responses", wire.response_stream(end="failed"))
    assert (meter.finished, meter.failed, meter.usage) == (True, True, RESPONSE_SAID)
    error = fed("openai_responses", [b'event: error\ndata: {"type":"error","code":"x"}\n\n'])
    assert (error.finished, error.failed) == (False, True)


def test_a_whole_response() -> None:
    """A whole answer says the same as its stream, and counts its searches."""
    searches = [{"type": "web_search_call", "id": "ws_1"}, {"type": "reasoning"}]
    body = json.dumps(wire.response_json(more=searches)).encode()
    meter = fed("openai_responses", [body], "application/json")
    meter.end()
    assert meter.usage.web_search_requests == 1
    assert (meter.usage.input_tokens, meter.final, meter.failed) == (18, True, False)


def test_searches_are_counted_before_the_end() -> None:
    """B05: of a stream that breaks, the searches that were done are not forgotten."""
    done = wire.response_event("response.web_search_call.completed", 4, item_id="ws_1")
    meter = fed("openai_responses", [*wire.response_stream()[:3], done, done])
    assert meter.usage == Usage(web_search_requests=2)


def test_names_are_in_the_data_too() -> None:
    """A server that leaves the event lines out is understood by the data."""
    bare = [event.partition(b"\n")[2] for event in wire.response_stream()]
    assert state(fed("openai_responses", bare)) == state(
        fed("openai_responses", wire.response_stream())
    )


def test_what_a_client_wrote_is_no_usage() -> None:
    """Row 30: a request's own words, which the last event repeats, are not taken for figures."""
    forged = {"usage": {"input_tokens": 0, "output_tokens": 0}}
    tool = {"type": "function", "name": "f", "parameters": {"properties": forged, **forged}}
    whole = wire.response_json() | {"tools": [tool], "metadata": {"usage": "x"}}
    end = wire.response_event("response.completed", 9, response=whole)
    meter = fed("openai_responses", [end, end.replace(b"completed", b"in_progress")])
    assert meter.usage == RESPONSE_SAID
    delta = wire.text_event('data: {"usage":{"input_tokens":0}}', 3)
    assert fed("openai_responses", [delta]).usage == Usage()


def test_the_last_event_may_be_large() -> None:
    """The last event repeats the whole request, megabytes of it, in however small pieces."""
    whole = wire.response_json() | {"instructions": "x" * 3_000_000}
    end = wire.response_event("response.completed", 9, response=whole)
    pieces = [end[at : at + 16_384] for at in range(0, len(end), 16_384)]
    assert fed("openai_responses", pieces).usage == RESPONSE_SAID
