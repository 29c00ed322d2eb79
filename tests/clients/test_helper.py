"""Claude Code with `daypass token` as its helper: renewed through it, and ended by it."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conversation import TALKERS
from tests.clients.revoking import revoke
from tests.clients.stock import Place
from tests.servers.stack import Stack
from tests.servers.stub import StubUpstream

pytestmark = pytest.mark.sdk


def variables(stack: Stack, sandbox: dict[str, Any], folder: Path) -> dict[str, str]:
    """The environment of docs/clients.md: no federation, our command as the helper."""
    given = Place(stack.proxy_url, sandbox, "", folder).federation()
    settings = folder / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"apiKeyHelper": f"{sys.executable} -m daypass token"}))
    return {
        "PATH": os.defpath,
        "XDG_RUNTIME_DIR": str(folder),
        "ANTHROPIC_BASE_URL": given["ANTHROPIC_BASE_URL"],
        "DAYPASS_LAUNCH_FILE": given["ANTHROPIC_IDENTITY_TOKEN_FILE"],
    }


def refused(stack: Stack, name: str, event: str) -> list[str]:
    """Why calls or exchanges were refused so far, by a service's log."""
    told = stack.complete_log(name).splitlines()
    lines = [json.loads(line) for line in told if line.startswith("{")]
    reasons = (
        line.get("refused") or line.get("reason") for line in lines if line["event"] == event
    )
    return [reason for reason in reasons if reason]


def tokens(stack: Stack, sandbox: dict[str, Any]) -> set[str]:
    """The tokens that a sandbox's calls were made with."""
    return {row["token_id"] for row in stack.usage(sandbox)}


def test_a_lost_token_is_replaced_and_a_revocation_is_the_end(
    make_stack: Callable[..., Stack], upstream: StubUpstream, tmp_path: Path
) -> None:
    """A revoked token costs no turn; a revoked sandbox at most four calls, then the sentence."""
    stack = make_stack()
    sandbox = stack.sandbox()
    given = variables(stack, sandbox, tmp_path)
    with TALKERS["claude code"].start(given, tmp_path) as conversation:
        assert conversation.turn("Say hi.").ok
        revoke(stack, "jti", stack.usage(sandbox)[-1]["token_id"])
        assert conversation.turn("Again.").ok
        assert len(tokens(stack, sandbox)) == 2

        revoke(stack, "sandbox", sandbox["id"])
        told = conversation.turn("And again.")
        assert not told.ok
        assert conversation.end() == 1
        assert "apiKeyHelper" in told.text
        assert f"daypass sandbox restore {sandbox['id']}" in conversation.complaints()

    calls = refused(stack, "proxy", "call_closed")
    assert calls[: calls.index("token_revoked")] == ["token_expired"]
    first, *rest = calls[calls.index("token_revoked") :]
    # Without a token from its helper the client asks again, two times or three.
    assert first == "token_revoked"
    assert set(rest) == {"invalid_token"}
    assert len(rest) <= 3
    assert 1 <= len(refused(stack, "broker", "token_refused")) <= 4
