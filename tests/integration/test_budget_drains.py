"""Clients that leave: their answers are read on within the terms, and booked once (B05)."""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.billed import BODY, END, MODEL, START, at_rest, bill, post
from tests.servers.client import RawStream
from tests.servers.stack import POLICY, Stack
from tests.servers.stub import Send, Stall, StubUpstream, Wait, chunk
from tests.servers.wire import (
    MESSAGE_STOP,
    message_delta,
    message_start,
    message_stream,
    sse_answer,
    text_delta,
)
from tests.support import eventually

DRAINED = '    budget_usd: "5.00"\n    drain_seconds: "60"\n'


@pytest.fixture(scope="module")
def module_stack(folder: Path, module_stub: StubUpstream, keys: str) -> Iterator[Stack]:
    """A stack that reads answers on for longer than a busy machine ever stands still."""
    policy = POLICY.replace('    budget_usd: "5.00"\n', DRAINED)
    with Stack(folder, module_stub.url, keys, policy=policy) as stack:
        yield stack


def test_b05_drained(stack: Stack, upstream: StubUpstream) -> None:
    """B05 (a): gone before message_delta: read on, and booked as the provider says."""
    sandbox = stack.sandbox()
    deltas = [chunk(text_delta(f"word{i} ")) for i in range(200)]
    rest = [chunk(message_delta({"output_tokens": 400})), chunk(MESSAGE_STOP), END]
    upstream.next([Send(sse_answer()), chunk(START), *deltas, Wait("pause"), *rest])
    stream = post(stack, sandbox)
    stream.until(b"word199 ")
    leave(stream)
    upstream.release("pause")
    (row,) = stack.settled(sandbox)
    assert (row["outcome"], row["estimated"]) == ("client_gone", 0)
    assert (row["input_tokens"], row["output_tokens"]) == (1000, 400)
    assert at_rest(stack, sandbox, 1)["spent_nano"] == bill(400)


def leave(stream: RawStream) -> None:
    """Hang up, and see that it was noticed: the rest of the answer must not be faster."""
    stream.sock.shutdown(socket.SHUT_WR)
    while stream.read_some():
        pass
    stream.close()


def test_b05_drain_has_terms(stack: Stack, upstream: StubUpstream) -> None:
    """B05: a sandbox that drains nothing is booked at once, and the provider hung up on."""
    sandbox = stack.sandbox(drain_seconds="0")
    upstream.next([Send(sse_answer()), chunk(START), chunk(text_delta("word")), Stall()])
    stream = post(stack, sandbox)
    stream.until(b"word")
    stream.close()
    assert upstream.requests[0].peer_gone.wait(20)
    (row,) = stack.settled(sandbox)
    assert (row["outcome"], row["estimated"]) == ("client_gone", 1)
    closed = eventually(lambda: closed_call(stack, sandbox["id"]), timeout=20)
    assert "drained_tokens" not in closed, "told of every call that was read on"


def closed_call(stack: Stack, sandbox: str) -> dict[str, Any]:
    """What the proxy said at the end of a call of this sandbox; empty before."""
    lines = [json.loads(line) for line in stack.log("proxy").splitlines() if sandbox in line]
    return next((line for line in lines if line["event"] == "call_closed"), {})


def test_revocation_ends_a_drain(stack: Stack, upstream: StubUpstream) -> None:
    """A call that goes on without its client is found by a revocation like any other."""
    sandbox = stack.sandbox()
    upstream.next([Send(sse_answer()), chunk(START), chunk(text_delta("word")), Stall()])
    stream = post(stack, sandbox)
    stream.until(b"word")
    stream.close()
    assert not upstream.requests[0].peer_gone.wait(0.2), "it is drained"
    body = {"scope": "sandbox", "ident": sandbox["id"], "reason": "test"}
    answer = stack.admin("POST", "/v1/revocations", body)
    assert answer.status in (200, 201), answer.body
    assert upstream.requests[0].peer_gone.wait(20)
    (row,) = stack.settled(sandbox)
    assert (row["outcome"], row["estimated"]) == ("cut_revoked", 1)


def test_aborts_at_every_event(stack: Stack, upstream: StubUpstream) -> None:
    """B05: clients that leave after each event, 0 to the last: each booked once, at the real bill.

    The provider ends its answers in good time, so draining finds every bill.
    """
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    texts = [f"word{index:02} " for index in range(30)]
    events = [
        message_start(MODEL, {"input_tokens": 1000, "output_tokens": 1}),
        *message_stream(MODEL, texts, final_usage={"output_tokens": 60})[1:],
    ]
    upstream.always([Send(sse_answer()), *map(chunk, events), END])
    for index in range(len(events) + 1):
        stream = RawStream.post(stack.proxy_url, token, BODY)
        if index == 0:
            upstream.wait_for(1)
        else:
            with contextlib.suppress(AssertionError):
                stream.until(events[index - 1])
        stream.close()
    account = at_rest(stack, sandbox, len(events) + 1)
    rows = stack.usage(sandbox)
    assert {(row["estimated"], row["output_tokens"]) for row in rows} == {(0, 60)}
    assert {row["outcome"] for row in rows} <= {"client_gone", "complete"}
    assert account["spent_nano"] == len(rows) * bill(60)
    assert account["overdraft_nano"] == 0
