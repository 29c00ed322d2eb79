"""Programs with a URL and a key in a file, as docs/sdk.md sets them up, behind the helper."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from daypass import TokenProvider
from daypass.helper import Helper
from tests.clients.matrix import agent_clients
from tests.clients.matrix.client import Client, Errand, run
from tests.clients.revoking import revoke
from tests.servers import openai_wire as wire
from tests.servers.openai_stack import KEY, POLICY, UPSTREAM_KEYS
from tests.servers.stack import Stack
from tests.servers.stub import StubUpstream

pytestmark = pytest.mark.sdk

PAGE = (Path(__file__).resolve().parents[2] / "docs/sdk.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:8789"
FILES = {
    "Codex": (".codex/config.toml", "toml", "".join(wire.WORDS)),
    "opencode": (".config/opencode/opencode.json", "json", "Hello"),
}
CLIENTS = [client for client in agent_clients.CLIENTS if client.name in FILES]


@pytest.fixture
def upstream() -> Iterator[StubUpstream]:
    """The stub provider of both APIs."""
    with StubUpstream(UPSTREAM_KEYS) as server:
        yield server


@pytest.fixture
def stack(tmp_path: Path, upstream: StubUpstream, keys: str) -> Iterator[Stack]:
    """A stack whose profile has what these programs ask for."""
    with Stack(
        tmp_path / "stack",
        upstream.url,
        keys,
        policy=POLICY.replace("models: [gpt-4o,", "models: [gpt-5.5,"),
        openai_keys="acme=env://OPENAI_KEY",
        proxy_settings={"OPENAI_KEY": KEY},
    ) as stack:
        yield stack


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_program_with_a_static_url(
    stack: Stack, upstream: StubUpstream, tmp_path: Path, client: Client
) -> None:
    """With the settings of the page, no token anywhere in its reach, it does its work; after the
    sandbox is revoked it ends, and nothing more reaches the provider.
    """
    sandbox = stack.sandbox(budget_usd="100.00")
    launch = sandbox["launch"]["credential"]
    provider = TokenProvider(stack.proxy_url, launch=launch, organization="acme", cache=False)
    helper = Helper(provider, ("127.0.0.1", 0))
    helper.start()
    file, kind, says = FILES[client.name]
    (block,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    errand = Errand(helper.url, "", "none", "Say hi.", "stream", tmp_path, {})
    start = client.start(errand)
    settings = block.replace(f"http://{ADDRESS}", helper.url)
    assert settings != block
    (tmp_path / file).write_text(settings)
    try:
        ended = run(start, tmp_path)
        assert ended.code == 0, ended
        assert says in ended.out
        assert len(upstream.wait_for(client.asks)) == client.asks
        assert len(stack.settled(sandbox, client.asks)) == client.asks

        revoke(stack, "sandbox", sandbox["id"])
        ended = run(start, tmp_path)
        assert says not in ended.out
        assert len(upstream.requests) == client.asks
    finally:
        helper.close()
