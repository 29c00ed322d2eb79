"""The adapter: official clients with our tokens, and errors that survive them."""

import sys

import anthropic
import pytest

import daypass
from daypass.anthropic import async_client, client
from tests.unit.sdk.token_server import LAUNCH, TokenServer

MESSAGE = {
    "model": "claude-haiku-4-5",
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "ping"}],
}


@pytest.fixture(autouse=True)
def sandbox(server: TokenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a sandbox."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("ANTHROPIC_IDENTITY_TOKEN", LAUNCH)


@pytest.mark.sdk
def test_one_exchange_serves_many_calls(server: TokenServer) -> None:
    """The official client carries our token, and we, not it, decide when to renew."""
    server.ttl = 100.0  # shorter than the 120 s before expiry at which the client would ask
    with client() as official:
        for _ in range(3):
            assert official.messages.create(**MESSAGE).content[0].text == "pong"  # type: ignore[call-overload]
    assert server.exchanges == 1
    assert set(server.authorizations) == {"Bearer token-1"}


@pytest.mark.sdk
def test_a_401_is_renewed_and_the_call_goes_through(server: TokenServer) -> None:
    """A token that died early costs one exchange and one repetition."""
    with client() as official:
        official.messages.create(**MESSAGE)  # type: ignore[call-overload]
        daypass.TokenProvider(cache=False).token()  # the server takes the newest only
        official.messages.create(**MESSAGE)  # type: ignore[call-overload]
    assert server.authorizations == ["Bearer token-1", "Bearer token-1", "Bearer token-3"]


@pytest.mark.sdk
async def test_the_async_client_works_alike(server: TokenServer) -> None:
    """`async_client` renews after a 401 as well."""
    async with async_client() as official:
        await official.messages.create(**MESSAGE)  # type: ignore[call-overload]
        server._issued += 1
        message = await official.messages.create(**MESSAGE)  # type: ignore[call-overload]
    assert message.content[0].text == "pong"


@pytest.mark.sdk
def test_revoked_is_said_and_not_retried(server: TokenServer) -> None:
    """The caller sees our sentence, as an error of both packages, after one exchange."""
    server.revoked = True
    with client() as official, pytest.raises(daypass.Revoked, match="sandbox revoked") as caught:
        official.messages.create(**MESSAGE)  # type: ignore[call-overload]
    assert isinstance(caught.value, anthropic.AnthropicError)
    assert caught.value.status == 400
    assert server.exchanges == 1
    assert server.authorizations == []


def test_a_provider_key_in_the_sandbox_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """ANTHROPIC_API_KEY would shadow the day pass, so the helper says so and never shows it."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    with pytest.raises(daypass.SettingsError, match="would shadow the day pass") as caught:
        client()
    assert "sk-ant-secret" not in str(caught.value)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The official client is the user's to install."""
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(daypass.NotInstalled, match=r"pip install 'anthropic>=2\.14'"):
        client()


def test_options_and_provider_are_passed_through(server: TokenServer) -> None:
    """`base_url` and `provider` may be given; everything else is the client's own."""
    provider = daypass.TokenProvider(server.url, launch=LAUNCH)
    with client(provider=provider, max_retries=7) as official:
        assert official.max_retries == 7
        assert str(official.base_url).rstrip("/") == server.url
    with client(base_url="https://proxy.example/team/v1") as official:
        assert str(official.base_url).rstrip("/") == "https://proxy.example/team"
