"""OpenAI's own Python client, unmodified, against the whole product: it notices nothing of us."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.installed import openai_python
from tests.servers import openai_wire as wire
from tests.servers.books import assert_books_right
from tests.servers.openai_stack import UPSTREAM_KEYS, openai_stack
from tests.servers.stack import Stack
from tests.servers.stub import Close, Send, StubUpstream, chunk
from tests.servers.wire import json_answer, sse_answer
from tests.support import eventually

pytestmark = pytest.mark.sdk

AGENT = Path(__file__).parent / "openai_agent.py"
WORDS = "".join(wire.WORDS)
MODEL = "gpt-4o"
SECONDS = 20.0


@pytest.fixture(scope="module")
def openai_stub() -> Iterator[StubUpstream]:
    """The stub provider."""
    with StubUpstream(UPSTREAM_KEYS) as server:
        yield server


@pytest.fixture(scope="module")
def module_openai(
    tmp_path_factory: pytest.TempPathFactory, openai_stub: StubUpstream, keys: str
) -> Iterator[Stack]:
    """The stack of the module."""
    with openai_stack(tmp_path_factory.mktemp("openai"), openai_stub.url, keys) as stack:
        yield stack


@pytest.fixture
def stack(module_openai: Stack, openai_stub: StubUpstream) -> Iterator[Stack]:
    """The module's stack; its books are right afterwards."""
    openai_stub.reset()
    yield module_openai
    assert_books_right(module_openai.database_url)


@pytest.fixture
def upstream(openai_stub: StubUpstream) -> StubUpstream:
    """The stub behind it."""
    return openai_stub


def run(
    url: str, token: str, *uses: str, model: str = MODEL, base: str = "/openai/v1"
) -> list[dict[str, Any]]:
    """What the client reported of these uses."""
    environment = {
        "PATH": os.defpath,
        "HOME": "/nonexistent",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENAI_BASE_URL": f"{url}{base}",
        "OPENAI_API_KEY": token,
    }
    done = subprocess.run(
        [str(openai_python()), "-I", str(AGENT), model, *uses],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def refusals(stack: Stack, sandbox: dict[str, Any], token: str) -> list[str]:
    """The codes that calls of this sandbox were refused with, all that there were, by the log."""
    fence = stack.post(token, "/openai/v1/embeddings", {"model": "no-such-model", "input": "x"})
    assert fence.status == 400

    def told() -> list[str]:
        lines = [json.loads(line) for line in stack.log("proxy").splitlines()]
        codes = [
            line["refused"]
            for line in lines
            if line["event"] == "call_closed"
            and line.get("sandbox") == sandbox["id"]
            and line.get("refused")
        ]
        return codes if codes[-1:] == ["model_not_allowed"] else []

    # The log is in order: behind the line of this call none of the client's can come.
    return eventually(told)[:-1]


def test_every_use_of_the_api(stack: Stack, upstream: StubUpstream) -> None:
    """Chat, tools, streams, responses, embeddings and models work as without us."""
    sandbox = stack.sandbox()
    uses = ("chat", "tools", "chat_stream", "chat_usage", "response", "response_stream")
    reports = run(stack.proxy_url, stack.access_token(sandbox), *uses, "embeddings", "models")
    assert [report["ok"] for report in reports] == [True] * 8, reports
    assert [report["said"] for report in reports[:6]] == [WORDS] * 6
    assert [report["used"] for report in reports] == [15, None, None, 15, 15, 15, 14, None]
    assert len(upstream.requests) == 7
    rows = stack.settled(sandbox, 7)
    assert not [row for row in rows if row["estimated"]]
    assert sum(row["output_tokens"] for row in rows) == 6 * 15


@pytest.mark.parametrize("use", ["chat", "chat_stream", "response", "response_stream"])
@pytest.mark.parametrize(
    ("limits", "shown"),
    [
        ({"budget_usd": "0.0001"}, "sandbox budget too low for this call"),
        ({"budget_per_month_usd": "0.0001"}, "monthly budget too low for this call"),
    ],
)
def test_a_budget_that_is_too_low_is_asked_once(
    stack: Stack, upstream: StubUpstream, use: str, limits: dict[str, Any], shown: str
) -> None:
    """B49: exactly one request, nothing goes up, and the user reads why."""
    sandbox = stack.sandbox(**limits)
    token = stack.access_token(sandbox)
    (report,) = run(stack.proxy_url, token, use)
    assert (report["ok"], report["code"]) == (False, "insufficient_quota")
    assert shown in report["text"]
    assert report["seconds"] < SECONDS
    assert upstream.requests == []
    assert refusals(stack, sandbox, token) == ["budget_exhausted"]


@pytest.mark.parametrize("use", ["chat", "response"])
def test_a_spent_month_tells_when_it_starts_anew(
    stack: Stack, upstream: StubUpstream, use: str
) -> None:
    """B49: a budget that is used up is asked for once, and the sentence has the reset time."""
    sandbox = stack.sandbox(budget_per_month_usd="1.00")
    token = stack.access_token(sandbox)
    usage = {"prompt_tokens": 25, "completion_tokens": 100_000, "total_tokens": 100_025}
    upstream.next([Send(json_answer(200, wire.chat_json(usage=usage)))])
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}
    assert stack.post(token, "/openai/v1/chat/completions", body).status == 200
    stack.settled(sandbox)
    upstream.requests.clear()
    (report,) = run(stack.proxy_url, token, use)
    assert report["code"] == "insufficient_quota"
    sentence = r"monthly budget used up; .*; it starts anew at [0-9]{4}-[0-9]{2}-01T00:00:00Z"
    assert re.search(sentence, report["text"]), report
    assert upstream.requests == []
    assert refusals(stack, sandbox, token) == ["budget_exhausted"]


