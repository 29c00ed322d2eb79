"""`/v1/usage`, `/v1/audit`, `/v1/incidents`: what was spent, what was done, what was refused."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from daypass_broker import audit as trail
from daypass_broker import csv_text, incident, report, times
from daypass_broker.admin.call import Answer, Call, take_limit
from daypass_broker.audit import AuditFilter
from daypass_broker.fields import Fields
from daypass_broker.incident import IncidentFilter
from daypass_broker.report import Grouping, UsageFilter

_FORMATS = ("json", "csv")


def usage(call: Call) -> Answer:
    """Show calls and their totals, or sums by `group_by`; as CSV the rows alone."""
    query = call.query()
    wanted = UsageFilter(
        tenant=call.tenant(query),
        sandbox=query.text("sandbox"),
        model=query.text("model"),
        since=_second(query, "since"),
        until=_second(query, "until"),
    )
    by = _grouping(query)
    limit, after = take_limit(query), query.text("after")
    as_csv = query.text("format", choices=_FORMATS) == "csv"
    query.done()
    with call.reading() as conn:
        if by is not None:
            found = report.grouped(conn, wanted, by, limit=limit, after=after)
        else:
            found = report.usage(conn, wanted, limit=limit, after=after)
    if not as_csv:
        return Answer(found)
    columns = (by.field, *report.SUM_FIELDS) if by else report.CALL_FIELDS
    return _csv(call, "usage", found, columns)


def audit(call: Call) -> Answer:
    """Show audit events, newest first."""
    query = call.query()
    wanted = AuditFilter(
        tenant=call.tenant(query), sandbox=query.text("sandbox"), tag=query.text("tag")
    )
    limit, after = take_limit(query), _number(query, "after")
    query.done()
    with call.reading() as conn:
        return Answer(trail.search(conn, wanted, limit=limit, after=after))


def incidents(call: Call) -> Answer:
    """Show incidents, newest minute first; as CSV the rows alone."""
    query = call.query()
    wanted = IncidentFilter(
        tenant=call.tenant(query),
        sandbox=query.text("sandbox"),
        kind=query.text("kind"),
        since=_second(query, "since"),
        until=_second(query, "until"),
    )
    limit, after = take_limit(query), query.text("after")
    as_csv = query.text("format", choices=_FORMATS) == "csv"
    query.done()
    with call.reading() as conn:
        found = incident.search(conn, wanted, limit=limit, after=after)
    return _csv(call, "incidents", found, incident.FIELDS) if as_csv else Answer(found)


def _csv(call: Call, name: str, found: dict[str, Any], columns: tuple[str, ...]) -> Answer:
    """A page as CSV; where the next one is stands in the header `link` (RFC 8288)."""
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    if "pruned" in found:
        headers["daypass-pruned-before"] = found["pruned"]["before"]
    if found["next"] is not None:
        asked = [pair for pair in call.request.query_params.multi_items() if pair[0] != "after"]
        target = urlencode([*asked, ("after", found["next"])])
        headers["link"] = f'</v1/{name}?{target}>; rel="next"'
    body = csv_text.write(found["rows"], columns)
    return Answer(body, media_type=csv_text.MEDIA_TYPE, headers=headers)


def _grouping(query: Fields) -> Grouping | None:
    text = query.text("group_by")
    if text is None:
        return None
    try:
        return Grouping.of(text)
    except ValueError as error:
        raise query.error("group_by", str(error)) from None


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
