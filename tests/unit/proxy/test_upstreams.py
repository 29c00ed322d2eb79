"""Upstreams of the settings: strictly read, with keys, prices and addresses of their own."""

import json
from pathlib import Path
from typing import Any

import pytest

from daypass_core.scope import RESERVED_NAMES, endpoints_of
from daypass_core.secret import Secret, parse_reference
from daypass_core.settings import SettingsError
from daypass_proxy.app import load_prices
from daypass_proxy.keyring import NO_KEY, Keyring
from daypass_proxy.price import PriceError
from daypass_proxy.providers.openai import OpenAI
from daypass_proxy.settings import Settings, load
from tests.fakes.clock import FakeClock
from tests.fakes.keys import FakeVault
from tests.fakes.proxy import ENVIRONMENT

PRICE = {"model": "m", "context_window": 8192, "input": "1", "output": "2"}
PLAIN: dict[str, Any] = {"url": "http://10.0.0.5:8000/v1/", "prices": [PRICE]}


def read(folder: Path, document: object, **more: str) -> Settings:
    """Settings with this file of upstreams."""
    path = folder / "upstreams.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return load(ENVIRONMENT | {"DAYPASS_UPSTREAMS": str(path)} | more)


def problems(folder: Path, document: object, **more: str) -> str:
    """What is wrong with these settings."""
    with pytest.raises(SettingsError) as caught:
        read(folder, document, **more)
    return str(caught.value)


def test_an_upstream(tmp_path: Path) -> None:
    """It has a URL as a client has it, keys by tenant, and prices."""
    settings = read(tmp_path, {"vllm": PLAIN | {"keys": "acme=env://OWN"}}, OWN="secret")
    (upstream,) = settings.upstreams.values()
    assert upstream.url == "http://10.0.0.5:8000/v1"
    assert settings.origin("vllm") == upstream.url
    assert settings.keys["vllm"] == {"acme": parse_reference("env://OWN")}
    assert settings.env_secrets["OWN"] == Secret("secret")
    price = load_prices(settings).find("vllm", "m", 0)
    assert price is not None
    assert price.context_window == 8192


def test_keys_do_not_pass_in_the_clear(tmp_path: Path) -> None:
    """Plain http is for addresses of the inside, or for names with the switch that allows them."""
    named = {"vllm": PLAIN | {"url": "http://vllm.example:8000/v1"}}
    assert "DAYPASS_UPSTREAMS, vllm: is http" in problems(tmp_path, named)
    assert read(tmp_path, named, DAYPASS_UPSTREAM_PRIVATE="1").upstreams["vllm"]


def test_origins_of_those_built_in(tmp_path: Path) -> None:
    """Anthropic's URL is without /v1, OpenAI's with it, as their clients have them."""
    settings = load(ENVIRONMENT)
    assert settings.origin("anthropic") == "https://api.anthropic.com"
    assert settings.origin("openai") == "https://api.openai.com/v1"
    other = load(ENVIRONMENT | {"DAYPASS_OPENAI_URL": "https://eu.api.openai.com/v1/"})
    assert other.origin("openai") == "https://eu.api.openai.com/v1"
    with pytest.raises(KeyError):
        settings.origin("own")


def test_one_provider_is_enough(tmp_path: Path) -> None:
    """An installation may have OpenAI's keys or an upstream alone, but not nothing."""
    bare = {name: value for name, value in ENVIRONMENT.items() if "ANTHROPIC" not in name}
    assert load(bare | {"DAYPASS_OPENAI_KEYS": "acme=file:///x"}).anthropic_keys == {}
    path = tmp_path / "u.json"
    path.write_text(json.dumps({"own": PLAIN}))
    assert load(bare | {"DAYPASS_UPSTREAMS": str(path)}).keys == {"anthropic": {}, "openai": {}}
    with pytest.raises(SettingsError, match="DAYPASS_ANTHROPIC_KEYS: is not set"):
        load(bare)


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_reserved_names(tmp_path: Path, name: str) -> None:
    """A name of a provider or of a path of ours is nobody else's."""
    assert "cannot be the name of an upstream" in problems(tmp_path, {name: PLAIN})


