"""Buying a narrower token from inside a sandbox: what is asked for, and what is never sent."""

import json
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import daypass
from daypass import Child, Refused, Revoked, SettingsError, TokenProvider, Unreachable, delegate
from daypass._delegate import _narrowed
from tests.unit.sdk.cli import run
from tests.unit.sdk.token_server import LAUNCH, TokenServer

OWN: list[dict[str, Any]] = [
    {
        "type": "llm_inference",
        "provider": "anthropic",
        "endpoints": ["messages", "count_tokens"],
        "models": ["claude-sonnet-*", "claude-haiku-4-5"],
        "features": ["web_search"],
        "allowed_domains": ["example.com"],
        "max_output_tokens": 8000,
    },
    {
        "type": "llm_inference",
        "provider": "openai",
        "endpoints": ["responses"],
        "models": ["gpt-*"],
    },
]


@pytest.fixture
def provider(server: TokenServer) -> TokenProvider:
    """The provider of a sandbox whose token allows OWN."""
    server.own_details = OWN
    return TokenProvider(server.url, launch=LAUNCH, cache=False)


def bought(server: TokenServer) -> dict[str, Any]:
    """The last purchase, its JSON parameters decoded."""
    asked = dict(server.asked[-1])
    for name in ("authorization_details", "daypass_limits"):
        if name in asked:
            asked[name] = json.loads(asked[name])
    return asked


def test_a_purchase_as_the_broker_reads_it(server: TokenServer, provider: TokenProvider) -> None:
    """Scope, limits and life go as RFC 8693 parameters beside the token they are bought with."""
    child = delegate(
        models=["claude-sonnet-5"],
        max_output_tokens=1000,
        budget_usd="0.50",
        limits={"requests_per_minute": 5},
        lifetime=300,
        provider=provider,
    )
    asked = bought(server)
    assert asked["grant_type"] == "urn:ietf:params:oauth:grant-type:token-exchange"
    assert asked["subject_token"] == "token-1"
    assert asked["subject_token_type"] == "urn:ietf:params:oauth:token-type:access_token"
    (detail,) = asked["authorization_details"]
    assert detail == OWN[0] | {"models": ["claude-sonnet-5"], "max_output_tokens": 1000}
    assert asked["daypass_limits"] == {"requests_per_minute": 5, "budget_usd": "0.50"}
    assert asked["daypass_lifetime_seconds"] == "300"
    assert (child.token, child.base_url) == ("child-2", server.url)
    assert child.expires_at == pytest.approx(time.time() + 600, abs=30)
    assert child.token not in repr(child)


def test_nothing_asked_for_is_nothing_sent(server: TokenServer, provider: TokenProvider) -> None:
    """What is left out is the buyer's, and not even read."""
    delegate(provider=provider)
    assert bought(server).keys() == {
        "grant_type",
        "subject_token",
        "subject_token_type",
        "requested_token_type",
    }


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ({"models": ["gpt-6"]}, [OWN[1] | {"models": ["gpt-6"]}]),
        ({"endpoints": ["messages"]}, [OWN[0] | {"endpoints": ["messages"]}]),
        (
            {"features": []},
            [OWN[0] | {"features": []}, OWN[1] | {"features": []}],
        ),
        (
            {"models": ["claude-sonnet-5-*"], "allowed_domains": ["docs.example.com"]},
            [OWN[0] | {"models": ["claude-sonnet-5-*"], "allowed_domains": ["docs.example.com"]}],
        ),
        (
            {"max_output_tokens": 9000},
            [OWN[0], OWN[1] | {"max_output_tokens": 9000}],
        ),
        ({"body": "strict"}, [OWN[0] | {"body": "strict"}, OWN[1] | {"body": "strict"}]),
        ({"body": "open"}, [OWN[0] | {"body": "compat"}, OWN[1] | {"body": "compat"}]),
    ],
)
def test_a_scope_is_cut_down(wanted: dict[str, Any], left: list[dict[str, Any]]) -> None:
    """Each provider keeps what is wanted of it, and one of which nothing is left goes."""
    assert _narrowed(OWN, wanted) == left


@pytest.mark.parametrize(
    "wanted",
    [
        {"models": ["claude-opus-5"]},
        {"models": ["*"]},
        {"endpoints": ["files"]},
        {"features": ["code_execution"]},
        {"domains": ["badexample.com"]},
    ],
)
def test_what_no_buyer_has_is_not_even_asked_for(
    server: TokenServer, provider: TokenProvider, wanted: dict[str, Any]
) -> None:
    """A name outside the buyer's scope is an error that says it, and buys nothing."""
    with pytest.raises(SettingsError, match="not within the buyer's scope"):
        delegate(provider=provider, **wanted)
    assert server.exchanges == 1


def test_what_no_provider_has_together_is_said() -> None:
    """Each name is within the scope and nothing is left: not an empty request of the broker."""
    with pytest.raises(SettingsError, match="these models and endpoints together"):
        _narrowed(OWN, {"models": ["gpt-6"], "endpoints": ["messages"]})


def test_there_are_three_bodies(provider: TokenProvider) -> None:
    """A word that is none of them is an error before anything is asked for."""
    with pytest.raises(SettingsError, match="body is not one of strict, compat, open"):
        delegate(body="lenient", provider=provider)


