"""Real scrapes of a real proxy and broker hold what the dashboard and the alerts ask for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prometheus_client.parser
import yaml

from tests.canary import CANARY, KEY_SUFFIX
from tests.servers.client import RawStream
from tests.servers.ports import free_port
from tests.servers.promql import names
from tests.servers.stack import Stack, call
from tests.servers.stub import Reset, Send, Stall, StubUpstream, chunk
from tests.servers.wire import json_answer, message_start, sse_answer
from tests.support import eventually

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "observability"
MODEL = "claude-sonnet-4-5"
BODY: dict[str, object] = {
    "model": MODEL,
    "max_tokens": 64,
    "stream": True,
    "messages": [{"role": "user", "content": "x"}],
}
START = message_start(MODEL, {"input_tokens": 25, "output_tokens": 1})
# Shown only with a vault, with TLS, or after a webhook; by whom they are tested instead.
ELSEWHERE = {
    "daypass_vault_logins_total": "test_vault.py",
    "daypass_vault_token_seconds": "test_vault.py",
    "daypass_certificate_end_timestamp_seconds": "test_certificate_end.py",
    "daypass_broker_certificate_end_timestamp_seconds": "test_certificate_end.py",
}


def scraped(url: str) -> dict[str, set[str]]:
    """The names of the samples of a scrape, with their labels, as Prometheus would read them."""
    text = call(url, "GET", "/metrics").body.decode()
    found: dict[str, set[str]] = {}
    for one in prometheus_client.parser.text_string_to_metric_families(text):
        for sample in one.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> list[str]:
    """Every expression of dashboard and alerts."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    asked = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for panel in dashboard["panels"]:
        asked += [target["expr"] for target in panel.get("targets", ())]
    return asked


def everything_happens(stack: Stack, upstream: StubUpstream, sandbox: dict[str, Any]) -> None:
    """A stream, a refused call, a broken and a limited provider, an empty budget, a revocation."""
    token = stack.access_token(sandbox)
    RawStream.post(stack.proxy_url, token, BODY).rest()
    assert stack.message(token, model="gpt-4").status == 400
    upstream.next([Reset()])
    assert stack.message(token).status == 529
    limit = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}
    upstream.next([Send(json_answer(429, limit))])
    stack.message(token)
    bill = {"type": "error", "error": {"type": "billing_error", "message": "pay"}}
    upstream.next([Send(json_answer(402, bill))])
    assert stack.message(token).status == 502
    poor = stack.access_token(stack.sandbox(budget_usd="0.00"))
    assert stack.message(poor).status in (400, 402, 429)
    assert stack.admin("POST", "/v1/webhooks/nobody", {}).status == 401
    answer = call(stack.proxy_url, "POST", "/v1/oauth/token", b"{}")
    assert answer.status == 400
    upstream.next([Send(sse_answer()), chunk(START), Stall()])
    stream = RawStream.post(stack.proxy_url, token, BODY)
    stream.until(START)
    stack.admin("POST", "/v1/revocations", {"scope": "sandbox", "ident": sandbox["id"]})
    stream.rest()
    assert stack.exchange(sandbox).status == 400
    # All but the call of the refused model were admitted; the limited one was tried with both keys.
    eventually(lambda: all(row["state"] == "settled" for row in stack.usage(sandbox)))
    # Counted once it is over for the proxy as well, which is a moment after it is settled.
    eventually(lambda: '"outcome":"cut_revoked"' in stack.log("proxy"), timeout=20)


def test_every_metric_and_label_asked_for_is_in_a_real_scrape(
    make_stack: Callable[..., Stack], upstream: StubUpstream, tmp_path: Path
) -> None:
    """No panel and no alert asks for a name or a label that neither service shows."""
    for name in ("acme", "globex"):
        (tmp_path / f"{name}{KEY_SUFFIX}").write_text(f"sk-ant-{CANARY}-{name}")
    pool = f"acme=file://{tmp_path}/acme{KEY_SUFFIX}|file://{tmp_path}/globex{KEY_SUFFIX}"
    ports = {name: free_port() for name in ("proxy", "broker")}
    stack = make_stack(
        keys=pool,
        proxy_settings={"DAYPASS_PROXY_METRICS_LISTEN": f"127.0.0.1:{ports['proxy']}"},
        broker_settings={"DAYPASS_BROKER_METRICS_LISTEN": f"127.0.0.1:{ports['broker']}"},
    )
    everything_happens(stack, upstream, stack.sandbox())
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    shown = scraped(urls["proxy"]) | scraped(urls["broker"])
    for expression in expressions():
        named = names(expression)
        there: set[str] = {"instance", "le", "namespace"}
        for name, labels in named.selected:
            if name in ELSEWHERE:
                there |= {"result"}
                continue
            assert name in shown, name
            assert labels <= shown[name] | {"instance"}, name
            there |= shown[name]
        assert named.grouped <= there, expression
    proxy = call(urls["proxy"], "GET", "/metrics").body.decode()
    # What DaypassProviderKeyRefused asks for is what a bill that is not paid is counted as.
    assert 'daypass_upstream_failures_total{kind="upstream_refused_key"} 1.0' in proxy
    for url in urls.values():
        assert call(url, "GET", "/livez").status == call(url, "GET", "/readyz").status == 200
    broker = call(urls["broker"], "GET", "/metrics").body.decode()
    token = "daypass_broker_token_requests_total"
    assert f'{token}{{grant_type="jwt_bearer",outcome="issued"}} 2.0' in broker
    assert 'daypass_broker_webhooks_total{effect="refused",vendor="unknown"} 1.0' in broker


def test_an_exchange_has_one_id_in_the_logs_of_both_and_in_the_audit_trail(
    make_stack: Callable[..., Stack],
) -> None:
    """The `request-id` of the sandbox finds the lines of proxy and broker, and the audit event."""
    stack = make_stack()
    ident = stack.exchange(stack.sandbox()).headers["request-id"]

    def events(name: str) -> set[str]:
        lines = [json.loads(line) for line in stack.log(name).splitlines()]
        return {line["event"] for line in lines if line.get("request_id") == ident}

    eventually(lambda: events("proxy") and events("broker"))
    assert events("proxy") == {"request_served"}
    assert events("broker") == {"token_issued"}
    rows = stack.rows("SELECT tag FROM audit WHERE request_id = ?", ident)
    assert [row["tag"] for row in rows] == ["token.issued"]
