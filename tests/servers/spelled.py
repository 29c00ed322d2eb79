"""Valid Anthropic requests in every spelling JSON allows, and answers to them; all from a seed."""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.servers.stub import Recorded, Script, Send
from tests.servers.wire import event, head, message_json, message_stream

MODELS = ("claude-sonnet-4-5", "claude-haiku-4-5", "claude-opus-4-5")
WORDS = (
    "hi", "안녕", "😀", "e\u0301", "\u00e9", "\u200b", "\u2028", "a/b", '"q"', "\\", "\t", "\n",
    "\u0001", "\u007f", "data: x", "\r\n\r\n", "{}", "\U0010ffff", "\ufeff", "ß", "Ω", "x" * 20,
)  # fmt: skip
MORE_HEADERS = (
    ("anthropic-version", "2023-06-01"),
    ("Anthropic-Version", "2023-06-01"),
    ("anthropic-beta", "context-1m-2025-08-07,interleaved-thinking-2025-05-14"),
    ("anthropic-beta", "oauth-2025-04-20, prompt-caching-2024-07-31"),
    ("anthropic-beta", "oauth-2025-04-20"),
    ("anthropic-dangerous-direct-browser-access", "true"),
    ("anthropic-new-and-unknown", 'a "b"; c=d,e'),
    ("anthropic-workspace-id", "wrkspc_1"),
    ("X-Stainless-Lang", "python"),
    ("X-Stainless-Retry-Count", "0"),
    ("x-stainless-helper", "caf\u00e9"),
    ("X-Claude-Code-Agent-Id", "agent  with  blanks"),
    ("User-Agent", "Anthropic/Python 2.14.0"),
    ("x-app", "cli"),
    ("Accept", "application/json"),
    ("Accept-Encoding", "gzip, deflate, br, zstd"),
    ("Cookie", "a=b"),
    ("X-Forwarded-For", "203.0.113.9"),
    ("Proxy-Authorization", "Basic eDp5"),
    ("Sec-Fetch-Mode", "cors"),
)
ANSWER_HEADERS = (
    ("anthropic-ratelimit-requests-remaining", "49"),
    ("anthropic-organization-id", "org_1"),
    ("anthropic-new-and-unknown", "a, b;c"),
    ("set-cookie", "__cf_bm=x; path=/"),
    ("cf-ray", "8f"),
    ("server", "cloudflare"),
    ("via", "1.1 google"),
    ("x-should-retry", "false"),
    ("retry-after", "7"),
    ("strict-transport-security", "max-age=1"),
)


@dataclass(frozen=True)
class Spelled:
    """One request; `headers` lack host, credential and content-length."""

    number: int
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def on_wire(self, host: str, credential: tuple[str, str]) -> bytes:
        """Its bytes."""
        lines = [
            f"POST {self.target} HTTP/1.1",
            f"Host: {host}",
            ": ".join(credential),
            *(": ".join(pair) for pair in self.headers),
            f"Content-Length: {len(self.body)}",
        ]
        return "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + self.body


def make(number: int, seed: int) -> Spelled:
    """The request of this number."""
    rng = Random(f"{seed}/{number}")
    counting = rng.random() < 0.15
    document = _document(rng, counting)
    media = rng.choice(("application/json", "application/json; charset=utf-8"))
    headers = [
        ("x-claude-code-session-id", str(number)),
        (rng.choice(("Content-Type", "content-type")), media),
        *(pair for pair in rng.sample(MORE_HEADERS, rng.randint(0, 6))),
    ]
    once = {name.lower(): (name, value) for name, value in headers}
    path = "/v1/messages/count_tokens" if counting else "/v1/messages"
    target = path + rng.choice(("", "?beta=true"))
    return Spelled(number, target, tuple(once.values()), spell(document, rng).encode("utf-8"))


