"""Anthropic's wire format as byte builders, for the stub provider and for unit tests."""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus

Headers = Sequence[tuple[str, str]]


def head(status: int, headers: Headers) -> bytes:
    """Status line and headers of an HTTP/1.1 answer."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Overloaded"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def json_answer(status: int, body: object, headers: Headers = ()) -> bytes:
    """A whole JSON answer with Content-Length; the connection closes after it."""
    data = json.dumps(body).encode()
    common = [
        ("content-type", "application/json"),
        ("content-length", str(len(data))),
        ("request-id", "req_stub"),
        ("connection", "close"),
    ]
    return head(status, [*common, *headers]) + data


def sse_answer(headers: Headers = ()) -> bytes:
    """The head of a streamed answer; events follow as HTTP chunks."""
    common = [
        ("content-type", "text/event-stream; charset=utf-8"),
        ("cache-control", "no-cache"),
        ("transfer-encoding", "chunked"),
        ("request-id", "req_stub"),
        ("connection", "close"),
    ]
    return head(200, [*common, *headers])


def event(name: str, data: Mapping[str, object]) -> bytes:
    """One server-sent event."""
    payload = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\ndata: {payload}\n\n".encode()


def message_start(model: str, usage: Mapping[str, object]) -> bytes:
    """The first event of a stream, with its provisional usage."""
    message: dict[str, object] = {
        "id": "msg_stub",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": dict(usage),
    }
    return event("message_start", {"type": "message_start", "message": message})


def text_delta(text: str) -> bytes:
    """One text delta of block 0."""
    delta = {"type": "text_delta", "text": text}
    return event("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta})


def message_delta(usage: Mapping[str, object], stop_reason: str = "end_turn") -> bytes:
    """The event that closes a message, with cumulative usage."""
    delta = {"stop_reason": stop_reason, "stop_sequence": None}
    return event("message_delta", {"type": "message_delta", "delta": delta, "usage": dict(usage)})


MESSAGE_STOP = event("message_stop", {"type": "message_stop"})
PING = event("ping", {"type": "ping"})
BLOCK_START = event(
    "content_block_start",
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
)
BLOCK_STOP = event("content_block_stop", {"type": "content_block_stop", "index": 0})


def message_stream(
    model: str,
    texts: Sequence[str] = ("Hel", "lo"),
    start_usage: Mapping[str, object] | None = None,
    final_usage: Mapping[str, object] | None = None,
) -> list[bytes]:
    """A whole stream as one bytes object an event."""
    start = start_usage if start_usage is not None else {"input_tokens": 25, "output_tokens": 1}
    final = final_usage if final_usage is not None else {"output_tokens": 15}
    return [
        message_start(model, start),
        BLOCK_START,
        PING,
        *(text_delta(text) for text in texts),
        BLOCK_STOP,
        message_delta(final),
        MESSAGE_STOP,
    ]


def message_json(
    model: str, text: str = "Hello", usage: Mapping[str, object] | None = None
) -> dict[str, object]:
    """A whole non-streamed answer."""
    return {
        "id": "msg_stub",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": dict(usage or {"input_tokens": 25, "output_tokens": 15}),
    }
