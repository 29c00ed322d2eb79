"""B57: variables of forward proxies, in the sandbox and beside broker and proxy."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from anthropic import Timeout

import daypass.anthropic
from daypass import TokenProvider
from tests.servers.agent import PYTHONS, Agent
from tests.servers.stack import Stack
from tests.servers.stub import StubUpstream

pytestmark = pytest.mark.sdk
DEAD = "127.0.0.1:9"
EVERYWHERE = {
    "HTTP_PROXY": f"http://{DEAD}",
    "http_proxy": f"http://{DEAD}",
    "HTTPS_PROXY": f"http://{DEAD}",
    "ALL_PROXY": f"http://{DEAD}",
}


@pytest.fixture(scope="module")
def module_stack(folder: Path, module_stub: StubUpstream, keys: str) -> Iterator[Stack]:
    """A broker and a proxy on a machine whose variables name a forward proxy that is not there."""
    with Stack(
        folder,
        module_stub.url,
        keys,
        proxy_settings=EVERYWHERE,
        broker_settings=EVERYWHERE,
    ) as stack:
        yield stack


def ask(stack: Stack, folder: Path, client: str, **variables: str) -> list[dict[str, object]]:
    """Two calls of an official client in a sandbox with these variables."""
    sandbox = stack.sandbox()
    credential = folder / "launch.jwt"
    credential.write_text(sandbox["launch"]["credential"])
    environment = dict(sandbox["environment"]) | {
        "ANTHROPIC_BASE_URL": stack.proxy_url,
        "ANTHROPIC_IDENTITY_TOKEN_FILE": str(credential),
    }
    return Agent.start(client, environment | variables).reports()


@pytest.mark.parametrize("client", PYTHONS)
def test_no_proxy_leads_to_ours(
    stack: Stack, upstream: StubUpstream, tmp_path: Path, client: str
) -> None:
    """B57: with our host in NO_PROXY, by itself or with its port, official clients reach us; the
    broker, the proxy and what they ask do not look at these variables at all."""
    host = stack.proxy_url.removeprefix("http://")
    for exempt in ("localhost,127.0.0.1", host):
        reports = ask(stack, tmp_path, client, **EVERYWHERE, NO_PROXY=exempt)
        assert [report["ok"] for report in reports] == [True, True], reports
    assert len(upstream.requests) == 4


@pytest.mark.parametrize("client", PYTHONS)
def test_without_it_the_variables_are_obeyed(
    stack: Stack, upstream: StubUpstream, tmp_path: Path, client: str
) -> None:
    """B57: a client that is told to use a forward proxy does so, and its user reads what it could
    not reach."""
    (report,) = ask(stack, tmp_path, client, **EVERYWHERE)
    assert report["ok"] is False
    assert "Failed to reach token endpoint" in str(report["text"])
    assert upstream.requests == []


def test_long_calls_keep_their_time() -> None:
    """B57: our client waits ten minutes for a byte, as the official one does."""
    provider = TokenProvider("http://127.0.0.1:9", launch="launch", cache=False)
    timeout = daypass.anthropic.client(provider=provider).timeout
    assert isinstance(timeout, Timeout)
    assert (timeout.read, timeout.connect) == (600, 5)
