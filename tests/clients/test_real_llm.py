"""The whole product on real parts: OpenBao, a real LLM, and the unmodified client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.services.llm import LocalLlm
from demo.services.openbao import OpenBao
from tests.canary import CANARY
from tests.servers.agent import Agent
from tests.servers.stack import Stack

pytestmark = [pytest.mark.llm, pytest.mark.openbao, pytest.mark.sdk]

KEY = f"sk-ant-{CANARY}-llm"
MODEL = "smollm2-135m-instruct"
PRICES = """
{"providers": {"anthropic": [{
  "model": "smollm2-135m-instruct", "context_window": 4096, "input": "1.00", "output": "5.00"
}]}}
"""


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLlm]:
    """A real LLM that demands its key."""
    with LocalLlm.start(tmp_path_factory.mktemp("llm"), KEY) as server:
        yield server


@pytest.fixture(scope="module")
def real_stack(tmp_path_factory: pytest.TempPathFactory, llm: LocalLlm) -> Iterator[Stack]:
    """Broker and proxy with the key in a real OpenBao and a real LLM as upstream."""
    folder = tmp_path_factory.mktemp("real")
    with OpenBao.start(folder / "bao") as bao:
        for tenant in ("acme", "globex"):
            bao.put(f"secret/llm/{tenant}", api_key=KEY)
        token = folder / "bao-token.secret"
        token.write_text(bao.token_for(["secret/llm/acme", "secret/llm/globex"]))
        (folder / "prices.json").write_text(PRICES)
        settings = {
            "DAYPASS_VAULT_ADDR": bao.address,
            "DAYPASS_VAULT_TOKEN_FILE": str(token),
            "DAYPASS_PRICES": str(folder / "prices.json"),
        }
        keys = "*=vault://secret/llm/{tenant}#api_key"
        with Stack(folder / "s", llm.url, keys, proxy_settings=settings) as stack:
            yield stack


def test_real_answer_with_usage_equal_to_the_servers_counters(
    real_stack: Stack, llm: LocalLlm, tmp_path: Path
) -> None:
    """Plain and streamed calls of two tenants book exactly what the LLM server counted."""
    before = llm.idle_counters()
    for tenant in ("acme", "globex"):
        sandbox = real_stack.sandbox(tenant)
        credential = tmp_path / f"{tenant}.jwt"
        credential.write_text(sandbox["launch"]["credential"])
        variables = sandbox["environment"] | {"ANTHROPIC_IDENTITY_TOKEN_FILE": str(credential)}
        reports = Agent.start("anthropic 2.x", variables, model=MODEL).reports()
        assert [report["ok"] for report in reports] == [True, True], reports
        real_stack.settled(sandbox, 2)
    counted = llm.idle_counters().since(before)
    booked = real_stack.admin("GET", "/v1/usage").json()["totals"]
    assert booked["calls"] == 4
    assert booked["input_tokens"] == counted.prompt_tokens > 0
    assert booked["cache_read_input_tokens"] == counted.cached_tokens
    assert booked["output_tokens"] == counted.predicted_tokens > 0


def test_the_llm_demands_its_key_and_the_client_never_has_it(llm: LocalLlm) -> None:
    """Without the key the LLM answers 401: every answer above proves the injection."""
    from tests.servers.stack import call

    body = b'{"model":"x","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}'
    answer = call(llm.url, "POST", "/v1/messages", body, {"content-type": "application/json"})
    assert answer.status == 401
