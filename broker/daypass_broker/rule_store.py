"""Federation rules in the store: made, found, disabled, removed; each change is audited.

What a rule says never changes once it is made, only whether it is in force: what an auditor reads
about a sandbox's rule is what the sandbox was let in by.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from daypass_broker import db, schema
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.rule import AfterDeadline, KeySource, Kind, Replay, Rule, State
from daypass_core.problem import Code, refuse

_RULE = schema.federation_rule
_TAGS = {State.ACTIVE: AuditTag.RULE_ENABLED, State.DISABLED: AuditTag.RULE_DISABLED}


def make(act: Act, rule: Rule) -> sa.Row[Any]:
    """Write a new rule; raises Refusal naming a tenant, profile or name that cannot be."""
    _check_references(act.conn, rule)
    act.conn.execute(
        sa.insert(_RULE).values(
            id=rule.id,
            name=rule.name,
            tenant=rule.tenant,
            profile=rule.profile,
            kind=rule.kind.value,
            issuer=rule.issuer,
            audience=rule.audience,
            document=db.to_json(_document(rule)),
            state=rule.state.value,
            created_by=act.actor,
            created_at=act.at,
            updated_at=act.at,
        )
    )
    told = {"name": rule.name, "issuer": rule.issuer, "audience": rule.audience}
    told["profile"] = rule.profile
    act.tell(
        AuditTag.RULE_CREATED,
        tenant=rule.tenant,
        subject=rule.id,
        detail={**told, **_document(rule)},
    )
    return get(act.conn, rule.id)


def set_state(act: Act, rule_id: str, state: State) -> sa.Row[Any]:
    """Disable a rule or put it in force again. Raises Refusal (not found)."""
    row = _locked(act, rule_id)
    if row.state != state.value:
        _touch(act, row, state=state.value)
        act.tell(_TAGS[state], tenant=row.tenant, subject=rule_id, detail={"name": row.name})
    return get(act.conn, rule_id)


def remove(act: Act, rule_id: str) -> None:
    """Remove a rule that no sandbox came by. Raises Refusal (not found, conflict)."""
    row = _locked(act, rule_id)
    came = sa.select(schema.sandbox.c.id).where(schema.sandbox.c.rule == rule_id).limit(1)
    if act.conn.execute(came).first() is not None:
        raise refuse(
            Code.CONFLICT,
            "sandboxes came by this rule, and say so",
            hint=f"disable it: daypass rule disable {rule_id}",
        )
    act.conn.execute(sa.delete(_RULE).where(_RULE.c.id == rule_id))
    act.tell(AuditTag.RULE_REMOVED, tenant=row.tenant, subject=rule_id, detail={"name": row.name})


def get(conn: sa.Connection, rule_id: str) -> sa.Row[Any]:
    """Return a rule's row; raises Refusal (not found)."""
    row = conn.execute(sa.select(_RULE).where(_RULE.c.id == rule_id)).first()
    if row is None:
        raise refuse(Code.NOT_FOUND, "no such rule")
    return row


def search(conn: sa.Connection, tenant: str | None = None) -> list[sa.Row[Any]]:
    """Return the rules, of one tenant or all, by tenant and name."""
    query = sa.select(_RULE).order_by(_RULE.c.tenant, _RULE.c.name)
    return list(conn.execute(query if tenant is None else query.where(_RULE.c.tenant == tenant)))


def every(conn: sa.Connection) -> list[Rule]:
    """Return all rules as records."""
    return [record(row) for row in search(conn)]


def version(conn: sa.Connection) -> tuple[int, int, int]:
    """Return what differs after every change: how many rules there are, and when they changed."""
    moment = _RULE.c.updated_at
    summed, newest = sa.func.coalesce(sa.func.sum(moment), 0), sa.func.max(moment)
    row = conn.execute(sa.select(sa.func.count(), summed, newest).select_from(_RULE)).one()
    return int(row[0]), int(row[1]), int(row[2] or 0)


def record(row: sa.Row[Any]) -> Rule:
    """Return the rule of a row."""
    document = db.from_json(row.document)
    return Rule(
        id=row.id,
        name=row.name,
        tenant=row.tenant,
        profile=row.profile,
        kind=Kind(row.kind),
        issuer=row.issuer,
        audience=row.audience,
        conditions={name: tuple(values) for name, values in document["conditions"].items()},
        identity=tuple(document["identity"]),
        keys=KeySource(**document["keys"]),
        replay=Replay(document["replay"]),
        after_deadline=AfterDeadline(document["after_deadline"]),
        max_life_s=document["max_life_seconds"],
        max_sandboxes=document["max_sandboxes"],
        state=State(row.state),
    )


def _document(rule: Rule) -> dict[str, object]:
    keys = {"url": rule.keys.url, "inline": rule.keys.inline}
    return {
        "conditions": {name: list(values) for name, values in rule.conditions.items()},
        "identity": list(rule.identity),
        "keys": {name: value for name, value in keys.items() if value is not None},
        "replay": rule.replay.value,
        "after_deadline": rule.after_deadline.value,
        "max_life_seconds": rule.max_life_s,
        "max_sandboxes": rule.max_sandboxes,
    }


def _check_references(conn: sa.Connection, rule: Rule) -> None:
    tenant = schema.tenant.c
    row = conn.execute(sa.select(tenant.profiles).where(tenant.id == rule.tenant)).first()
    if row is None:
        raise refuse(Code.NOT_FOUND, f"tenant: no tenant {rule.tenant}", field="tenant")
    allowed = db.from_json(row.profiles)
    if rule.profile not in allowed:
        raise refuse(
            Code.BEYOND_PROFILE,
            f"profile: tenant {rule.tenant} may use {', '.join(allowed)}",
            field="profile",
        )
    same = (_RULE.c.tenant == rule.tenant) & (_RULE.c.name == rule.name)
    if conn.execute(sa.select(_RULE.c.id).where(same)).first() is not None:
        raise refuse(
            Code.CONFLICT, f"name: tenant {rule.tenant} has a rule {rule.name}", field="name"
        )


def _locked(act: Act, rule_id: str) -> sa.Row[Any]:
    act.conn.execute(sa.select(_RULE.c.id).where(_RULE.c.id == rule_id).with_for_update())
    return get(act.conn, rule_id)


def _touch(act: Act, row: sa.Row[Any], **values: object) -> None:
    # Later than before even within one millisecond, so that `version` shows every change.
    moment = max(act.at, row.updated_at + 1)
    act.conn.execute(
        sa.update(_RULE).where(_RULE.c.id == row.id).values(**values, updated_at=moment)
    )
