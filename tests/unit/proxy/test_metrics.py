"""What the metrics say of calls: counted once, under labels that nobody can multiply."""

import asyncio
from typing import Any

import pytest

from daypass_core.metrics import OTHER
from daypass_proxy import metric_specs as specs
from daypass_proxy.closed import CallClosed
from daypass_proxy.ledger import Usage
from daypass_proxy.loop_lag import WINDOW_SECONDS, LoopLag
from daypass_proxy.metrics import MAX_MODELS, MAX_TENANTS, Metrics

CALL = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "anthropic"}


def closed(**fields: Any) -> CallClosed:
    """A complete streamed call unless told otherwise."""
    whole: dict[str, Any] = {
        "request_id": "req_1", "outcome": "complete", "endpoint": "messages", "status": 200,
        "refused": None, "tenant": "acme", "sandbox": "sbx_1", "token_id": "tok_1",
        "provider": "anthropic", "model": "as-the-client-wrote-it", "stream": True,
        "usage": Usage(10, 20, 3, None, 4), "cost_nano": 700, "estimated": False,
        "upstream_status": 200, "bytes_up": 100, "bytes_down": 2000,
        "ms": 1500.0, "first_byte_ms": 300.0, "added_ms": 0.9,
    }  # fmt: skip
    return CallClosed(**{**whole, **fields})


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """One sample, None when there is none."""
    return metrics.registry.get_sample_value(name, labels)


def test_a_complete_call() -> None:
    """Time, tokens, cost and bytes of a call are counted under its model's name in the table."""
    metrics = Metrics()
    for _ in range(2):
        metrics.call_closed(closed(), priced="claude-x", cut=None)
    call = {**CALL, "gen_ai_request_model": "claude-x"}
    assert value(metrics, "daypass_calls_total", endpoint="messages", outcome="complete") == 2
    seconds = "gen_ai_server_request_duration_seconds"
    assert value(metrics, f"{seconds}_sum", **call, error_type="") == 3.0
    assert value(metrics, f"{seconds}_bucket", **call, error_type="", le="1.28") == 0
    assert value(metrics, f"{seconds}_bucket", **call, error_type="", le="2.56") == 2
    first = "gen_ai_server_time_to_first_token_seconds_sum"
    assert value(metrics, first, **call) == pytest.approx(0.6)
    tokens = "gen_ai_client_token_usage_sum"
    assert value(metrics, tokens, **call, gen_ai_token_type="input") == 34
    assert value(metrics, tokens, **call, gen_ai_token_type="output") == 40
    cache = {"gen_ai_request_model": "claude-x"}
    assert value(metrics, "daypass_cache_tokens_total", **cache, direction="write") == 6
    assert value(metrics, "daypass_cache_tokens_total", **cache, direction="read") == 8
    assert value(metrics, "daypass_cost_nano_usd_total", tenant="acme", estimated="false") == 1400
    assert value(metrics, "daypass_added_seconds_sum") == pytest.approx(0.0018)
    assert value(metrics, "daypass_body_bytes_total", direction="up") == 200
    assert value(metrics, "daypass_body_bytes_total", direction="down") == 4000
    assert value(metrics, "daypass_calls_cut_total", reason="revoked") is None


