"""Unmodified official clients behind the proxy: four variables, a revocation, a refusal."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers.agent import PYTHONS, Agent
from tests.servers.stack import Stack
from tests.servers.stub import StubUpstream
from tests.support import eventually

pytestmark = pytest.mark.sdk


def environment(stack: Stack, sandbox: dict[str, Any], folder: Path, url: str) -> dict[str, str]:
    """The four variables, with the launch credential as a file."""
    credential = folder / f"{sandbox['id']}.jwt"
    credential.write_text(sandbox["launch"]["credential"])
    wanted = dict(sandbox["environment"])
    wanted["ANTHROPIC_BASE_URL"] = url
    wanted["ANTHROPIC_IDENTITY_TOKEN_FILE"] = str(credential)
    return wanted


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


@pytest.mark.parametrize("client", PYTHONS)
def test_a_revoked_sandbox_stops_the_client(
    make_stack: Callable[..., Stack], upstream: StubUpstream, tmp_path: Path, client: str
) -> None:
    """A revoked sandbox ends the agent with an error of the client's own, without a loop."""
    stack = make_stack()
    sandbox = stack.sandbox()
    agent = Agent.start(
        client, environment(stack, sandbox, tmp_path, stack.proxy_url), seconds=300, pause=0.1
    )
    eventually(lambda: len(stack.usage(sandbox)) >= 2, timeout=90)  # its start included
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
