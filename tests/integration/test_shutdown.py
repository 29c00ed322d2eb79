"""Stopping the proxy: running calls are told, settled, and leave no trace of a failure."""

import signal
from collections.abc import Callable

from tests.servers.client import RawStream
from tests.servers.stack import Stack, call
from tests.servers.stub import Send, Stall, StubUpstream, chunk
from tests.servers.wire import message_start, sse_answer
from tests.support import eventually

MODEL = "claude-sonnet-4-5"
BODY: dict[str, object] = {
    "model": MODEL,
    "max_tokens": 64,
    "stream": True,
    "messages": [{"role": "user", "content": "x"}],
}
START = message_start(MODEL, {"input_tokens": 25, "output_tokens": 1})


def refuses(url: str) -> bool:
    """Whether nobody listens any more."""
    try:
        call(url, "GET", "/livez", timeout=1)
    except OSError:
        return True
    return False


def test_a_second_signal_ends_streams_with_words(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """After a second SIGTERM each stream gets an SSE error and a tidy end; all is settled."""
    stack = make_stack()
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    upstream.always([Send(sse_answer()), chunk(START), Stall()])
    streams = [RawStream.post(stack.proxy_url, token, BODY) for _ in range(5)]
    for stream in streams:
        stream.until(START)
    process = stack.processes["proxy"]
    process.send_signal(signal.SIGTERM)
    eventually(lambda: refuses(stack.proxy_url))
    assert stack.stop_process("proxy") == 0
    for stream in streams:
        stream.rest()
        assert stream.complete
        assert b"event: error" in stream.body
        assert b"restarting" in stream.body
    rows = stack.settled(sandbox, 5)
    assert {row["outcome"] for row in rows} == {"shutdown"}
    assert stack.account(sandbox)["reserved_nano"] == 0
    assert "Traceback" not in stack.log("proxy")
