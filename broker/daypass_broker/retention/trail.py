"""The oldest events of the audit trail: exported, then deleted, and what is left says so.

`audit.pruned` is written before anything is deleted: up to which number, in which file, with which
SHA-256, and the digest of the export before. So what is left of the trail names every file that its
beginning is in, one after the other, and `verify-export` compares them with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
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
    _finish(engine, directory)
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
    _finish(engine, directory)
    say(f"audit: deleted up to event {last}")
    return PrunedEvents(export.rows, last, export.file, export.sha256)


def newest(conn: sa.Connection) -> dict[str, str] | None:
    """Return file and digest of the newest `audit.pruned`, None if nothing was ever pruned.

    A broker may have written it, and anything in it.
    """
    detail = _detail(conn)
    return None if detail is None else {name: str(detail.get(name)) for name in ("file", "sha256")}


def pruned_upto(conn: sa.Connection) -> int:
    """Return up to which number events are gone, by the word of the newest `audit.pruned`; or 0."""
    upto = (_detail(conn) or {}).get("upto")
    return upto if type(upto) is int else 0


def _detail(conn: sa.Connection) -> dict[str, Any] | None:
    column = schema.audit.c
    query = sa.select(column.detail).where(column.tag == AuditTag.AUDIT_PRUNED.value)
    found = conn.execute(query.order_by(column.seq.desc()).limit(1)).scalar()
    if found is None:
        return None
    said: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        said = db.from_json(found)
    return said if isinstance(said, dict) else {}


def _finish(engine: sa.Engine, directory: Path) -> None:
    """Delete what was exported to the file that the newest `audit.pruned` names: a kill left it.

    As far as that export in the directory goes, and not by the word of an event, which a broker may
    have written: what is in no file here stays, and is exported.
    """
    with reading(engine) as conn:
        said = newest(conn)
    upto = None if said is None else _exported_upto(directory, said)
    if upto is not None:
        delete_in_batches(engine, schema.audit, schema.audit.c.seq <= upto)


def _exported_upto(directory: Path, said: Mapping[str, str]) -> int | None:
    """Return the last event of the export that an event names, None if it is not in a directory."""
    for one in exports.manifests(directory):
        named = one["kind"] == "audit" and all(one[name] == said[name] for name in said)
        if named and exports.is_there(directory, one["file"], one["sha256"]):
            return int(one["last"])
    return None


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
