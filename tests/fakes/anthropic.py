"""Anthropic requests for tests: a plain body with changes, read against a scope."""

import contextlib
import json
from typing import Any

import pytest

from daypass_core.problem import Problem, Refusal
from daypass_core.scope import Detail
from daypass_proxy.exchange import Exchange, HeaderPairs
from daypass_proxy.providers import Call, Rendered
from daypass_proxy.providers.anthropic import Anthropic
from tests.fakes.asgi import make_exchange

SONNET = "claude-sonnet-4-6"
JSON = (b"content-type", b"application/json")
PLAIN: dict[str, Any] = {
    "model": SONNET,
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "hi"}],
}


def anthropic_render(problem: Problem, request_id: str, target: bytes = b"") -> Rendered:
    """Render what the guard refuses, whatever was asked for."""
    return Anthropic().render(problem, request_id)


def detail(
    *features: str,
    models: tuple[str, ...] = ("claude-sonnet-*",),
    domains: tuple[str, ...] = (),
    cap: int | None = None,
    body: str = "compat",
) -> Detail:
    """Return a scope detail for anthropic."""
    return Detail("anthropic", ("messages", "count_tokens"), models, features, domains, cap, body)


def read(
    changes: dict[str, Any] | None = None,
    scope: Detail | None = None,
    *,
    endpoint: str = "messages",
    query: bytes = b"",
    headers: HeaderPairs = (),
    without: str = "",
) -> Call:
    """Read the plain body with changes."""
    document = {**PLAIN, **(changes or {})}
    document.pop(without, None)
    body = json.dumps(document).encode()
    exchange, _ = make_exchange(query=query, headers=(JSON, *headers), body=body)
    return read_now(exchange, endpoint, body, scope or detail())


def read_now(exchange: Exchange, endpoint: str, body: bytes, scope: Detail) -> Call:
    """Read a request by a provider that checks every body at once, so that nothing waits."""
    reading = Anthropic().read(exchange, endpoint, body, scope, "sb_1")
    with contextlib.closing(reading):
        try:
            reading.send(None)
        except StopIteration as done:
            call: Call = done.value
            return call
    raise AssertionError("it waited for something")


def refused(
    changes: dict[str, Any] | None = None, scope: Detail | None = None, **options: Any
) -> Problem:
    """Return the problem of a body that must not pass; always a 400 that ends retries."""
    with pytest.raises(Refusal) as caught:
        read(changes, scope, **options)
    problem = caught.value.problem
    assert problem.status == 400
    assert problem.should_retry is False
    return problem


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    """Return a change of messages: one user turn of blocks."""
    return {"messages": [{"role": "user", "content": list(blocks)}]}
