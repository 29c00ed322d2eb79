"""The stream meter against a reader that takes the whole stream at once and parses every event."""

import itertools
import json
import random
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from daypass_proxy.ledger import Usage
from daypass_proxy.meter import StreamMeter
from daypass_proxy.meter import stream as stream_module

FIGURES = (
    "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens",
)  # fmt: skip
TEXTS = (
    "Hello",
    "",
    " 안녕 😀 é",
    "a\n\nevent: content_block_stop\ndata: {}\n\n",
    'quo"te \\ }} ',
    "data: x",
    "x" * 700,
)
NEWLINES = (b"\n", b"\r\n")


def packed(data: object, space: str = "") -> str:
    """Return JSON as a provider writes it; `space` pads the end of the object."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"{text[:-1]}{space}{text[-1:]}"


class Writer:
    """Writes random streams; every kind of event and every way of writing one."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.newline = self.random.choice(NEWLINES) if self.random.random() < 0.3 else b"\n"
        self.odd = self.random.choice((0.0, 0.0, 0.1, 0.5))

    def stream(self) -> bytes:
        """Return a stream: mostly runs of deltas."""
        rand, parts = self.random, []
        if rand.random() < 0.1:
            parts.append(b"\xef\xbb\xbf")
        makers = (self.figures, self.block, self.block, self.other)
        parts += [rand.choice(makers)() for _ in range(rand.randint(1, 8))]
        if rand.random() < 0.5:
            parts.append(self.event("message_stop", {"type": "message_stop"}))
        whole = b"".join(parts)
        return whole if rand.random() < 0.8 else whole[: rand.randint(0, len(whole))]

    def event(self, name: str, data: dict[str, Any]) -> bytes:
        """Return one event, written as usual or oddly."""
        rand, nl = self.random, self.newline
        text = packed(data, rand.choice(("", "", "   ")))
        lines = [f"event: {name}".encode(), f"data: {text}".encode()]
        if rand.random() < self.odd:
            odd = rand.randint(0, 7)
            if odd == 0:
                lines.pop(0)
            elif odd == 1:
                lines = [line.replace(b": ", b":", 1) for line in lines]
            elif odd == 2:
                lines.insert(rand.randint(0, 2), b": a comment")
            elif odd == 3:
                lines.insert(rand.randint(0, 2), b"id: 7")
            elif odd == 4 and "delta" not in data:
                head, mark, tail = lines[1].partition(b",")
                lines[1:] = [head + mark, b"data:" + tail] if mark else [lines[1]]
            elif odd == 5:
                nl = rand.choice(NEWLINES)
            elif odd == 6:
                lines.append(b"")
            else:
                return b"".join(line + rand.choice(NEWLINES) for line in (*lines, b""))
        return b"".join(line + nl for line in (*lines, b""))

    def figures(self) -> bytes:
        """Return an event with usage."""
        rand = self.random
        said = {name: rand.choice((None, rand.randint(0, 9999))) for name in FIGURES}
        said = {name: value for name, value in said.items() if rand.random() < 0.7}
        if rand.random() < 0.5:
            return self.event(
                "message_start", {"type": "message_start", "message": {"usage": said}}
            )
        reason = rand.choice((None, "end_turn"))
        delta = {"stop_reason": reason}
        return self.event("message_delta", {"type": "message_delta", "delta": delta, "usage": said})

    def block(self) -> bytes:
        """Return a block: its start, deltas of one kind or of two, its stop."""
        rand, index = self.random, self.random.choice((0, 0, 1, 12))
        kinds = rand.choice(
            (("text",), ("thinking", "signature"), ("partial_json",), ("text", "x"))
        )
        names = {"partial_json": "input_json_delta", "x": "citations_delta"}
        deltas = []
        for _ in range(rand.randint(0, 12)):
            kind = rand.choice(kinds) if rand.random() < 0.1 else kinds[0]
            deltas.append(
                self.event(
                    "content_block_delta",
                    {
                        "type": "content_block_delta",
                        "index": index if rand.random() < 0.97 else 3,
                        "delta": {
                            "type": names.get(kind, f"{kind}_delta"),
                            kind: rand.choice(TEXTS),
                        },
                    },
                )
            )
            if rand.random() < 0.05:
                deltas.append(self.event("ping", {"type": "ping"}))
        kind = "content_block_"
        start = self.event(f"{kind}start", {"type": f"{kind}start", "content_block": {"text": ""}})
        return start + b"".join(deltas) + self.event(f"{kind}stop", {"type": f"{kind}stop"})

    def other(self) -> bytes:
        """Return what says nothing, or that all is over."""
        rand, nl = self.random, self.newline
        return rand.choice(
            (
                nl,
                b": keep-alive" + nl + nl,
                b"event: content_block_delta" + nl + nl,
                b"event: message_stop" + nl + nl,
                b"data: {" + nl + nl,
                b'{"type":"error"}' + nl + nl,
                self.event("ping", {"type": "ping"}),
                self.event("error", {"type": "error", "error": {"type": "api_error"}}),
                self.event("new_kind", {"type": "new_kind", "usage": {"output_tokens": 1}}),
            )
        )


