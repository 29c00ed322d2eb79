"""B29: official clients do not notice the comments that keep a silent stream alive."""

from pathlib import Path

import pytest

from daypass_proxy.relay import KEEP_ALIVE
from tests.servers.agent import PYTHONS, Agent
from tests.servers.stack import Stack
from tests.servers.stub import Send, StubUpstream, chunk
from tests.servers.wire import json_answer, message_json, message_stream, sse_answer

pytestmark = pytest.mark.sdk
MODEL = "claude-sonnet-4-5"


@pytest.mark.parametrize("client", PYTHONS)
def test_comments_are_not_noticed(
    stack: Stack, upstream: StubUpstream, tmp_path: Path, client: str
) -> None:
    """B29: with a comment before the first event and after each one, a message is what it was."""
    sandbox = stack.sandbox()
    credential = tmp_path / "launch.jwt"
    credential.write_text(sandbox["launch"]["credential"])
    events = [KEEP_ALIVE, *(event + KEEP_ALIVE * 2 for event in message_stream(MODEL))]
    upstream.next(
        [Send(json_answer(200, message_json(MODEL)))],
        [Send(sse_answer()), *map(chunk, events), Send(b"0\r\n\r\n")],
    )
    environment = dict(sandbox["environment"])
    environment["ANTHROPIC_BASE_URL"] = stack.proxy_url
    environment["ANTHROPIC_IDENTITY_TOKEN_FILE"] = str(credential)
    reports = Agent.start(client, environment).reports()
    assert [report["ok"] for report in reports] == [True, True], reports
    assert reports[1]["stop_reason"] == "end_turn"
    assert reports[1]["output_tokens"] == 15