@pytest.mark.parametrize("name", ["models", "endpoints", "features", "domains"])
def test_one_name_is_no_list(provider: TokenProvider, name: str) -> None:
    """Its letters would be taken for names."""
    with pytest.raises(SettingsError, match=rf"{name} is one text; write {name}=\['claude'\]"):
        delegate(provider=provider, **{name: "claude"})  # type: ignore[arg-type]


def test_money_is_no_float(provider: TokenProvider) -> None:
    """A float is refused; Decimal, text and whole dollars are sent as they are."""
    with pytest.raises(SettingsError, match="float"):
        delegate(budget_usd=0.5, provider=provider)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("amount", "sent"), [(Decimal("1E-2"), "0.01"), (2, "2"), ("0.000000001", "0.000000001")]
)
def test_money_as_it_is_sent(
    server: TokenServer, provider: TokenProvider, amount: Any, sent: str
) -> None:
    """No exponent and no rounding."""
    delegate(budget_usd=amount, provider=provider)
    assert bought(server)["daypass_limits"] == {"budget_usd": sent}


def test_a_long_life_is_bought_with_a_fresh_token(
    server: TokenServer, provider: TokenProvider
) -> None:
    """A child ends with its buyer's token: where that has too little left, a new one buys."""
    server.ttl = 300
    provider.get()
    server.ttl = 600
    delegate(lifetime=400, provider=provider)
    assert bought(server)["subject_token"] == "token-2"
    delegate(lifetime=100, provider=provider)
    assert bought(server)["subject_token"] == "token-2"


def test_a_lost_answer_is_not_asked_for_again(server: TokenServer, provider: TokenProvider) -> None:
    """A purchase may have been made: a second one would set a second budget aside."""
    provider.get()
    server.faults.append("lose")
    with pytest.raises(Unreachable):
        delegate(budget_usd="1", provider=provider)
    assert server.exchanges == 2


def test_refusals_keep_their_word(server: TokenServer, provider: TokenProvider) -> None:
    """The broker's error word and sentence reach the caller; an ended buyer is Revoked."""
    told = {"error": "insufficient_budget", "error_description": "budget_usd: 0.30 is free"}
    provider.get()
    server.faults.append((400, told, {}))
    with pytest.raises(Refused, match=r"0\.30") as caught:
        delegate(budget_usd="1", provider=provider)
    assert caught.value.code == "insufficient_budget"
    server.revoked = True
    with pytest.raises(Revoked):
        delegate(provider=provider)


def test_a_sub_agent_buys_with_the_one_token_it_has(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a launch credential the token of the environment buys."""
    server.own_details = OWN
    child = Child("token-0", server.url, 0.0)
    for name, value in child.environment({}).items():
        monkeypatch.setenv(name, value)
    delegate()
    assert bought(server)["subject_token"] == "token-0"


def test_below_daypass_run_the_kept_token_buys(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A command of `daypass run` has no launch credential, but a file with a good token."""
    file = tmp_path / "token"
    file.write_text("token-9\n")
    monkeypatch.setenv("DAYPASS_TOKEN_FILE", str(file))
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    delegate()
    assert bought(server)["subject_token"] == "token-9"


def test_a_childs_environment_holds_nothing_else() -> None:
    """Launch credentials, rules and keys of the parent's environment are not the child's."""
    env = {
        "PATH": "/bin",
        "DAYPASS_LAUNCH_FILE": "x",
        "ANTHROPIC_IDENTITY_TOKEN": "x",
        "ANTHROPIC_FEDERATION_RULE_ID": "x",
        "ANTHROPIC_API_KEY": "x",
        "ANTHROPIC_AUTH_TOKEN": "parent",
        "ANTHROPIC_CONFIG_DIR": "x",
        "DAYPASS_TOKEN_FILE": "x",
        "DAYPASS_CREDENTIAL": "x",
        "OPENAI_API_KEY": "parent",
    }
    assert Child("child", "http://localhost:1", 0.0).environment(env) == {
        "PATH": "/bin",
        "ANTHROPIC_BASE_URL": "http://localhost:1",
        "ANTHROPIC_AUTH_TOKEN": "child",
        "OPENAI_BASE_URL": "http://localhost:1/openai/v1",
        "OPENAI_API_KEY": "child",
    }


def test_the_command_prints_the_token(
    server: TokenServer,
    launch_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`daypass delegate` prints the token alone, as helpers must, or JSON."""
    server.own_details = OWN
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_IDENTITY_TOKEN_FILE", str(launch_file))
    words = ("--model", "claude-sonnet-5", "--budget", "0.50", "--rpm", "3", "--lifetime", "60")
    assert run(capsys, "delegate", *words) == "child-2\n"
    asked = bought(server)
    assert asked["daypass_limits"] == {"budget_usd": "0.50", "requests_per_minute": 3}
    assert asked["authorization_details"][0]["models"] == ["claude-sonnet-5"]
    found = json.loads(run(capsys, "delegate", "--json"))
    assert (found["access_token"], found["base_url"]) == ("child-3", server.url)


def test_it_is_public() -> None:
    """`daypass.delegate` is what `from daypass import delegate` gives."""
    assert daypass.delegate is delegate
