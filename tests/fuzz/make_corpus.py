"""Writes the first corpus of each target: small, valid, and near the edges worth crossing.

    python -m tests.fuzz.make_corpus

Inputs that were found to fail are kept beside these under names that begin with `found-`.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from daypass_core.claims import access_payload
from tests.fuzz.targets import GOOD
from tests.support import make_claims, make_scope

FOLDER = Path(__file__).with_name("corpus")


def main() -> None:
    """Write every file."""
    for target, inputs in (
        ("body", bodies()), ("fields", requests()), ("stream", streams()), ("token", tokens()),
        ("claims", payloads()), ("head", heads()),
    ):  # fmt: skip
        folder = FOLDER / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in inputs:
            (folder / name).write_bytes(data)


def bodies() -> Iterator[tuple[str, bytes]]:
    """Yield JSON that is taken, and some that is not."""
    plain = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "h\u00e9"}]}
    yield "compact", json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode()
    yield "spaced", json.dumps(plain, indent=1).encode()
    yield "numbers", b'{"a":[0,-0,1.5,-1e5,1E-3,18446744073709551616,null,true,false]}'
    yield "escapes", b'{"\\u0061\\"\\\\\\/\\b\\ud83d\\ude00":"\\n\\t:,[{"}'
    yield "twice", b'{"a":{"b":1,"\\u0062":2}}'
    yield "nested", b'{"a":' + b'[{"a":' * 20 + b"1" + b"}]" * 20 + b"}"
    yield "constants", b'{"a":NaN,"b":Infinity,"c":1e999}'
    yield "surrogate", b'{"a":"\\ud800"}'
    yield "mark", b'\xef\xbb\xbf{"a":1}'


def requests() -> Iterator[tuple[str, bytes]]:
    """Yield requests with whatever a scope can open."""
    plain: dict[str, object] = {"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": []}
    image: dict[str, object] = {
        "type": "image",
        "source": {"type": "url", "url": "https://b.a.test/i.png"},
    }
    fetch = {"type": "web_fetch_20260309", "name": "web_fetch", "max_uses": 2,
             "allowed_domains": ["a.test"]}  # fmt: skip
    change: dict[str, object] = {
        "type": "tool_addition",
        "tool": {"type": "tool_definition", "definition": fetch},
    }
    changes: dict[str, dict[str, object]] = {
        "plain": {"stream": True, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        "blocks": {"messages": [{"role": "user", "content": [image, {"type": "text"}]}]},
        "nested": {"messages": [{"content": [{"type": "tool_result", "content": [image]}]}]},
        "tools": {"tools": [fetch, {"name": "f", "input_schema": {}}]},
        "changed": {"messages": [{"role": "user", "content": [change]}]},
        "fallbacks": {"fallbacks": [{"model": "claude-sonnet-4-5", "max_tokens": 3}]},
        "advisor": {"tools": [{"type": "advisor_20260301", "model": "claude-opus-4"}]},
        "state": {"thread": None, "container": "c", "diagnostics": {"previous_message_id": "m"}},
        "lookalike": {"Model": "claude-opus-4"},
    }
    for name, each in changes.items():
        yield name, json.dumps({**plain, **each}).encode()


def streams() -> Iterator[tuple[str, bytes]]:
    """Yield streams of events behind the bytes that say where to cut."""
    events = [
        ("message_start", {"type": "message_start", "message": {"usage": {"input_tokens": 25}}}),
        ("content_block_delta", {"type": "content_block_delta", "index": 0,
                                 "delta": {"type": "text_delta", "text": "h\u00e9"}}),
        ("ping", {"type": "ping"}),
        ("message_delta", {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                           "usage": {"output_tokens": 15}}),
        ("message_stop", {"type": "message_stop"}),
    ]  # fmt: skip
    compact = [(name, json.dumps(data, separators=(",", ":"))) for name, data in events]
    plain = "".join(f"event: {name}\ndata: {data}\n\n" for name, data in compact).encode()
    yield "plain", b"\x03\x10\x80\xf0" + plain
    yield "crlf", b"\x02\x31\x77" + plain.replace(b"\n", b"\r\n")
    yield "nameless", b"\x01\x55" + "".join(f"data:{data}\n\n" for _, data in compact).encode()
    yield "error", b"\x01\x33" + b'event: error\ndata: {"type":"error","error":{"type":"x"}}\n\n'
    yield "lines", b"\x01\x33" + b'data: {"type":\ndata: "message_stop"}\n\n: c\nid: 1\n\n'


def tokens() -> Iterator[tuple[str, bytes]]:
    """Yield the good token and its parts."""
    yield "good", GOOD.encode()
    yield "unsigned", GOOD.rpartition(".")[0].encode() + b"."
    yield "none", b"eyJhbGciOiJub25lIn0.e30."


def payloads() -> Iterator[tuple[str, bytes]]:
    """Yield payloads with a small and with a full scope."""
    full = make_scope(features=("web_search",), allowed_domains=("a.test",), max_output_tokens=9)
    for name, claims in (("small", make_claims()), ("full", make_claims(scope=full))):
        yield name, json.dumps(access_payload(claims), separators=(",", ":")).encode()


def heads() -> Iterator[tuple[str, bytes]]:
    """Yield heads: a line of method and target, then one line a header."""
    yield "post", b"POST /v1/messages?beta=true\nhost:proxy.test\ncontent-length:12\naccept:*/*"
    yield "chunked", b"POST /v1/messages\nhost:[::1]:8443\ntransfer-encoding:chunked"
    yield "both", b"POST /v1/messages\nhost:h\ncontent-length:1\ntransfer-encoding:chunked"
    yield "offers", b"GET /\nhost:h\nupgrade:websocket\nexpect:100-continue\ntrailer:x"
    yield "text", b"GET /%2e%2e/a;b\nhost:h\nx-caf\xc3\xa9:v\nx_a:b\nx-v:\xc3\xa9\x00"


if __name__ == "__main__":
    main()
