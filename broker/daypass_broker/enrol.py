"""Enrolment: an attested workload gets its sandbox, made at its first exchange, found afterwards.

Runs in the transaction that issues. One sandbox stands for one workload of one rule, and an ended
or revoked one goes on standing for it: assertions are always fresh, so what was taken from a
workload must not come back with the next of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from daypass_broker import audit, db, policy, revocation, rule_store, sandbox, schema
from daypass_broker.act import Act
from daypass_broker.attest.federation import Workload
from daypass_broker.audit import AuditTag
from daypass_broker.credential import Principal, Role
from daypass_broker.refused import Refused, TooSoon
from daypass_broker.rule import AfterDeadline, Replay, Rule, State
from daypass_broker.sandbox_request import SandboxRequest
from daypass_broker.services import Services
from daypass_core.problem import Refusal
from daypass_core.verify import LEEWAY

REPLAYED = "assertion_replayed"

_SANDBOX = schema.sandbox


def enrol(act: Act, workload: Workload, services: Services) -> str | Refused | TooSoon:
    """Return the id of the workload's sandbox, and note that its assertion was used.

    In a second that a cut-off covers it is not noted: the same request is decided once more. The
    act holds `revocation.share_version`. Whether the sandbox may have a token is not asked.
    """
    rule = _in_force(act, workload.rule)
    if rule is None:
        return Refused("rule_disabled", "federation rule is not in force; ask who manages it")
    replayed = _judge_use(act, _use(act, workload), rule)
    if replayed is not None:
        return replayed
    found = _find(act, workload, rule) or _make(act, workload, rule, services)
    if isinstance(found, Refused):
        return found
    covered = _cut_off(act, found)
    if covered is not None and act.second <= covered and found.state == "active":
        return TooSoon(covered + 1)
    return _judge_use(act, _note_use(act, workload, rule, found), rule) or str(found.id)


def _in_force(act: Act, known: Rule) -> Rule | None:
    """Read the rule again: the one in memory may be a second old. Disabling it waits for us."""
    table = schema.federation_rule
    query = sa.select(table).where(table.c.id == known.id).with_for_update(read=True)
    row = act.conn.execute(query).first()
    return None if row is None or row.state != State.ACTIVE else rule_store.record(row)


def _find(act: Act, workload: Workload, rule: Rule) -> sa.Row[Any] | None:
    """Return the workload's sandbox; None when it has none, or is to have a new one."""
    mine = (_SANDBOX.c.rule == rule.id) & (_SANDBOX.c.identity == workload.identity)
    row = act.conn.execute(sa.select(_SANDBOX).where(mine).with_for_update()).first()
    if row is None or rule.after_deadline is AfterDeadline.REFUSE or not _ran_out(act, row):
        return row
    sandbox.update(act, row.id, identity=None)
    return None


def _ran_out(act: Act, row: sa.Row[Any]) -> bool:
    """Say whether a sandbox came to its deadline, and nobody took anything from it before."""
    if row.deadline > act.second or row.state not in ("active", "ended"):
        return False
    if row.state == "ended" and row.ended_at < row.deadline * 1000:
        return False
    return bool(_root(act, row.id).state == "active")


def _make(act: Act, workload: Workload, rule: Rule, services: Services) -> sa.Row[Any] | Refused:
    _one_at_a_time(act, rule)
    mine = (_SANDBOX.c.rule == rule.id) & (_SANDBOX.c.identity == workload.identity)
    # Somebody else may have made it while this one waited.
    made = act.conn.execute(sa.select(_SANDBOX).where(mine).with_for_update()).first()
    if made is not None:
        return made
    if _living(act, rule) >= rule.max_sandboxes:
        audit.count(act.conn, rule.id, "rule_full", act.at)
        told = f"the rule has {rule.max_sandboxes} sandboxes alive, its most; end some of them"
        return Refused("rule_full", told)
    by_rule = replace(act, actor=rule.id)
    asks = Principal(rule.id, Role.ORCHESTRATOR, tenant=rule.tenant)
    wanted = SandboxRequest(tenant=rule.tenant, profile=rule.profile, labels={"rule": rule.name})
    try:
        (row,) = sandbox.create(
            by_rule, asks, wanted, min_token_ttl=services.settings.min_token_ttl
        )
    except Refusal as refusal:
        return Refused("rule_refused", str(refusal.problem.title))
    # It says that it lives by every exchange; nobody else is there to say it.
    given = {"launch": policy.ATTESTED, "heartbeat_s": None}
    sandbox.update(by_rule, row.id, rule=rule.id, identity=workload.identity, **given)
    by_rule.tell(
        AuditTag.SANDBOX_ENROLLED,
        tenant=rule.tenant,
        sandbox=row.id,
        subject=row.id,
        detail={"rule": rule.id, "issuer": rule.issuer, "claims": dict(workload.claims)},
    )
    return row


def _use(act: Act, workload: Workload) -> sa.Row[Any] | None:
    table = schema.assertion
    return act.conn.execute(sa.select(table).where(table.c.id == workload.digest)).first()


def _judge_use(act: Act, earlier: sa.Row[Any] | None, rule: Rule) -> Refused | None:
    """Refuse an assertion that was shown before and may not be shown again."""
    # By the same rule it is the same workload. Another rule would make two sandboxes of one proof.
    if earlier is None or (earlier.rule == rule.id and rule.replay is Replay.UNTIL_EXP):
        return None
    audit.count(act.conn, earlier.sandbox, REPLAYED, act.at)
    return Refused(REPLAYED, "assertion was used before; get a new one for each exchange")


def _note_use(act: Act, workload: Workload, rule: Rule, row: sa.Row[Any]) -> sa.Row[Any] | None:
    """Write down that an assertion was shown; return the use that came in between, if any."""
    first = db.insert_once(
        act.conn,
        schema.assertion,
        id=workload.digest,
        rule=rule.id,
        sandbox=row.id,
        expires_at=workload.expires_at + LEEWAY,
        created_at=act.at,
    )
    return None if first else _use(act, workload)


def _cut_off(act: Act, row: sa.Row[Any]) -> int | None:
    return revocation.cut_off(act.conn, row.tenant, row.id, (_root(act, row.id).id,))


def _root(act: Act, sandbox_id: str) -> sa.Row[Any]:
    table = schema.grant_
    root = (table.c.sandbox == sandbox_id) & table.c.parent.is_(None)
    return act.conn.execute(sa.select(table).where(root)).one()


def _living(act: Act, rule: Rule) -> int:
    columns = _SANDBOX.c
    alive = (columns.state == "active") & (columns.deadline > act.second)
    query = sa.select(sa.func.count()).where(columns.rule == rule.id, alive)
    return int(act.conn.execute(query).scalar_one())


def _one_at_a_time(act: Act, rule: Rule) -> None:
    """Wait until nobody else makes a sandbox of this rule; SQLite has one writer anyway."""
    if act.conn.dialect.name == "postgresql":
        # Its row is shared already, and two who both wanted it whole would wait for each other.
        key = int.from_bytes(hashlib.sha256(rule.id.encode()).digest()[:8], "big", signed=True)
        act.conn.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
