"""POST /v1/infer: a call of the default model like any other, in the plainest form."""

import json
from typing import Any

import pytest

from daypass_core.scope import ENDPOINTS, OPENAI_ENDPOINTS, Detail, Scope
from daypass_proxy.edge import respond
from daypass_proxy.ledger import Outcome
from daypass_proxy.transport import UpstreamUnreachable
from tests.fakes.exchange import FakeClient
from tests.fakes.forwarding import TOKEN, Forwarding
from tests.fakes.transport import JSON, FakeAnswer
from tests.servers import openai_wire as wire
from tests.servers.wire import message_json
from tests.support import make_claims

SONNET = "claude-sonnet-4-6"
ANTHROPIC = Detail("anthropic", ENDPOINTS["anthropic"], ("claude-*", SONNET))
OPENAI = Detail("openai", OPENAI_ENDPOINTS, ("gpt-4o*", "gpt-4o"))
MESSAGE = json.dumps(message_json(SONNET)).encode()
CHAT = json.dumps(wire.chat_json("hi there")).encode()


async def infer(
    body: object, *details: Detail, answer: FakeAnswer | Exception | None = None, path: str = ""
) -> Forwarding:
    """Ask for a completion with a token of this scope."""
    proxy = Forwarding(*([] if answer is None else [answer]))
    proxy.claims = make_claims(scope=Scope(details or (ANTHROPIC,)))
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    proxy.client = FakeClient(
        sent,
        path=b"/v1/infer",
        query=path.encode(),
        headers=((b"authorization", f"Bearer {TOKEN}".encode()),),
    )
    await respond(proxy.client.exchange, proxy.services)
    return proxy


def said(proxy: Forwarding) -> Any:
    """The answer as JSON."""
    assert proxy.client.headers[b"content-type"] == b"application/json"
    return json.loads(proxy.client.body)


async def test_anthropic() -> None:
    """The prompt is one user turn of the first exact model, and the answer's text comes back."""
    proxy = await infer({"prompt": "Say hi."}, answer=FakeAnswer([MESSAGE], headers=JSON))
    text = "".join(block["text"] for block in message_json(SONNET)["content"])  # type: ignore[attr-defined]
    assert said(proxy) == {"completion": text, "model": SONNET}
    (request,) = proxy.transport.requests
    assert proxy.asked == 1, "a foreign credential would be counted twice"
    assert request.url == "https://api.example/v1/messages"
    assert json.loads(request.body) == {
        "model": SONNET,
        "max_tokens": 1024,
        "messages": [{"role": "user", "content": "Say hi."}],
    }
    (settled,) = proxy.ledger.settlements
    assert (settled.outcome, settled.estimated) == (Outcome.COMPLETE, False)


async def test_max_tokens() -> None:
    """A limit of the client's own counts; without one the scope's cap does, where it is lower."""
    proxy = await infer(
        {"prompt": "x", "max_tokens": 7}, answer=FakeAnswer([MESSAGE], headers=JSON)
    )
    assert json.loads(proxy.transport.requests[0].body)["max_tokens"] == 7
    capped = Detail("anthropic", ("messages",), (SONNET,), max_output_tokens=50)
    proxy = await infer({"prompt": "x"}, capped, answer=FakeAnswer([MESSAGE], headers=JSON))
    assert json.loads(proxy.transport.requests[0].body)["max_tokens"] == 50
    proxy = await infer({"prompt": "x", "max_tokens": 51}, capped)
    assert (proxy.client.status, proxy.transport.requests) == (400, [])


async def test_the_first_exact_model_of_the_scope() -> None:
    """Patterns are no models; details are looked through in their order."""
    patterns = Detail("anthropic", ("messages",), ("claude-*",))
    unlisted = Detail("anthropic", ("models",), (SONNET,))
    for first in (patterns, unlisted, Detail("nobody", OPENAI_ENDPOINTS, ("m",))):
        proxy = await infer({"prompt": "x"}, first, OPENAI)
        assert proxy.client.status == 403, "there is no key for it here, but that is where it goes"
        assert said(proxy)["error"]["code"] == "insufficient_scope"
        assert "no key of" in said(proxy)["error"]["message"]


