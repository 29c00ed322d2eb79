"""Unmodified official clients live through the proxy: expiry, TLS, socket, refusals."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers.agent import PYTHONS, Agent
from tests.servers.stack import Stack, free_port
from tests.servers.stub import StubUpstream
from tests.support import eventually

pytestmark = pytest.mark.sdk

TTL = 130  # the client renews from 120 s before expiry: after 10 s for the first time
LIFE = 145.0  # longer than one token


def environment(stack: Stack, sandbox: dict[str, Any], folder: Path, url: str) -> dict[str, str]:
    """The four variables, with the launch credential as a file."""
    credential = folder / f"{sandbox['id']}.jwt"
    credential.write_text(sandbox["launch"]["credential"])
    wanted = dict(sandbox["environment"])
    wanted["ANTHROPIC_BASE_URL"] = url
    wanted["ANTHROPIC_IDENTITY_TOKEN_FILE"] = str(credential)
    return wanted


def token_ids(stack: Stack, sandbox: dict[str, Any]) -> set[str]:
    """The tokens that a sandbox's calls were made with."""
    return {row["token_id"] for row in stack.usage(sandbox)}


@pytest.mark.parametrize("client", PYTHONS)
def test_four_variables_are_enough(
    stack: Stack, upstream: StubUpstream, tmp_path: Path, client: str
) -> None:
    """With four variables and no key the client gets a token, calls and streams."""
    sandbox = stack.sandbox()
    agent = Agent.start(client, environment(stack, sandbox, tmp_path, stack.proxy_url))
    reports = agent.reports()
    assert [r["ok"] for r in reports] == [True, True], reports
    assert reports[0]["version"].startswith(client.split()[1][0])
    assert all(len(seen.header("x-api-key")) == 1 for seen in upstream.requests)
    assert not any(seen.header("authorization") for seen in upstream.requests)
    betas = [beta for seen in upstream.requests for beta in seen.header("anthropic-beta")]
    assert "oauth-2025-04-20" not in ",".join(betas)


def certificates(stack: Stack, folder: Path) -> dict[str, str]:
    """Settings for TLS with a certificate of our own authority."""
    stack.broker_command("tls", "--dir", str(folder), "--host", "localhost", "--host", "127.0.0.1")
    return {
        "DAYPASS_PROXY_TLS_CERT": str(folder / "server.pem"),
        "DAYPASS_PROXY_TLS_KEY": str(folder / "server.key"),
    }


def start_tls_proxy(stack: Stack, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A second proxy over the same database that speaks TLS."""
    port = free_port()
    settings = stack.proxy_environment | certificates(stack, folder)
    settings["DAYPASS_PROXY_LISTEN"] = f"127.0.0.1:{port}"
    with (folder / "tls-proxy.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "daypass_proxy", "serve"], env=settings, stdout=log, stderr=log
        )
    return process, f"https://localhost:{port}"


def start_forwarder(stack: Stack) -> tuple[subprocess.Popen[bytes], str]:
    """A loopback forwarder to the proxy's Unix socket."""
    port = free_port()
    command = [sys.executable, "-m", "daypass.forward"]
    command += ["--listen", f"127.0.0.1:{port}", "--socket", str(stack.proxy_socket)]
    return subprocess.Popen(command, env={"PATH": os.defpath}), f"http://127.0.0.1:{port}"


def test_clients_live_across_a_token_expiry(
    make_stack: Callable[..., Stack], upstream: StubUpstream, tmp_path: Path
) -> None:
    """Both majors, TLS with our CA and the forwarder: no failed call beyond one token life."""
    stack = make_stack()
    tls, tls_url = start_tls_proxy(stack, tmp_path)
    forwarder, forward_url = start_forwarder(stack)
    ways = {
        "2.x": ("anthropic 2.x", stack.proxy_url, {}),
        "1.x": ("anthropic 1.x", stack.proxy_url, {}),
        "tls": ("anthropic 2.x", tls_url, {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}),
        "socket": ("anthropic 2.x", forward_url, {}),
    }
    sandboxes = {way: stack.sandbox(token_ttl_seconds=TTL) for way in ways}
    try:
        agents = {
            way: Agent.start(
                client,
                environment(stack, sandboxes[way], tmp_path, url) | extra,
                seconds=LIFE,
                pause=1.0,
            )
            for way, (client, url, extra) in ways.items()
        }
        reports = {way: agent.reports(timeout=LIFE + 60) for way, agent in agents.items()}
    finally:
        for process in (tls, forwarder):
            process.terminate()
            process.wait(20)
    for way, lines in reports.items():
        assert len(lines) > 60, (way, lines[-1])
        assert all(line["ok"] and line["stop_reason"] == "end_turn" for line in lines), (way, lines)
        assert len(token_ids(stack, sandboxes[way])) >= 2, way
    assert len({r["version"] for lines in reports.values() for r in lines}) == 2


@pytest.mark.parametrize("client", PYTHONS)
def test_a_revoked_sandbox_stops_the_client(
    make_stack: Callable[..., Stack], upstream: StubUpstream, tmp_path: Path, client: str
) -> None:
    """A revoked sandbox ends the agent with an error of the client's own, without a loop."""
    stack = make_stack()
    sandbox = stack.sandbox()
    agent = Agent.start(
        client, environment(stack, sandbox, tmp_path, stack.proxy_url), seconds=30, pause=0.1
    )
    eventually(lambda: len(stack.usage(sandbox)) >= 2)
    body = {"scope": "sandbox", "ident": sandbox["id"], "reason": "test"}
    assert stack.admin("POST", "/v1/revocations", body).status == 201
    reports = agent.reports()
    assert reports[-1]["ok"] is False
    assert "revoked" in json.dumps(reports[-1])


@pytest.mark.parametrize("client", PYTHONS)
def test_a_refused_model_is_one_request_with_our_sentence(
    stack: Stack, upstream: StubUpstream, tmp_path: Path, client: str
) -> None:
    """A model outside the scope is BadRequestError that names the model and what is allowed."""
    sandbox = stack.sandbox()
    variables = environment(stack, sandbox, tmp_path, stack.proxy_url)
    reports = Agent.start(client, variables, model="gpt-4o").reports()
    (report,) = reports
    assert report["kind"] == "BadRequestError"
    assert "gpt-4o" in report["text"]
    assert "claude-*" in report["text"]
    assert upstream.requests == []
