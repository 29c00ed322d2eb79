"""Request bodies: valid Messages requests, in scope and priced, of a given size.

The word after "bench:" tells the upstream what to answer (see upstream.c).
"""

import base64
import json
from pathlib import Path

MODEL = "claude-sonnet-4-5"
TEXT = 'The quick brown fox jumps over the lazy dog; it said "hello" and left — twice.\n'


def _written(value: object) -> bytes:
    """Return JSON as the official clients write it: compact, in UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def text_body(word: str, size: int, stream: bool) -> bytes:
    """A conversation of about `size` bytes, as an agent sends it: many turns of plain text.

    Turns of about 3 kB; in larger ones about 300 turns, which is what fits into a model.
    """
    most = max(40, size // 300 // len(TEXT))
    turns: list[dict[str, object]] = []
    request = {
        "model": MODEL,
        "max_tokens": 1024,
        "stream": stream,
        "system": f"bench:{word} You are a helpful assistant.",
        "messages": turns,
    }
    left = size - len(_written(request))
    while left > 0 or len(turns) % 2 == 0:
        role = "assistant" if len(turns) % 2 else "user"
        text = TEXT * max(1, min(most, left // 90))
        turns.append({"role": role, "content": [{"type": "text", "text": text}]})
        left -= len(_written(turns[-1])) + 1
    return _written(request)


def image_body(word: str, size: int) -> bytes:
    """One base64 image of about `size` bytes and a question."""
    data = base64.b64encode(bytes(i * 7 % 256 for i in range(1021)) * (size * 3 // 4 // 1021 + 1))
    source = {"type": "base64", "media_type": "image/png", "data": data.decode()[: size // 4 * 4]}
    request = {
        "model": MODEL,
        "max_tokens": 1024,
        "system": f"bench:{word} You are a helpful assistant.",
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image", "source": source}, {"type": "text", "text": "What?"}],
            }
        ],
    }
    return _written(request)


def write_body(folder: Path, word: str, size: int, kind: str = "text") -> Path:
    """Write one body and return its file."""
    path = folder / f"{word}-{kind}-{size}.json"
    stream = word.startswith(("burst", "paced"))
    body = image_body(word, size) if kind == "base64" else text_body(word, size, stream)
    path.write_bytes(body)
    return path
