"""Single-use launch credentials and the chain of renewal generations that follows.

A launch credential is spent once and starts a lineage at generation 1; each renewal moves it on by
one. A copy betrays itself: whoever comes second with the launch credential, or with a generation
the lineage has left, is a clone, and the lineage is quarantined, because nobody can tell which of
the two is the thief. Parallel processes of one sandbox have `GRACE_MS` to come with the generation
before the current one. Every function runs inside the caller's write transaction.
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
_NEW_LAUNCH = "; ask your orchestrator for a new launch credential of this sandbox"


@dataclass(frozen=True, slots=True)
class Generation:
    """One step of one lineage; what a renewal credential stands for."""

    lineage: str
    number: int


def start(act: Act, sandbox: sa.Row[Any]) -> Generation | Refused:
    """Spend the launch credential of this sandbox and start its lineage.

    The credential is claimed by one conditional update, so of two at once one gets it. A second
    use quarantines the lineage of the first.
    """
    unspent = (schema.sandbox.c.id == sandbox.id) & schema.sandbox.c.launch_used_at.is_(None)
    spend = sa.update(schema.sandbox).where(unspent).values(launch_used_at=act.at)
    if act.conn.execute(spend).rowcount != 1:
        _raise_alarm(act, sandbox, LAUNCH_REUSED)
        return Refused(
            LAUNCH_REUSED, "launch credential was used before, it works once" + _NEW_LAUNCH
        )
    # Whoever held a lineage from an earlier, since replaced launch credential holds nothing now.
    _quarantine(act, sandbox, "superseded")
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


def advance(act: Act, sandbox: sa.Row[Any], presented: Generation) -> Generation | Refused:
    """Return the generation that follows `presented`.

    The current generation rotates. The one before it gets the current one once more while its
    grace lasts. Anything else is a clone.
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
    if presented.number == row.generation:
        following = presented.number + 1
        act.conn.execute(
            sa.update(table)
            .where(table.c.id == row.id)
            .values(generation=following, rotated_at=act.at)
        )
        _tell(act, AuditTag.LINEAGE_ROTATED, sandbox, row.id, {"generation": following})
        return Generation(row.id, following)
    if presented.number == row.generation - 1 and act.at - row.rotated_at <= GRACE_MS:
        return Generation(row.id, row.generation)
    _raise_alarm(act, sandbox, CLONE)
    return Refused(CLONE, "renewal credential was used before, this is a copy" + _NEW_LAUNCH)


def _raise_alarm(act: Act, sandbox: sa.Row[Any], kind: str) -> None:
    audit.count(act.conn, sandbox.id, kind, act.at)
    _quarantine(act, sandbox, kind)


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
