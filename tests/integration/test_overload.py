"""What one proxy takes at once, and that a call which is turned away leaves nothing."""

from collections.abc import Callable

from tests.servers.client import RawStream
from tests.servers.ports import free_port
from tests.servers.stack import Stack, call
from tests.servers.stub import Script, Send, Stall, StubUpstream, chunk
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


def opened(stack: Stack, token: str, upstream: StubUpstream, count: int) -> list[RawStream]:
    """So many streams of one sandbox that do not end."""
    script: Script = [Send(sse_answer()), chunk(START), Stall()]
    upstream.next(*[script] * count)
    streams = [RawStream.post(stack.proxy_url, token, BODY) for _ in range(count)]
    for stream in streams:
        stream.until(START)
    return streams


def test_b31_what_is_too_much_is_turned_away(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """B31: beyond the bounds 429 for a sandbox, 503 for all; no row, and probes go on (B55)."""
    port = free_port()
    stack = make_stack(
        proxy_settings={
            "DAYPASS_MAX_CALLS": "3",
            "DAYPASS_SANDBOX_CONNECTIONS": "2",
            "DAYPASS_PROXY_METRICS_LISTEN": f"127.0.0.1:{port}",
        }
    )
    one, other = stack.sandbox(), stack.sandbox()
    token, others = stack.access_token(one), stack.access_token(other)
    streams = opened(stack, token, upstream, 2)
    answer = stack.message(token)
    assert answer.status == 429
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert "2 calls open" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"] == "2"
    streams += opened(stack, others, upstream, 1)
    for path, shape in (("/v1/messages", "overloaded_error"), ("/openai/v1/responses", None)):
        answer = stack.post(others, path, {**BODY, "padding": "x" * 100_000})
        assert answer.status == 503
        assert answer.headers["retry-after"] == "2"
        assert "x-should-retry" not in answer.headers
        assert answer.json()["error"].get("type") == shape or shape is None
    assert call(stack.proxy_url, "GET", "/livez").status == 200
    assert call(stack.proxy_url, "GET", "/readyz").status == 200
    assert stack.exchange(other).status == 200
    figures = call(f"http://127.0.0.1:{port}", "GET", "/metrics").body.decode()
    assert 'daypass_calls_shed_total{reason="calls"} 2.0' in figures
    assert 'daypass_calls_shed_total{reason="sandbox"} 1.0' in figures
    assert "daypass_requests_in_flight 3.0" in figures
    for stream in streams:
        stream.close()
    stack.settled(one, 2)
    stack.settled(other, 1)
    eventually(lambda: stack.message(token).status == 200)
