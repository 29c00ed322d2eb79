"""Single-use launch credentials and the chain of renewal generations that follows.

A launch credential is spent once and starts a lineage at generation 1; each renewal moves it on by
one. A copy betrays itself: whoever comes second with the launch credential, or with a generation
the lineage has left, is a clone, and the lineage is quarantined, because nobody can tell which of
the two is the thief; unless the profile welcomes copies, see `clone`. Parallel processes of one
sandbox share a step: a generation stays the current one for `GRACE_MS`, and as long is the one
before it taken for it. Every function runs inside the caller's write transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from daypass_broker import audit, schema
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.refused import Refused

GRACE_MS = 10_000

LAUNCH_REUSED = "launch_reused"
CLONE = "clone"
ALARMS = (LAUNCH_REUSED, CLONE)
"""The reasons to refuse that mean that there are two."""
_NEW_LAUNCH = "; ask your orchestrator for a new launch credential of this sandbox"


@dataclass(frozen=True, slots=True)
class Generation:
    """One step of one lineage; what a renewal credential stands for."""

    lineage: str
    number: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Who comes is a copy of a sandbox whose profile welcomes copies."""


def start(act: Act, sandbox: sa.Row[Any]) -> Generation | Refused | Copy:
    """Spend the launch credential of this sandbox and start its lineage.

    The credential is claimed by one conditional update, so of two at once one gets it. A second
    use quarantines the lineage of the first.
    """
    unspent = (schema.sandbox.c.id == sandbox.id) & schema.sandbox.c.launch_used_at.is_(None)
    spend = sa.update(schema.sandbox).where(unspent).values(launch_used_at=act.at)
    if act.conn.execute(spend).rowcount != 1:
        told = "launch credential was used before, it works once"
        return _raise_alarm(act, sandbox, LAUNCH_REUSED, told)
    # Whoever held a lineage from an earlier, since replaced launch credential holds nothing now.
    supersede(act, sandbox)
    lineage_id = act.new_id("lin")
    act.conn.execute(
        sa.insert(schema.lineage).values(
            id=lineage_id,
            sandbox=sandbox.id,
            generation=1,
            rotated_at=act.at,
            state="active",
            created_at=act.at,
        )
    )
    _tell(act, AuditTag.LINEAGE_STARTED, sandbox, lineage_id, {"generation": 1})
    return Generation(lineage_id, 1)


def advance(act: Act, sandbox: sa.Row[Any], presented: Generation) -> Generation | Refused | Copy:
    """Return the generation that follows `presented`.

    The current generation rotates once it is `GRACE_MS` old; until then both it and the one before
    it get it once more. Anything else is a clone. Were a young one to rotate too, two processes
    that renew at once would leave a third, with the same answer still to come, two steps behind.
    """
    table = schema.lineage
    row = act.conn.execute(
        sa.select(table)
        .where(table.c.id == presented.lineage, table.c.sandbox == sandbox.id)
        .with_for_update()
    ).first()
    if row is None:
        return Refused("unknown_lineage", "renewal credential is not known here" + _NEW_LAUNCH)
    if row.state != "active":
        return Refused("lineage_quarantined", "renewal credential is quarantined" + _NEW_LAUNCH)
    young = act.at - row.rotated_at <= GRACE_MS
    if young and presented.number in (row.generation, row.generation - 1):
        return Generation(row.id, row.generation)
    if presented.number == row.generation:
        following = presented.number + 1
        act.conn.execute(
            sa.update(table)
            .where(table.c.id == row.id)
            .values(generation=following, rotated_at=act.at)
        )
        _tell(act, AuditTag.LINEAGE_ROTATED, sandbox, row.id, {"generation": following})
        return Generation(row.id, following)
    return _raise_alarm(act, sandbox, CLONE, "renewal credential was used before, this is a copy")


def supersede(act: Act, sandbox: sa.Row[Any]) -> None:
    """End what was started with an earlier launch credential."""
    _quarantine(act, sandbox, "superseded")


def _raise_alarm(act: Act, sandbox: sa.Row[Any], kind: str, told: str) -> Refused | Copy:
    audit.count(act.conn, sandbox.id, kind, act.at)
    if sandbox.on_clone == "child":
        return Copy()
    _quarantine(act, sandbox, kind)
    return Refused(kind, told + _NEW_LAUNCH)


def _quarantine(act: Act, sandbox: sa.Row[Any], cause: str) -> None:
    """Quarantine every active lineage of the sandbox; told in the audit once per lineage."""
    table = schema.lineage
    active = (table.c.sandbox == sandbox.id) & (table.c.state == "active")
    ids = act.conn.execute(sa.select(table.c.id).where(active).with_for_update()).scalars().all()
    for lineage_id in ids:
        act.conn.execute(
            sa.update(table).where(table.c.id == lineage_id).values(state="quarantined")
        )
        _tell(act, AuditTag.LINEAGE_QUARANTINED, sandbox, lineage_id, {"cause": cause})


def _tell(
    act: Act, tag: AuditTag, sandbox: sa.Row[Any], lineage_id: str, detail: dict[str, object]
) -> None:
    act.tell(tag, tenant=sandbox.tenant, sandbox=sandbox.id, subject=lineage_id, detail=detail)
