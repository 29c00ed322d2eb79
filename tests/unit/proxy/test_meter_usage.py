"""What the meter makes of the provider's figures: each kept apart, silence told from zero."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.ledger import Pass, Usage
from daypass_proxy.meter import JsonMeter, StreamMeter
from daypass_proxy.meter.base import BLOCK_TOKENS
from tests.fakes.said import MODEL, encode, iterations, start_with_cache, tool_delta
from tests.servers.wire import (
    BLOCK_START,
    MESSAGE_STOP,
    PING,
    event,
    message_delta,
    message_json,
    message_start,
    text_delta,
)


def test_case_b33() -> None:
    """B33: input 25, output 1, then 15, then 22 are 25 and 22, and 47 tokens for limits."""
    meter = StreamMeter()
    meter.feed(message_start(MODEL, {"input_tokens": 25, "output_tokens": 1}))
    assert meter.usage == Usage(25, 1)
    meter.feed(message_delta({"output_tokens": 15}))
    meter.feed(message_delta({"output_tokens": 22}))
    assert meter.usage == Usage(25, 22)
    assert meter.usage.tokens == 47
    assert meter.final
    assert not meter.finished


def test_zero_is_not_silence() -> None:
    """Row 28: a figure of zero is kept as zero, one that was not said stays None."""
    meter = StreamMeter()
    meter.feed(message_start(MODEL, {"input_tokens": 0, "cache_read_input_tokens": 0}))
    assert meter.usage == Usage(0, None, None, None, 0)


COMPACTION = Pass("compaction", None, 100, 40)
ADVICE = Pass("advisor_message", "claude-opus-5-5", 900, 300, 3, 3, 11)


def test_passes_beside_the_totals() -> None:
    """Row 33: compaction and advisor passes are kept apart from the totals, message passes not."""
    meter = StreamMeter()
    meter.feed(start_with_cache() + PING + message_delta(iterations()) + MESSAGE_STOP)
    usage = meter.usage
    assert usage == Usage(
        250, 60, 7, 2, 30, None, 2, service_tier="standard", passes=(COMPACTION, ADVICE)
    )
    assert usage.tokens == 250 + 60 + 7 + 30 + 140 + 900 + 300 + 3 + 11


def test_all_passes_of_a_call_that_a_fallback_answered() -> None:
    """Row 33: with a fallback every pass is kept, for each has its model's price."""
    said = iterations()
    said["iterations"].append({"type": "fallback_message", "model": "m", "input_tokens": 5})
    meter = StreamMeter()
    meter.feed(message_delta(said))
    message = Pass("message", None, 250, 60)
    assert meter.usage.passes == (
        message, COMPACTION, ADVICE, Pass("fallback_message", "m", 5)
    )  # fmt: skip


def test_repeated_passes_count_once() -> None:
    """Row 33: a later list of passes replaces the earlier one; silence leaves it."""
    meter = StreamMeter()
    meter.feed(message_delta(iterations()) + message_delta(iterations()))
    meter.feed(message_delta({"output_tokens": 61}))
    assert meter.usage.passes == (COMPACTION, ADVICE)
    assert meter.usage.output_tokens == 61


def test_how_a_call_was_served() -> None:
    """Tier, speed and place stay from the start; thinking and searches come at the end."""
    meter = StreamMeter()
    served = {"service_tier": "priority", "speed": "fast", "inference_geo": "us"}
    meter.feed(message_start(MODEL, {"input_tokens": 1, **served}))
    details = {"output_tokens_details": {"thinking_tokens": 0}}
    meter.feed(message_delta({"output_tokens": 9, **details, "server_tool_use": None}))
    tools = {"web_search_requests": 3, "web_fetch_requests": 1}
    meter.feed(message_delta({"server_tool_use": tools, "service_tier": None}))
    assert meter.usage == Usage(1, 9, None, None, None, 0, 3, "priority", "fast", "us")


