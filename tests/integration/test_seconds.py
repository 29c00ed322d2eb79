"""A server of one's own that costs by the second, on real processes and both databases."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import openai_wire as wire
from tests.servers.books import assert_books_right
from tests.servers.client import RawStream
from tests.servers.openai_stack import KEY, LOCAL_KEY, POLICY, UPSTREAM_KEYS
from tests.servers.stack import Stack
from tests.servers.stub import Pause, Send, Stall, StubUpstream, chunk
from tests.servers.wire import json_answer, sse_answer

SECOND = 10_000_000
PRICE = {
    "model": "meta/own",
    "context_window": 8192,
    "input": "0",
    "output": "0",
    "thinks_unasked": False,
    "per_second": "0.01",
    "max_seconds": 1,
}
PATIENT = PRICE | {"model": "meta/patient", "max_seconds": 60}
"""One that takes its time also where the machine stands still for a moment."""
ASK: dict[str, Any] = {"model": "meta/own", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/local/v1/chat/completions"


@pytest.fixture
def upstream() -> Iterator[StubUpstream]:
    """The server of one's own."""
    with StubUpstream(UPSTREAM_KEYS) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def stack(
    request: pytest.FixtureRequest, upstream: StubUpstream, tmp_path: Path
) -> Iterator[Stack]:
    """A daypass in front of it."""
    database = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    own = {
        "url": f"{upstream.url}/engine/v1",
        "keys": "acme=env://LOCAL_KEY",
        "prices": [PRICE, PATIENT],
    }
    path = tmp_path / "upstreams.json"
    path.write_text(json.dumps({"local": own}))
    settings = {"OPENAI_KEY": KEY, "LOCAL_KEY": LOCAL_KEY, "DAYPASS_UPSTREAMS": str(path)}
    # After the database, so that it is there until the proxy is stopped.
    make_stack: Callable[..., Stack] = request.getfixturevalue("make_stack")
    made = make_stack(
        upstream_url=upstream.url,
        policy=POLICY.replace('["meta/own"]', '["meta/own", "meta/patient"]'),
        openai_keys="acme=env://OPENAI_KEY",
        proxy_settings=settings,
        database_url=database,
    )
    yield made
    assert_books_right(made.database_url)


def cost(stack: Stack, sandbox: dict[str, Any]) -> tuple[int, str]:
    """What the one call of a sandbox was booked at, and how it ended."""
    (row,) = stack.settled(sandbox)
    return row["cost_nano"], row["outcome"]


def test_a_second_has_its_price(stack: Stack, upstream: StubUpstream) -> None:
    """The time upstream is booked, the longest is held and cut, and no call costs more than that:
    in one piece, as a stream, and with a budget that would not pay for it."""
    quick = stack.sandbox()
    upstream.next([Pause(0.3), Send(json_answer(200, wire.chat_json(model="meta/patient")))])
    token, began = stack.access_token(quick), time.monotonic()
    assert stack.post(token, CHAT, ASK | {"model": "meta/patient"}).status == 200
    took = time.monotonic() - began
    nano, outcome = cost(stack, quick)
    assert outcome == "complete"
    assert 0.3 * SECOND <= nano <= took * SECOND

    slow = stack.sandbox()
    upstream.next([Stall()])
    answer = stack.post(stack.access_token(slow), CHAT, ASK)
    assert answer.status == 504
    assert answer.json()["error"]["code"] == "call_too_long"
    assert upstream.requests[-1].peer_gone.wait(10)
    assert cost(stack, slow) == (SECOND, "cut_too_long")

    streaming = stack.sandbox()
    first, *_ = wire.chat_stream(model="meta/own")
    upstream.next([Send(sse_answer()), chunk(first), Stall()])
    token = stack.access_token(streaming)
    stream = RawStream.post(stack.proxy_url, token, ASK | {"stream": True}, CHAT)
    text = stream.rest()
    assert b'"call_too_long"' in text
    assert b"[DONE]" not in text
    assert cost(stack, streaming) == (SECOND, "cut_too_long")

    poor = stack.sandbox(budget_usd="0.009")
    before = len(upstream.requests)
    assert stack.post(stack.access_token(poor), CHAT, ASK).status == 402
    assert len(upstream.requests) == before
