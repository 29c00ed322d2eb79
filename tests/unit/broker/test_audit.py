"""Audit events and the counting of refusals."""

import re

from daypass_broker import audit, db, schema
from daypass_broker.audit import AuditTag
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
