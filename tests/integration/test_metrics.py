"""A real proxy's figures and log lines: they say what happened, once, and hold nothing secret."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.canary import forms
from tests.servers.client import RawStream
from tests.servers.ports import free_port
from tests.servers.stack import Stack, call
from tests.servers.stub import Reset, Send, Stall, StubUpstream, chunk
from tests.servers.wire import message_start, sse_answer
from tests.support import eventually, full_pipe

MODEL = "claude-sonnet-4-5"
BODY: dict[str, object] = {
    "model": MODEL,
    "max_tokens": 64,
    "stream": True,
    "messages": [{"role": "user", "content": "a prompt that nobody may log"}],
}
START = message_start(MODEL, {"input_tokens": 25, "output_tokens": 1})


CALL_LABELS = (
    f'gen_ai_operation_name="chat",gen_ai_provider_name="anthropic",gen_ai_request_model="{MODEL}"'
)
EXPECTED = {
    'daypass_calls_total{endpoint="messages",outcome="complete"}': 1,
    'daypass_calls_total{endpoint="messages",outcome="refused"}': 2,
    'daypass_calls_total{endpoint="messages",outcome="cut_revoked"}': 1,
    'daypass_refusals_total{code="model_not_allowed"}': 1,
    'daypass_refusals_total{code="invalid_token"}': 1,
    'daypass_refusals_total{code="upstream_unreachable"}': 1,
    'daypass_upstream_failures_total{kind="upstream_unreachable"}': 1,
    'daypass_calls_cut_total{reason="revoked"}': 1,
    'daypass_requests_total{route="unknown",status="404"}': 1,
    'daypass_requests_total{route="/v1/oauth/token",status="200"}': 1,
    f'gen_ai_server_request_duration_seconds_count{{error_type="",{CALL_LABELS}}}': 1,
    f"gen_ai_server_time_to_first_token_seconds_count{{{CALL_LABELS}}}": 2,
    'daypass_token_checks_total{result="verified"}': 1,
    'daypass_token_checks_total{result="known"}': 3,
    'daypass_token_checks_total{result="refused"}': 1,
    'daypass_key_set_reads_total{result="ok"}': 1,
    "daypass_added_seconds_count": 3,
    "daypass_ledger_admission_seconds_count": 3,
    "daypass_open_calls": 0,
    "daypass_body_room_bytes": 0,
    "daypass_ledger_ready": 1,
    "daypass_log_lines_dropped_total": 0,
}


def with_metrics(make_stack: Callable[..., Stack]) -> tuple[Stack, str]:
    """A stack whose proxy shows metrics, and where."""
    port = free_port()
    listen = {"DAYPASS_PROXY_METRICS_LISTEN": f"127.0.0.1:{port}"}
    return make_stack(proxy_settings=listen), f"http://127.0.0.1:{port}"


def figures(url: str) -> dict[str, float]:
    """Every sample by its name and labels as they stand in the text."""
    answer = call(url, "GET", "/metrics")
    assert answer.status == 200
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def log_lines(stack: Stack) -> list[dict[str, Any]]:
    """The proxy's log, every line of which must be JSON."""
    return [json.loads(line) for line in stack.log("proxy").splitlines()]


def closings(stack: Stack) -> list[dict[str, Any]]:
    """The closing lines of calls."""
    return [line for line in log_lines(stack) if line["event"] == "call_closed"]


def test_what_happens_is_counted_and_told(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """After a call, a refusal, a failure upstream and a cut, figures and lines say just that."""
    stack, url = with_metrics(make_stack)
    sandbox = stack.sandbox()
    token = stack.access_token(sandbox)
    RawStream.post(stack.proxy_url, token, BODY).rest()
    assert stack.message(token, model="gpt-4").status == 400
    assert stack.message("not-a-token").status == 401
    upstream.next([Reset()])
    assert stack.message(token).status == 529
    assert call(stack.proxy_url, "GET", "/metrics").status == 404
    upstream.next([Send(sse_answer()), chunk(START), Stall()])
    stream = RawStream.post(stack.proxy_url, token, BODY)
    stream.until(START)
    assert figures(url)["daypass_open_calls"] == 1
    stack.admin("POST", "/v1/revocations", {"scope": "sandbox", "ident": sandbox["id"]})
    stream.rest()
    rows = stack.settled(sandbox, 3)
    eventually(lambda: len(closings(stack)) == 5)

    found = figures(url)
    by_labels = {_ordered(name): value for name, value in found.items()}
    assert {name: by_labels.get(_ordered(name)) for name in EXPECTED} == EXPECTED
    cost = sum(
        value for name, value in found.items() if name.startswith("daypass_cost_nano_usd_total{")
    )
    assert cost == sum(row["cost_nano"] for row in rows)
    assert found["daypass_revocation_view_age_seconds"] < 5
    assert call(url, "GET", "/readyz").status == 200

    told = {line["refused"] or line["outcome"]: line for line in closings(stack)}
    whole, model, unknown = told["complete"], told["model_not_allowed"], told["invalid_token"]
    assert {"upstream_unreachable", "cut_revoked"} < set(told)
    booked = rows[0]
    assert (whole["cost_nano"], whole["request_id"]) == (booked["cost_nano"], booked["id"])
    assert whole["upstream_request_id"] == booked["upstream_request_id"]
    assert 0 < whole["added_ms"] < whole["ms"]
    assert whole["bytes_down"] > whole["bytes_up"] > 0
    assert model["sandbox"] == sandbox["id"]
    assert "sandbox" not in unknown
    shown = stack.log("proxy").encode() + call(url, "GET", "/metrics").body
    for word in (*forms(), b"nobody may log", token.encode(), b"gpt-4"):
        assert word not in shown


def test_the_log_is_whole_and_in_order_when_the_proxy_stops(
    make_stack: Callable[..., Stack], upstream: StubUpstream
) -> None:
    """Every call is in the log when the process has ended, and its life stands around them."""
    stack, _ = with_metrics(make_stack)
    token = stack.access_token(stack.sandbox())
    for _ in range(20):
        assert stack.message(token).status == 200
    assert stack.stop_process("proxy") == 0
    lines = log_lines(stack)
    events = [line["event"] for line in lines]
    assert events.count("call_closed") == 20
    assert events[-1] == "stopped"
    assert events.index("listening") < events.index("call_closed") < events.index("stopping")
    moments = [line["ts"] for line in closings(stack)]
    assert moments == sorted(moments)


def test_a_log_that_nobody_reads_stops_nothing(make_stack: Callable[..., Stack]) -> None:
    """With standard error a full pipe the proxy serves on, and still ends when it is told to."""
    stack = make_stack()
    token = stack.access_token(stack.sandbox())
    stack.stop_process("proxy")
    command = [sys.executable, "-m", "daypass_proxy", "serve"]
    with full_pipe() as full:
        stack.processes["proxy"] = subprocess.Popen(
            command, env=stack.proxy_environment, stdout=subprocess.DEVNULL, stderr=full
        )
        eventually(lambda: is_up(stack.proxy_url), timeout=30)
        for _ in range(100):
            assert call(stack.proxy_url, "GET", "/nothing-here-" + "x" * 200).status == 404
        assert stack.message(token).status == 200
        assert stack.stop_process("proxy") == 0


def is_up(url: str) -> bool:
    """Whether the proxy is ready."""
    try:
        return call(url, "GET", "/readyz", timeout=2).status == 200
    except OSError:
        return False


def _ordered(name: str) -> str:
    """The name of a sample with its labels in one order."""
    head, _, labels = name.partition("{")
    return head + "".join(sorted(re.findall(r'\w+="[^"]*"', labels)))