def _document(rng: Random, counting: bool) -> dict[str, Any]:
    def text() -> str:
        return "".join(rng.choices(WORDS, k=rng.randint(1, 3)))

    content: Any = text()
    if rng.random() < 0.5:
        content = [{"type": "text", "text": content}]
    fields: dict[str, Any] = {
        "model": rng.choice(MODELS),
        "messages": [{"role": "user", "content": content}],
    }
    if not counting:
        fields |= {"max_tokens": rng.randint(1, 64), "stream": rng.random() < 0.5}
        more = {
            "temperature": rng.choice((0, 1, 0.5, 1.0)),
            "stop_sequences": [text()],
            "metadata": {"user_id": text()},
            "a_field_of_tomorrow": rng.choice((True, None, "x", 1e3)),
        }
        fields |= dict(rng.sample(sorted(more.items()), rng.randint(0, 2)))
    extra: dict[str, Any] = {
        "system": text(),
        "tools": [{"name": "t", "description": text(), "input_schema": {"type": "object"}}],
    }
    fields |= dict(rng.sample(sorted(extra.items()), rng.randint(0, 1)))
    return fields


def spell(value: Any, rng: Random) -> str:
    """One of the many JSON texts of a value."""

    def blank() -> str:
        return rng.choice(("", "", "", " ", "\n", "\t", "\r\n  "))

    if isinstance(value, dict):
        pairs = list(value.items())
        rng.shuffle(pairs)
        inner = ",".join(
            f"{blank()}{spell(key, rng)}{blank()}:{blank()}{spell(item, rng)}{blank()}"
            for key, item in pairs
        )
        return "{" + inner + "}"
    if isinstance(value, list):
        return "[" + ",".join(f"{blank()}{spell(item, rng)}{blank()}" for item in value) + "]"
    if isinstance(value, str):
        return '"' + "".join(_character(one, rng) for one in value) + '"'
    return json.dumps(value)


def _character(one: str, rng: Random) -> str:
    plain = json.dumps(one, ensure_ascii=False)[1:-1]
    if one == "/":
        return rng.choice(("/", "\\/"))
    if rng.random() < 0.1:
        escaped = json.dumps(one)[1:-1]
        if len(one.encode("utf-16-be")) == 2:
            escaped = rng.choice((f"\\u{ord(one):04x}", f"\\u{ord(one):04X}"))
        return escaped
    return plain


def answer(recorded: Recorded) -> Script:
    """What the provider answers to a request: always the same, single bytes apart or not."""
    rng = Random(recorded.body)
    document = json.loads(recorded.body)
    headers = [("request-id", f"req_{rng.randint(0, 999)}"), ("connection", "close")]
    headers += rng.sample(ANSWER_HEADERS, rng.randint(0, 4))
    texts = rng.choices(WORDS, k=2)
    if rng.random() < 0.1:
        status = rng.choice((400, 404, 413, 429, 500, 529))
        error = {"type": "error", "error": {"type": "api_error", "message": texts[0]}}
        return [Send(_json(status, error, headers, rng))]
    if recorded.target.startswith("/v1/messages/count_tokens"):
        return [Send(_json(200, {"input_tokens": rng.randint(1, 99)}, headers, rng))]
    if not document.get("stream"):
        return [Send(_json(200, message_json(document["model"], texts[0]), headers, rng))]
    headers += [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")]
    events = message_stream(document["model"], texts)
    events.insert(3, event("news", {"type": "news_of_tomorrow", "text": texts[1]}))
    data = head(200, headers)
    for one in events:
        data += b"%x\r\n%b\r\n" % (len(one), one)
    return [Send(data + b"0\r\n\r\n")]


def _json(status: int, body: object, headers: list[tuple[str, str]], rng: Random) -> bytes:
    data = spell(body, rng).encode("utf-8")
    headers = [*headers, ("content-type", "application/json")]
    if rng.random() < 0.5:
        return head(status, [*headers, ("content-length", str(len(data)))]) + data
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
    return head(status, [*headers, ("transfer-encoding", "chunked")]) + chunks
