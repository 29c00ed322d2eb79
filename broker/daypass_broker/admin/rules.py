"""`/v1/rules`: which attested workloads may have a sandbox; made, shown, disabled, removed.

By admins only: a rule makes sandboxes without an orchestrator being asked, so who may make a rule
may decide for a whole tenant.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from daypass_broker import db, revocation, rule_request, rule_store, schema, times
from daypass_broker.admin.call import Answer, Call
from daypass_broker.fields import Fields
from daypass_broker.rule import State
from daypass_broker.rule_request import Own
from daypass_broker.services import Services


def create(call: Call) -> Answer:
    """Make a rule; every broker goes by it within a second."""
    call.require_admin()
    rule = rule_request.read(call.json(), call.services.new_id("fdrl"), _own(call))
    with call.acting(revocation.lock_version) as act:
        row = rule_store.make(act, rule)
    return Answer(_view(row, call.services), 201)


def search(call: Call) -> Answer:
    """List rules, by tenant and name."""
    call.require_admin()
    query = call.query()
    tenant = call.tenant(query)
    query.done()
    with call.reading() as conn:
        rows = rule_store.search(conn, tenant)
    return Answer({"rules": [_view(row, call.services) for row in rows]})


def templates(call: Call) -> Answer:
    """List the ready-made rules."""
    call.query().done()
    found = rule_request.templates()
    return Answer({"templates": [_template(name, found[name]) for name in found]})


def get(call: Call) -> Answer:
    """Show one rule."""
    call.require_admin()
    call.query().done()
    with call.reading() as conn:
        return Answer(_view(rule_store.get(conn, call.id), call.services))


def change(call: Call) -> Answer:
    """Disable a rule, or put it in force again; nothing else of it can change."""
    call.require_admin()
    fields = Fields(call.json())
    state = State(fields.must("state", fields.text("state", choices=tuple(State))))
    fields.done()
    with call.acting() as act:
        row = rule_store.set_state(act, call.id, state)
    return Answer(_view(row, call.services))


def remove(call: Call) -> Answer:
    """Remove a rule that no sandbox came by."""
    call.require_admin()
    call.require_no_body()
    with call.acting(revocation.lock_version) as act:
        row = rule_store.get(act.conn, call.id)
        rule_store.remove(act, call.id)
    return Answer(_view(row, call.services))


def _own(call: Call) -> Own:
    settings = call.services.settings
    with call.reading() as conn:
        # Those to come and those that were as well.
        key_ids = frozenset(conn.execute(sa.select(schema.signing_key.c.kid)).scalars())
    return Own((settings.issuer, settings.public_url), key_ids)


def _view(row: sa.Row[Any], services: Services) -> dict[str, object]:
    document = db.from_json(row.document)
    return {
        "id": row.id,
        "name": row.name,
        "tenant": row.tenant,
        "profile": row.profile,
        "state": row.state,
        "kind": row.kind,
        "issuer": row.issuer,
        "audience": row.audience,
        **document,
        # What a workload is started with, beside a file that its platform keeps fresh.
        "environment": {
            "ANTHROPIC_BASE_URL": services.settings.public_url,
            "ANTHROPIC_FEDERATION_RULE_ID": row.id,
            "ANTHROPIC_ORGANIZATION_ID": row.tenant,
        },
        "created_by": row.created_by,
        "created_at": times.format_ms(row.created_at),
        "updated_at": times.format_ms(row.updated_at),
    }


def _template(name: str, template: rule_request.Template) -> dict[str, object]:
    return {
        "name": name,
        "title": template["title"],
        "kind": template["kind"],
        "issuer": template.get("issuer"),
        "audience": template.get("audience"),
        "immutable": list(template["immutable"]),
        "identity": template["identity"],
        "after_deadline": template.get("after_deadline", "refuse"),
        "max_life_seconds": template["max_life_seconds"],
    }
