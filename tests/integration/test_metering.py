"""Usage and cost of whole calls: a row before the first byte, settled once, to the nano-dollar."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.servers.client import RawStream
from tests.servers.stack import Stack
from tests.servers.stub import Reset, Send, Stall, StubUpstream, Wait, chunk
from tests.servers.wire import (
    json_answer,
    message_delta,
    message_json,
    message_start,
    message_stream,
    sse_answer,
    text_delta,
)
from tests.support import eventually

MODEL = "claude-sonnet-4-5"  # 3.00 in, 15.00 out, 3.75 and 6.00 cache write, 0.30 cache read
BODY: dict[str, object] = {
    "model": MODEL,
    "max_tokens": 1000,
    "stream": True,
    "messages": [{"role": "user", "content": "x" * 3000}],
}
END = Send(b"0\r\n\r\n")


@pytest.fixture
def sandbox(stack: Stack) -> dict[str, Any]:
    """A fresh sandbox."""
    return stack.sandbox()


def finish(stack: Stack, sandbox: dict[str, Any], **fields: object) -> RawStream:
    """One call to its end."""
    stream = RawStream.post(stack.proxy_url, stack.access_token(sandbox), BODY | fields)
    stream.rest()
    return stream


def test_b33_cumulative_usage_is_not_added_up(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, Any]
) -> None:
    """B33: input 25, output 22 after two cumulative deltas of 15 and 22."""
    events = message_stream(MODEL, final_usage={"output_tokens": 15})
    events.insert(-1, message_delta({"output_tokens": 22}))
    upstream.next([Send(sse_answer()), *map(chunk, events), END])
    finish(stack, sandbox)
    (row,) = stack.settled(sandbox)
    assert (row["input_tokens"], row["output_tokens"]) == (25, 22)
    assert row["cost_nano"] == 25 * 3000 + 22 * 15000
    assert row["estimated"] == 0


B34 = [
    (
        MODEL,
        {
            "input_tokens": 3,
            "cache_creation_input_tokens": 12304,
            "cache_read_input_tokens": 0,
            "output_tokens": 550,
        },
        54_399_000,
    ),
    (
        MODEL,
        {
            "input_tokens": 100,
            "cache_creation_input_tokens": 700,
            "cache_read_input_tokens": 200,
            "output_tokens": 0,
        },
        300_000 + 2_625_000 + 60_000,
    ),
    (
        "claude-opus-4-5",  # 5.00 in
        {
            "input_tokens": 0,
            "cache_creation_input_tokens": 1_000_000,
            "cache_creation": {
                "ephemeral_5m_input_tokens": 600_000,
                "ephemeral_1h_input_tokens": 400_000,
            },
            "output_tokens": 0,
        },
        7_750_000_000,
    ),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("model", "usage", "nano"), B34)
def test_b34_cache_tokens_have_their_own_prices(
    stack: Stack,
    upstream: StubUpstream,
    sandbox: dict[str, Any],
    model: str,
    usage: dict[str, Any],
    nano: int,
    stream: bool,
) -> None:
    """B34: cache writes (5 min, 1 h) and cache reads have own prices; stream = plain."""
    if stream:
        start = usage | {"output_tokens": 1}
        events = message_stream(
            model, start_usage=start, final_usage={"output_tokens": usage["output_tokens"]}
        )
        upstream.next([Send(sse_answer()), *map(chunk, events), END])
    else:
        upstream.next([Send(json_answer(200, message_json(model, usage=usage)))])
    finish(stack, sandbox, stream=stream, model=model)
    (row,) = stack.settled(sandbox)
    assert row["cost_nano"] == nano


LONG_START = message_start(MODEL, {"input_tokens": 1000, "output_tokens": 1})


def test_b05_hang_up_before_the_usage_is_not_free(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, Any]
) -> None:
    """B05a: all text read, gone before message_delta: input 1000 and output > 0 are booked."""
    deltas = [chunk(text_delta(f"word{i} ")) for i in range(200)]
    rest = [chunk(message_delta({"output_tokens": 400})), END]
    upstream.next([Send(sse_answer()), chunk(LONG_START), *deltas, Wait("pause"), *rest])
    stream = RawStream.post(stack.proxy_url, stack.access_token(sandbox), BODY)
    stream.until(b"word199 ")
    stream.close()
    (row,) = stack.settled(sandbox)
    upstream.release("pause")
    assert row["input_tokens"] == 1000
    assert 200 <= row["output_tokens"] <= 1000
    assert (row["estimated"], row["outcome"]) == (1, "client_gone")
    assert row["cost_nano"] == 1000 * 3000 + row["output_tokens"] * 15000
    found = stack.account(sandbox)
    assert (found["spent_nano"], found["reserved_nano"]) == (row["cost_nano"], 0)


def test_b05_gone_before_any_byte_is_booked_as_input(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, Any]
) -> None:
    """B05b: gone before the first byte: the prompt is booked by estimate, never the full length."""
    upstream.next([Stall()])
    stream = RawStream.post(stack.proxy_url, stack.access_token(sandbox), BODY)
    upstream.wait_for(1)
    stream.close()
    (row,) = stack.settled(sandbox)
    assert 700 <= row["input_tokens"] <= 3200
    assert (row["output_tokens"] or 0) < 10
    assert row["estimated"] == 1


def test_b05_reset_midway_is_booked_once(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, Any]
) -> None:
    """B05c: the provider resets midway: one row, booked, nothing held any more."""
    deltas = [chunk(text_delta(f"word{i} ")) for i in range(100)]
    upstream.next([Send(sse_answer()), chunk(LONG_START), *deltas, Reset()])
    finish(stack, sandbox)
    (row,) = stack.settled(sandbox)
    assert row["input_tokens"] == 1000
    found = stack.account(sandbox)
    assert (found["spent_nano"], found["reserved_nano"]) == (row["cost_nano"], 0)


def test_row_exists_before_the_provider_sees_a_byte(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, Any]
) -> None:
    """While the provider holds its answer, the open row and its hold are already durable."""
    upstream.next([Wait("answer"), Send(json_answer(200, message_json(MODEL)))])
    stream = RawStream.post(stack.proxy_url, stack.access_token(sandbox), BODY | {"stream": False})
    upstream.wait_for(1)
    (row,) = stack.usage(sandbox)
    assert row["state"] == "open"
    assert stack.account(sandbox)["reserved_nano"] == row["reserved_nano"] > 0
    upstream.release("answer")
    stream.rest()
    stack.settled(sandbox)


def test_b06_parallel_calls_cannot_pass_the_budget(stack: Stack, upstream: StubUpstream) -> None:
    """B06, row 26: 20 calls at once on room for a few: the provider sees only the admitted ones."""
    sandbox = stack.sandbox(budget_usd="0.10")
    token = stack.access_token(sandbox)
    upstream.always([Wait("answers"), Send(json_answer(200, message_json(MODEL)))])

    def one(_: int) -> int:
        return stack.message(token, max_tokens=1000).status

    with ThreadPoolExecutor(20) as pool:
        statuses = [pool.submit(one, i) for i in range(20)]
        eventually(lambda: sum(done.done() for done in statuses) + len(upstream.requests) == 20)
        admitted = len(upstream.requests)
        assert stack.account(sandbox)["reserved_nano"] <= 100_000_000
        upstream.release("answers")
        found = [done.result() for done in statuses]
    assert found.count(200) == len(upstream.requests) == admitted
    assert found.count(429) == 20 - admitted
    rows = stack.settled(sandbox, admitted)
    assert admitted == 100_000_000 // rows[0]["reserved_nano"] > 1
    assert stack.account(sandbox)["reserved_nano"] == 0


def test_exhausted_budget_is_402_once(stack: Stack, upstream: StubUpstream) -> None:
    """A budget that no hold will give back is 402 billing_error that no client retries."""
    sandbox = stack.sandbox(budget_usd="0.000001")
    answer = stack.message(stack.access_token(sandbox))
    assert answer.status == 402
    assert answer.json()["error"]["type"] == "billing_error"
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    assert upstream.requests == []


def test_provider_refusals_cost_nothing_and_pass(
    stack: Stack, upstream: StubUpstream, sandbox: dict[str, Any]
) -> None:
    """A provider's 4xx, 429 and 5xx pass with body and retry hints, and cost nothing."""
    for status in (400, 403, 404, 429, 500, 529):
        error = {"type": "error", "error": {"type": "some_error", "message": f"words {status}"}}
        headers = [("retry-after", "7"), ("x-should-retry", "true"), ("set-cookie", "a=b")]
        headers.append(("anthropic-ratelimit-requests-remaining", "0"))
        upstream.next([Send(json_answer(status, error, headers))])
        answer = stack.message(stack.access_token(sandbox))
        assert answer.status == status
        assert answer.json() == error
        assert answer.headers["request-id"] == "req_stub"
        assert answer.headers["retry-after"] == "7"
        assert answer.headers["x-should-retry"] == "true"
        assert "set-cookie" not in answer.headers
        assert not [name for name in answer.headers if name.startswith("anthropic-ratelimit")]
    rows = stack.settled(sandbox, 6)
    assert {row["cost_nano"] for row in rows} == {0}


