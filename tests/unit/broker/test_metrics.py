"""The broker's figures: counted once, in words of ours; the census reads those of the database."""

import json
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.routing import Route

from daypass_broker import db, metric_specs, oauth, schema
from daypass_broker.census import Census
from daypass_broker.chain import sealing
from daypass_broker.gauges import watch
from daypass_broker.issue import TokenEndpoint
from daypass_broker.metrics import MAX_REASONS, Metrics
from daypass_broker.scrape import metrics_app
from daypass_broker.services import Services
from daypass_broker.signing import Signer
from daypass_core.clock import StoreClock
from daypass_core.settings import Listen
from tests.unit.broker.desk import Desk
from tests.unit.broker.rig import Rig

REQUEST_ID = "req_" + "a" * 26


async def get(services: Services, path: str) -> tuple[int, dict[bytes, bytes], str]:
    """Ask the metrics listener; return status, headers and body."""
    sent: list[Any] = []
    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": b"", "headers": [], "scheme": "http", "client": None,
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    await metrics_app(services)(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), body.decode()


async def figures(services: Services) -> dict[str, float]:
    """Every sample of a scrape by its name and labels."""
    _, _, text = await get(services, "/metrics")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def form(launch: str) -> bytes:
    """The body of an exchange."""
    return json.dumps({"grant_type": oauth.JWT_BEARER, "assertion": launch}).encode()


async def test_token_requests_are_counted_by_their_end(rig: Rig) -> None:
    """One issued, one of a sandbox that has ended, one that is no token request: each once."""
    sandbox = rig.sandbox()
    await rig.exchange(form(sandbox.launch))
    with db.begin(rig.engine) as conn:
        conn.execute(sa.update(schema.sandbox).values(state="ended", ended_at=1))
    await rig.exchange(form(sandbox.launch))
    await rig.exchange(b'{"grant_type":"nonsense that a stranger chose"}')
    found = await figures(rig.services)
    counted = {name: value for name, value in found.items() if "_total{" in name}
    total = "daypass_broker_token_requests_total"
    assert counted == {
        f'{total}{{grant_type="jwt_bearer",outcome="issued"}}': 1,
        f'{total}{{grant_type="jwt_bearer",outcome="invalid_grant"}}': 1,
        f'{total}{{grant_type="unknown",outcome="unsupported_grant_type"}}': 1,
        'daypass_broker_token_refusals_total{reason="ended"}': 1,
    }
    assert found["daypass_broker_token_seconds_count"] == 3


def test_reasons_are_bounded() -> None:
    """However many reasons there were, the labels stay at MAX_REASONS and `other`."""
    metrics = Metrics()
    for number in range(MAX_REASONS * 3):
        metrics.token_refused(f"reason {number}")
    (family,) = metrics.board.collect()
    assert len(family.samples) == MAX_REASONS + 1
    assert sum(sample.value for sample in family.samples) == MAX_REASONS * 3


@pytest.mark.parametrize(
    ("told", "kept"),
    [(REQUEST_ID, True), ("req_short", False), (REQUEST_ID + "x", False), ("sk-ant-secret", False)],
)
async def test_the_proxys_request_id_goes_on(rig: Rig, told: str, kept: bool) -> None:
    """An exchange is answered and audited under the id of the proxy, if it looks like one."""
    sandbox = rig.sandbox()
    reply = await rig.exchange(form(sandbox.launch), headers={"x-daypass-request-id": told})
    assert (reply.headers["request-id"] == told) is kept
    with db.read(rig.engine) as conn:
        rows = conn.execute(sa.select(schema.audit.c.request_id)).scalars().all()
    assert set(rows) - {None} == {reply.headers["request-id"]}


async def test_a_strangers_request_id_is_not_believed(rig: Rig) -> None:
    """Over TCP, from where no proxy is said to be, the id is our own."""
    rig.services = replace(
        rig.services, settings=replace(rig.services.settings, internal=Listen("127.0.0.1", 8702))
    )
    rig.endpoint = TokenEndpoint(rig.services)
    rig.app = Starlette(routes=[Route(oauth.TOKEN_PATH, rig.endpoint.post, methods=["POST"])])
    reply = await rig.exchange(b"{}", headers={"x-daypass-request-id": REQUEST_ID})
    assert reply.headers["request-id"] != REQUEST_ID


async def test_the_census_counts_what_stands_in_the_database(desk: Desk) -> None:
    """Sandboxes by state, revocations, audit events, those that are not sealed, and the age of keys
    are those of the rows."""
    services, census = desk.services, Census(desk.services.engine, StoreClock().monotonic)
    watch(services, census)
    assert "daypass_broker_revocations" not in await figures(services)
    census.count()
    found = await figures(services)
    with db.read(services.engine) as conn:
        events = conn.execute(sa.select(sa.func.max(schema.audit.c.seq))).scalar() or 0
        version = conn.execute(sa.select(schema.revocation_version.c.version)).scalar()
    assert found["daypass_broker_audit_events_total"] == events
    assert found["daypass_broker_audit_unsealed_seconds"] > 0
    sealing.seal(services)
    census.count()
    assert (await figures(services))["daypass_broker_audit_unsealed_seconds"] == 0
    assert found["daypass_broker_revocation_version"] == version
    assert found['daypass_broker_sandboxes{state="active"}'] >= 0
    assert found['daypass_broker_signing_key_usable{purpose="access"}'] == 1
    assert found["daypass_broker_store_age_seconds"] < 5
    names = {name.partition("{")[0] for name in found}
    counted_only = {spec.name for spec in metric_specs.ALL if spec.kind.value == "gauge"}
    assert counted_only - names == {"daypass_broker_certificate_end_timestamp_seconds"}


async def test_signatures_are_timed_by_what_they_sign(rig: Rig) -> None:
    """A launch credential and an access token are one signature each, under their purpose."""
    told: list[tuple[str, float]] = []
    signer = Signer(rig.keys, lambda purpose, seconds: told.append((purpose, seconds)))
    rig.services = replace(rig.services, signer=signer)
    rig.endpoint = TokenEndpoint(rig.services)
    rig.app = Starlette(routes=[Route(oauth.TOKEN_PATH, rig.endpoint.post, methods=["POST"])])
    assert (await rig.exchange(form(rig.sandbox().launch))).status == 200
    assert [purpose for purpose, _ in told] == ["launch", "access"]
    assert all(0 < seconds < 60 for _, seconds in told)


async def test_the_listener_answers_health_and_nothing_else(desk: Desk) -> None:
    """/livez and /readyz are there, the token endpoint is not, and no cache may keep figures."""
    assert (await get(desk.services, "/livez"))[0] == 200
    assert (await get(desk.services, "/readyz"))[0] == 200
    assert (await get(desk.services, "/v1/oauth/token"))[0] == 404
    status, headers, _ = await get(desk.services, "/metrics")
    assert (status, headers[b"cache-control"]) == (200, b"no-store")
