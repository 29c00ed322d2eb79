"""Every shape of request that real clients were seen to send, through a proxy to the provider.

`tests/vectors/captures.json` holds one entry for each: a client and what it did, its headers in
their order and spelling, the credential headers it used, and a body of the captured shape, short
and in nobody's words. What we serve goes up byte for byte; of what we do not, nothing goes up.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.canary import CANARY
from tests.servers.client import RawStream
from tests.servers.openai_stack import KEY as OPENAI_KEY
from tests.servers.openai_stack import UPSTREAM_KEYS
from tests.servers.stack import Stack
from tests.servers.stub import Recorded, StubUpstream

ROOT = Path(__file__).parents[2]
CAPTURES: list[dict[str, Any]] = json.loads(
    (ROOT / "tests" / "vectors" / "captures.json").read_text(encoding="utf-8")
)
REPORT = ROOT / "build" / "captures.md"
ANTHROPIC_KEY = f"sk-ant-{CANARY}-acme"
UNKNOWN = b'"brand_new_option" : 1.50e0'
UNKNOWN_BETA = "brand-new-2027-01-01"
# What a client sees of it: the flag of an OAuth credential stays with us.
OURS = ("oauth-2025-04-20",)
VERBATIM = ("anthropic-version", "openai-beta", "user-agent", "x-app", "accept", "content-type")
POLICY = """
profiles:
  all:
    authorization_details:
      - {type: llm_inference, provider: anthropic, endpoints: [messages, count_tokens, models],
         models: ["*"]}
      - {type: llm_inference, provider: openai, models: ["*"],
         endpoints: [chat_completions, responses, embeddings, models]}
    budget_usd: "1000.00"
    max_budget_usd: "1000.00"
  strict:
    authorization_details:
      - {type: llm_inference, provider: anthropic, endpoints: [messages, count_tokens, models],
         models: ["*"], body: strict}
      - {type: llm_inference, provider: openai, models: ["*"], body: strict,
         endpoints: [chat_completions, responses, embeddings, models]}
    budget_usd: "1000.00"
tenants:
  acme: {profiles: [all, strict]}
orchestrators:
  acme-ci: {tenant: acme}
"""


@pytest.fixture
def provider() -> Iterator[StubUpstream]:
    """The stub of both providers."""
    with StubUpstream(UPSTREAM_KEYS) as server:
        yield server


@pytest.fixture
def stack(make_stack: Callable[..., Stack], provider: StubUpstream) -> Stack:
    """A daypass in front of it that allows every model."""
    return make_stack(
        upstream_url=provider.url,
        policy=POLICY,
        openai_keys="acme=env://OPENAI_KEY",
        proxy_settings={"OPENAI_KEY": OPENAI_KEY},
    )


def test_every_captured_request_passes_as_it_is(stack: Stack, provider: StubUpstream) -> None:
    """B37, B38: body, versions and betas go up verbatim, the credential is replaced, and unknown
    fields and flags are kept; what is not served is answered, and nothing of it goes up."""
    token = stack.access_token(stack.sandbox(profile="all"))
    lines = ["| capture | goes up | as it came | with what is unknown |", "|---|---|---|---|"]
    for capture in CAPTURES:
        plain = send(capture, stack, provider, token)
        unknown = "" if plain == "no" else send(with_unknown(capture), stack, provider, token)
        where = capture["upstream"] or f"no, {capture['status']}"
        lines.append(f"| {capture['name']} | {where} | {plain} | {unknown} |")
    table = "\n".join(lines)
    print(table)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(table + "\n", encoding="utf-8")
    served = [capture for capture in CAPTURES if capture["upstream"]]
    assert len(served) == 33
    assert len({capture["name"] for capture in CAPTURES}) == len(CAPTURES) == 52


def test_what_clients_send_is_known(stack: Stack, provider: StubUpstream) -> None:
    """Row 32: each captured request passes a strict profile as it is; with a field and a flag that
    nobody knows it is 400, names them, and nothing goes up."""
    token = stack.access_token(stack.sandbox(profile="strict"))
    for capture in [capture for capture in CAPTURES if capture["upstream"]]:
        send(capture, stack, provider, token)
        newer = with_unknown(capture) | {"status": 400, "upstream": ""}
        assert send(newer, stack, provider, token) == "no"


def with_unknown(capture: dict[str, Any]) -> dict[str, Any]:
    """The same request of a newer client: with a field and a flag that nobody here knows."""
    headers = [[name, value] for name, value in capture["headers"]]
    betas = [pair for pair in headers if pair[0].lower() == "anthropic-beta"]
    for pair in betas:
        pair[1] += f",{UNKNOWN_BETA}"
    if not betas and "openai" not in capture["path"]:
        headers.append(["Anthropic-Beta", UNKNOWN_BETA])
    body = capture["body"].encode()[:-1] + b",\n\t" + UNKNOWN + b" }"
    return {**capture, "headers": headers, "body": body.decode()}


def send(capture: dict[str, Any], stack: Stack, provider: StubUpstream, token: str) -> str:
    """Send one request as it was captured; say how it went up."""
    provider.reset()
    body = (capture["body"] or "").encode()
    target = capture["path"] + (f"?{capture['query']}" if capture["query"] else "")
    lines = [f"{capture['method']} {target} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [
        f"{name}: {'Bearer ' if name.lower() == 'authorization' else ''}{token}"
        for name in capture["credentials"]
    ]
    lines += [f"{name}: {value}" for name, value in capture["headers"]]
    if capture["method"] == "POST":
        lines.append(f"Content-Length: {len(body)}")
    stream = RawStream.send(stack.proxy_url, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    try:
        if capture["method"] == "HEAD":
            stream.until(lambda text: b"\r\n\r\n" in text)
        else:
            stream.until(lambda _: stream.complete)
        assert stream.status == capture["status"], (capture["name"], stream.received[:2000])
    finally:
        stream.close()
    if not capture["upstream"]:
        assert provider.requests == [], capture["name"]
        return "no"
    (seen,) = provider.requests
    check(capture, seen, body, token)
    return "ok"


def check(capture: dict[str, Any], seen: Recorded, body: bytes, token: str) -> None:
    """Hold what arrived against what was sent."""
    name = capture["name"]
    assert seen.body == b"{" + capture["added"].encode() + body[1:], name
    query = f"?{capture['query']}" if capture["query"] else ""
    assert seen.target == capture["upstream"] + query, name
    sent = [(each.lower(), value) for each, value in capture["headers"]]
    for header in VERBATIM:
        assert seen.header(header) == [value for each, value in sent if each == header], name
    for prefix in ("x-stainless-", "x-claude-code-"):
        got = [(each, value) for each, value in seen.headers if each.startswith(prefix)]
        assert got == [pair for pair in sent if pair[0].startswith(prefix)], name
    betas = [value for each, value in sent if each == "anthropic-beta"]
    flags = [[flag for flag in value.split(",") if flag not in OURS] for value in betas]
    assert seen.header("anthropic-beta") == [",".join(kept) for kept in flags if kept], name
    assert token.encode() not in seen.raw, name
    anthropic = "openai" not in capture["path"]
    assert seen.header("x-api-key") == ([ANTHROPIC_KEY] if anthropic else []), name
    assert seen.header("authorization") == ([] if anthropic else [f"Bearer {OPENAI_KEY}"]), name
    for header in ("x-goog-api-key", "api-key", "cookie"):
        assert seen.header(header) == [], name
