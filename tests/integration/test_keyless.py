"""No static key at all: identity tokens exchanged at the provider, with whole processes."""

import base64
import json
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import anthropic
import pytest

from tests.canary import CANARY
from tests.servers.federation import BETAS, ORGANIZATION, PATH, RULE, TokenEndpoint
from tests.servers.issuer import SigningPair, sign
from tests.servers.stack import Answer, Stack, call
from tests.servers.stub import Send, StubUpstream
from tests.servers.vault import swap
from tests.servers.wire import json_answer
from tests.support import eventually

PAIR = SigningPair("ES256", "one")


@cache
def identity(number: int) -> str:
    """An identity token, as a platform projects it: each number is another one."""
    return sign(PAIR, {"alg": "ES256"}, {"sub": "daypass-proxy", "jti": f"{CANARY}-{number}"})


@pytest.fixture(scope="module")
def provider() -> Iterator[tuple[StubUpstream, TokenEndpoint]]:
    """A provider that knows no API key."""
    with StubUpstream([]) as stub:
        endpoint = TokenEndpoint(identity(1), identity(2))
        stub.federation = endpoint
        yield stub, endpoint


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the platform projects the identity token: a link, which it swaps."""
    link = tmp_path_factory.mktemp("identity") / "identity.secret"
    swap(link, identity(1))
    return link


@pytest.fixture(scope="module")
def stack(
    folder: Path, provider: tuple[StubUpstream, TokenEndpoint], file: Path
) -> Iterator[Stack]:
    """A daypass whose settings name no key; each test continues where the one before ended."""
    reference = f"federation://{file}?rule={RULE}&organization={ORGANIZATION}"
    with Stack(folder, provider[0].url, f"acme={reference}") as made:
        yield made


def betas(stub: StubUpstream) -> list[str]:
    """What the last call said in `anthropic-beta`."""
    return stub.requests[-1].header("anthropic-beta")


def with_betas(stack: Stack, token: str, value: str | None) -> Answer:
    """One call with a list of betas of its own."""
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    if value is not None:
        headers["anthropic-beta"] = value
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "claude-sonnet-4-5", "max_tokens": 8, "messages": messages}
    return call(stack.proxy_url, "POST", "/v1/messages", json.dumps(body).encode(), headers)


def test_calls_go_up_without_any_key(
    stack: Stack, provider: tuple[StubUpstream, TokenEndpoint]
) -> None:
    """One exchange serves many calls; the client's own betas go up unchanged before the flag."""
    stub, endpoint = provider
    token = stack.access_token(stack.sandbox())
    for sent, gone_up in (
        (None, "oauth-2025-04-20"),
        ("context-1m-2025-08-07", "context-1m-2025-08-07,oauth-2025-04-20"),
        ("a-2025-01-01, b-2025-01-01", "a-2025-01-01, b-2025-01-01,oauth-2025-04-20"),
        ("oauth-2025-04-20,a-2025-01-01", "a-2025-01-01,oauth-2025-04-20"),
    ):
        assert with_betas(stack, token, sent).status == 200
        assert betas(stub) == [gone_up]
        assert stub.requests[-1].header("x-api-key") == []
    assert len(endpoint.exchanges) == 1


def test_a_bearer_that_is_refused_is_exchanged_once_more(
    stack: Stack, provider: tuple[StubUpstream, TokenEndpoint], file: Path
) -> None:
    """B24: on the provider's 401 the file is read again and the call goes up with a new bearer."""
    _, endpoint = provider
    token = stack.access_token(stack.sandbox())
    assert stack.message(token).status == 200
    before = len(endpoint.exchanges)
    endpoint.live.clear()
    endpoint.assertions.discard(identity(1))
    swap(file, identity(2))
    results = list[int]()
    threads = [
        threading.Thread(target=lambda: results.append(stack.message(token).status))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [200] * 8
    assert len(endpoint.exchanges) == before + 1
    assert identity(2).encode() in endpoint.exchanges[-1].raw


def test_an_error_that_holds_the_bearer_is_withheld(
    stack: Stack, provider: tuple[StubUpstream, TokenEndpoint]
) -> None:
    """Row 15: the bearer is looked for in answers as a key is, plain and coded."""
    stub, endpoint = provider
    token = stack.access_token(stack.sandbox())
    assert stack.message(token).status == 200
    bearer = stub.requests[-1].header("authorization")[0].removeprefix("Bearer ")
    assert bearer in endpoint.live
    for said in (bearer, base64.b64encode(bearer.encode()).decode(), bearer[: len(bearer) // 2]):
        error = {"type": "error", "error": {"type": "api_error", "message": f"with {said}"}}
        stub.next([Send(json_answer(500, error))])
        answer = stack.message(token)
        assert answer.status == 502
        assert CANARY.encode() not in answer.body
    assert "upstream_leaked_key" in stack.complete_log("proxy")


def test_an_endpoint_that_refuses(
    stack: Stack, provider: tuple[StubUpstream, TokenEndpoint]
) -> None:
    """B12: refused, the proxy is not ready and says in one line why; later it heals by itself."""
    _, endpoint = provider
    stack.stop_process("proxy")
    endpoint.assertions.clear()
    stack.spawn_proxy()
    eventually(lambda: lacks_keys(stack), timeout=20)
    endpoint.assertions |= {identity(1), identity(2)}
    eventually(lambda: call(stack.proxy_url, "GET", "/readyz").status == 200, timeout=20)
    log = stack.complete_log("proxy")
    assert "token endpoint answered 401 (invalid_grant" in log
    assert "Traceback" not in log


def lacks_keys(stack: Stack) -> bool:
    """Say whether the proxy is not ready for want of keys."""
    try:
        answer = call(stack.proxy_url, "GET", "/readyz")
    except OSError:
        return False
    lacking = "provider keys: not one can be read from where it lives"
    return answer.status == 503 and answer.json().get("missing") == [lacking]


@pytest.mark.sdk
def test_the_exchange_is_the_official_one(
    stack: Stack,
    provider: tuple[StubUpstream, TokenEndpoint],
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The official client and the proxy send the same exchange: path, betas and body."""
    stub, endpoint = provider
    token = stack.access_token(stack.sandbox())
    assert stack.message(token).status == 200
    own, ours = stub.requests[-1], endpoint.exchanges[-1]
    before = len(endpoint.exchanges)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", stub.url)
    monkeypatch.setenv("ANTHROPIC_IDENTITY_TOKEN_FILE", str(file))
    monkeypatch.setenv("ANTHROPIC_FEDERATION_RULE_ID", RULE)
    monkeypatch.setenv("ANTHROPIC_ORGANIZATION_ID", ORGANIZATION)
    with anthropic.Anthropic(max_retries=0) as client:
        messages: list[anthropic.types.MessageParam] = [{"role": "user", "content": "hi"}]
        client.messages.create(model="claude-sonnet-5-5", max_tokens=8, messages=messages)
    theirs = endpoint.exchanges[-1]
    assert len(endpoint.exchanges) == before + 1
    for one in (ours, theirs):
        assert (one.method, one.target) == ("POST", PATH)
        assert one.header("anthropic-beta") == [BETAS]
        assert one.header("content-type") == ["application/json"]
    assert json.loads(ours.body) == json.loads(theirs.body)
    official = stub.requests[-1]
    assert [name for name in ("authorization", "x-api-key") if own.header(name)] == [
        name for name in ("authorization", "x-api-key") if official.header(name)
    ]
