"""What the proxy booked of real calls is what the provider's usage report says of them."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.canary import CANARY
from tests.servers.stack import Stack
from tests.servers.stub import Send, StubUpstream
from tests.servers.usage_report import UsageReport
from tests.servers.wire import json_answer, message_json

KEY = f"sk-ant-admin-{CANARY}"
MODEL = "claude-sonnet-4-5"
SPLIT = {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 60}
USAGE: dict[str, object] = {
    "input_tokens": 25,
    "output_tokens": 15,
    "cache_creation_input_tokens": 100,
    "cache_creation": SPLIT,
    "cache_read_input_tokens": 7,
}
COMPACTION = {"type": "compaction", "input_tokens": 1000, "output_tokens": 200}
MESSAGE = {"type": "message", "input_tokens": 25, "output_tokens": 15}


@pytest.fixture
def report() -> Iterator[UsageReport]:
    """The provider's report, empty so far."""
    with UsageReport(KEY) as stub:
        yield stub


def reconcile(stack: Stack, report: UsageReport, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command for today and yesterday: a test may pass midnight."""
    (folder / "admin.secret").write_text(KEY)
    environment = stack.proxy_environment | {
        "DAYPASS_ANTHROPIC_URL": report.url,
        "DAYPASS_ANTHROPIC_ADMIN_KEY": f"file://{folder}/admin.secret",
    }
    today = datetime.now(UTC).date()
    days = ["--from", str(today - timedelta(days=1)), "--to", str(today + timedelta(days=1))]
    command = [sys.executable, "-m", "daypass_proxy", "reconcile", *days]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_calls_and_the_report_about_them_agree(
    stack: Stack, upstream: StubUpstream, report: UsageReport, tmp_path: Path
) -> None:
    """Each kind of token, of a plain call and of one with a compaction, is in its place."""
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    compacted = USAGE | {"iterations": [COMPACTION, MESSAGE]}
    for usage in (USAGE, compacted):
        upstream.next([Send(json_answer(200, message_json(MODEL, usage=usage)))])
        assert stack.message(token, model=MODEL).status == 200
    stack.settled(sandbox, 2)
    counts = {
        "input": 25 * 2 + 1000,
        "output": 15 * 2 + 200,
        "cache_write_5m": 80,
        "cache_write_1h": 120,
        "cache_read": 14,
    }
    report.usage = {(datetime.now(UTC).date(), MODEL): counts}
    done = reconcile(stack, report, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 5 figures are within 0.5" in done.stdout
    report.usage = {(datetime.now(UTC).date(), MODEL): counts | {"output": 230 + 2}}
    assert reconcile(stack, report, tmp_path).returncode == 1