def reference(stream: bytes) -> tuple[Any, ...]:
    """Read a stream slowly: by lines, every event parsed."""
    usage: dict[str, int | None] = dict.fromkeys(FIGURES)
    deltas = text = blocks = 0
    finished = final = counted = failed = unreadable = False
    *lines, rest = stream.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    name, data = b"", list[bytes]()
    for line in (line.removesuffix(b"\r") for line in lines):
        if line.startswith(b"event:"):
            name = line[6:].strip()
        elif line.startswith(b"data:"):
            data.append(line)
            # What passed of a delta counts at once, though its event may never end.
            text += text_in(line) if name == b"content_block_delta" else 0
        if line == b"" and data:
            try:
                said = json.loads(b"\n".join(part[5:] for part in data))
            except ValueError:
                said = {}
                unreadable |= name in (b"message_start", b"message_delta")
            kind = name.decode() or said.get("type")
            figures = said.get("message", {} if kind == "message_start" else said).get("usage", {})
            if kind in ("message_start", "message_delta"):
                usage |= {key: value for key, value in figures.items() if value is not None}
            if kind == "message_delta":
                counted |= figures.get("output_tokens") is not None
                final |= counted and said["delta"]["stop_reason"] is not None
            finished |= kind == "message_stop"
            final |= counted and kind == "message_stop"
            failed |= kind == "error"
            blocks += kind == "content_block_start"
            if kind == "content_block_delta":
                deltas += 1
                text += 0 if name else sum(text_in(part) for part in data)
        if line == b"":
            name, data = b"", []
    between = rest == b"" and (not lines or lines[-1].removesuffix(b"\r") == b"")
    return said_of(usage), deltas, text, blocks, finished, final, failed, unreadable, between


def text_in(line: bytes) -> int:
    """Return the bytes of text of a delta's line: all between its beginning and two braces."""
    found = re.search(rb'_delta","(?:text|thinking|partial_json)":"', line)
    wanted = re.search(rb'"(?:text|thinking|input_json)_delta"', line)
    return len(line) - found.end() - 3 if found and wanted else 0


def said_of(usage: dict[str, int | None]) -> Usage:
    """Return the ledger's form of the figures."""
    return Usage(
        usage["input_tokens"],
        usage["output_tokens"],
        usage["cache_creation_input_tokens"],
        None,
        usage["cache_read_input_tokens"],
    )


def metered(pieces: list[bytes]) -> tuple[Any, ...]:
    """Feed a meter; return what it says when nothing more comes for now."""
    meter = StreamMeter()
    for piece in pieces:
        meter.feed(piece)
    return (
        meter.usage,
        meter.deltas,
        meter.text_bytes,
        meter.blocks,
        meter.finished,
        meter.final,
        meter.failed,
        meter.unreadable,
        meter.between_events,
    )


def cut(stream: bytes, edges: list[int]) -> list[bytes]:
    """Return the stream cut at these places."""
    places = sorted({0, len(stream), *edges})
    return [stream[start:end] for start, end in itertools.pairwise(places)]


def event_ends(stream: bytes) -> list[int]:
    """Return the places between events, where a provider that flushes each event cuts."""
    return [found.end() for found in re.finditer(rb"\r?\n\r?\n", stream)]


@pytest.mark.parametrize("seed", range(12))
def test_every_split_says_the_same(seed: int) -> None:
    """B27: 2,400 random splits of random streams: usage, estimate and end as read in one go."""
    rand = random.Random(seed)
    for number in range(20):
        stream = Writer(seed * 1000 + number).stream()
        expected = reference(stream)
        assert metered([stream]) == expected, stream
        assert metered(cut(stream, event_ends(stream))) == expected, stream
        ends = event_ends(stream)
        for _ in range(8):
            edges = [rand.randint(0, len(stream)) for _ in range(rand.randint(1, 9))]
            some = [end for end in ends if rand.random() < 0.5]
            assert metered(cut(stream, edges + some)) == expected, stream


@pytest.mark.parametrize("seed", range(4))
def test_single_bytes_say_the_same(seed: int) -> None:
    """B27: a random stream that comes byte by byte is metered like the whole one."""
    stream = Writer(seed).stream()
    assert metered([bytes([byte]) for byte in stream]) == reference(stream)


