"""Stopping the proxy: running calls are told, settled, and leave no trace of a failure."""

import json
import signal
from collections.abc import Callable

from tests.servers.client import RawStream
from tests.servers.ports import free_port
from tests.servers.stack import Stack, call
from tests.servers.stub import Send, Stall, StubUpstream, Wait, chunk
from tests.servers.wire import message_start, message_stream, sse_answer
from tests.support import eventually

MODEL = "claude-sonnet-4-5"
BODY: dict[str, object] = {
    "model": MODEL,
    "max_tokens": 64,
    "stream": True,
    "messages": [{"role": "user", "content": "x"}],
}
START = message_start(MODEL, {"input_tokens": 25, "output_tokens": 1})


def status(url: str, path: str) -> int | None:
    """The status of a probe; 0 when nobody listens any more, None for one that was cut off."""
    try:
        return call(url, "GET", path).status
    except ConnectionRefusedError:
        return 0
    except OSError:
        return None


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
    eventually(lambda: status(stack.proxy_url, "/livez") == 0)
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


def test_who_comes_after_the_last_words_gets_them_too(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """B89: a call whose body ends when the others were told already is told at once, with 503."""
    stack = make_stack(proxy_settings={"DAYPASS_DRAIN_SECONDS": "4"})
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    upstream.always([Send(sse_answer()), chunk(START), Stall()])
    told = RawStream.post(stack.proxy_url, token, BODY)
    told.until(START)
    data = json.dumps(BODY).encode()
    head = (
        "POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {token}\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    late = RawStream.send(stack.proxy_url, head.encode() + data[:-1])
    stack.processes["proxy"].send_signal(signal.SIGTERM)
    told.rest()
    assert b"restarting" in told.body
    late.sock.sendall(data[-1:])
    late.rest()
    assert late.complete
    assert late.status == 503
    assert b"restarting" in late.body
    assert stack.processes.pop("proxy").wait(20) == 0
    assert {row["outcome"] for row in stack.settled(sandbox, 2)} == {"shutdown"}
    assert "Traceback" not in stack.log("proxy")


def stops_in_steps(make_stack: Callable[..., Stack]) -> tuple[Stack, str]:
    """A stack whose proxy and broker are not ready for four seconds first; where its figures are.

    So long that what is asked meanwhile is asked in time, also by a machine that stands still for a
    moment.
    """
    port = free_port()
    settings = {
        "DAYPASS_PROXY_METRICS_LISTEN": f"127.0.0.1:{port}",
        "DAYPASS_READY_SECONDS": "4",
        "DAYPASS_DRAIN_SECONDS": "20",
    }
    broker = {"DAYPASS_READY_SECONDS": "4", "DAYPASS_BROKER_DRAIN_SECONDS": "5"}
    stack = make_stack(proxy_settings=settings, broker_settings=broker)
    return stack, f"http://127.0.0.1:{port}"


def test_b53_the_end_comes_in_steps(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """B53, B90: not ready first, still served; then nothing new; a stream in flight comes whole."""
    stack, metrics = stops_in_steps(make_stack)
    token = stack.access_token(stack.sandbox())
    first, *rest = message_stream(MODEL)
    upstream.next([Send(sse_answer()), chunk(first), Wait("end"), *map(chunk, rest)])
    stream = RawStream.post(stack.proxy_url, token, BODY)
    stream.until(b"message_start")
    process = stack.processes["proxy"]
    process.send_signal(signal.SIGTERM)
    eventually(lambda: status(stack.proxy_url, "/readyz") == 503)
    assert status(metrics, "/readyz") == 503
    assert status(metrics, "/livez") == 200
    answer = stack.message(token)
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    eventually(lambda: status(stack.proxy_url, "/livez") == 0, timeout=20)
    assert status(metrics, "/livez") == 200
    upstream.release("end")
    stream.rest()
    assert stream.complete
    assert b"message_stop" in stream.body
    assert b"event: error" not in stream.body
    assert stack.stop_process("proxy") == 0
    log = stack.log("proxy")
    assert log.index('"event":"stopping"') < log.index('"event":"not_accepting"')
    assert log.index('"event":"not_accepting"') < log.index('"event":"stopped"')
    # The broker ends the same way.
    stack.processes["broker"].send_signal(signal.SIGTERM)
    eventually(lambda: status(stack.admin_url, "/readyz") == 503)
    assert status(stack.admin_url, "/livez") == 200
    eventually(lambda: status(stack.admin_url, "/livez") == 0, timeout=20)
    assert stack.processes.pop("broker").wait(20) == 0