@pytest.mark.parametrize(
    "details",
    [(Detail("anthropic", ("messages",), ("*",)),), (Detail("anthropic", ("models",), (SONNET,)),)],
)
async def test_no_default_model(details: tuple[Detail, ...]) -> None:
    """A scope without an exact model is told what to do."""
    proxy = await infer({"prompt": "x"}, *details)
    assert proxy.client.status == 400
    message = said(proxy)["error"]["message"]
    assert message.startswith("this token has no default model; its scope names none exactly")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": ""},
        {"prompt": None},
        {"prompt": ["x"]},
        {"prompt": "x", "model": SONNET},
        {"prompt": "x", "max_tokens": "7"},
        {"prompt": "x", "max_tokens": True},
        {"prompt": "x", "max_tokens": 0},
        b'{"prompt":"a","prompt":"b"}',
        b"[]",
        b"prompt=x",
    ],
)
async def test_malformed(body: object) -> None:
    """What is no prompt is refused, and nothing goes up."""
    proxy = await infer(body)
    assert proxy.client.status == 400
    assert proxy.transport.requests == []
    assert proxy.ledger.reservations == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":[' + b"[]," * 100_000 + b"[]]}",
        b'{"prompt":"a","x":[' + b"{}," * 100_000 + b"{}]}",
        b"{" + b'"prompt":"a",' * 20_000 + b'"max_tokens":1}',
        b'{"prompt":"a","max_tokens":[' + b"[]," * 100_000 + b"1]}",
    ],
)
async def test_what_would_take_long_is_not_read(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 17: what of a large body is no prompt is refused unread: everybody waits meanwhile."""

    def parse(body: bytes) -> Any:
        raise AssertionError("it was read")

    monkeypatch.setattr("daypass_proxy.infer.parse", parse)
    proxy = await infer(body)
    assert proxy.client.status == 400
    assert "a prompt and max_tokens alone" in said(proxy)["error"]["message"]


async def test_a_long_prompt_of_any_text() -> None:
    """A prompt may be long and full of signs: it is one text."""
    prompt = 'a, "b": [{1}], \\ \n' * 20_000
    proxy = await infer({"prompt": prompt}, answer=FakeAnswer([MESSAGE], headers=JSON))
    sent = json.loads(proxy.transport.requests[0].body)
    assert sent["messages"][0]["content"] == prompt
    assert proxy.services.body_room.total == 0


async def test_no_query() -> None:
    """B10: nothing is read from a query."""
    assert (await infer({"prompt": "x"}, path="model=other")).client.status == 400


async def test_a_large_prompt() -> None:
    """A prompt has a bound, whatever the limit of other bodies."""
    assert (await infer({"prompt": "x" * 1024 * 1024})).client.status == 413


async def test_errors_pass() -> None:
    """What the provider answers in the place of a completion passes as it is."""
    error = b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}'
    proxy = await infer({"prompt": "x"}, answer=FakeAnswer([error], status=529, headers=JSON))
    assert (proxy.client.status, proxy.client.body) == (529, error)
    proxy = await infer({"prompt": "x"}, answer=UpstreamUnreachable("down"))
    assert (proxy.client.status, said(proxy)["type"]) == (529, "error")


@pytest.mark.parametrize(
    "said_instead", [b'{"error":{"message":"x"}}', b'{"type":"error","error":{}}', b"{}", b"[]"]
)
async def test_an_error_under_a_200(said_instead: bytes) -> None:
    """What is no answer of a model is not told as an empty completion."""
    proxy = await infer({"prompt": "x"}, answer=FakeAnswer([said_instead], headers=JSON))
    assert proxy.client.status == 502
    assert b"completion" not in proxy.client.body


async def test_a_spent_budget() -> None:
    """B07: it costs what a call costs, so without money it is refused like one."""
    proxy = Forwarding()
    account = f"sandbox:{make_claims().sandbox}"
    proxy.ledger.ceilings[account] = 1000
    proxy.claims = make_claims(scope=Scope((ANTHROPIC,)))
    proxy.client = FakeClient(
        b'{"prompt":"x"}',
        path=b"/v1/infer",
        headers=((b"authorization", f"Bearer {TOKEN}".encode()),),
    )
    await respond(proxy.client.exchange, proxy.services)
    assert proxy.client.status == 402
    assert proxy.transport.requests == []