@pytest.mark.parametrize("newlines", list(itertools.product(NEWLINES, repeat=3)))
def test_every_place_after_an_event(newlines: tuple[bytes, ...]) -> None:
    """B27: a chunk that begins with an event may end at any byte, whatever ends the lines."""
    start = b'event: message_delta\ndata: {"delta":{"stop_reason":null},"usage":{}}\n\n'
    event = b"".join(map(bytes.__add__, (*deltas(1)[0].split(b"\n")[:2], b""), newlines))
    stream = start + event + b": a comment\n\n" + event
    for place in range(len(start), len(stream)):
        assert metered(cut(stream, [len(start), place])) == reference(stream), place


def test_byte_order_mark() -> None:
    """A mark before the first line is no part of it, however it is cut."""
    stream = b'\xef\xbb\xbfdata: {"type":"message_stop"}\n\n'
    for place in range(len(stream)):
        assert metered(cut(stream, [place])) == reference(stream)
    assert metered([stream])[4], "finished"


def test_too_large_for_any_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event beyond the limit is not believed, whether it comes whole or in pieces."""
    monkeypatch.setattr(stream_module, "_EVENT_MAX", 1000)
    said = {"type": "message_start", "message": {"usage": {"input_tokens": 5, "x": "y" * 2000}}}
    event = f"event: message_start\ndata: {packed(said)}\n\n".encode()
    whole = metered([event])
    assert whole[0] == Usage()
    assert whole[7], "unreadable"
    assert metered(cut(event, [700])) == whole


class Looked(bytes):
    """Bytes that count how many of them were looked at, so that no clock is needed."""

    looks = 0

    def find(self, sub: Any, start: Any = 0, end: Any = None) -> int:
        """Look up to what is found."""
        found = super().find(sub, start, end)
        Looked.looks += (len(self) if found < 0 else found) - start + 1
        return found

    def rfind(self, sub: Any, start: Any = 0, end: Any = None) -> int:
        """Look down to what is found."""
        found = super().rfind(sub, start, end)
        Looked.looks += len(self) - (start if found < 0 else found) + 1
        return found

    def count(self, sub: Any, start: Any = 0, end: Any = None) -> int:
        """Look at all."""
        Looked.looks += (len(self) if end is None else end) - start
        return super().count(sub, start, end)


def work_for(pieces: list[bytes]) -> tuple[int, int]:
    """Return what metering takes: how many calls it makes, how many bytes it looks at."""
    meter, calls, chunks = StreamMeter(), 0, [Looked(piece) for piece in pieces]

    def counting(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    Looked.looks = 0
    sys.setprofile(counting)
    try:
        for chunk in chunks:
            meter.feed(chunk)
    finally:
        sys.setprofile(None)
    return calls, Looked.looks


def deltas(count: int, index: int = 0) -> list[bytes]:
    """Return ordinary deltas."""
    delta = {"type": "text_delta", "text": " word"}
    data = {"type": "content_block_delta", "index": index, "delta": delta}
    return [f"event: content_block_delta\ndata: {packed(data)}\n\n".encode()] * count


@pytest.mark.parametrize(
    "pieces",
    [
        lambda n: deltas(n),
        lambda n: [bytes([byte]) for byte in b"".join(deltas(n // 100))],
        lambda n: [b"event: message_start\ndata: ", *[b"x" * 100] * n],
        lambda n: [b"".join(deltas(n))],
        # Alike and not alike in turn: the run must not be tried anew at every event.
        lambda n: [b"".join([*deltas(1), b": odd\n\n", b"data: {}\n\n"]) * n],
        lambda n: [b"".join([*deltas(1), b"event: ping\ndata: {}\n\n"]) * n],
    ],
    ids=["events", "bytes", "one line", "one chunk", "no run", "pings"],
)
def test_work_is_linear(pieces: Callable[[int], list[bytes]]) -> None:
    """The work grows with the stream: with its events, its single bytes, a line without end."""
    for few, many in zip(work_for(pieces(200)), work_for(pieces(2000)), strict=True):
        assert many <= 10.5 * few + 100


@pytest.mark.parametrize("index", [0, 7])
@pytest.mark.parametrize(
    "rest", [b"", b"event: content_", b"event: content_block_stop\ndata: {}\n\n" * 3]
)
def test_a_run_costs_one_look(index: int, rest: bytes) -> None:
    """Fifty deltas in one chunk are counted where they lie, not taken up one by one."""
    run = b"".join(deltas(50, index)) + rest
    calls, looks = work_for([run])
    assert calls < 70
    assert looks < 5 * len(run)