def test_a_refused_call() -> None:
    """A call that was not admitted counts by its code, and shows no model and no time."""
    metrics = Metrics()
    refused = CallClosed(
        request_id="req_1", outcome="refused", endpoint="messages", status=402,
        refused="budget_exhausted", tenant="acme", ms=1.0, first_byte_ms=None,
    )  # fmt: skip
    metrics.call_closed(refused, priced=None, cut=None)
    assert value(metrics, "daypass_calls_total", endpoint="messages", outcome="refused") == 1
    assert value(metrics, "daypass_refusals_total", code="budget_exhausted") == 1
    names = {family.name for family in metrics.registry.collect() if family.samples}
    assert not any(name.startswith("gen_ai") for name in names)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"outcome": "upstream_refused", "upstream_status": 529}, "529"),
        ({"outcome": "upstream_refused", "upstream_status": 418}, "4xx"),
        ({"outcome": "upstream_refused", "upstream_status": 599}, "5xx"),
        ({"outcome": "upstream_broken"}, "upstream_broken"),
        ({"outcome": "unreachable", "refused": "upstream_unreachable"}, "upstream_unreachable"),
        (
            {"outcome": "upstream_refused", "refused": "upstream_refused_key"},
            "upstream_refused_key",
        ),
    ],
)
def test_failures_of_the_provider(fields: dict[str, Any], error: str) -> None:
    """What failed at the provider is counted by kind, and the time under the same word."""
    metrics = Metrics()
    metrics.call_closed(closed(**fields), priced="m", cut=None)
    assert value(metrics, "daypass_upstream_failures_total", kind=error) == 1
    seconds = "gen_ai_server_request_duration_seconds_count"
    assert value(metrics, seconds, **CALL, gen_ai_request_model="m", error_type=error) == 1


def test_the_same_word_with_and_without_a_refusal() -> None:
    """A stream that broke and a call refused because of that are not mixed up."""
    metrics = Metrics()
    for refused in (None, "upstream_broken", None):
        line = closed(outcome="upstream_broken", refused=refused)
        metrics.call_closed(line, priced="m", cut=None)
    assert value(metrics, "daypass_refusals_total", code="upstream_broken") == 1
    assert value(metrics, "daypass_upstream_failures_total", kind="upstream_broken") == 3


def test_money_that_moves_while_a_call_runs() -> None:
    """Extensions, drained answers and estimated bills are counted once for each call."""
    metrics = Metrics()
    calls: list[dict[str, Any]] = [
        {},
        {"extensions": 3, "extensions_refused": 2, "outcome": "cut_budget", "estimated": True},
        {"drained_tokens": 70, "outcome": "client_gone"},
        {"drained_tokens": 30, "outcome": "client_gone", "estimated": True},
    ]
    for fields in calls:
        metrics.call_closed(closed(**fields), priced="m", cut=None)
    extensions = "daypass_hold_extensions_total"
    assert value(metrics, extensions, result="granted") == 3
    assert value(metrics, extensions, result="refused") == 2
    assert value(metrics, "daypass_drained_tokens_total") == 100
    assert value(metrics, "daypass_drained_calls_total", result="known") == 1
    assert value(metrics, "daypass_drained_calls_total", result="estimated") == 1
    assert value(metrics, "daypass_estimated_calls_total", outcome="cut_budget") == 1
    assert value(metrics, "daypass_estimated_calls_total", outcome="client_gone") == 1
    assert value(metrics, "daypass_estimated_calls_total", outcome="complete") is None


def test_refused_holds() -> None:
    """A refused reservation is counted by the limit in the way and the kind of refusal."""
    metrics = Metrics()
    metrics.hold_refused("day", "exhausted")
    assert value(metrics, "daypass_holds_refused_total", limit="day", reason="exhausted") == 1


def test_cut_calls() -> None:
    """A call that was cut counts by its reason, and is no failure of the provider."""
    metrics = Metrics()
    metrics.call_closed(closed(outcome="cut_revoked", estimated=True), priced="m", cut="revoked")
    assert value(metrics, "daypass_calls_cut_total", reason="revoked") == 1
    assert value(metrics, "daypass_cost_nano_usd_total", tenant="acme", estimated="true") == 700
    assert value(metrics, "daypass_upstream_failures_total", kind="cut_revoked") is None


