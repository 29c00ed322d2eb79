"""Our adapters of LangChain and OpenAI's client, through the end of tokens and of sandboxes."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.installed import frameworks_python
from tests.clients.revoking import revoke
from tests.clients.stock import PATIENCE, Place
from tests.clients.test_recipes import ROOT, SENTENCE
from tests.servers import openai_wire as wire
from tests.servers.books import assert_books_right
from tests.servers.openai_stack import UPSTREAM_KEYS, openai_stack
from tests.servers.stack import Stack
from tests.servers.stub import Send, StubUpstream
from tests.servers.wire import json_answer, message_json

pytestmark = pytest.mark.sdk

AGENT = Path(__file__).parent / "adapters_agent.py"
WORDS = "".join(wire.WORDS)
LANGCHAIN = ("invoke", "ainvoke", "stream")
OPENAI = ("completion", "completion_async", "completion_stream")


@pytest.fixture(scope="module")
def stub() -> Iterator[StubUpstream]:
    """The stub provider."""
    with StubUpstream(UPSTREAM_KEYS) as server:
        yield server


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory, stub: StubUpstream, keys: str
) -> Iterator[Stack]:
    """A stack that serves both APIs."""
    with openai_stack(tmp_path_factory.mktemp("adapters"), stub.url, keys) as stack:
        yield stack


@pytest.fixture
def stack(both: Stack, stub: StubUpstream) -> Iterator[Stack]:
    """The module's stack; its books are right afterwards."""
    stub.reset()
    yield both
    assert_books_right(both.database_url)


class Agent:
    """The agent in a sandbox; a context manager that ends it."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.sandbox = stack.sandbox()
        variables = {
            "PATH": os.defpath,
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(ROOT / "sdk"),
        }
        self._process = subprocess.Popen(
            [str(frameworks_python()), "-P", str(AGENT)],
            env=variables | Place(stack.proxy_url, self.sandbox, "", folder).federation(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate(timeout=PATIENCE)

    def use(self, name: str) -> dict[str, Any]:
        """One use, and what it reported."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        report: dict[str, Any] = json.loads(self._process.stdout.readline())
        return report

    def tokens(self) -> list[str]:
        """The ids of all tokens that it was given."""
        query = "SELECT jti FROM token WHERE sandbox = ? ORDER BY iat, jti"
        return [row["jti"] for row in self.stack.rows(query, self.sandbox["id"])]

    def revoke(self, scope: str, ident: str) -> None:
        """Revoke as an administrator does, and wait until the proxy has seen it."""
        revoke(self.stack, scope, ident)


@pytest.fixture
def agent(stack: Stack, tmp_path: Path) -> Iterator[Agent]:
    """The agent."""
    with Agent(stack, tmp_path) as started:
        yield started


def test_the_stock_class_still_needs_ours(agent: Agent, stub: StubUpstream) -> None:
    """With the four variables alone LangChain's own class fails before anything is sent."""
    report = agent.use("stock")
    assert not report["ok"], "daypass.langchain may have become superfluous"
    assert stub.requests == []


def test_langchain_calls_in_every_way(agent: Agent, stub: StubUpstream) -> None:
    """Plain, asynchronous, streamed and with a tool: one token, one request each."""
    for name in LANGCHAIN:
        assert agent.use(name) == {"ok": True, "text": "Hello"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"what": "the sea"}}
    said = message_json("claude-sonnet-4-6") | {"content": [call], "stop_reason": "tool_use"}
    stub.next([Send(json_answer(200, said))])
    report = agent.use("tools")
    assert report["ok"], report
    assert json.loads(report["text"])[0]["args"] == {"what": "the sea"}
    assert len(stub.requests) == 4
    assert len(agent.tokens()) == 1


def test_openai_calls_in_every_way(agent: Agent, stub: StubUpstream) -> None:
    """Plain, asynchronous and streamed: one token, one request each."""
    for name in OPENAI:
        assert agent.use(name) == {"ok": True, "text": WORDS}
    assert len(stub.requests) == 3
    assert len(agent.tokens()) == 1


@pytest.mark.parametrize("name", [*LANGCHAIN, *OPENAI])
def test_it_lives_through_a_token_and_ends_with_its_sandbox(
    agent: Agent, stub: StubUpstream, name: str
) -> None:
    """B18: a token that ended early costs one exchange and the call goes through; in a revoked
    sandbox the caller sees why, at once, and nothing more reaches the provider.
    """
    text = "Hello" if name in LANGCHAIN else WORDS
    assert agent.use(name) == {"ok": True, "text": text}
    (held,) = agent.tokens()
    agent.revoke("jti", held)
    assert agent.use(name) == {"ok": True, "text": text}
    assert len(agent.tokens()) == 2

    agent.revoke("sandbox", agent.sandbox["id"])
    for _ in range(2):
        report = agent.use(name)
        assert not report["ok"]
        assert "revoked" in report["text"]
    assert len(stub.requests) == 2


def test_a_revoked_sandbox_is_our_error_from_the_start(agent: Agent) -> None:
    """Before the first token both adapters raise `Revoked`, which is an error of their client."""
    agent.revoke("sandbox", agent.sandbox["id"])
    for name, family in (("invoke", "AnthropicError"), ("completion", "OpenAIError")):
        report = agent.use(name)
        assert SENTENCE in report["text"]
        assert {"Revoked", "DaypassError", family} <= set(report["kinds"])
