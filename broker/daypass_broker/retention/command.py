"""`python -m daypass_broker prune`: everything of retention, in an order that is safe to leave."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import daypass_migrations
from daypass_broker import db, schema
from daypass_broker.retention import (
    Pruned,
    RetentionError,
    Say,
    exports,
    lock,
    rest,
    trail,
    usage,
    usage_postgres,
    usage_sqlite,
)
from daypass_broker.retention.batches import reading
from daypass_broker.retention.months import kept_from
from daypass_broker.retention.trail import PrunedEvents
from daypass_core import money
from daypass_core.clock import SystemClock


@dataclass(frozen=True, slots=True)
class Wish:
    """What to keep: so many months beside the present one, of each; None keeps all.

    `directory` is where the files go; None only where nothing is to be written.
    """

    usage_months: int | None
    audit_months: int | None
    directory: Path | None
    dry_run: bool = False


@dataclass(slots=True)
class Done:
    """What was pruned, or would be."""

    dry_run: bool
    usage: list[Pruned] = field(default_factory=list)
    audit: PrunedEvents = field(default_factory=PrunedEvents)
    incidents: int = 0
    sandboxes: int = 0
    revocations: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "dry_run": self.dry_run,
            "usage": [one.as_dict() for one in self.usage],
            "audit": self.audit.as_dict(),
            "incidents": self.incidents,
            "sandboxes": self.sandboxes,
            "revocations": self.revocations,
        }

    def lines(self) -> list[str]:
        """Return it in words, a line for each kind."""
        verb = "would prune" if self.dry_run else "pruned"
        said = [
            f"{verb} {one.calls} calls of {one.month.name}, {money.format_usd(one.cost_nano)} USD"
            if one.kept is None
            else f"kept {one.month.name}: {one.kept}"
            for one in self.usage
        ]
        counted = (
            (self.audit.events, "audit events"),
            (self.incidents, "incidents"),
            (self.sandboxes, "sandboxes that left nothing"),
            (self.revocations, "revocations that end nothing any more"),
        )
        said += [f"{verb} {count} {words}" for count, words in counted if count]
        return said or ["nothing to prune"]


def prune(engine: sa.Engine, wish: Wish, say: Say, *, now_ms: int | None = None) -> Done:
    """Prune as wished, at `now_ms` (epoch milliseconds) or the store's own time.

    Raises RetentionError, ValueError, StoreUnavailable and OSError.
    """
    _check_release(engine)
    with db.read(engine) as conn:
        now = db.now_ms(conn) if now_ms is None else now_ms
    usage_until = None if wish.usage_months is None else kept_from(now, wish.usage_months)
    audit_until = None if wish.audit_months is None else kept_from(now, wish.audit_months)
    if usage_until is None and audit_until is None:
        raise RetentionError("say what may go: --usage-months, --audit-months or both")
    if wish.dry_run:
        return _look(engine, usage_until, audit_until)
    if wish.directory is None or not wish.directory.is_dir():
        raise RetentionError("--export must name a directory: what is pruned is exported first")
    done = Done(dry_run=False)
    with lock.alone(engine, say):
        exports.sweep(wish.directory, SystemClock().now())
        if usage_until is not None:
            _usage(engine, usage_until, wish.directory, done, say)
        if audit_until is not None:
            done.audit = trail.prune(engine, audit_until, wish.directory, say)
            done.incidents = rest.prune_incidents(engine, audit_until)
        if usage_until is not None:
            done.sandboxes = rest.prune_sandboxes(engine, usage_until)
        done.revocations = rest.prune_revocations(engine)
    return done


def _check_release(engine: sa.Engine) -> None:
    """Raise RetentionError on a schema that is newer: it may have columns that are not exported."""
    with db.read(engine) as conn:
        revision = daypass_migrations.state(conn).revision
    if revision != daypass_migrations.HEAD:
        raise RetentionError(
            f"the database is at schema {revision}, this release was made for"
            f" {daypass_migrations.HEAD} and would not export all of it: prune with the newer one"
        )


def _usage(engine: sa.Engine, until: int, directory: Path, done: Done, say: Say) -> None:
    store = usage_postgres if engine.dialect.name == "postgresql" else usage_sqlite
    with reading(engine) as conn:
        months = usage.months_before(conn, until)
    for month in months:
        pruned = store.prune_month(engine, month, until, directory, say)
        if pruned.kept is not None:
            say(f"usage {month.name}: kept; {pruned.kept}")
        done.usage.append(pruned)


def _look(engine: sa.Engine, usage_until: int | None, audit_until: int | None) -> Done:
    done = Done(dry_run=True)
    if usage_until is not None:
        with reading(engine) as conn:
            for month in usage.months_before(conn, usage_until):
                kept = usage.reason_to_keep(conn, month, usage_until)
                calls, cost = usage.totals(conn, month)
                done.usage.append(Pruned(month, calls, cost, kept=kept))
        done.sandboxes = rest.sandboxes_due(engine, usage_until)
    if audit_until is not None:
        count, last = trail.due(engine, audit_until)
        done.audit = PrunedEvents(count, last)
        done.incidents = rest.incidents_due(engine, audit_until)
    return done


def verify(engine: sa.Engine | None, directory: Path) -> tuple[int, list[str]]:
    """Compare the exports of a directory with their manifests, and with what a database names.

    Return how many there are and what is wrong. Raises RetentionError, OSError, ValueError and
    StoreUnavailable.
    """
    if not directory.is_dir():
        raise RetentionError(f"{directory} is no directory")
    found = list(exports.manifests(directory))
    wrong = [words for one in found for words in exports.objections(directory, one)]
    if engine is not None:
        digests = {one["file"]: one["sha256"] for one in found}
        wrong += [
            f"{file}: {'is not here' if file not in digests else 'is not the file'} that the"
            " database names"
            for file, sha256 in _named(engine)
            if digests.get(file) != sha256
        ]
    previous: Any = None
    # Killed before its events went, an export is in the next one whole, which begins where it does.
    by_last = sorted((one for one in found if one["kind"] == "audit"), key=lambda one: one["last"])
    trails = {one["first"]: one for one in by_last}
    for one in trails.values():
        if previous is not None and one["previous"] not in (previous["sha256"], None):
            wrong.append(f"{one['file']}: does not follow {previous['file']}")
        previous = one
    return len(found), wrong


def _named(engine: sa.Engine) -> list[tuple[str, str]]:
    table = schema.usage_pruned
    query = sa.select(table.c.file, table.c.sha256).where(table.c.file.is_not(None))
    with db.read(engine) as conn:
        named = [(row.file, row.sha256) for row in conn.execute(query.order_by(table.c.month_at))]
        newest = trail.newest(conn)
    return named if newest is None else [*named, (newest["file"], newest["sha256"])]
