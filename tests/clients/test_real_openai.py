"""OpenAI's client and a real LLM that speaks its API: what is booked is what the LLM counted."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from demo.services.llm import Counters, LocalLlm
from tests.canary import CANARY
from tests.clients.test_openai_sdk import run
from tests.servers.stack import Stack

pytestmark = [pytest.mark.llm, pytest.mark.sdk]

KEY = f"sk-{CANARY}-llm"
MODEL = "smollm2-135m-instruct"
PRICE = {
    "model": MODEL,
    "context_window": 2048,
    "input": "1.00",
    "output": "5.00",
    "cache_read": "0.10",
    "thinks_unasked": False,
}
POLICY = f"""
profiles:
  local:
    authorization_details:
      - type: llm_inference
        provider: openai
        endpoints: [chat_completions, responses, models]
        models: ["{MODEL}"]
      - type: llm_inference
        provider: llama
        endpoints: [chat_completions, responses, models]
        models: ["{MODEL}"]
    budget_usd: "5.00"
    max_budget_usd: "1000.00"
    lifetime_seconds: 14400
    max_lifetime_seconds: 86400
    token_ttl_seconds: 600
    launch: reusable
tenants:
  acme: {{profiles: [local]}}
orchestrators:
  acme-ci: {{tenant: acme}}
"""
USES = ("chat", "chat_stream", "chat_usage", "response", "response_events")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLlm]:
    """A real LLM that demands its key."""
    with LocalLlm.start(tmp_path_factory.mktemp("llm"), KEY) as server:
        yield server


@pytest.fixture(scope="module")
def real_stack(tmp_path_factory: pytest.TempPathFactory, llm: LocalLlm) -> Iterator[Stack]:
    """A proxy that takes the LLM for OpenAI, and has it as a server of its own too."""
    folder = tmp_path_factory.mktemp("real")
    own = {"url": f"{llm.url}/v1", "keys": "acme=env://LLM_KEY", "prices": [PRICE]}
    (folder / "upstreams.json").write_text(json.dumps({"llama": own}))
    (folder / "prices.json").write_text(json.dumps({"providers": {"openai": [PRICE]}}))
    settings = {
        "LLM_KEY": KEY,
        "DAYPASS_OPENAI_URL": f"{llm.url}/v1",
        "DAYPASS_OPENAI_KEYS": "acme=env://LLM_KEY",
        "DAYPASS_UPSTREAMS": str(folder / "upstreams.json"),
        "DAYPASS_PRICES": str(folder / "prices.json"),
    }
    keys = "acme=env://LLM_KEY"
    with Stack(folder / "s", llm.url, keys, policy=POLICY, proxy_settings=settings) as stack:
        yield stack


def counted(rows: list[dict[str, Any]]) -> Counters:
    """What these rows say the LLM did."""
    return Counters(
        sum(row["input_tokens"] for row in rows),
        sum(row["cache_read_input_tokens"] for row in rows),
        sum(row["output_tokens"] for row in rows),
        0,
    )


@pytest.mark.parametrize("provider", ["openai", "llama"])
def test_usage_equals_the_servers_counters(real_stack: Stack, llm: LocalLlm, provider: str) -> None:
    """Chat and responses, streamed and not, book exactly what the LLM server counted."""
    sandbox = real_stack.sandbox()
    token = real_stack.access_token(sandbox)
    before = llm.idle_counters()
    reports = run(real_stack.proxy_url, token, *USES, model=MODEL, base=f"/{provider}/v1")
    assert [report["ok"] for report in reports] == [True] * len(USES), reports
    assert all(report["said"] for report in reports)
    rows = real_stack.settled(sandbox, len(USES))
    assert counted(rows) == llm.idle_counters().since(before)
    assert {(row["provider"], row["estimated"], row["outcome"]) for row in rows} == {
        (provider, 0, "complete")
    }
    assert all(row["output_tokens"] > 0 for row in rows)
    shown = [report["used"] for report in reports if report["used"] is not None]
    assert len(shown) == 4


def test_infer(real_stack: Stack, llm: LocalLlm) -> None:
    """The plain form is answered by the real model, and booked as counted."""
    sandbox = real_stack.sandbox()
    token = real_stack.access_token(sandbox)
    before = llm.idle_counters()
    answer = real_stack.post(token, "/v1/infer", {"prompt": "Name one river.", "max_tokens": 8})
    assert answer.status == 200
    assert answer.json()["model"] == MODEL
    assert len(answer.json()["completion"]) > 3
    assert counted(real_stack.settled(sandbox)) == llm.idle_counters().since(before)


def test_a_client_that_leaves(real_stack: Stack, llm: LocalLlm) -> None:
    """B05: a stream that its client leaves is booked as far as it got, and never for nothing."""
    sandbox = real_stack.sandbox()
    token = real_stack.access_token(sandbox)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Tell a long story."}]}
    leave_early(real_stack.proxy_url, token, json.dumps(body | {"stream": True}).encode())
    (row,) = real_stack.settled(sandbox)
    assert row["output_tokens"] > 0
    assert row["cost_nano"] > 0


def leave_early(url: str, token: str, body: bytes) -> None:
    """Read a little of a stream and hang up."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    connection.request("POST", "/llama/v1/chat/completions", body, headers)
    answer = connection.getresponse()
    assert answer.status == 200
    answer.read(700)
    assert connection.sock is not None
    connection.sock.close()
    connection.close()