@pytest.mark.parametrize("odd", [7, {"name": "x"}, ["x"], True, ""])
def test_a_word_that_is_none_is_not_silence(odd: object) -> None:
    """What stands where a tier should is nothing that has a price, and takes no figure away."""
    meter = StreamMeter()
    meter.feed(message_start(MODEL, {"input_tokens": 5, "service_tier": odd}))
    assert meter.usage == Usage(5, service_tier="unknown")
    assert not meter.unreadable


def test_split_without_total() -> None:
    """B34: where only the split of cache writes is said, their total is its sum."""
    meter = StreamMeter()
    split = {"ephemeral_5m_input_tokens": 600_000, "ephemeral_1h_input_tokens": 400_000}
    meter.feed(message_start(MODEL, {"input_tokens": 1, "cache_creation": split}))
    assert meter.usage.cache_creation_input_tokens == 1_000_000
    assert meter.usage.cache_creation_1h_input_tokens == 400_000


@pytest.mark.parametrize("coding", ["", "gzip"])
def test_a_stream_and_a_whole_answer_say_the_same(coding: str) -> None:
    """B34: the same figures, streamed or not, are the same usage."""
    usage = iterations() | {
        "cache_creation_input_tokens": 7,
        "cache_read_input_tokens": 30,
        "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 2},
        "output_tokens_details": {"thinking_tokens": 11},
        "service_tier": "standard", "speed": "fast", "inference_geo": "us",
    }  # fmt: skip
    whole, stream = JsonMeter(coding), StreamMeter(coding)
    whole.feed(encode(coding, json.dumps(message_json(MODEL, usage=usage)).encode()))
    stream.feed(encode(coding, message_start(MODEL, usage) + message_delta(usage) + MESSAGE_STOP))
    whole.end()
    assert whole.usage == stream.usage
    assert whole.usage.passes == (COMPACTION, ADVICE)
    assert whole.usage.speed == "fast"


@pytest.mark.parametrize(
    "usage",
    ['{"input_tokens": -5}', '{"input_tokens": "9"}', '{"input_tokens": 1.5}', "[]", '{"inp',
     '{"output_tokens": 1000000001}', '{"input_tokens": 10000000000000000000}',
     '{"cache_creation": {"ephemeral_1h_input_tokens": 1000000001}}',
     '{"server_tool_use": {"web_search_requests": -1}}',
     '{"output_tokens_details": {"thinking_tokens": "many"}}',
     '{"iterations": [{"type": "compaction", "input_tokens": 9223372036854775807}]}'],
)  # fmt: skip
def test_unreadable_usage(usage: str) -> None:
    """Figures that are none, or more than any answer has and a ledger can hold, are not believed,
    and the meter says that it could not read."""
    meter = StreamMeter()
    meter.feed(f'event: message_delta\ndata: {{"usage": {usage}}}\n\n'.encode())
    assert meter.unreadable
    assert meter.usage == Usage()


def test_the_most_that_can_have_passed() -> None:
    """A token is a byte of text at least: of words, of thinking, of a tool's input, of a block."""
    meter = StreamMeter()
    assert meter.output_bound == 0
    meter.feed(start_with_cache())
    assert meter.output_bound == 1, "the provider's own first figure"
    meter.feed(BLOCK_START + text_delta("four") + tool_delta("12345"))
    thinking = {"type": "thinking_delta", "thinking": "abc"}
    delta = event("content_block_delta", {"type": "content_block_delta", "delta": thinking})
    meter.feed(delta[:-30])
    meter.feed(delta[-30:] + PING)
    assert meter.output_bound == BLOCK_TOKENS + 12
    meter.feed(message_delta({"output_tokens": 5_000}))
    assert meter.output_bound == 5_000, "what was kept to itself, but said"


def test_the_most_of_a_whole_answer() -> None:
    """Of an answer that does not stream, each byte may have been a token."""
    meter = JsonMeter()
    meter.feed(b"{" * 50)
    assert meter.output_bound == 50