@pytest.mark.parametrize("name", ["", "A", "a_b", "a/b", "-a", "a-", "a--b", "a" * 33, "1a", "a.b"])
def test_odd_names(tmp_path: Path, name: str) -> None:
    """A name stands in paths and scopes, so it is of a plain form; a scope refuses it as well."""
    assert "cannot be the name of an upstream" in problems(tmp_path, {name: PLAIN})
    assert endpoints_of(name) is None


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"a": {}, "a": {}}', "appears twice"),
        ({"own": {}}, "own: Object missing required field `url`"),
        ({"own": PLAIN | {"key": "x"}}, "own: Object contains unknown field `key`"),
        ({"own": PLAIN | {"url": "ftp://x/v1"}}, "own: must be a URL"),
        ({"own": PLAIN | {"url": "http://u:hunter2@x/v1"}}, "own: must be a URL"),
        ({"own": PLAIN | {"url": "http://x/../v1"}}, "own: must be a plain URL"),
        ({"own": PLAIN | {"keys": "hunter2"}}, "own: entry 1 must be tenant=reference"),
        ({"own": PLAIN | {"keys": "acme=env://NO_SUCH"}}, "DAYPASS_UPSTREAMS, own names env://NO"),
        ({"own": PLAIN | {"keys": "acme=vault://a/b#c"}}, "DAYPASS_UPSTREAMS, own names vault://"),
        ({"own": PLAIN | {"keys": "*=file:///x"}}, "own: gives several tenants one provider key"),
        ({"own": PLAIN | {"url": "http://127.0.0.1:8700/v1"}}, "own: points at this proxy itself"),
    ],
)
def test_mistakes(tmp_path: Path, document: object, said: str) -> None:
    """Every mistake ends the start with its place, and no value is repeated."""
    told = problems(tmp_path, document)
    assert said in told
    assert "hunter2" not in told


def test_a_missing_file(tmp_path: Path) -> None:
    """A file that is not there is a mistake, not an empty list."""
    with pytest.raises(SettingsError, match="DAYPASS_UPSTREAMS: cannot be read: No such file"):
        load(ENVIRONMENT | {"DAYPASS_UPSTREAMS": str(tmp_path / "none.json")})


def test_mistakes_in_prices(tmp_path: Path) -> None:
    """A wrong price ends the start as well, with its place."""
    settings = read(tmp_path, {"own": PLAIN | {"prices": [PRICE | {"output": 2.0}]}})
    with pytest.raises(PriceError, match=r"\$.providers.own\[0\].output"):
        load_prices(settings)


async def test_an_upstream_without_a_key() -> None:
    """One that asks for no key is sent none of ours, whoever calls, and none is looked for."""
    ring = Keyring({}, env_secrets={}, vault=FakeVault(), clock=FakeClock(), keyless=("own",))
    own = OpenAI("own")
    header = await ring.header_for("acme", own)
    assert header == (b"authorization", f"Bearer {NO_KEY}".encode())
    assert not await ring.refresh("acme", own, header)
    assert not ring.leaks("acme", "own", b"anything")
    with pytest.raises(Exception, match="insufficient_scope: there is no key of acme"):
        await ring.header_for("acme", OpenAI("other"))


async def test_keys_are_by_provider() -> None:
    """B91: a tenant's key of one provider is never the header of another."""
    vault = FakeVault(anthropic="sk-ant-one", openai="sk-openai")
    ring = Keyring(
        {
            "openai": {"acme": parse_reference("vault://secret/llm/openai#api_key")},
            "own": {"globex": parse_reference("vault://secret/llm/anthropic#api_key")},
        },
        env_secrets={},
        vault=vault,
        clock=FakeClock(),
    )
    await ring.start()
    assert await ring.header_for("acme", OpenAI()) == (b"authorization", b"Bearer sk-openai")
    with pytest.raises(Exception, match="insufficient_scope: there is no key of acme"):
        await ring.header_for("acme", OpenAI("own"))
    assert ring.leaks("acme", "openai", b"sk-openai")
    assert not ring.leaks("acme", "own", b"sk-openai")
    await ring.close()