def test_labels_are_bounded() -> None:
    """However many models and tenants come along, the time series stay few (attack row 17)."""
    metrics = Metrics()
    for number in range(3 * MAX_TENANTS):
        line = closed(model=f"invented-{number}", tenant=f"tenant-{number}")
        metrics.call_closed(line, priced=f"model-{number}", cut=None)
    samples = [one for family in metrics.registry.collect() for one in family.samples]
    models = {one.labels.get("gen_ai_request_model") for one in samples} - {None}
    tenants = {one.labels.get("tenant") for one in samples} - {None}
    assert (len(models), len(tenants)) == (MAX_MODELS + 1, MAX_TENANTS + 1)
    assert OTHER in models & tenants
    cost = "daypass_cost_nano_usd_total"
    assert value(metrics, cost, tenant=OTHER, estimated="false") == 700 * 2 * MAX_TENANTS
    assert not [one for one in samples if "invented" in str(one.labels)]


def test_nothing_of_a_sandbox_is_a_label() -> None:
    """No sandbox, token or request id, and no model as a client wrote it, is in the metrics."""
    metrics = Metrics()
    metrics.call_closed(closed(), priced="m", cut=None)
    metrics.call_closed(closed(endpoint="count_tokens", cost_nano=0), priced=None, cut=None)
    text = str([one for family in metrics.registry.collect() for one in family.samples])
    for word in ("sbx_1", "tok_1", "req_1", "as-the-client-wrote-it"):
        assert word not in text


def test_counts_survive_the_short_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """When too many combinations are remembered they are forgotten, and nothing is lost."""
    monkeypatch.setattr("daypass_proxy.metrics._MAX_KEPT", 2)
    metrics = Metrics()
    for number in range(7):
        metrics.call_closed(closed(tenant=f"t{number}"), priced="m", cut=None)
    assert value(metrics, "daypass_calls_total", endpoint="messages", outcome="complete") == 7
    assert len(metrics._kept) <= 2


def test_other_requests() -> None:
    """Requests that are no calls count by route and status, and their refusals by code."""
    metrics = Metrics()
    metrics.request_served("/v1/models", 200, None)
    metrics.request_served("unknown", 404, "not_found")
    metrics.request_served("/v1/self", None, None)
    assert value(metrics, "daypass_requests_total", route="unknown", status="404") == 1
    assert value(metrics, "daypass_requests_total", route="/v1/self", status="none") == 1
    assert value(metrics, "daypass_refusals_total", code="not_found") == 1


def test_the_ledger_reports() -> None:
    """Admissions and batches are in the ledger's histograms."""
    metrics = Metrics()
    metrics.admission_answered(0.0003)
    metrics.batch_committed(5, 0.002)
    assert value(metrics, "daypass_ledger_admission_seconds_bucket", le="0.0004") == 1
    assert value(metrics, "daypass_ledger_batch_operations_bucket", le="8.0") == 1
    assert value(metrics, "daypass_ledger_commit_seconds_sum") == pytest.approx(0.002)


async def test_who_had_the_core() -> None:
    """Whoever is told of a delay is told how many cores the process had since the tick before."""
    told: list[tuple[float, float]] = []
    lag = LoopLag(lambda late, busy: told.append((late, busy)))
    lag.start()
    try:
        lag._looked, lag._took, lag._due = 10.0, 3.0, 10.05
        lag.take(10.1, 3.025)
        lag.take(10.3, 3.225)
        assert [busy for _, busy in told] == pytest.approx([0.25, 1.0])
        assert told[0][0] == pytest.approx(0.05)
    finally:
        lag.close()


def test_names_are_unique() -> None:
    """No two metrics share a name."""
    assert len({spec.name for spec in specs.ALL}) == len(specs.ALL)


async def test_loop_lag() -> None:
    """The lag is the worst of the last two windows, then forgotten."""
    lag = LoopLag()
    lag.start()
    try:
        due, loop = lag._due, asyncio.get_running_loop()
        lag.take(due + 0.3)
        lag.take(due + 0.1)
        assert lag.worst == pytest.approx(0.3)
        lag._due = loop.time() + WINDOW_SECONDS
        lag.take(lag._due + 0.2)
        assert lag.worst == pytest.approx(0.3)
        lag._due += 2 * WINDOW_SECONDS
        lag.take(lag._due)
        assert lag.worst == pytest.approx(0.2)
    finally:
        lag.close()