def test_count_tokens_is_free(stack: Stack, sandbox: dict[str, Any]) -> None:
    """Counting tokens passes and costs nothing; it has a row, as whatever goes up."""
    from tests.servers.stack import call

    body = {k: v for k, v in BODY.items() if k not in ("max_tokens", "stream")}
    answer = call(
        stack.proxy_url,
        "POST",
        "/v1/messages/count_tokens?beta=true",
        json.dumps(body).encode(),
        {
            "authorization": f"Bearer {stack.access_token(sandbox)}",
            "content-type": "application/json",
        },
    )
    assert (answer.status, answer.json()) == (200, {"input_tokens": 7})
    (row,) = stack.settled(sandbox)
    assert (row["endpoint"], row["cost_nano"], row["estimated"]) == ("count_tokens", 0, 0)


def test_a_killed_proxy_loses_no_row(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """kill -9 midway through a call: the open row keeps its hold until its lease ends."""
    import signal

    stack = make_stack(proxy_settings={"DAYPASS_LEASE_SECONDS": "2"})
    sandbox = stack.sandbox()
    upstream.next([Send(sse_answer()), chunk(LONG_START), Stall()])
    stream = RawStream.post(stack.proxy_url, stack.access_token(sandbox), BODY)
    stream.until(LONG_START)
    stack.stop_process("proxy", signal.SIGKILL)
    (row,) = stack.usage(sandbox)
    assert row["state"] == "open"
    stream.close()
    stack.start_proxy()
    (row,) = stack.settled(sandbox)
    assert (row["outcome"], row["cost_nano"]) == ("crashed", row["reserved_nano"])
    assert row["estimated"] == 1
