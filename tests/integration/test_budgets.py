"""Budgets on the real stack: who is refused and told what, and that the sums are the provider's."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from daypass_proxy.routes import ROUTES
from tests.servers.billed import BODY, END, IN, MODEL, OUT, START, at_rest, bill, post, stream_of
from tests.servers.client import RawStream
from tests.servers.stack import Answer, Stack, call
from tests.servers.stub import Close, Recorded, Reset, Script, Send, Stall, StubUpstream, chunk
from tests.servers.wire import json_answer, message_json, message_stream, sse_answer

# -- every route


def test_b07_no_route_passes_a_budget_by(stack: Stack, upstream: StubUpstream) -> None:
    """B07: a budget of a millionth of a dollar: nothing that costs goes up, by whatever route."""
    sandbox = stack.sandbox(budget_usd="0.000001")
    headers = {
        "authorization": f"Bearer {stack.access_token(sandbox)}",
        "content-type": "application/json",
    }
    paths = [path.decode() for path in ROUTES]
    paths += ["/v1/messages?beta=true", "/v1/messages/batches", "/v1/chat/completions"]
    paths += ["/openai/v1/chat/completions", "/openai/v1/responses", "/openai/v1/files"]
    paths += ["/v1/responses", "/v1/complete", "/anthropic/v1/messages", "/v1/models/claude-x"]
    answers: dict[tuple[str, bool], Answer] = {}
    for path in paths:
        for stream in (True, False):
            body = json.dumps(BODY | {"stream": stream, "max_tokens": 10}).encode()
            answers[path, stream] = call(stack.proxy_url, "POST", path, body, headers)
    went = {recorded.target.partition("?")[0] for recorded in upstream.requests}
    assert went == {"/v1/messages/count_tokens"}, "what the provider does for nothing"
    for path in ("/v1/messages", "/v1/messages?beta=true"):
        for stream in (True, False):
            assert answers[path, stream].status == 402
    assert at_rest(stack, sandbox, 2)["spent_nano"] == 0


def test_count_tokens_is_no_free_flood(stack: Stack, upstream: StubUpstream) -> None:
    """B07, B36: counting tokens costs nothing and counts as a request."""
    sandbox = stack.sandbox(requests_per_minute=3)
    headers = {
        "authorization": f"Bearer {stack.access_token(sandbox)}",
        "content-type": "application/json",
    }
    body = json.dumps({key: BODY[key] for key in ("model", "messages")}).encode()
    found = [
        call(stack.proxy_url, "POST", "/v1/messages/count_tokens", body, headers) for _ in range(5)
    ]
    assert [answer.status for answer in found] == [200, 200, 200, 429, 429]
    assert 1 <= int(found[3].headers["retry-after"]) <= 30
    assert found[3].json()["error"]["type"] == "rate_limit_error"
    assert found[3].headers["daypass-remaining-requests"] == "0"
    assert len(upstream.requests) == 3


# -- what a refused client reads


def test_b49_exhausted_budget(stack: Stack, upstream: StubUpstream) -> None:
    """B49: a used-up daily budget is 402 with the words, the rest and the reset time, final."""
    sandbox = stack.sandbox(budget_per_day_usd="0.02")
    upstream.next(stream_of(1, 2000))
    post(stack, sandbox, max_tokens=10).rest()
    at_rest(stack, sandbox, 1)
    answer = stack.message(stack.access_token(sandbox))
    assert answer.status == 402
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    error = answer.json()["error"]
    assert error["type"] == "billing_error"
    assert error["message"].startswith("sandbox daily budget used up; it needs at least 0.0")
    assert "0.00 of 0.02 USD are left; it starts anew at 20" in error["message"]
    assert answer.headers["daypass-resets-at"] in error["message"]
    assert answer.headers["daypass-remaining-usd"] == "0.00"
    assert len(upstream.requests) == 1


def test_what_is_left_is_told(stack: Stack, upstream: StubUpstream) -> None:
    """Answers carry what is left, and /v1/self shows every limit of the sandbox."""
    sandbox = stack.sandbox(budget_usd="2.00", tokens_per_minute=500_000, concurrency=4)
    token = stack.access_token(sandbox)
    answer = stack.message(token)
    account = at_rest(stack, sandbox, 1)
    assert answer.status == 200
    assert "1.9" < answer.headers["daypass-remaining-usd"] < "2.00"
    assert 490_000 < int(answer.headers["daypass-remaining-tokens"]) < 500_000
    assert answer.headers["daypass-resets-at"].endswith("Z")
    assert "daypass-remaining-requests" not in answer.headers
    headers = {"authorization": f"Bearer {token}"}
    limits = call(stack.proxy_url, "GET", "/v1/self", headers=headers).json()["limits"]
    assert set(limits) == {"budget_usd", "tokens_per_minute", "concurrency"}
    assert limits["budget_usd"] == {
        "limit": "2.00",
        "used": "0.0003",
        "held": "0.00",
        "left": "1.9997",
        "resets_at": None,
    }
    assert account["spent_nano"] == 300_000
    assert limits["tokens_per_minute"]["used"] == 40
    assert limits["concurrency"] == {
        "limit": 4,
        "used": 0,
        "held": 0,
        "left": 4,
        "resets_at": None,
    }


# -- holds are given back


def failing(kind: str, recorded: Recorded) -> Script:
    """A provider that fails in one of many ways."""
    scripts: dict[str, Script] = {
        "500": [Send(json_answer(500, {"type": "error", "error": {"type": "api_error"}}))],
        "529": [Send(json_answer(529, {"type": "error", "error": {"type": "overloaded_error"}}))],
        "reset": [Reset()],
        "close": [Close()],
        "silent": [Stall()],
        "torn": [Send(sse_answer()), chunk(START), Reset()],
    }
    return scripts[kind]


def test_b35_no_hold_is_left_behind(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """B35: fifty calls that fail in every way leave nothing held, and the next one is paid for."""
    stack = make_stack(proxy_settings={"DAYPASS_FIRST_BYTE_SECONDS": "1"})
    sandbox = stack.sandbox(budget_usd="1.00")
    token = stack.access_token(sandbox)
    kinds = ["500", "529", "reset", "close", "silent", "torn", "left"]
    todo = iter([kinds[number % len(kinds)] for number in range(50)])
    lock = threading.Lock()

    def answer(recorded: Recorded) -> Script:
        kind = json.loads(recorded.body)["metadata"]["user_id"]
        return [Stall()] if kind == "left" else failing(kind, recorded)

    def work() -> None:
        while True:
            with lock:
                kind = next(todo, None)
            if kind is None:
                return
            body = BODY | {"max_tokens": 100, "metadata": {"user_id": kind}}
            stream = RawStream.post(stack.proxy_url, token, body)
            if kind == "left":
                stream.close()
            else:
                stream.rest()

    upstream.always(answer)
    with ThreadPoolExecutor(5) as pool:
        for done in [pool.submit(work) for _ in range(5)]:
            done.result()
    spent = at_rest(stack, sandbox, 50)["spent_nano"]
    rows = stack.usage(sandbox)
    free = {row["outcome"] for row in rows if not row["cost_nano"]}
    assert free <= {"upstream_refused", "client_gone", "unreachable"}
    assert {row["outcome"] for row in rows} >= {"upstream_refused", "upstream_broken"}
    upstream.always(None)
    upstream.next(stream_of(3, 400))
    assert stack.message(token, stream=True).status == 200
    assert at_rest(stack, sandbox, 51)["spent_nano"] == spent + bill(400)


def test_b35_provider_that_is_not_there(make_stack: Callable[..., Stack]) -> None:
    """B35: a provider that nobody can connect to costs nothing and keeps nothing."""
    stack = make_stack(upstream_url="http://127.0.0.1:9")
    sandbox = stack.sandbox()
    assert {stack.message(stack.access_token(sandbox)).status for _ in range(5)} == {529}
    assert at_rest(stack, sandbox, 5)["spent_nano"] == 0
    assert {row["outcome"] for row in stack.usage(sandbox)} == {"unreachable"}


# -- the sum


def test_spent_is_the_providers_bill(stack: Stack, upstream: StubUpstream) -> None:
    """Sixty calls, eight at a time, streamed and whole: what is booked is the provider's bill."""
    sandbox = stack.sandbox(budget_usd="900.00")
    token = stack.access_token(sandbox)
    took: list[int] = []
    lock = threading.Lock()

    def answer(recorded: Recorded) -> Script:
        body = json.loads(recorded.body)
        seed = int(body["metadata"]["user_id"])
        usage = {
            "input_tokens": 7 * seed,
            "cache_creation_input_tokens": 3 * seed,
            "cache_read_input_tokens": 11 * seed,
            "output_tokens": 13 * seed,
        }
        cost = 7 * seed * IN + 3 * seed * 3_750 + 11 * seed * 300 + 13 * seed * OUT
        with lock:
            took.append(cost)
        if not body["stream"]:
            return [Send(json_answer(200, message_json(MODEL, usage=usage)))]
        events = message_stream(
            MODEL,
            ["x" * 50] * seed,
            start_usage=usage | {"output_tokens": 1},
            final_usage={"output_tokens": 13 * seed},
        )
        return [Send(sse_answer()), *map(chunk, events), END]

    upstream.always(answer)

    def one(seed: int) -> int:
        body = BODY | {"stream": seed % 3 > 0, "metadata": {"user_id": str(seed)}}
        stream = RawStream.post(stack.proxy_url, token, body)
        stream.rest()
        return stream.status

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(1, 61))) == {200}
    account = at_rest(stack, sandbox, 60)
    assert account["spent_nano"] == sum(took)
    assert account["overdraft_nano"] == 0


def test_b51_each_attempt_has_its_row(
    make_stack: Callable[..., Stack], upstream: StubUpstream, tmp_path: Path
) -> None:
    """B51: a call sent again when its key was changed has two rows, of which the first is free."""
    old = next(key for key in upstream.keys if key.endswith("acme"))
    secret = tmp_path / "key.secret"
    secret.write_text(old)
    stack = make_stack(keys=f"acme=file://{secret}")
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    assert stack.message(token).status == 200
    newer = f"{old}-newer"
    secret.write_text(newer)
    upstream.keys.symmetric_difference_update({old, newer})
    try:
        assert stack.message(token).status == 200
    finally:
        upstream.keys.symmetric_difference_update({old, newer})
    first, second = stack.settled(sandbox, 3)[1:]
    assert second["id"] == f"{first['id']}-2"
    assert [(row["attempt"], row["outcome"]) for row in (first, second)] == [
        (1, "upstream_refused"),
        (2, "complete"),
    ]
    assert (first["cost_nano"], second["cost_nano"]) == (0, 25 * IN + 15 * OUT)
    at_rest(stack, sandbox, 3)
