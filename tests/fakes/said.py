"""Events in which a provider says what a call used, for tests of the meter."""

import gzip
import zlib
from typing import Any

from tests.servers.wire import event, message_start

MODEL = "claude-sonnet-4-6"


def tool_delta(text: str) -> bytes:
    """A piece of a tool's input."""
    delta = {"type": "input_json_delta", "partial_json": text}
    return event("content_block_delta", {"type": "content_block_delta", "index": 1, "delta": delta})


def start_with_cache() -> bytes:
    """A first event with every kind of input figure."""
    usage = {
        "input_tokens": 12,
        "cache_creation_input_tokens": 7,
        "cache_read_input_tokens": 30,
        "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 2},
        "output_tokens": 1,
        "service_tier": "standard",
    }
    return message_start(MODEL, usage)


def iterations() -> dict[str, Any]:
    """Usage of several passes: the message itself, a compaction and an advisor beside it."""
    return {
        "input_tokens": 250,
        "output_tokens": 60,
        "server_tool_use": {"web_search_requests": 2},
        "iterations": [
            {"type": "message", "input_tokens": 250, "output_tokens": 60},
            {"type": "compaction", "input_tokens": 100, "output_tokens": 40},
            {
                "type": "advisor_message",
                "model": "claude-opus-5-5",
                "input_tokens": 900,
                "output_tokens": 300,
                "cache_read_input_tokens": 11,
                "cache_creation_input_tokens": 3,
                "cache_creation": {"ephemeral_1h_input_tokens": 3},
            },
        ],
    }


def encode(coding: str, data: bytes) -> bytes:
    """Return data in a content coding."""
    if coding == "gzip":
        return gzip.compress(data)
    return zlib.compress(data) if coding == "deflate" else data