def test_what_no_retry_would_change_is_asked_once(stack: Stack, upstream: StubUpstream) -> None:
    """A model or endpoint that the scope does not name is refused in one request."""
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    (report,) = run(stack.proxy_url, token, "chat", model="o3")
    assert (report["kind"], report["code"]) == ("BadRequestError", "model_not_found")
    assert "allowed: gpt-4o, gpt-4.1*" in report["text"]
    (report,) = run(stack.proxy_url, token, "response", base="/local/v1", model="meta/own")
    assert (report["kind"], report["code"]) == ("PermissionDeniedError", "insufficient_scope")
    assert refusals(stack, sandbox, token) == ["model_not_allowed", "insufficient_scope"]
    assert upstream.requests == []


@pytest.mark.parametrize(
    ("base", "shown"),
    [
        ("", "/openai/v1"),
        ("/v1", "/openai/v1"),
        ("/openai", "/openai/v1"),
        ("/openai/v1/v1", "/openai/v1, with /v1 once"),
    ],
)
def test_a_wrong_base_url_is_explained(
    stack: Stack, upstream: StubUpstream, base: str, shown: str
) -> None:
    """B46, B91: a client with a wrong base URL reads the right one."""
    (report,) = run(stack.proxy_url, stack.access_token(stack.sandbox()), "chat", base=base)
    assert report["kind"] == "NotFoundError"
    assert shown in report["text"]
    assert upstream.requests == []


def test_a_torn_stream_is_an_error(stack: Stack, upstream: StubUpstream) -> None:
    """B25: a stream that broke is an exception to the client, not a short success."""
    token = stack.access_token(stack.sandbox())
    torn = wire.chat_stream()[:4]
    upstream.next([Send(sse_answer()), *(chunk(each) for each in torn), Close()])
    (report,) = run(stack.proxy_url, token, "chat_stream")
    assert (report["ok"], report["kind"]) == (False, "APIError")
    assert "broke off its answer" in report["text"]


def test_a_busy_upstream_is_tried_again(stack: Stack, upstream: StubUpstream) -> None:
    """The provider's own 429 passes, and the client does with it what it would do without us."""
    busy = wire.error_json("slow down", "requests", "rate_limit_exceeded")
    upstream.next([Send(json_answer(429, busy, [("retry-after-ms", "10")]))])
    (report,) = run(stack.proxy_url, stack.access_token(stack.sandbox()), "chat")
    assert report["ok"]
    assert len(upstream.requests) == 2
