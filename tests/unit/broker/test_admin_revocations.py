"""Revoking over HTTP when the store fails, tenants and their way back, incidents."""

import csv
import io
import logging
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from daypass_broker import audit, db, schema
from tests.unit.broker.desk import Desk
from tests.unit.broker.test_admin_tokens import INTROSPECT, REVOKE, post
from tests.unit.broker.test_issue_store import fail_to_commit

REVOCATIONS = "/v1/revocations"
MINUTE = 60_000


@pytest.mark.parametrize("path", [REVOCATIONS, REVOKE])
@pytest.mark.parametrize(
    ("fails", "told"),
    [
        (
            "gone",
            "revocation was NOT stored and has ended nothing; repeat it until it is confirmed",
        ),
        ("commit", "it is NOT known whether the revocation was stored; take it as not stored"),
    ],
)
def test_a_revocation_that_is_not_stored_is_loud(
    desk: Desk, caplog: pytest.LogCaptureFixture, path: str, fails: str, told: str
) -> None:
    """503 with Retry-After (RFC 7009 §2.2.1), words that cannot be read as done, an error line.

    In doubt it is told to repeat it too, unlike anything else: revoking twice is harmless.
    """
    made = desk.sandbox(desk.acme)
    token = made["launch"]["credential"]
    credential = desk.admin
    if fails == "commit":
        fail_to_commit(desk.engine)
    else:
        engine = db.connect(desk.url)
        sa.event.listen(engine, "begin", _refuse_writes)
        desk.serve(replace(desk.services, engine=engine))
    body = {"scope": "sandbox", "ident": made["id"]}
    if path == REVOKE:
        reply = post(desk, path, token, credential)
    else:
        reply = desk.call("POST", path, body, credential=credential)
    assert (reply.status, reply.body["code"]) == (503, "store_unavailable")
    assert reply.body["detail"].startswith(told)
    assert reply.headers["retry-after"] == "5"
    (line,) = [one for one in caplog.records if one.msg == "revocation_not_stored"]
    assert line.levelno == logging.ERROR
    assert line.__dict__["fields"]["in_doubt"] == (fails == "commit")
    assert token not in caplog.text
    assert fails == "commit" or desk.rows(schema.revocation) == []


def _refuse_writes(conn: sa.Connection) -> None:
    if conn.get_execution_options().get("daypass_writes"):
        raise sa.exc.OperationalError("BEGIN", {}, Exception("database is locked"))


def test_tenants_are_listed_with_their_state(desk: Desk) -> None:
    """By name with their active sandboxes; an orchestrator sees its own and no other."""
    made = desk.sandbox(desk.acme)
    desk.sandbox(desk.acme)
    desk.call("DELETE", f"/v1/sandboxes/{made['id']}")
    listed = desk.call("GET", "/v1/tenants").body["tenants"]
    assert [(row["id"], row["state"], row["active_sandboxes"]) for row in listed] == [
        ("acme", "active", 1),
        ("globex", "active", 0),
    ]
    assert listed[1]["profiles"] == ["coding", "sealed"]
    mine = desk.call("GET", "/v1/tenants", credential=desk.globex).body["tenants"]
    assert [row["id"] for row in mine] == ["globex"]


def test_a_revoked_tenant_is_restored_by_an_admin(desk: Desk) -> None:
    """Closed by its own orchestrator, it registers nothing until an admin opens it."""
    made = desk.sandbox(desk.acme)
    order = {"scope": "tenant", "ident": "acme"}
    effect = desk.call("POST", REVOCATIONS, order, credential=desk.acme).body["effect"]
    assert effect == {"tenants": 1, "sandboxes": 1, "grants": 0, "tokens": 0}
    refused = desk.call("POST", "/v1/sandboxes", {}, credential=desk.acme)
    assert refused.status == 403
    restore = "/v1/tenants/acme/restore"
    assert desk.call("POST", restore, credential=desk.acme).status == 403
    restored = desk.call("POST", restore)
    assert (restored.status, restored.body["state"]) == (200, "active")
    assert restored.body["active_sandboxes"] == 0
    assert desk.call("POST", restore).status == 409
    assert desk.call("POST", "/v1/tenants/nobody/restore").status == 404
    assert desk.call("POST", "/v1/sandboxes", {}, credential=desk.acme).status == 201
    assert post(desk, INTROSPECT, made["launch"]["credential"]).body == {"active": False}


