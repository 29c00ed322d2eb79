"""The wire format of OpenAI's API as byte builders, for the stub provider and for unit tests.

Chunks have the fields of the API, in its order; `obfuscation` stands last, as it does there.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.servers.wire import event

MODEL = "gpt-4o"
WORDS = ("Hello", " there", ", how", " are", " you?")
USAGE: Mapping[str, Any] = {
    "prompt_tokens": 25,
    "completion_tokens": 15,
    "total_tokens": 40,
    "prompt_tokens_details": {"cached_tokens": 5, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": 0},
}
RESPONSE_USAGE: Mapping[str, Any] = {
    "input_tokens": 25,
    "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2},
    "output_tokens": 15,
    "output_tokens_details": {"reasoning_tokens": 4},
    "total_tokens": 40,
}
DONE = b"data: [DONE]\n\n"


def _data(document: Mapping[str, Any]) -> bytes:
    payload = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return f"data: {payload}\n\n".encode()


def chunk(
    delta: Mapping[str, Any] | None,
    *,
    model: str = MODEL,
    finish: str | None = None,
    usage: Mapping[str, Any] | None = None,
    index: int = 0,
    padding: str | None = None,
    say_usage: bool = True,
) -> bytes:
    """One chunk of a chat stream; without a delta it has no choices."""
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    document: dict[str, Any] = {
        "id": "chatcmpl-stub",
        "object": "chat.completion.chunk",
        "created": 1_796_000_000,
        "model": model,
        "service_tier": "default",
        "system_fingerprint": "fp_stub",
        "choices": [] if delta is None else [choice],
    }
    if say_usage:
        document["usage"] = usage
    if padding is not None:
        document["obfuscation"] = padding
    return _data(document)


def figures(usage: Mapping[str, Any] = USAGE, model: str = MODEL) -> bytes:
    """The chunk without choices that tells the usage."""
    return chunk(None, usage=usage, model=model)


def chat_stream(
    words: Sequence[str] = WORDS,
    *,
    usage: Mapping[str, Any] | None = USAGE,
    model: str = MODEL,
    padded: bool = False,
) -> list[bytes]:
    """The events of a chat stream; without `usage` as it is when nobody asks for it."""
    asked: dict[str, Any] = {"model": model, "say_usage": usage is not None}
    events = [chunk({"role": "assistant", "content": "", "refusal": None}, **asked)]
    for number, word in enumerate(words):
        padding = "aZ9"[: number % 4] if padded else None
        events.append(chunk({"content": word}, padding=padding, **asked))
    events.append(chunk({}, finish="stop", **asked))
    if usage is not None:
        events.append(figures(usage, model))
    return [*events, DONE]


def chat_json(
    text: str = "".join(WORDS), *, usage: Mapping[str, Any] | None = USAGE, model: str = MODEL
) -> dict[str, Any]:
    """A whole chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    document: dict[str, Any] = {
        "id": "chatcmpl-stub",
        "object": "chat.completion",
        "created": 1_796_000_000,
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "service_tier": "default",
        "system_fingerprint": "fp_stub",
    }
    return document | ({} if usage is None else {"usage": dict(usage)})


def response_json(
    text: str = "".join(WORDS),
    *,
    usage: Mapping[str, Any] | None = RESPONSE_USAGE,
    model: str = MODEL,
    status: str = "completed",
    more: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """A whole response; `more` are further items of its output."""
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    message = {
        "id": "msg_stub",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }
    return {
        "id": "resp_stub",
        "object": "response",
        "created_at": 1_796_000_000,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "model": model,
        "output": [*more, message],
        "parallel_tool_calls": True,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None if usage is None else dict(usage),
        "user": None,
        "metadata": {},
    }


def response_event(kind: str, number: int, **fields: Any) -> bytes:
    """One event of a response's stream."""
    return event(kind, {"type": kind, **fields, "sequence_number": number})


def text_event(text: str, number: int) -> bytes:
    """One piece of text."""
    place = {"item_id": "msg_stub", "output_index": 0, "content_index": 0}
    return response_event("response.output_text.delta", number, **place, delta=text, logprobs=[])


def response_stream(
    words: Sequence[str] = WORDS,
    *,
    usage: Mapping[str, Any] | None = RESPONSE_USAGE,
    model: str = MODEL,
    end: str = "completed",
) -> list[bytes]:
    """The events of a response's stream."""
    begun = response_json("", usage=None, model=model, status="in_progress") | {"output": []}
    item = {"id": "msg_stub", "type": "message", "role": "assistant", "content": []}
    place = {"item_id": "msg_stub", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    events = [
        response_event("response.created", 0, response=begun),
        response_event("response.in_progress", 1, response=begun),
        response_event("response.output_item.added", 2, output_index=0, item=item),
        response_event("response.content_part.added", 3, **place, part=part),
    ]
    events += [text_event(word, number) for number, word in enumerate(words, 4)]
    whole = response_json("".join(words), usage=usage, model=model, status=end)
    number = len(events)
    text = {**place, "text": "".join(words), "logprobs": []}
    (message,) = whole["output"]
    done = {"output_index": 0, "item": message}
    return [
        *events,
        response_event("response.output_text.done", number, **text),
        response_event(
            "response.content_part.done", number + 1, **place, part=message["content"][0]
        ),
        response_event("response.output_item.done", number + 2, **done),
        response_event(f"response.{end}", number + 3, response=whole),
    ]


def embeddings_json(model: str, count: int = 1) -> dict[str, Any]:
    """Embeddings of so many texts."""
    data = [
        {"object": "embedding", "index": index, "embedding": [0.25, -0.5]} for index in range(count)
    ]
    usage = {"prompt_tokens": 7 * count, "total_tokens": 7 * count}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def error_json(message: str, kind: str, code: str | None) -> dict[str, Any]:
    """An error."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
