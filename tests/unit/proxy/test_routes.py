"""Routes of several providers: prefixes, wrong dialects, and the base URL that a client is told."""

from dataclasses import replace
from typing import Any

import pytest

from daypass_core.claims import Claims
from daypass_core.scope import Detail, Scope
from daypass_proxy.edge import respond
from daypass_proxy.providers.openai import OpenAI
from daypass_proxy.routes import find_route, route_name, speaker
from daypass_proxy.upstreams import Upstream
from tests.fakes.asgi import Wire, make_exchange
from tests.fakes.call import BODY
from tests.fakes.proxy import KEY, Proxy
from tests.support import access_token, make_claims, make_scope

HOST = (b"host", b"proxy.test")
JSON = (b"content-type", b"application/json")
UPSTREAMS = {"own": Upstream("http://llm.test/v1")}


async def ask(
    path: bytes, method: str = "POST", claims: Claims | None = None, body: bytes = BODY
) -> Wire:
    """One request to a proxy with an upstream of its own."""
    token = access_token(KEY, claims or make_claims(key_id=KEY.kid))
    headers = (HOST, JSON, (b"authorization", f"Bearer {token}".encode()))
    exchange, wire = make_exchange(method, path, b"", headers, body)
    proxy = Proxy()
    services = replace(
        proxy.services,
        settings=replace(proxy.settings, upstreams=UPSTREAMS),
        providers={**proxy.services.providers, "own": OpenAI("own")},
    )
    await respond(exchange, services)
    return wire


def message(wire: Wire, shape: str) -> str:
    """The words of an error, of the shape that this client reads."""
    document: dict[str, Any] = wire.json
    assert ("request_id" in document) == (shape == "anthropic")
    assert ("param" in document["error"]) == (shape == "openai")
    return str(document["error"]["message"])


@pytest.mark.parametrize(
    ("path", "shape", "said"),
    [
        (b"/v1/chat/completions", "openai", "OpenAI's API has the base URL https://proxy.test/ope"),
        (b"/chat/completions", "openai", "https://proxy.test/openai/v1"),
        (b"/v1/responses", "openai", "https://proxy.test/openai/v1"),
        (b"/v1/embeddings", "openai", "https://proxy.test/openai/v1"),
        (b"/v1/completions", "openai", "https://proxy.test/openai/v1"),
        (b"/openai/v1/messages", "anthropic", "the base URL https://proxy.test"),
        (b"/openai/messages", "anthropic", "the base URL https://proxy.test"),
        (b"/own/v1/messages/count_tokens", "anthropic", "the base URL https://proxy.test"),
        (b"/openai/v1/v1/chat/completions", "openai", "proxy.test/openai/v1, with /v1 once"),
        (b"/own/v1/v1/responses", "openai", "must be https://proxy.test/own/v1, with /v1 once"),
        (b"/openai/chat/completions", "openai", "must be https://proxy.test/openai/v1"),
        (b"/own/responses", "openai", "must be https://proxy.test/own/v1"),
        (b"/openai/v1/files", "openai", "/chat/completions, /responses, /embeddings and /models"),
        (b"/openai/v1/responses/resp_1", "openai", "below https://proxy.test/openai/v1"),
        (b"/openai/v1/chat/completions/", "openai", "below https://proxy.test/openai/v1"),
        (b"/openai/v1/realtime/client_secrets", "openai", "below https://proxy.test/openai/v1"),
        (b"/v1/v1/messages", "anthropic", "https://proxy.test, without /v1"),
        (b"/other/v1/chat/completions", "anthropic", "no such endpoint"),
        (b"/openai", "anthropic", "no such endpoint"),
        (b"/v1/infer/", "anthropic", "no such endpoint"),
    ],
)
async def test_b91_wrong_base_urls_are_explained(path: bytes, shape: str, said: str) -> None:
    """B46, B91: a client reads, in its own dialect, which base URL it should have."""
    wire = await ask(path)
    assert wire.status == 404
    assert said in message(wire, shape)