@pytest.mark.parametrize("moment", ["now", 1_700_000_000])
def test_a_moment_closes_no_tenant(desk: Desk, moment: object) -> None:
    """With `not_before`, and be it now, a tenant goes on with what it is issued afterwards."""
    order = {"scope": "tenant", "ident": "acme", "not_before": moment}
    assert desk.call("POST", REVOCATIONS, order).body["effect"]["tenants"] == 0
    assert desk.call("POST", "/v1/sandboxes", {}, credential=desk.acme).status == 201


def count(desk: Desk, *rows: tuple[str, str, int]) -> None:
    """Count incidents: subject, kind, minute."""
    with db.begin(desk.engine) as conn:
        for subject, kind, minute in rows:
            audit.count(conn, subject, kind, minute * MINUTE)


def listed(desk: Desk, query: str = "", credential: str = "") -> list[tuple[Any, ...]]:
    """Subject, kind, minute and count of the incidents that are shown."""
    found = desk.call("GET", f"/v1/incidents{query}", credential=credential).body["rows"]
    return [(row["subject"], row["kind"], row["minute"][11:16], row["count"]) for row in found]


def test_incidents_are_shown_newest_minute_first(desk: Desk) -> None:
    """Who, what, when and how often; the same row for broker and proxies."""
    mine, other = desk.sandbox(desk.acme)["id"], desk.sandbox(desk.globex, profile="coding")["id"]
    credential = f"crd_{desk.acme.split('_')[1]}"
    count(
        desk,
        (mine, "clone", 60),
        (mine, "clone", 60),
        (mine, "token_refused:revoked", 61),
        (other, "call_refused:budget_exhausted", 61),
        (credential, "admin_refused:not_found", 62),
        ("sbx_gone", "clone", 59),
    )
    everything = listed(desk)
    assert sorted(everything[1:3]) == sorted(
        [
            (mine, "token_refused:revoked", "01:01", 1),
            (other, "call_refused:budget_exhausted", "01:01", 1),
        ]
    )
    assert everything[0] == (credential, "admin_refused:not_found", "01:02", 1)
    assert everything[3:] == [(mine, "clone", "01:00", 2), ("sbx_gone", "clone", "00:59", 1)]
    assert {row[0] for row in listed(desk, credential=desk.acme)} == {mine, credential}
    assert {row[0] for row in listed(desk, "?tenant=globex")} == {other}
    assert [row[1] for row in listed(desk, f"?sandbox={mine}&kind=clone")] == ["clone"]
    assert [row[0] for row in listed(desk, "?kind=admin_refused")] == [credential]
    assert listed(desk, "?kind=admin_") == []
    assert [row[2] for row in listed(desk, "?since=3660&until=3720")] == ["01:01"] * 2
    assert desk.call("GET", "/v1/incidents?tenant=globex", credential=desk.acme).status == 404


def test_incidents_come_in_pages_and_as_csv(desk: Desk) -> None:
    """`next` goes on where the page ended; CSV says it in `link`, with the same query."""
    made = desk.sandbox(desk.acme)["id"]
    count(desk, *((made, f"kind_{i}", 60 + i // 2) for i in range(5)))
    seen, after = [], ""
    for _ in range(3):
        page = desk.call("GET", f"/v1/incidents?limit=2&sandbox={made}{after}").body
        seen += [row["kind"] for row in page["rows"]]
        after = f"&after={page['next']}"
    assert seen == ["kind_4", "kind_2", "kind_3", "kind_0", "kind_1"]
    assert page["next"] is None
    reply = desk.call("GET", f"/v1/incidents?limit=2&format=csv&sandbox={made}")
    rows = list(csv.DictReader(io.StringIO(reply.content.decode())))
    assert [row["kind"] for row in rows] == ["kind_4", "kind_2"]
    assert list(rows[0]) == ["minute", "subject", "tenant", "kind", "count"]
    assert reply.headers["link"].startswith(f"</v1/incidents?limit=2&format=csv&sandbox={made}&aft")
    for after in ("x", "1/x", "/a/b", "9" * 20 + "/a/b"):
        assert desk.call("GET", f"/v1/incidents?after={after}").body["field"] == "after"