@given(st.lists(st.text(max_size=40), max_size=20))
@settings(max_examples=60, deadline=None)
def test_the_bound_is_never_below_the_text(texts: list[str]) -> None:
    """Every byte of every delta counts, so no tokenizer finds more tokens in what passed."""
    meter = StreamMeter()
    meter.feed(b"".join(map(text_delta, texts)))
    assert meter.output_bound >= sum(len(text.encode()) for text in texts)
    assert meter.output_bound >= meter.output_seen - len(texts)


def block_start(kind: str) -> bytes:
    """The beginning of a block of this kind."""
    block = {"type": kind, "id": "srvtoolu_1", "name": "web_search", "input": {}}
    return event(
        "content_block_start", {"type": "content_block_start", "index": 1, "content_block": block}
    )


LOOP = (
    start_with_cache(),
    *map(block_start, ("server_tool_use", "server_tool_use")),
    *map(block_start, ("web_search_tool_result", "web_search_tool_result", "text")),
    text_delta("and"),
    *map(block_start, ("server_tool_use", "web_fetch_tool_result", "text")),
)
AGAIN = Pass("unsaid", input_tokens=12, cache_read_input_tokens=37)


def fed(pieces: tuple[bytes, ...], step: int = 0) -> StreamMeter:
    """Return a meter that got this, whole or in pieces of some bytes."""
    meter, whole = StreamMeter(), b"".join(pieces)
    for start in range(0, len(whole), step or len(whole)):
        meter.feed(whole[start : start + (step or len(whole))])
    return meter


@pytest.mark.parametrize("step", [0, 1, 7, 300])
def test_row_27_who_leaves_amid_searches_pays_for_them(step: int) -> None:
    """Row 27: of a loop of tools that is torn, what its blocks tell is booked: two readings."""
    usage = fed(LOOP, step).usage
    assert usage.passes == (AGAIN, AGAIN)
    assert usage.web_search_requests == 2
    assert usage.tokens == 12 + 1 + 7 + 30 + 2 * (12 + 37)


def test_row_27_the_last_figures_count_instead() -> None:
    """Row 27: once the provider has said how much it was, nothing of it is guessed."""
    totals = {"input_tokens": 90, "output_tokens": 5}
    usage = fed((*LOOP, message_delta(totals), MESSAGE_STOP)).usage
    assert (usage.input_tokens, usage.passes, usage.web_search_requests) == (90, (), None)


def test_blocks_of_a_plain_answer_are_no_further_readings() -> None:
    """A call without tools of the provider is booked at its figures, torn or not."""
    pieces = (start_with_cache(), *map(block_start, ("thinking", "text", "tool_use")))
    assert fed(pieces).usage.passes == ()
    assert fed(pieces).usage.web_search_requests is None


def test_a_fallback_counts_once_in_tokens() -> None:
    """Row 33: the pass that answered is a part of the totals; all passes count instead of them."""
    said = {
        "input_tokens": 250,
        "output_tokens": 60,
        "iterations": [
            {"type": "message", "model": "a", "input_tokens": 90, "output_tokens": 1},
            {"type": "fallback_message", "model": "b", "input_tokens": 160, "output_tokens": 59},
            {"type": "compaction", "input_tokens": 7, "output_tokens": 3},
        ],
    }
    usage = fed((message_delta(said),)).usage
    assert usage.tokens == 91 + 219 + 10


@pytest.mark.parametrize("usage", [{}, {"input_tokens": 9}, {"output_tokens": None}])
def test_row_27_provisional_figures_are_not_the_last(usage: dict[str, int]) -> None:
    """Row 27: an end that says no output leaves the one token of the start provisional."""
    start = message_start(MODEL, {"input_tokens": 9, "output_tokens": 1})
    meter = fed((start, BLOCK_START, text_delta("x" * 400), message_delta(usage), MESSAGE_STOP))
    assert meter.finished
    assert not meter.final
    assert meter.output_seen == 100
