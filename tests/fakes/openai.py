"""Requests of OpenAI's API for tests: a plain body with changes, read against a scope."""

import contextlib
import json
from typing import Any

import pytest

from daypass_core.problem import Problem, Refusal
from daypass_core.scope import OPENAI_ENDPOINTS, Detail
from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.providers import Call
from daypass_proxy.providers.openai import OpenAI
from tests.fakes.asgi import make_exchange

JSON = (b"content-type", b"application/json")
MODEL = "gpt-4o"
CHAT, RESPONSES, EMBEDDINGS = "chat_completions", "responses", "embeddings"
PLAIN: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    RESPONSES: {"model": MODEL, "input": "hi"},
    EMBEDDINGS: {"model": MODEL, "input": "hi"},
}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def detail(
    *features: str,
    models: tuple[str, ...] = ("gpt-4o*",),
    domains: tuple[str, ...] = (),
    cap: int | None = None,
    provider: str = "openai",
    body: str = "compat",
) -> Detail:
    """Return a scope detail for a provider of OpenAI's API."""
    return Detail(provider, OPENAI_ENDPOINTS, models, features, domains, cap, body)


def read(
    endpoint: str,
    changes: dict[str, Any] | None = None,
    scope: Detail | None = None,
    *,
    query: bytes = b"",
    headers: HeaderPairs = (),
    body: bytes | None = None,
    provider: str = "openai",
) -> Call:
    """Read the plain body of an endpoint with changes."""
    if body is None:
        body = json.dumps({**PLAIN[endpoint], **(changes or {})}).encode()
    exchange, _ = make_exchange(query=query, headers=(JSON, *headers), body=body)
    reading = OpenAI(provider).read(exchange, endpoint, body, scope or detail(), "sb_1")
    with contextlib.closing(reading):
        try:
            reading.send(None)
        except StopIteration as done:
            call: Call = done.value
            return call
    raise AssertionError("it waited for something")


def refused(
    endpoint: str,
    changes: dict[str, Any] | None = None,
    scope: Detail | None = None,
    **options: Any,
) -> Problem:
    """Return the problem of a body that must not pass; always a 400 that ends retries."""
    with pytest.raises(Refusal) as caught:
        read(endpoint, changes, scope, **options)
    problem = caught.value.problem
    assert problem.status == 400
    assert problem.should_retry is False
    return problem


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    """Return a change of messages: one user turn of parts."""
    return {"messages": [{"role": "user", "content": list(parts)}]}


def items(*given: dict[str, Any]) -> dict[str, Any]:
    """Return a change of input: these items."""
    return {"input": list(given)}
