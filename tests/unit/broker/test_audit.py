"""Audit events and the counting of refusals."""

import re
from typing import Any

from daypass_broker import audit, db, schema
from daypass_broker.audit import AuditFilter, AuditTag
from tests.unit.broker.desk import Desk


def test_tags_have_a_grammar_and_an_order() -> None:
    """Every tag is `subject.verb-past`, named like its member, and the list is alphabetical."""
    for tag in AuditTag:
        assert re.fullmatch(r"[a-z]+\.[a-z]+ed", tag.value), tag
        assert tag.name == tag.value.upper().replace(".", "_")
    assert list(AuditTag) == sorted(AuditTag)


def test_an_event_is_written_as_told(desk: Desk) -> None:
    """Every field of an event is read back, the detail as JSON."""
    with desk.acting() as act:
        act.tell(
            AuditTag.TOKEN_ISSUED,
            tenant="acme",
            sandbox="sbx_a",
            subject="tok_a",
            detail={"exp": 1, "kid": "k"},
        )
    event = desk.rows(schema.audit)[-1]
    assert (event.tag, event.actor, event.at) == ("token.issued", "crd_test", act.at)
    assert (event.tenant, event.sandbox, event.subject) == ("acme", "sbx_a", "tok_a")
    assert event.detail == '{"exp":1,"kid":"k"}'


def test_refusals_are_one_row_a_minute(desk: Desk) -> None:
    """The same kind for the same subject in the same minute is one row; anything else another."""
    minute = 60_000
    counted = [
        ("sbx_a", "clone", 0),
        ("sbx_a", "clone", minute - 1),
        ("sbx_a", "clone", minute),
        ("sbx_a", "launch_reused", 0),
        ("sbx_b", "clone", 0),
    ]
    with db.begin(desk.engine) as conn:
        for subject, kind, at in counted:
            audit.count(conn, subject, kind, at)
    assert [tuple(row) for row in desk.rows(schema.incident)] == [
        ("sbx_a", "clone", 0, 2),
        ("sbx_a", "clone", 1, 1),
        ("sbx_a", "launch_reused", 0, 1),
        ("sbx_b", "clone", 0, 1),
    ]


def events(desk: Desk, limit: int = 100, after: int | None = None, **wanted: Any) -> Any:
    """Audit events that match."""
    with db.read(desk.engine) as conn:
        return audit.search(conn, AuditFilter(**wanted), limit=limit, after=after)


def test_audit_is_read_backwards_page_by_page(desk: Desk) -> None:
    """Newest first, `next` goes on to older events until there are none."""
    written = [row.seq for row in desk.rows(schema.audit)]
    first = events(desk, limit=len(written) - 1)
    second = events(desk, limit=3, after=first["next"])
    found = [event["seq"] for event in first["events"] + second["events"]]
    assert found == written[::-1]
    assert second["next"] is None


def test_audit_is_filtered(desk: Desk) -> None:
    """By tag, tenant and sandbox, each and together."""
    with desk.acting() as act:
        act.tell(AuditTag.SANDBOX_ENDED, tenant="acme", sandbox="sbx_a", detail={"a": [1]})
    (event,) = events(desk, tenant="acme", sandbox="sbx_a", tag="sandbox.ended")["events"]
    assert event["detail"] == {"a": [1]}
    assert events(desk, tenant="globex", tag="sandbox.ended")["events"] == []
    assert events(desk, tag="policy.applied")["events"][0]["tag"] == "policy.applied"
