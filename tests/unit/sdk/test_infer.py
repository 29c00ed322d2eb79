"""The plain client: a prompt in, a completion out, and every way of being told no."""

import json

import pytest

import daypass
from daypass import LLMProxyClient
from tests.unit.sdk.token_server import LAUNCH, TokenServer


@pytest.fixture
def client(server: TokenServer, monkeypatch: pytest.MonkeyPatch) -> LLMProxyClient:
    """A client in the environment of a sandbox."""
    monkeypatch.setenv("ANTHROPIC_IDENTITY_TOKEN", LAUNCH)
    return LLMProxyClient(server.url)


def test_a_prompt_is_answered(server: TokenServer, client: LLMProxyClient) -> None:
    """The body has the prompt alone, and a limit where one is given; one token serves many."""
    assert client.call("ping") == "pong"
    assert client.call("ping", max_tokens=7) == "pong"
    assert server.prompts == [{"prompt": "ping"}, {"prompt": "ping", "max_tokens": 7}]
    assert server.authorizations == ["Bearer token-1", "Bearer token-1"]


def test_a_token_that_ended_costs_one_renewal(server: TokenServer, client: LLMProxyClient) -> None:
    """The call goes through with the next token."""
    client.call("ping")
    server._issued += 1  # the server takes the newest only
    assert client.call("ping") == "pong"
    assert server.exchanges == 2
    assert len(server.authorizations) == 3


def test_a_revoked_sandbox_is_asked_nothing_more(
    server: TokenServer, client: LLMProxyClient
) -> None:
    """One refused call, one exchange, our sentence."""
    client.call("ping")
    server.revoked = True
    server._issued += 1
    with pytest.raises(daypass.Revoked, match="sandbox revoked"):
        client.call("ping")
    assert (server.exchanges, len(server.prompts)) == (2, 2)


def test_a_401_that_says_so_is_final(server: TokenServer, client: LLMProxyClient) -> None:
    """With `x-should-retry: false` no token is fetched for another try."""
    error = {"error": {"type": "authentication_error", "message": "token revoked"}}
    server.answers.append((401, error, {"x-should-retry": "false"}))
    with pytest.raises(daypass.Refused, match="token revoked") as caught:
        client.call("ping")
    assert (caught.value.status, caught.value.code) == (401, "authentication_error")
    assert server.exchanges == 1


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (402, {"type": "billing_error", "message": "sandbox budget used up"}, "billing_error"),
        (402, {"type": "x", "message": "no", "code": "insufficient_quota"}, "insufficient_quota"),
    ],
)
def test_a_refusal_says_why(
    server: TokenServer, client: LLMProxyClient, status: int, error: dict[str, str], code: str
) -> None:
    """Both dialects are read, and nothing is repeated."""
    server.answers.append((status, {"error": error}, {}))
    with pytest.raises(daypass.Refused, match=error["message"]) as caught:
        client.call("ping")
    assert (caught.value.status, caught.value.code) == (status, code)
    assert len(server.prompts) == 1


@pytest.mark.parametrize("status", [429, 503, 529])
def test_what_passes_says_when(server: TokenServer, client: LLMProxyClient, status: int) -> None:
    """A busy provider, a rate or a proxy that cannot know is `Unavailable`, asked once."""
    server.answers.append((status, {"error": {"message": "busy"}}, {"retry-after": "3"}))
    with pytest.raises(daypass.Unavailable, match="busy") as caught:
        client.call("ping")
    assert caught.value.retry_after == 3
    assert len(server.prompts) == 1


@pytest.mark.parametrize("answer", [{}, {"completion": 1}, []])
def test_something_else_at_the_address_is_told(
    server: TokenServer, client: LLMProxyClient, answer: object
) -> None:
    """An answer without a completion is no completion."""
    server.answers.append((200, json.loads(json.dumps(answer)), {}))
    with pytest.raises(daypass.Refused, match="no completion; check that the address is"):
        client.call("ping")


def test_it_shows_no_token(client: LLMProxyClient, server: TokenServer) -> None:
    """Its repr names the proxy."""
    assert repr(client) == f"LLMProxyClient('{server.url}')"


def test_without_a_launch_credential_it_says_what_to_set() -> None:
    """Nothing is sent anywhere."""
    with pytest.raises(daypass.SettingsError, match="no launch credential"):
        LLMProxyClient("http://127.0.0.1:1", provider=None).call("ping")
