"""`/v1/usage` and `/v1/audit`: what was spent and what was done."""

from __future__ import annotations

from daypass_broker import report, times
from daypass_broker.admin.call import Answer, Call, take_limit
from daypass_broker.fields import Fields
from daypass_broker.report import AuditFilter, UsageFilter


def usage(call: Call) -> Answer:
    """Show calls and their totals, or sums by `group_by`."""
    query = call.query()
    wanted = UsageFilter(
        tenant=call.tenant(query),
        sandbox=query.text("sandbox"),
        model=query.text("model"),
        since=_second(query, "since"),
        until=_second(query, "until"),
    )
    group_by = query.text("group_by", choices=report.GROUPS)
    limit, after = take_limit(query), query.text("after")
    query.done()
    with call.reading() as conn:
        if group_by is not None:
            return Answer(report.grouped(conn, wanted, group_by, limit=limit, after=after))
        return Answer(report.usage(conn, wanted, limit=limit, after=after))


def audit(call: Call) -> Answer:
    """Show audit events, newest first."""
    query = call.query()
    wanted = AuditFilter(
        tenant=call.tenant(query), sandbox=query.text("sandbox"), tag=query.text("tag")
    )
    limit, after = take_limit(query), _number(query, "after")
    query.done()
    with call.reading() as conn:
        return Answer(report.audit_events(conn, wanted, limit=limit, after=after))


def _second(query: Fields, name: str) -> int | None:
    text = query.text(name)
    if text is None:
        return None
    try:
        return times.parse_second(text)
    except ValueError as error:
        raise query.error(name, str(error)) from None


def _number(query: Fields, name: str) -> int | None:
    text = query.text(name, longest=18)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise query.error(name, "must be the number of an event")
    return int(text)
