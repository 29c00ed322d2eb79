"""The metrics listener's application: what it shows, to whom, and what it never shows."""

from dataclasses import replace
from typing import Any, cast

import pytest

from daypass_core.problem import Code
from daypass_proxy.gauges import watch
from daypass_proxy.loop_lag import LoopLag
from daypass_proxy.routes import ROUTES
from daypass_proxy.scrape import Scrape
from daypass_proxy.services import Services
from tests.fakes.proxy import Proxy


class Parts:
    """What the fakes of the proxy leave out and the gauges look at."""

    version, age, lacking = 7, 0.25, None
    ages, states = {"file:///key": 12.5}, {"fresh": 1, "stale": 0, "lost": 2}
    reads = {"ok": 3, "failed": 1}
    uses: dict[tuple[str, str], Any] = {}


def services() -> Services:
    """Services with everything the gauges read."""
    proxy = Proxy()
    parts = cast(Any, Parts())
    found = replace(proxy.services, revocations=parts, keyring=parts)
    watch(found, LoopLag())
    return replace(found, revocations=cast(Any, proxy.view))


async def get(
    scrape: Scrape, path: str, method: str = "GET", accept: str = ""
) -> tuple[int, dict[bytes, bytes], str]:
    """Ask the application; return status, headers and body."""
    sent: list[Any] = []
    scope = {
        "type": "http", "method": method, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"accept", accept.encode())] if accept else [], "client": None,
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    await scrape(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), body.decode()


async def test_the_text_formats() -> None:
    """Prometheus' text by default, OpenMetrics when it is asked for."""
    found = services()
    found.metrics.refused(Code.NOT_FOUND)
    scrape = Scrape(lambda: found)
    status, headers, text = await get(scrape, "/metrics")
    assert status == 200
    assert headers[b"content-type"].startswith(b"text/plain; version=")
    assert 'daypass_refusals_total{code="not_found"} 1.0' in text
    _, headers, text = await get(scrape, "/metrics", accept="application/openmetrics-text")
    assert headers[b"content-type"].startswith(b"application/openmetrics-text")
    assert text.endswith("# EOF\n")


async def test_readings_are_as_of_now() -> None:
    """Gauges are looked up when somebody asks, not kept up to date."""
    found = services()
    scrape = Scrape(lambda: found)
    assert "daypass_body_room_bytes 0.0" in (await get(scrape, "/metrics"))[2]
    found.body_room.total = 5
    text = (await get(scrape, "/metrics"))[2]
    for line in (
        "daypass_body_room_bytes 5.0",
        "daypass_open_calls 0.0",
        "daypass_revocation_view_version 7.0",
        "daypass_revocation_view_age_seconds 0.25",
        'daypass_token_checks_total{result="known"} 0.0',
        'daypass_provider_key_reads_total{result="ok"} 3.0',
        "daypass_provider_key_age_seconds 0.25",
        "daypass_ledger_ready 1.0",
        "daypass_event_loop_lag_seconds 0.0",
        "daypass_log_lines_dropped_total 0.0",
    ):
        assert line in text
    assert "process_cpu_seconds_total" in text


async def test_health() -> None:
    """The listener answers for the health of the proxy as its public one does."""
    found = services()
    scrape = Scrape(lambda: found)
    assert (await get(scrape, "/livez"))[0] == 200
    assert (await get(scrape, "/readyz"))[0] == 200
    cast(Any, found.revocations).stale = True
    status, _, text = await get(scrape, "/readyz")
    assert (status, "revocations" in text) == (503, True)


@pytest.mark.parametrize("path", ["/", "/metrics/", "/v1/messages", "/v1/models", "/metricsx"])
async def test_nothing_else_is_there(path: str) -> None:
    """The listener has three routes; calls are not among them."""
    found = services()
    assert (await get(Scrape(lambda: found), path))[0] == 404


async def test_only_reading() -> None:
    """Any other method is refused."""
    found = services()
    assert (await get(Scrape(lambda: found), "/metrics", "POST"))[0] == 405


async def test_before_and_after_the_proxy() -> None:
    """Without services there is nothing to show, and nothing breaks."""
    assert (await get(Scrape(lambda: None), "/metrics"))[0] == 503


def test_not_on_the_public_listener() -> None:
    """No route of the public table shows metrics: a sandbox gets 404 there."""
    assert not [path for path in ROUTES if b"metrics" in path]


async def test_keys_are_not_shown() -> None:
    """No part of a provider key, and no name of a tenant without a call, is in the figures."""
    found = services()
    text = (await get(Scrape(lambda: found), "/metrics"))[2]
    assert "sk-ant" not in text
    assert "acme" not in text
