"""The chunk of figures is kept from a client that did not ask for it, and nothing else is."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.hidden import LARGEST, HidesUsage
from tests.servers import openai_wire as wire

EVENTS = wire.chat_stream(["Hello", " \u20ac\U0001f600", '{"choices":[]}', " x"], padded=True)
FIGURES = wire.figures()
SHOWN = b"".join(each for each in EVENTS if each != FIGURES)


class Client:
    """Takes what passes; `busy` writes are refused first, as by a client that reads slowly."""

    def __init__(self, busy: int = 0) -> None:
        self.got: list[bytes] = []
        self.busy = busy
        self.finished = False

    def write(self, chunk: bytes) -> bool:
        """Take a piece, unless busy."""
        assert chunk
        if self.busy:
            self.busy -= 1
            return False
        self.got.append(chunk)
        return True

    async def send(self, chunk: bytes) -> None:
        """Take a piece."""
        self.got.append(chunk)

    async def finish(self) -> None:
        """Note the end."""
        self.finished = True

    @property
    def body(self) -> bytes:
        """All that came."""
        return b"".join(self.got)


async def passed(chunks: list[bytes], busy: int = 0) -> bytes:
    """What a client gets of these chunks, written as the relay writes them."""
    client = Client(busy)
    sink = HidesUsage(client)
    for chunk in chunks:
        if not sink.write(chunk):
            await sink.send(chunk)
    await sink.finish()
    assert client.finished
    return client.body


async def test_whole_events() -> None:
    """The chunk of figures is dropped, whatever else comes passes byte for byte."""
    assert FIGURES in EVENTS
    assert await passed(EVENTS) == SHOWN
    assert await passed([b"".join(EVENTS)]) == SHOWN


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
async def test_cut_at_every_byte(ends: str) -> None:
    """B27: however the bytes are cut, and with whatever line ends, the same passes."""
    data = b"".join(EVENTS).replace(b"\n", ends.encode())
    shown = SHOWN.replace(b"\n", ends.encode())
    for at in range(len(data)):
        assert await passed([data[:at], data[at:]]) == shown, at
    assert await passed([data[at : at + 1] for at in range(len(data))]) == shown


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
async def test_any_chunks_to_a_slow_client(sizes: list[int], busy: int) -> None:
    """B27: a client that is not ready for a piece gets it once, in its place."""
    data, chunks = b"".join(EVENTS), []
    for size in itertools.cycle(sizes):
        if not data:
            break
        chunks.append(data[:size])
        data = data[size:]
    assert await passed(chunks, busy) == SHOWN


@pytest.mark.parametrize(
    "event",
    [
        wire.chunk({}, finish="stop", usage=wire.USAGE),
        wire.chunk(None, usage=None),
        wire.chunk(None, say_usage=False),
        b'data: {"choices":[],"usage":{"prompt_tokens":1}\n\n',
        b": choices\n\n",
        b'data: {"error":{"message":"\\"choices\\":[]"}}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":1,"pad":"' + b"x" * LARGEST + b'"}}\n\n',
    ],
)
async def test_what_is_no_chunk_of_figures_passes(event: bytes) -> None:
    """Usage beside choices, a chunk without usage, other events: all of it passes."""
    stream = [EVENTS[0], event, wire.DONE]
    assert await passed(stream) == b"".join(stream)
    data = b"".join(stream)
    assert await passed([data[at : at + 7] for at in range(0, len(data), 7)]) == data


@pytest.mark.parametrize(
    "figures",
    [
        FIGURES,
        FIGURES.replace(b'"choices":[]', b'"choices" : [ ]'),
        FIGURES.replace(b"data: ", b"data:"),
        b"event: x\nid: 1\n" + FIGURES,
    ],
)
async def test_figures_in_other_spellings(figures: bytes) -> None:
    """Blanks and further fields make no difference."""
    assert await passed([EVENTS[0], figures, wire.DONE]) == EVENTS[0] + wire.DONE


async def test_events_pass_as_soon_as_they_are_whole() -> None:
    """B28: nothing that is whole waits for what comes after it."""
    client = Client()
    sink = HidesUsage(client)
    sink.write(EVENTS[0] + EVENTS[1][:9])
    assert client.body == EVENTS[0]
    sink.write(EVENTS[1][9:])
    assert client.body == EVENTS[0] + EVENTS[1]


async def test_a_large_event_passes_as_it_arrives() -> None:
    """What cannot be the chunk of figures is not held back."""
    client = Client()
    sink = HidesUsage(client)
    large = b"data: " + b"x" * (LARGEST + 10)
    sink.write(large)
    assert client.body == large
    sink.write(b"y\n")
    sink.write(b"\n" + FIGURES + wire.DONE)
    assert client.body == large + b"y\n\n" + wire.DONE


async def test_our_words_replace_half_an_event() -> None:
    """A stream that broke in the midst of an event ends with our words at an event of their own."""
    client = Client()
    sink = HidesUsage(client)
    sink.write(EVENTS[0] + FIGURES[:40])
    await sink.say(b"data: sorry\n\n")
    await sink.finish()
    assert client.body == EVENTS[0] + b"data: sorry\n\n"


async def test_a_last_event_without_its_end_passes() -> None:
    """Some servers end with the last word and no empty line behind it."""
    assert await passed([EVENTS[0], b"data: [DONE]"]) == EVENTS[0] + b"data: [DONE]"
    assert await passed([EVENTS[0], FIGURES.rstrip(b"\n")]) == EVENTS[0]
