"""The oldest events of the audit trail: exported, then deleted, and what is left says so.

`audit.pruned` is written before anything is deleted: up to which number, in which file, with which
SHA-256, and the digest of the export before. So what is left of the trail names every file that its
beginning is in, one after the other, and `verify-export` compares them with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from daypass_broker import audit, db, schema
from daypass_broker.act import SYSTEM
from daypass_broker.audit import AuditTag
from daypass_broker.retention import Say, exports
from daypass_broker.retention.batches import delete_in_batches, reading

_PORTION = 2_000


@dataclass(frozen=True, slots=True)
class PrunedEvents:
    """Events up to the number `upto` that are gone, and their file; None: there were none."""

    events: int = 0
    upto: int | None = None
    file: str | None = None
    sha256: str | None = None

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON."""
        return {"events": self.events, "upto": self.upto, "file": self.file, "sha256": self.sha256}


def due(engine: sa.Engine, until: int) -> tuple[int, int | None]:
    """Return how many events are older than `until` (epoch milliseconds), and the last number.

    They are those before the first that is younger, so that what is left has no gap.
    """
    column = schema.audit.c
    with reading(engine) as conn:
        first = conn.execute(sa.select(sa.func.min(column.seq)).where(column.at >= until)).scalar()
        old = column.at < until if first is None else column.seq < first
        count, last = conn.execute(
            sa.select(sa.func.count(), sa.func.max(column.seq)).where(old)
        ).one()
    return int(count), last


def prune(engine: sa.Engine, until: int, directory: Path, say: Say) -> PrunedEvents:
    """Export and delete the events older than `until`. Raises StoreUnavailable and OSError."""
    _finish(engine)
    _, last = due(engine, until)
    if last is None:
        return PrunedEvents()
    column = schema.audit.c
    with reading(engine) as conn:
        first = conn.execute(sa.select(sa.func.min(column.seq))).scalar_one()
        before = newest(conn)
        export = exports.write(directory, f"audit-{first}-{last}", _events(conn, last))
        previous = None if before is None else before["sha256"]
    about = {"kind": "audit", "first": first, "last": last, "previous": previous}
    exports.write_manifest(directory, export, about)
    say(f"audit: exported {export.rows} events to {export.file}")
    detail = {"first": first, "upto": last, "events": export.rows, "file": export.file}
    detail |= {"sha256": export.sha256, "previous": previous}
    with db.begin(engine) as conn:
        audit.append(
            conn,
            AuditTag.AUDIT_PRUNED,
            SYSTEM,
            at=db.now_ms(conn),
            subject=str(last),
            detail=detail,
        )
    _finish(engine)
    say(f"audit: deleted up to event {last}")
    return PrunedEvents(export.rows, last, export.file, export.sha256)


def newest(conn: sa.Connection) -> dict[str, Any] | None:
    """Return the detail of the newest `audit.pruned`, None if nothing was ever pruned."""
    column = schema.audit.c
    query = sa.select(column.detail).where(column.tag == AuditTag.AUDIT_PRUNED.value)
    found = conn.execute(query.order_by(column.seq.desc()).limit(1)).scalar()
    return None if found is None else dict(db.from_json(found))


def _finish(engine: sa.Engine) -> None:
    """Delete what the newest `audit.pruned` says is exported: all of it, or what a kill left."""
    with reading(engine) as conn:
        said = newest(conn)
    if said is not None:
        delete_in_batches(engine, schema.audit, schema.audit.c.seq <= said["upto"])


def _events(conn: sa.Connection, last: int) -> Iterator[dict[str, object]]:
    table = schema.audit
    query = (
        sa.select(table)
        .where(table.c.seq <= last)
        .order_by(table.c.seq)
        .execution_options(stream_results=True, yield_per=_PORTION)
    )
    for row in conn.execute(query):
        yield dict(row._mapping)