@pytest.mark.parametrize(
    "path",
    [
        b"/openai/v1/chat/completions",
        b"/openai/v1/responses",
        b"/own/v1/embeddings",
        b"/own/v1/chat/completions",
    ],
)
async def test_b91_a_token_for_another_provider(path: bytes) -> None:
    """B91: a token for Anthropic alone is told at OpenAI's paths where its own provider is."""
    wire = await ask(path)
    assert wire.status == 403
    said = message(wire, "openai")
    assert said.endswith("for anthropic the base URL is https://proxy.test")
    assert wire.headers[b"x-should-retry"] == b"false"


async def test_b91_a_token_for_openai_at_anthropics_path() -> None:
    """B91: the other way round; upstreams that this proxy does not know are not spoken of."""
    details = tuple(
        Detail(name, ("chat_completions",), ("m",)) for name in ("openai", "own", "unknown")
    )
    wire = await ask(b"/v1/messages", claims=make_claims(key_id=KEY.kid, scope=Scope(details)))
    assert wire.status == 403
    assert message(wire, "anthropic").endswith(
        "for openai the base URL is https://proxy.test/openai/v1;"
        " for own the base URL is https://proxy.test/own/v1"
    )


async def test_an_endpoint_that_is_not_in_the_scope() -> None:
    """Within one provider nothing is said of base URLs: they are right."""
    claims = make_claims(key_id=KEY.kid, scope=make_scope(endpoints=("count_tokens",)))
    wire = await ask(b"/v1/messages", claims=claims)
    assert wire.status == 403
    assert "base URL" not in message(wire, "anthropic")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", b"/openai/v1/chat/completions", b"POST"),
        ("GET", b"/openai/v1/responses", b"POST"),
        ("DELETE", b"/own/v1/models", b"GET"),
        ("POST", b"/own/v1/models/m", b"GET"),
        ("GET", b"/v1/infer", b"POST"),
    ],
)
async def test_other_methods(method: str, path: bytes, allowed: bytes) -> None:
    """Row 36: a route has its methods, and the answer names them in the client's dialect."""
    wire = await ask(path, method)
    assert wire.status == 405
    assert wire.headers[b"allow"] == allowed
    message(wire, "anthropic" if path == b"/v1/infer" else "openai")


def test_upstreams_have_routes_by_their_names() -> None:
    """A prefix leads somewhere only while the settings name it, byte for byte."""
    for path in (b"/own/v1/chat/completions", b"/own/v1/models", b"/own/v1/models/a/b"):
        assert find_route(path, UPSTREAMS) is not None
        assert find_route(path) is None
    for path in (b"/OWN/v1/models", b"/own//v1/models", b"/own/v1/models/", b"//own/v1/models"):
        assert find_route(path, UPSTREAMS) is None
    for path in (b"/own/v1/models/..", b"/own/v1/models/a//b", b"/own/v1/models/a%2Fb"):
        assert find_route(path, UPSTREAMS) is None
    assert find_route(b"/v1/chat/completions", UPSTREAMS) is None


def test_names_of_routes_are_few() -> None:
    """Metrics have one name for all models of a provider, and one for what is no route."""
    assert route_name(b"/own/v1/models/a/b", UPSTREAMS) == "/own/v1/models/{id}"
    assert route_name(b"/openai/v1/models/gpt-4o") == "/openai/v1/models/{id}"
    assert route_name(b"/v1/models/claude-x") == "/v1/models/{id}"
    assert route_name(b"/own/v1/responses", UPSTREAMS) == "/own/v1/responses"
    assert route_name(b"/own/v1/responses") == "unknown"


def test_speakers() -> None:
    """Of a path that is nobody's it is told who asks for it."""
    assert speaker(b"/own/v1/x", UPSTREAMS) == "own"
    assert speaker(b"/own/v1/x") == "anthropic"
    assert speaker(b"/v1/messages/x") == "anthropic"
    assert speaker(b"/v1/chat/x") == "openai"
