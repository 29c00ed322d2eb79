"""The loopback helper in front of the whole product: clients with a static URL and no key."""

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from daypass import TokenProvider
from daypass.helper import Helper
from tests.servers.stack import Stack, call
from tests.servers.stub import Close, Send, StubUpstream, Wait, chunk
from tests.servers.wire import message_stream, sse_answer

EVENTS = message_stream("claude-sonnet-4-5")
ASK = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 64,
    "stream": True,
    "messages": [{"role": "user", "content": "hi"}],
}


@pytest.fixture
def helper(stack: Stack) -> Iterator[Helper]:
    """A helper with the day pass of a sandbox."""
    launch = stack.sandbox()["launch"]["credential"]
    provider = TokenProvider(stack.proxy_url, launch=launch, organization="acme", cache=False)
    started = Helper(provider, ("127.0.0.1", 0))
    started.start()
    yield started
    started.close()


@contextmanager
def stream(helper: Helper) -> Iterator[http.client.HTTPResponse]:
    """A streamed message, from its head on."""
    connection = http.client.HTTPConnection(helper.url.removeprefix("http://"), timeout=20)
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    connection.request("POST", "/v1/messages", json.dumps(ASK), headers)
    with closing(connection), connection.getresponse() as answer:
        yield answer


def test_a_stream_is_not_held_back(helper: Helper, upstream: StubUpstream) -> None:
    """Each event is with the client before the provider sends the next one; bytes are the same."""
    steps = [step for i, each in enumerate(EVENTS) for step in (chunk(each), Wait(f"after {i}"))]
    upstream.next([Send(sse_answer()), *steps, Send(b"0\r\n\r\n")])
    with stream(helper) as answer:
        assert answer.status == 200
        assert answer.getheader("content-type") == "text/event-stream; charset=utf-8"
        got = b""
        for number, each in enumerate(EVENTS):
            while len(got) < len(b"".join(EVENTS[: number + 1])):
                got += answer.read1(65_536)
            assert got.endswith(each)
            upstream.release(f"after {number}")
        assert got + answer.read() == b"".join(EVENTS)


def test_an_upstream_that_breaks_off_is_no_tidy_end(helper: Helper, upstream: StubUpstream) -> None:
    """B25: what the proxy makes of it, an SSE error, arrives; nothing is added or lost."""
    upstream.next([Send(sse_answer()), chunk(EVENTS[0]), Close()])
    with stream(helper) as answer:
        assert b"event: error" in answer.read()


def test_a_proxy_that_dies_breaks_the_clients_stream(
    helper: Helper, stack: Stack, upstream: StubUpstream
) -> None:
    """B25: a half answer never looks whole."""
    upstream.next([Send(sse_answer()), chunk(EVENTS[0]), Wait("never")])
    with stream(helper) as answer:
        assert answer.read1(65_536) == EVENTS[0]
        stack.stop_process("proxy", 9)
        try:
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                answer.read()
        finally:
            upstream.release("never")
            stack.start_proxy()


def test_run_gives_a_command_a_url_and_no_credential(stack: Stack, tmp_path: Path) -> None:
    """`daypass run --helper`: both dialects have their URL, the federation variables are gone, and
    a call with the key that stands there works.
    """
    sandbox = stack.sandbox()
    credential = tmp_path / "launch.jwt"
    credential.write_text(sandbox["launch"]["credential"])
    environment = dict(sandbox["environment"]) | {
        "ANTHROPIC_IDENTITY_TOKEN_FILE": str(credential),
        "ANTHROPIC_API_KEY": "sk-ant-not-a-key",
        "XDG_RUNTIME_DIR": str(tmp_path),
        "PATH": os.defpath,
    }
    script = (
        "import json, os, urllib.request as u; e = dict(os.environ); "
        "r = u.Request(e['ANTHROPIC_BASE_URL'] + '/v1/models',"
        " headers={'x-api-key': e['ANTHROPIC_AUTH_TOKEN']}); "
        "print(json.dumps([e, json.load(u.urlopen(r))]))"
    )
    command = [sys.executable, "-m", "daypass", "run", "--helper", "--", sys.executable, "-c"]
    done = subprocess.run(
        [*command, script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    seen, models = json.loads(done.stdout)
    assert models["data"]
    url = seen["ANTHROPIC_BASE_URL"]
    assert url.startswith("http://127.0.0.1:")
    assert url != stack.proxy_url
    assert seen["OPENAI_BASE_URL"] == seen["OPENAI_API_BASE"] == f"{url}/openai/v1"
    assert seen["ANTHROPIC_AUTH_TOKEN"] == seen["OPENAI_API_KEY"] == "daypass"
    assert not {"ANTHROPIC_API_KEY", "ANTHROPIC_IDENTITY_TOKEN_FILE"} & set(seen)
    assert sandbox["launch"]["credential"] not in done.stdout


def heed_interrupts() -> None:
    """What a background job made of the signal for the whole test run must not decide."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_the_command_says_where_it_serves(stack: Stack, tmp_path: Path) -> None:
    """`daypass helper` stays until it is interrupted, and ends well."""
    sandbox = stack.sandbox()
    environment = dict(sandbox["environment"]) | {
        "DAYPASS_LAUNCH": sandbox["launch"]["credential"],
        "XDG_RUNTIME_DIR": str(tmp_path),
        "PATH": os.defpath,
    }
    command = [sys.executable, "-m", "daypass", "helper", "--json", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    ) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            assert call(url, "GET", "/v1/self").json()["sandbox"] == sandbox["id"]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
