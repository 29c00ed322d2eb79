"""Which settings `daypass up` hands on to its two services, and to which of them."""

import re
from pathlib import Path
from typing import Any

import pytest

from daypass import SettingsError
from daypass import up as up_module
from daypass._state import State, make_plan
from tests.unit.sdk.test_up import ENV, options, plan

FILES = (
    "DAYPASS_FEDERATION_CA_FILE",
    "DAYPASS_KUBERNETES_CA_FILE",
    "DAYPASS_KUBERNETES_TOKEN_FILE",
    "DAYPASS_PRICES",
    "DAYPASS_UPSTREAMS",
    "DAYPASS_UPSTREAM_CA_FILE",
    "DAYPASS_VAULT_CA_FILE",
    "DAYPASS_VAULT_JWT_FILE",
    "DAYPASS_VAULT_SECRET_ID_FILE",
    "DAYPASS_VAULT_TOKEN_FILE",
)
# What `up` itself decides, reads elsewhere, or what only means something without it.
FIXED = {
    "DAYPASS_ISSUER",
    "DAYPASS_DATABASE_URL",
    "DAYPASS_DATABASE_URL_FILE",
    "DAYPASS_BROKER_INTERNAL",
    "DAYPASS_BROKER_ADMIN",
    "DAYPASS_BROKER_KEYS_DIR",
    "DAYPASS_PUBLIC_URL",
    "DAYPASS_CA_FILE",
    "DAYPASS_BROKER_TLS_CERT",
    "DAYPASS_BROKER_TLS_KEY",
    "DAYPASS_PROXY_LISTEN",
    "DAYPASS_PROXY_TLS_CERT",
    "DAYPASS_PROXY_TLS_KEY",
    "DAYPASS_BROKER_URL",
    "DAYPASS_ANTHROPIC_KEYS",
    "DAYPASS_ANTHROPIC_ADMIN_KEY",
}
PAGE = Path(__file__).parents[3] / "docs/reference/settings.md"


def documented(heading: str) -> set[str]:
    """The settings in the table below one heading."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n##")[0]
    return set(re.findall(r"^\| `(DAYPASS_\w+)` \|", text, re.MULTILINE))


def test_every_setting_that_up_does_not_decide_is_handed_on(tmp_path: Path) -> None:
    """Each to the service that reads it, so that nothing of the page is without effect."""
    both, brokers, proxys = map(documented, ("Broker and proxy", "Broker", "Proxy"))
    names = both | brokers | proxys
    # A name of a file is handed on in full, because the services run in another directory.
    given = {name: f"/files/{name}" if name in FILES else "x" for name in names}
    made = plan(tmp_path, env=ENV | given)
    # Over its Unix socket the broker believes the proxy alone.
    wanted = (both | brokers) - FIXED - {"DAYPASS_TRUSTED_PROXIES"}
    handed = {name for name in names if made.broker.get(name) == given[name]}
    assert {name for name in handed if "_VAULT_" not in name} == wanted
    assert {name for name in names if made.proxy.get(name) == given[name]} == (
        (both | proxys) - FIXED
    )


def test_files_are_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The services run in the state directory, whoever sets a variable does not."""
    monkeypatch.chdir(tmp_path)
    made = plan(tmp_path, env=ENV | dict.fromkeys(FILES, "f"))
    for name in FILES:
        assert (made.proxy | made.broker)[name] == str(tmp_path / "f"), name


def test_the_broker_knows_the_vault_only_where_signing_says_so(tmp_path: Path) -> None:
    """With DAYPASS_SIGNING, be it back to files; flags win over variables for it as well."""
    vault: dict[str, Any] = {"vault_addr": "https://vault.test", "vault_token_file": Path("t")}
    assert "DAYPASS_VAULT_ADDR" not in plan(tmp_path, **vault).broker
    for store in ("transit", "file"):
        made = plan(tmp_path, env={**ENV, "DAYPASS_SIGNING": store}, **vault)
        for env in (made.broker, made.proxy):
            assert env["DAYPASS_VAULT_ADDR"] == "https://vault.test"
            assert env["DAYPASS_VAULT_TOKEN_FILE"] == str(Path("t").absolute())


def test_another_provider_needs_no_key_of_anthropic(tmp_path: Path) -> None:
    """And the variables that its keys name go along, also those of servers of one's own."""
    servers = tmp_path / "up.json"
    servers.write_text('{"vllm": {"url": "http://10.0.0.5/v1", "keys": "acme=env://VLLM_KEY"}}')
    env = {"OAI": "sk-oai", "VLLM_KEY": "sk-vllm", "OTHER": "x"}
    for given in (
        {"DAYPASS_OPENAI_KEYS": "acme=env://OAI,globex=file:///g"},
        {"DAYPASS_UPSTREAMS": str(servers)},
    ):
        made = plan(tmp_path, env=env | given)
        assert "DAYPASS_ANTHROPIC_KEYS" not in made.proxy
        passed = {"OAI"} if "DAYPASS_OPENAI_KEYS" in given else {"VLLM_KEY"}
        assert {name for name in env if name in made.proxy} == passed
        assert not set(env) & set(made.broker)
        beside = plan(tmp_path, env=env | given | {"ANTHROPIC_API_KEY": "sk-ant"})
        assert beside.proxy["DAYPASS_ANTHROPIC_KEYS"] == "default=env://ANTHROPIC_API_KEY"
    with pytest.raises(SettingsError, match="ANTHROPIC_API_KEY is not set"):
        plan(tmp_path, env=env)


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({}, ["globex"]),
        ({"DAYPASS_OPENAI_KEYS": "acme=file:///a, globex=file:///g"}, []),
        ({"DAYPASS_UPSTREAMS": "up.json"}, []),
    ],
)
def test_a_tenant_without_any_key_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: dict[str, str], warned: list[str]
) -> None:
    """Keys of every provider count; whose servers need which is in their file."""
    up_module._warn_of_tenants(plan(tmp_path, env=ENV | given), ["default", "globex"])
    said = re.findall(r"tenant (\w+) has no provider key", capsys.readouterr().err)
    assert said == warned


def test_the_sample_is_one_that_can_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It calls Anthropic, so it is shown where there is a key for that."""
    for env, shown in (({}, True), ({"DAYPASS_OPENAI_KEYS": "acme=file:///a"}, False)):
        wanted, state = options(tmp_path), State(tmp_path / "s")
        given = env or {"ANTHROPIC_API_KEY": "sk-ant"}
        up_module._announce(wanted, state, make_plan(wanted, state, given), [])
        assert ("import anthropic" in capsys.readouterr().out) == shown
