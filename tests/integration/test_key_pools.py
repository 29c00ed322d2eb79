"""A tenant with two keys at the provider: weights, cool-downs and failover, on real processes.

Each test has a model of its own, since a key cools down for one model.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.canary import CANARY, KEY_SUFFIX
from tests.servers.client import RawStream
from tests.servers.ports import free_port
from tests.servers.stack import Stack, call
from tests.servers.stub import Script, Send, StubUpstream, Wait, normal_answer
from tests.servers.wire import MESSAGE_STOP, json_answer
from tests.support import eventually

HEAVY, LIGHT = f"sk-ant-{CANARY}-acme", f"sk-ant-{CANARY}-globex"


@pytest.fixture(scope="module")
def module_stack(
    folder: Path, module_stub: StubUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A stack whose one tenant has a pool of both keys that the stub knows."""
    files = tmp_path_factory.mktemp("pool")
    heavy, light = (files / f"{name}{KEY_SUFFIX}" for name in ("heavy", "light"))
    heavy.write_text(HEAVY)
    light.write_text(LIGHT)
    keys = f"acme=2*file://{heavy}|file://{light}"
    listen = {"DAYPASS_PROXY_METRICS_LISTEN": f"127.0.0.1:{free_port()}"}
    with Stack(folder, module_stub.url, keys, proxy_settings=listen) as stack:
        yield stack


def busy(status: int = 429, after: str = "30") -> Script:
    """The provider's answer when a key has reached its limit."""
    error = {"type": "rate_limit_error", "message": "the provider's own words"}
    headers = [("retry-after", after), ("request-id", f"req_{status}")]
    return [Send(json_answer(status, {"type": "error", "error": error}, headers))]


def by_key(upstream: StubUpstream) -> Counter[str]:
    """How many requests came with each key."""
    return Counter(key for one in upstream.requests for key in one.header("x-api-key"))


def metrics(stack: Stack) -> str:
    """What the metrics listener shows."""
    listen = stack.proxy_settings["DAYPASS_PROXY_METRICS_LISTEN"]
    return call(f"http://{listen}", "GET", "/metrics").body.decode()


def test_weights(stack: Stack, upstream: StubUpstream) -> None:
    """Of 30 calls the key of weight 2 gets 20 and the other one 10."""
    token = stack.access_token(stack.sandbox())
    for _ in range(30):
        assert stack.message(token).status == 200
    assert by_key(upstream) == {HEAVY: 20, LIGHT: 10}


def test_the_other_key_takes_over(stack: Stack, upstream: StubUpstream) -> None:
    """429 of one key: the call succeeds with the other, and so do the next; two rows, one bill.

    A stream goes on before its first byte like any other call. The metrics name both keys by where
    they live, and hold neither.
    """
    model = "claude-opus-4-5"
    upstream.always(
        lambda asked: busy() if HEAVY in asked.header("x-api-key") else normal_answer(asked)
    )
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    body = {"model": model, "max_tokens": 64, "stream": True, "messages": [
        {"role": "user", "content": "hi"}]}  # fmt: skip
    stream = RawStream.post(stack.proxy_url, token, body)
    stream.rest()
    assert (stream.status, MESSAGE_STOP in stream.body) == (200, True)
    for _ in range(5):
        assert stack.message(token, model=model).status == 200
    assert by_key(upstream) == {HEAVY: 1, LIGHT: 6}
    rows = stack.settled(sandbox, 7)
    refused = [row for row in rows if row["outcome"] == "upstream_refused"]
    assert [(row["http_status"], row["cost_nano"]) for row in refused] == [(429, 0)]
    assert [row["attempt"] for row in rows].count(2) == 1
    assert all(row["cost_nano"] > 0 for row in rows if row["outcome"] == "complete")
    shown = metrics(stack)
    assert 'daypass_pool_failovers_total{gen_ai_provider_name="anthropic",key="file://' in shown
    (line,) = [one for one in shown.splitlines() if "cooldowns" in one and 'cause="rate"' in one
               and "heavy" in one]  # fmt: skip
    assert float(line.rpartition(" ")[2]) >= 1
    log = stack.complete_log("proxy")
    assert CANARY not in shown + log
    assert '"event":"pool_key_cooled"' in log


def test_all_keys_are_busy(stack: Stack, upstream: StubUpstream) -> None:
    """When both say 429 or 529 the client gets the last answer as the provider gave it."""
    model = "claude-haiku-4-5"
    sandbox = stack.sandbox()
    upstream.next(busy(429, "31"), busy(529, "17"))
    answer = stack.message(stack.access_token(sandbox), model=model)
    assert (answer.status, answer.headers["retry-after"]) == (529, "17")
    assert answer.json()["error"]["message"] == "the provider's own words"
    assert by_key(upstream) == {HEAVY: 1, LIGHT: 1}
    assert {row["http_status"] for row in stack.settled(sandbox, 2)} == {429, 529}


def test_revoked_while_the_first_key_is_tried(stack: Stack, upstream: StubUpstream) -> None:
    """A revocation that comes before the failover ends the call: nothing more goes up."""
    model = "claude-opus-4-1"
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    upstream.next([Wait("revoked"), *busy()])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stack.message, token, model=model)
        upstream.wait_for(1)
        body = {"scope": "sandbox", "ident": sandbox["id"], "reason": "test"}
        assert stack.admin("POST", "/v1/revocations", body).status == 201
        answer = waiting.result(10)
        upstream.release("revoked")
    assert (answer.status, answer.headers["x-should-retry"]) == (401, "false")
    assert sum(by_key(upstream).values()) == 1
    stack.settled(sandbox, 1)


def test_no_budget_for_the_second_attempt(stack: Stack, upstream: StubUpstream) -> None:
    """Where the budget has gone meanwhile the first answer passes, and is one row at no cost."""
    model = "claude-sonnet-4-0"
    sandbox = stack.sandbox(budget_usd="1.00")
    token = stack.access_token(sandbox)
    upstream.next([Wait("lowered"), *busy()])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stack.message, token, model=model)
        upstream.wait_for(1)
        lower = stack.admin("PATCH", f"/v1/sandboxes/{sandbox['id']}", {"budget_usd": "0.000001"})
        assert lower.status == 200, lower.body
        upstream.release("lowered")
        answer = waiting.result(10)
    assert (answer.status, answer.headers["retry-after"]) == (429, "30")
    assert sum(by_key(upstream).values()) == 1
    (row,) = stack.settled(sandbox, 1)
    assert (row["http_status"], row["cost_nano"]) == (429, 0)


def test_a_key_taken_back_by_the_provider(stack: Stack, upstream: StubUpstream) -> None:
    """A key that the provider does not know any more costs no call, and an admin is told."""
    upstream.keys.discard(HEAVY)
    try:
        token = stack.access_token(stack.sandbox())
        answers = [stack.message(token, model="claude-3-5-haiku-latest") for _ in range(4)]
        assert [answer.status for answer in answers] == [200] * 4
        assert by_key(upstream) == {HEAVY: 1, LIGHT: 4}
        eventually(lambda: "pool_key_refused" in stack.log("proxy"))
    finally:
        upstream.keys.add(HEAVY)
